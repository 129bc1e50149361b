"""Jacobian spectra beside drawn networks: ``python -m benchmarks.spectra [--width 1000]``.

Prints by how many per cent the largest singular value, E s^4 and the worst of the 10 % to 99 %
quantiles of s of drawn networks lie from the law for the slopes of the draw, means over draws
(the quantiles from the limiting law). ``--only tanh`` for some rows. About half an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import kcalc as kc

L = kc.layers
LEVELS = np.array([0.1, 0.25, 0.5, 0.75, 0.9, 0.99])


def networks(depths: list[int]) -> Iterator[tuple[str, kc.Network, float]]:
    """(name, network, q) of critical chains and of residual streams."""
    for phi, q in (("tanh", 0.25), ("relu", 1.0), ("hard_tanh", 0.25), ("erf", 0.25)):
        if phi == "relu":
            weights: dict[str, Any] = {"sigma_w": 2**0.5}
        else:
            edge = kc.critical_point(phi, "edge", q=q)
            weights = {"sigma_w": edge.sigma_w, "sigma_b": edge.sigma_b}
            # the q value of the input that the first layer turns into q
            q = (q - edge.sigma_b**2) / edge.sigma_w**2
        block = [L.Affine(**weights), L.Nonlinear(phi)]
        branch = kc.chain(L.Affine(**weights), L.Nonlinear(phi), L.Affine())
        for depth in depths:
            yield f"{phi}, {depth} layers", kc.chain(L.Input(), *depth * block), q
            stream = depth // 2 * [kc.residual(branch, residual_weight=0.6)]
            yield f"{phi}, stream of {depth // 2} blocks", kc.chain(L.Input(), *stream), q


def quantiles(law: Any) -> np.ndarray | None:
    """s at the levels, for a law without atoms; None if the density is not resolved.

    Shares are integrated from the top, because the density may be infinite at 0.
    """
    grid = np.geomspace(1e-4, 1, 600) * law.largest()
    try:
        density = 2 * grid * law.density(grid**2)
    except kc.KcalcError:
        return None
    steps = np.diff(grid) * (density[1:] + density[:-1]) / 2
    below = 1 - np.append(np.cumsum(steps[::-1])[::-1], 0)
    found = np.exp(np.interp(LEVELS, below, np.log(grid)))
    return np.where(below[0] < LEVELS, found, np.nan)  # nan: below the grid


def row(name: str, law: Any, width: int, draws: int) -> str:
    found = law.measure(width=width, draws=draws, seed=0)
    largest = float(np.mean(found.largest / found.expected_largest)) - 1
    second = float(np.mean(found.moments[:, 1] / found.expected_moments[:, 1])) - 1
    off = "-"
    if not law.atoms and (expected := quantiles(law)) is not None:
        drawn = np.quantile(found.singular_values.ravel(), LEVELS)
        off = f"{100 * np.nanmax(np.abs(drawn / expected - 1)):.1f}"
    return f"| {name} | {100 * largest:+.1f} | {100 * second:+.1f} | {off} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spectra", description=__doc__)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 16, 32])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print("| network | largest s, % | E s^4, % | quantiles of s, % |\n|---|---|---|---|")
    for name, network, q in networks(options.depths):
        for weights in ("gaussian", "orthogonal"):
            if options.only in name:
                law = kc.jacobian_spectrum(network, q=q, weights=weights)
                told = f"{name}, {weights}"
                print(row(told, law, options.width, options.draws), flush=True)


if __name__ == "__main__":
    main()
