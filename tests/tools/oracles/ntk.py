"""Frozen truth for tangent kernels.

Neural-tangents where it is right (ntk_peer.py), and chains of layers in 60 digits without kcalc.

A chain is ``depth`` times (Affine, activation) and a readout Affine, all with the same sigma_w and
sigma_b, read at q = 1. Its numbers are the doubles written below, and the truth is that of exactly
those doubles and of exactly the double angles. The recursion runs on covariances, in so many digits
that 60 are left of 1 - C however small it is. Rectifiers and erf have closed forms; tanh goes
through its Hermite coefficients at the very q of every layer, from a trapezoid rule that is
repeated at a finer step.

chains[name] = {activation, sigma_w, sigma_b, depth, gap: 1 - C, nngp, ntk: [per angle], layers:
{number of the Affine: [per angle]}, condition: {gap, ntk: [per angle] |d log / d log angle| + |d
log / d log scale|}}, numbers as text of 25 digits.

Run ``python tests/tools/oracles/ntk.py --peer PYTHON`` (minutes; gmpy2 helps), PYTHON being that of
ntk_peer.py.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from mpmath import mp

FILE = Path(__file__).parents[2] / "oracles" / "ntk.json.gz"
ANGLES = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 2.0, 3.0]
DEPTHS = (1, 3, 10, 100, 1000)
DIGITS, STEP = 60, 1e-30
# sqrt(pi sqrt 5 / 4), and the bias that goes with it: Q(1) = 1 and C'(1) = 1 for erf
CRITICAL = 1.3252183528612111
CRITICAL_BIAS = 0.4291149936875345
ROOT2 = 1.4142135623730951
DKS_TANH = {  # depth: (input scale, input shift, output scale, output shift) for zeta = 1.5
    1: (1.2832391641377452, 1.5783577657903816, 2.1287961441934, -0.6894834768325713),
    3: (0.5905338156978768, 0.8791484713347919, 3.0172046460450126, -0.6049559189295475),
    10: (0.2966500994143751, 0.6528036092514757, 4.964600158156135, -0.5424961623045814),
    100: (0.09043794541045294, 0.5601066910286275, 14.902525729577997, -0.5050043767787916),
    1000: (0.028489099046014283, 0.5503923140592981, 46.8523684322421, -0.5005099676470579),
}
Number = Any
Local = Callable[[Number, Number], tuple[Number, Number, Number]]
"""(k, k12) -> (E phi(u)^2, E phi(u) phi(v), E phi'(u) phi'(v)) for centred u, v of variance k and covariance k12."""


@dataclass(frozen=True)
class Chain:
    """What is computed: see above. ``numbers`` belong to the activation."""

    activation: str
    numbers: tuple[Any, ...]
    depth: int
    sigma_w: Any
    sigma_b: Any

    def affine(self, k: Number) -> Number:
        return mp.mpf(self.sigma_w) ** 2 * k + mp.mpf(self.sigma_b) ** 2


def chains() -> Iterator[tuple[str, Chain]]:
    """Every chain, by name."""
    families: dict[str, tuple[str, tuple[Any, ...], float, float]] = {
        "relu": ("leaky_relu", (0.0,), ROOT2, 0.0),
        "relu with bias": ("leaky_relu", (0.0,), ROOT2, 0.1),
        "leaky": ("leaky_relu", (0.2,), 1.3867504905630728, 0.0),  # sqrt(2 / (1 + .2^2))
        "nearly linear": ("leaky_relu", (0.9,), 1.0511766624552734, 0.0),
        "erf, critical": ("erf", (), CRITICAL, CRITICAL_BIAS),
        "erf, ordered": ("erf", (), 1.0, 0.5),
        "erf, chaotic": ("erf", (), 1.5, 0.0),
    }
    for depth in DEPTHS:
        for name, (activation, numbers, w, b) in families.items():
            yield f"{name}, {depth}", Chain(activation, numbers, depth, w, b)
        yield f"tanh-DKS, {depth}", Chain("tanh", DKS_TANH[depth], depth, 1.0, 0.0)


# --- one layer ------------------------------------------------------------------------------------


def leaky(slope: float) -> Local:
    """Cho and Saul's arc-cosine kernel of order one, for x < 0 multiplied by ``slope``."""
    a = mp.mpf(slope)
    even, kink = (1 + a * a) / 2, (1 - a) ** 2 / (2 * mp.pi)

    def local(k: Number, k12: Number) -> tuple[Number, Number, Number]:
        t = mp.acos(k12 / k)
        return (
            even * k,
            even * k12 + kink * (mp.sqrt((k - k12) * (k + k12)) - t * k12),
            even - kink * t,
        )

    return local


def erf(k: Number, k12: Number) -> tuple[Number, Number, Number]:
    """Williams' kernel."""
    w = 1 + 2 * k
    return (
        2 / mp.pi * mp.asin(2 * k / w),
        2 / mp.pi * mp.asin(2 * k12 / w),
        4 / mp.pi / mp.sqrt((w - 2 * k12) * (w + 2 * k12)),
    )


@cache
def trapezoid(step: int, digits: int) -> tuple[list[Number], np.ndarray, np.ndarray]:
    """Nodes, and exp(-z^2 / 4) and normal density over that over ``step`` as fixed-point integers
    of ``mp.prec`` bits.

    What is integrated falls as exp(-z^2 / 4): the normal density times a polynomial h_n is that
    times a Hermite function, which is bounded.
    """
    edge = int(mp.sqrt(4 * mp.log(10) * digits)) + 1
    nodes = [mp.mpf(i) / step for i in range(-edge * step, edge * step + 1)]
    damped = [mp.exp(-z * z / 4) for z in nodes]
    return (
        nodes,
        np.array(list(map(fixed, damped))),
        np.array([fixed(d / (step * mp.sqrt(2 * mp.pi))) for d in damped]),
    )


def fixed(value: Number) -> int:
    return int(mp.ldexp(value, mp.prec))


def hermite(function: Callable[[Number], Number], step: int, digits: int) -> list[Number]:
    """The squares of E f(z) h_n(z), h_n the normalised Hermite polynomials, until the sum of all
    others is below 10^-digits.
    """
    bits = mp.prec
    nodes, now, weights = trapezoid(step, digits)
    values = np.array([fixed(function(z)) for z in nodes]) * weights >> bits
    index, before = np.array([int(mp.nint(z * step)) for z in nodes], dtype=object), 0 * now
    out, small, tiny = [], 0, mp.mpf(10) ** -(digits + 6)
    while small < 8:
        a = mp.ldexp(mp.mpf(int(values @ now)), -2 * bits)
        out.append(a * a)
        small = small + 1 if len(out) * a * a < tiny else 0
        n = len(out)
        r, s = fixed(1 / (step * mp.sqrt(n))), fixed(mp.sqrt(mp.mpf(n - 1) / n))
        before, now = now, (index * now * r - before * s) >> bits
    return out


def tanh(scale: float, shift: float, gain: float, offset: float) -> Local:
    """gain (tanh(scale x + shift) + offset) by Mehler's formula: E f(u) f(v) = sum of a_n^2 c^n."""
    numbers = tuple(map(mp.mpf, (scale, shift, gain, offset)))
    step = 40 if scale > 1 else 20 if scale > 0.5 else 8
    known: dict[Number, list[Number]] = {}

    def squares(k: Number, step: int) -> list[Number]:
        a, b, g, d = numbers
        root = mp.sqrt(k)
        return hermite(lambda z: g * (mp.tanh(a * root * z + b) + d), step, DIGITS + 5)

    def coefficients(k: Number) -> list[Number]:
        if k not in known:
            first = not known
            known[k] = squares(k, step)
            if first:
                finer = squares(k, step * 3 // 2)
                worst = max(abs(x - y) for x, y in zip(known[k], finer, strict=False))
                assert worst < mp.mpf(10) ** -DIGITS, mp.nstr(worst, 5)
        return known[k]

    def local(k: Number, k12: Number) -> tuple[Number, Number, Number]:
        row, c = coefficients(k), k12 / k
        powers = [mp.one]
        for _ in row[1:]:
            powers.append(powers[-1] * c)
        slopes = [n * a for n, a in enumerate(row)][1:]
        return sum(row), mp.fdot(row, powers), mp.fdot(slopes, powers[:-1]) / k

    return local


def local_of(chain: Chain) -> Local:
    if chain.activation == "erf":
        return erf
    return leaky(*chain.numbers) if chain.activation == "leaky_relu" else tanh(*chain.numbers)


# --- the whole chain ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """1 - C, NNGP and Theta of every Affine, first to last, for one angle."""

    gap: Number
    nngp: Number
    parts: list[Number]

    @property
    def ntk(self) -> Number:
        return mp.fsum(self.parts)


def evaluate(chain: Chain, local: Local, angle: Number) -> Values:
    """Theta_i = (kernel of what Affine i emits) times all later sigma_w^2 E phi' phi'."""
    k, k12 = mp.one, mp.cos(angle)
    kernels, slopes = [], []
    for i in range(chain.depth + 1):
        k, k12 = chain.affine(k), chain.affine(k12)
        kernels.append(k12)
        if i < chain.depth:
            k, k12, slope = local(k, k12)
            slopes.append(mp.mpf(chain.sigma_w) ** 2 * slope)
    parts, factor = [kernels[-1]], mp.one
    for kernel, slope in zip(kernels[-2::-1], slopes[::-1], strict=True):
        factor *= slope
        parts.append(kernel * factor)
    return Values((k - k12) / k, k12, parts[::-1])


def scaled(chain: Chain, factor: Number) -> Chain:
    """All weights, or for tanh the output scale, times a factor."""
    if chain.activation == "tanh":
        a, b, g, d = chain.numbers
        return replace(chain, numbers=(a, b, mp.mpf(g) * factor, d))
    return replace(chain, sigma_w=mp.mpf(chain.sigma_w) * factor)


def record(chain: Chain) -> dict[str, Any]:
    mp.dps = DIGITS + 25
    while True:  # until 1 - C has its digits
        local = local_of(chain)
        found = [evaluate(chain, local, mp.mpf(angle)) for angle in ANGLES]
        if all(v.gap > mp.mpf(10) ** (DIGITS - mp.dps) for v in found):
            break
        mp.dps += 100
    h = mp.mpf(STEP)
    turned = [evaluate(chain, local, mp.mpf(angle) * (1 + h)) for angle in ANGLES]
    other = scaled(chain, 1 + h)
    grown = [evaluate(other, local_of(other), mp.mpf(angle)) for angle in ANGLES]

    def condition(get: Callable[[Values], Number]) -> list[float]:
        rows = zip(found, turned, grown, strict=True)
        return [
            float(sum(abs(mp.log(get(w) / get(v)) / mp.log1p(h)) for w in (a, b)))
            for v, a, b in rows
        ]

    chosen = sorted({0, 1, chain.depth // 2, chain.depth - 1, chain.depth})
    return {
        "activation": [chain.activation, *chain.numbers],
        "depth": chain.depth,
        "sigma_w": chain.sigma_w,
        "sigma_b": chain.sigma_b,
        "gap": [text(v.gap) for v in found],
        "nngp": [text(v.nngp) for v in found],
        "ntk": [text(v.ntk) for v in found],
        "layers": {i + 1: [text(v.parts[i]) for v in found] for i in chosen},
        "condition": {"gap": condition(lambda v: v.gap), "ntk": condition(lambda v: v.ntk)},
    }


def text(value: Number) -> str:
    return str(mp.nstr(value, 25, min_fixed=1, max_fixed=0))


def near_truth(peer: dict[str, Any]) -> dict[str, Any]:
    """The near duplicates of ntk_peer.py in many digits: where neural-tangents is not right."""
    mp.dps = DIGITS + 25
    out = {}
    for name, chain in {
        "relu": Chain("leaky_relu", (0.0,), 10, ROOT2, 0.0),
        "erf": Chain("erf", (), 10, 1.5, 0.0),
    }.items():
        values = [evaluate(chain, local_of(chain), mp.mpf(angle)) for angle in peer["angles"]]
        out[name] = {
            "nngp": [text(v.nngp) for v in values],
            "ntk": [text(v.ntk) for v in values],
            "peer": peer["near"][name],
        }
    return {"angles": peer["angles"], **out}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--peer", required=True, help="the Python of an environment with neural-tangents 0.6.5"
    )
    chosen = options.parse_args()
    script = str(Path(__file__).with_name("ntk_peer.py"))
    peer = json.loads(
        subprocess.run([chosen.peer, script], check=True, capture_output=True, text=True).stdout
    )
    records = {}
    for name, chain in chains():
        records[name] = record(chain)
        print(name, mp.dps, records[name]["ntk"][0], file=sys.stderr, flush=True)
    frozen = {
        "versions": {"mpmath": mpmath.__version__, "python": platform.python_version()}
        | {"peer": peer["versions"]},
        "angles": ANGLES,
        "chains": records,
        "peer": {"first": peer["first"], "second": peer["second"], "networks": peer["networks"]},
        "near": near_truth(peer),
    }
    FILE.write_bytes(gzip.compress(json.dumps(frozen, separators=(",", ":")).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
