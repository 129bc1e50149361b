"""Jacobian spectra of random networks compared with the law: ``python -m benchmarks.spectra
[--width 1000]``.

Prints the deviations, in per cent, of the largest singular value, of E s^4 and of the worst of the
10 % to 99 % quantiles of s from the law for the slopes of the draw, averaged over draws. Quantile
levels inside an atom are omitted, and so are levels that double precision does not resolve.
``--only tanh`` selects rows. Takes about an hour at width 1000.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

import kcalc as kc
from kcalc.spectra.chain import atoms, chain_of

L = kc.layers
RESOLVED = 1e-11  # s divided by the largest s; smaller singular values are noise
STEP, NEAR = 0.1, 0.01  # of v; distance in shares from an atom within which levels are left out
LEVELS = np.array([0.1, 0.25, 0.5, 0.75, 0.9, 0.99])


def networks(depths: list[int]) -> Iterator[tuple[str, kc.Network, float]]:
    """(name, network, q) for critical chains and for residual streams."""
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


def quantiles(law: Any, levels: np.ndarray) -> np.ndarray:
    """The quantiles of s at the given ``levels``; nan inside an atom.

    ``law`` is the law of a draw, with a known largest s. Shares are integrated from there by
    Gaussian quadrature with s = s_max exp(-v^2), which is smooth at the edge and reaches very small
    s.
    """
    atoms = [(x, mass) for x, mass in positive_atoms(law) if mass > 1e-6]
    end, shares, below = [0.0], [0.0], 1 - law.zero_mass - sum(mass for _, mass in atoms)
    top, (x, w) = math.sqrt(law.top.z), np.polynomial.legendre.leggauss(4)
    while shares[-1] < below - levels.min() + 0.02 and end[-1] < math.sqrt(-math.log(RESOLVED)):
        v = end[-1] + STEP / 2 * (x + 1)
        s = top * np.exp(-(v**2))
        shares.append(shares[-1] + STEP / 2 * float(w @ (4 * v * s**2 * law.density(s**2))))
        end.append(end[-1] + STEP)
    some = np.append(True, np.diff(shares) > 0)  # none next to an atom at the edge
    place = PchipInterpolator(np.array(shares)[some], np.array(end)[some])
    found = []
    for level in levels:
        above, inside = 1 - level, False
        for position, mass in sorted(atoms, reverse=True):
            v = math.sqrt(max(0.0, -math.log(math.sqrt(position) / top)))
            before = float(np.interp(v, end, shares))
            inside |= before - NEAR < above < before + mass + NEAR
            above -= mass if above > before + mass else 0.0
        known = not inside and above < shares[-1]
        found.append(top * math.exp(-(float(place(above)) ** 2)) if known else math.nan)
    return np.array(found)


def positive_atoms(law: Any) -> list[tuple[float, float]]:
    """(s^2, mass) for the atoms of a chain; the networks with sums used here have none."""
    links = chain_of(law.network, law.slopes)
    return [] if links is None else list(atoms(*links).items())


def row(name: str, law: Any, width: int, draws: int) -> str:
    found = law.measure(width=width, draws=draws, seed=0)
    largest = float(np.mean(found.largest / found.expected_largest)) - 1
    second = float(np.mean(found.moments[:, 1] / found.expected_moments[:, 1])) - 1
    off = []
    for s, own in zip(found.singular_values, found.laws, strict=True):
        drawn = np.quantile(s, LEVELS)
        expected = np.where(drawn > RESOLVED * s[0], quantiles(own, LEVELS), np.nan)
        off.append(drawn / expected - 1)
    some = ~np.all(np.isnan(off), axis=0)
    worst = "-"
    if np.any(some):
        means = np.nanmean(np.array(off)[:, some], axis=0)
        worst = f"{100 * means[np.argmax(np.abs(means))]:+.1f}"
    return f"| {name} | {100 * largest:+.1f} | {100 * second:+.1f} | {worst} |"


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
