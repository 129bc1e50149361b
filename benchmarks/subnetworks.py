"""Time and memory of the analysis of subnetworks against the size of the network: ``python benchmarks/subnetworks.py``.

Sizes alternate in rounds, so that a slow moment of the machine does not fall on one of them alone; the best round counts.
"""

from __future__ import annotations

import argparse
import gc
import math
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kcalc as kc
from kcalc.layers import Affine, Concat, Input, Nonlinear, Sum

SIZES = (1_000, 10_000, 100_000)
FIGURES = {  # (network, step): seconds, or an exponent
    ("resnet-152", "analysis and pieces"): 0.010,
    ("chain 100000", "analysis"): 2.0,
    ("chain 100000", "mu(psi)"): 0.1,
    ("chain 100000", "inverse"): 1.0,
    ("dense 1000", "analysis"): 2.0,
}
MOST_MEMORY = 1.5  # GB
MOST_EXPONENT = 1.15


def chain(size: int) -> kc.Network:
    """``size`` combined layers in a row."""
    affine, phi = Affine(), Nonlinear(kc.activation("relu"))
    steps: list[Any] = [("x", Input(), ())]
    for i in range(size):
        steps += [(2 * i, affine, (steps[-1][0],)), (2 * i + 1, phi, (2 * i,))]
    return kc.Network.from_steps(steps)


def residual(size: int) -> kc.Network:
    """``size`` nonlinear layers, two to a block, every block with a weight of its own."""
    affine, phi = Affine(), Nonlinear(kc.activation("relu"))
    steps: list[Any] = [("x", Input(), ()), ("stem", affine, ("x",))]
    for i in range(size // 2):
        entry, share = steps[-1][0], 0.25 + 0.5 * (i * 0.6180339887498949 % 1)
        for k, layer in enumerate((phi, affine, phi, affine)):
            steps.append((4 * i + k, layer, (steps[-1][0],)))
        steps.append((f"s{i}", Sum((math.sqrt(share), math.sqrt(1 - share))), (entry, 4 * i + 3)))
    return kc.Network.from_steps(steps)


def dense(size: int) -> kc.Network:
    """Every layer reads the concatenation of all earlier ones: ``size^2 / 2`` edges."""
    affine, phi = Affine(), Nonlinear(kc.activation("relu"))
    steps: list[Any] = [("x", Input(), ())]
    maps: list[Any] = ["x"]
    for i in range(size):
        steps += [(("c", i), Concat(), tuple(maps)), (("a", i), affine, (("c", i),)), (i, phi, (("a", i),))]
        maps.append(i)
    return kc.Network.from_steps(steps)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result, with the garbage collector off, as timeit has it: its passes over all that is alive are no part of the work."""
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    try:
        result = work()
        return time.perf_counter() - start, result
    finally:
        gc.enable()


def steps_of(net: kc.Network) -> dict[str, float]:
    """Seconds of every step on one network."""
    found: dict[str, float] = {}
    found["analysis"], _ = timed(lambda: kc.subnetworks(net))
    found["mu"], mu = timed(lambda: kc.maximal_slope(net))
    mu(1.0)
    found["mu(psi)"], _ = timed(lambda: mu(1.0001))
    found["inverse"], _ = timed(lambda: mu.inverse(1.5))
    found["forward"], forward = timed(lambda: mu.forward)
    forward(1.0)
    found["forward(psi)"], _ = timed(lambda: forward(1.0001))
    found["forward inverse"], _ = timed(lambda: forward.inverse(1.5))
    found["any r"], general = timed(lambda: kc.maximal(net, lambda x: x + 0.5 * (1 - x) ** 2))
    found["any r(x)"], _ = timed(lambda: general(0.1))
    return found


def measured(networks: dict[str, kc.Network], rounds: int) -> dict[str, dict[str, float]]:
    """The best of alternating rounds."""
    best: dict[str, dict[str, float]] = {name: {} for name in networks}
    for _ in range(rounds):
        for name, net in networks.items():
            for step, seconds in steps_of(net).items():
                best[name][step] = min(seconds, best[name].get(step, math.inf))
    return best


def memory() -> float:
    """The peak memory of this process in GB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


def report(found: dict[str, dict[str, float]]) -> list[str]:
    """Print a table; return the figures that are missed."""
    missed: list[str] = []
    names = list(dict.fromkeys(step for row in found.values() for step in row))
    print(f"{'milliseconds':<18}" + "".join(f"{name:>17}" for name in names))
    for network, row in found.items():
        print(f"{network:<18}" + "".join(f"{1e3 * row[name]:>17.3f}" if name in row else " " * 17 for name in names))
        for step, seconds in row.items():
            if seconds > FIGURES.get((network, step), math.inf):
                missed.append(f"{network}, {step}: {seconds:.3g} s, figure {FIGURES[network, step]:g} s")
    return missed


def exponents(found: dict[str, dict[str, float]], family: str) -> list[str]:
    """Print the fitted exponents of a family in the size; return those that are missed."""
    rows = [found[f"{family} {size}"] for size in SIZES]
    fitted = {step: np.polyfit(np.log(SIZES), np.log([row[step] for row in rows]), 1)[0] for step in rows[0]}
    print(f"{family + ' exponents':<18}" + "".join(f"{value:>17.2f}" for value in fitted.values()))
    return [f"{family}, exponent of {step}: {fitted[step]:.2f}" for step in fitted if fitted[step] > MOST_EXPONENT]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds, of which the best counts")
    rounds = parser.parse_args().rounds
    resnet = kc.architectures.resnet_v2(152)
    whole = min(timed(lambda: (kc.subnetworks(resnet), kc.maximal_slope(resnet).pieces))[0] for _ in range(5 * rounds))
    missed = report({"resnet-152": {"analysis and pieces": whole}})
    for family, build in (("chain", chain), ("residual", residual)):
        networks: dict[str, kc.Network] = {}
        for size in SIZES:
            seconds, networks[f"{family} {size}"] = timed(lambda build=build, size=size: build(size))
            print(f"{family} {size}: {len(networks[f'{family} {size}'])} nodes, built in {seconds:.2f} s")
        found = measured(networks, rounds)
        missed += report(found) + exponents(found, family)
    seconds, network = timed(lambda: dense(1000))
    print(f"dense 1000: {network!r}, built in {seconds:.2f} s")
    missed += report(measured({"dense 1000": network}, rounds))
    print(f"peak memory {memory():.2f} GB")
    if memory() > MOST_MEMORY:
        missed.append(f"peak memory {memory():.2f} GB, figure {MOST_MEMORY} GB")
    print("all figures met" if not missed else "missed: " + "; ".join(missed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
