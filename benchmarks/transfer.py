"""Transfer: ``python -m benchmarks.transfer [--only tables changes digits] [--quick]``.

Prints three results: the tables of exponents that tests compare with publications; the power of the
width with which ten training steps change feature maps; and the shift of the best learning rate on
scikit-learn's digits from width 64 to 1024. They take 5, 120 and 150 s on one core.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import kcalc as kc
from kcalc.lab.transfer.optimizers import GAUGES, OPTIMIZERS

L = kc.layers
NAMES = ("tables", "changes", "digits")
COORDINATES = {"sgd": 0.5, "adamw": 3e-3, "muon": 3e-3, "muon-match-rms": 3e-3}
# optimiser -> (log2 of the smallest rate, number of rates, loss level for the crossing)
SWEEPS = {"adamw": (-14, 10, 0.3), "sgd": (-7, 9, 2.0)}


def tables(quick: bool) -> None:
    """Exponents of a perceptron in all gauges, and of a residual network."""
    relu = L.Nonlinear("relu")
    net = kc.chain(L.Input(16), L.Affine(), relu, L.Affine(), relu, L.Affine(10))
    branch = kc.chain(L.LayerNorm(), L.Affine(), relu, L.Affine())
    deep = kc.chain(L.Input(16), L.Affine(), kc.repeat(kc.residual(branch), 2), L.Affine(10))
    for optimizer in OPTIMIZERS:
        for gauge in GAUGES:
            print(f"gauge {gauge}:")
            print(kc.transfer(net, optimizer=optimizer, gauge=gauge), end="\n\n")
        print(kc.transfer(deep, optimizer=optimizer, gauge="mup"), end="\n\n")


def perceptron(width: int) -> Any:
    """Four layers, two of which are hidden matrices."""
    from torch import nn

    relu = nn.ReLU()
    hidden = (nn.Linear(width, width), relu, nn.Linear(width, width), relu)
    return nn.Sequential(nn.Linear(64, width), relu, *hidden, nn.Linear(width, 10))


def digits() -> tuple[Any, Any]:
    """Images with mean 0 and variance about 1 per pixel, and their labels."""
    import torch
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = (data.data - data.data.mean(0)) / (data.data.std(0) + 1)
    return torch.tensor(pixels, dtype=torch.float32), torch.tensor(data.target)


def changes(quick: bool) -> None:
    """Coordinate checks on one batch of digits."""
    x, y = digits()
    widths = (64, 128) if quick else (256, 512, 1024)
    for optimizer, rate in COORDINATES.items():
        for standard in (False, True):
            found = kc.trained_coordinates(
                perceptron, x[:64], y[:64], rate, widths, optimizer, standard=standard
            )
            print(f"{optimizer}, {'standard parametrisation' if standard else 'by the rules'}:")
            print(found, end="\n\n", flush=True)


def sweeps(quick: bool) -> None:
    """Best learning rates on digits."""
    x, y = digits()
    widths = (32, 64) if quick else (64, 256, 1024)
    for optimizer, (least, count, level) in SWEEPS.items():
        for standard in (False, True):
            found = kc.transfer_check(
                perceptron,
                x,
                y,
                2.0 ** np.arange(least, least + count),
                widths,
                optimizer,
                steps=10 if quick else STEPS,
                seeds=1 if quick else 3,
                standard=standard,
            )
            print(f"{optimizer}, {'standard parametrisation' if standard else 'by the rules'}:")
            print(found)
            print(found_shifts(found, level), end="\n\n", flush=True)


def found_shifts(found: kc.TransferCheck, level: float) -> str:
    """Both shifts as text."""
    text = f"best rate: {found.shift:+.2f} octaves"
    try:
        return (
            f"{text}; rate at which the loss crosses {level:g}: {found.crossing_shift(level):+.2f}"
        )
    except kc.KcalcError as error:
        return f"{text}; {error}"


STEPS = 60


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args()
    for name, run in zip(NAMES, (tables, changes, sweeps), strict=True):
        if name in options.only:
            run(options.quick)


if __name__ == "__main__":
    main()
