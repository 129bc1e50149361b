"""Frozen truth for local kernel quantities, by a route that shares nothing with kcalc.

Functions are written out by hand over Arb numbers; Gamma(c) = E[phi(u) phi(v)] is a nested
Gauss-Legendre rule in (x, w) against the bivariate normal density, split at kinks and graded around
their images; Gamma' and Gamma'' integrate phi phi against the density's own derivatives (Plackett:
d/dc N2 = d^2/dx dw N2), so no derivative of phi and no corner term enters. 1 - C is E(phi(u) -
phi(v))^2/(2 Q).

Run ``python tests/tools/oracles/activations.py [name ...]`` to write activations.json (minutes).
"""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import flint
from flint import arb, ctx

ctx.prec = 128
FILE = Path(__file__).parents[2] / "oracles" / "activations.json"
REACH = 10.0
STEEP = ("relu3", "relu4", "relu5", "hermite3", "hermite4", "hard_shrink")


@dataclass(frozen=True)
class Truth:
    pieces: tuple[Callable[[Any], Any], ...]
    kinks: tuple[float, ...] = ()


def one(x: Any) -> Any:
    return arb(1) + 0 * x


def sigmoid(x: Any) -> Any:
    return 1 / (1 + (-x).exp())


def leaky(a: Any) -> Truth:
    return Truth((lambda x: a * x, lambda x: x), (0.0,))


def elu(a: Any, s: Any) -> Truth:
    return Truth((lambda x: s * a * (x.exp() - 1), lambda x: s * x), (0.0,))


ROOT_TWO = arb(2).sqrt()
SELU = (arb("1.6732632423543772848170429916717"), arb("1.0507009873554804934193349852946"))

FUNCTIONS: dict[str, Truth] = {
    "identity": Truth((lambda x: x,)),
    "relu": leaky(arb(0)),
    "leaky_relu": leaky(arb(1) / 100),
    "abs": leaky(arb(-1)),
    "abrelu": Truth((lambda x: -x / 2, lambda x: 3 * x / 2), (0.0,)),
    "relu2": Truth((lambda x: 0 * x, lambda x: x * x), (0.0,)),
    "relu3": Truth((lambda x: 0 * x, lambda x: x * x * x), (0.0,)),
    "relu4": Truth((lambda x: 0 * x, lambda x: (x * x) * (x * x)), (0.0,)),
    "relu5": Truth((lambda x: 0 * x, lambda x: (x * x) * (x * x) * x), (0.0,)),
    "hard_shrink": Truth((lambda x: x, lambda x: 0 * x, lambda x: x), (-0.5, 0.5)),
    "sign": Truth((lambda x: -one(x), one), (0.0,)),
    "heaviside": Truth((lambda x: 0 * x, one), (0.0,)),
    "hard_tanh": Truth((lambda x: -one(x), lambda x: x, one), (-1.0, 1.0)),
    "relu6": Truth((lambda x: 0 * x, lambda x: x, lambda x: 6 * one(x)), (0.0, 6.0)),
    "hard_sigmoid": Truth((lambda x: 0 * x, lambda x: x / 6 + arb(1) / 2, one), (-3.0, 3.0)),
    "hard_swish": Truth((lambda x: 0 * x, lambda x: x * (x + 3) / 6, lambda x: x), (-3.0, 3.0)),
    "erf": Truth((lambda x: x.erf(),)),
    "probit": Truth((lambda x: (1 + (x / ROOT_TWO).erf()) / 2,)),
    "tanh": Truth((lambda x: x.tanh(),)),
    "sigmoid": Truth((sigmoid,)),
    "softsign": Truth((lambda x: x / (1 - x), lambda x: x / (1 + x)), (0.0,)),
    "atan": Truth((lambda x: x.atan(),)),
    "softplus": Truth((lambda x: (1 + x.exp()).log(),)),
    "swish": Truth((lambda x: x * sigmoid(x),)),
    "gelu": Truth((lambda x: x * (1 + (x / ROOT_TWO).erf()) / 2,)),
    "gelu_tanh": Truth(
        (
            lambda x: (
                x * (1 + ((2 / arb.pi()).sqrt() * (x + arb("0.044715") * x * x * x)).tanh()) / 2
            ),
        )
    ),
    "mish": Truth((lambda x: x * (1 + x.exp()).log().tanh(),)),
    "elu": elu(arb(1), arb(1)),
    "selu": elu(*SELU),
    "celu": elu(arb(1), arb(1)),
    "asinh": Truth((lambda x: x.asinh(),)),
    "bentid": Truth((lambda x: ((x * x + 1).sqrt() - 1) / 2 + x,)),
    "squareplus": Truth((lambda x: (x + (x * x + 4).sqrt()) / 2,)),
    "logcosh": Truth((lambda x: x.cosh().log(),)),
    "sin": Truth((lambda x: x.sin(),)),
    "cos": Truth((lambda x: x.cos(),)),
    "rbf": Truth((lambda x: x.sin() + x.cos(),)),
    "exp": Truth((lambda x: x.exp(),)),
    "gaussian": Truth((lambda x: (-x * x).exp(),)),
    "gabor": Truth((lambda x: (-x * x / 2).exp() * (2 * x).cos(),)),
    "snake": Truth((lambda x: x + x.sin() * x.sin(),)),
    "square": Truth((lambda x: x * x,)),
    "cube": Truth((lambda x: x * x * x,)),
    "hermite2": Truth((lambda x: x * x - 1,)),
    "hermite3": Truth((lambda x: x * (x * x - 3),)),
    "hermite4": Truth((lambda x: x * x * (x * x - 6) + 3,)),
}


@lru_cache(maxsize=4)
def legendre(n: int) -> list[tuple[Any, Any]]:
    pairs = [arb.legendre_p_root(n, k, weight=True) for k in range(n)]
    return [(arb(x.mid()), arb(w.mid())) for x, w in pairs]


def axis(q: float, low: float, high: float, extra: list[float]) -> list[float]:
    """Edges in the standard normal's units.

    About 1 in pre-activation units near 0, growing with |x|, never above 1 in z.
    """
    root, edges, x = math.sqrt(q), [0.0], 0.0
    while x < 40 * root:
        x += min(max(1.0, 0.5 * x), root)
        edges += [x / root, -x / root]
    inner = sorted({e for e in [*edges, *extra] if low < e < high})
    return [low, *inner, high]


def nodes(edges: list[float], n: int = 24) -> list[tuple[Any, Any]]:
    out = []
    for a, b in pairwise(edges):
        if b - a > 1e-30:
            middle, half = (arb(a) + arb(b)) / 2, (arb(b) - arb(a)) / 2
            out += [(middle + half * x, half * w) for x, w in legendre(n)]
    return out


def reach(name: str, q: float) -> float:
    """Where exp(-z^2/2) phi^2 stops mattering.

    Further out for the exponential, the highest powers and what vanishes at 0.
    """
    return REACH + (2 * math.sqrt(q) if name == "exp" else 4 if name in STEEP else 0)


def apply(truth: Truth, x: Any) -> Any:
    return truth.pieces[sum(1 for k in truth.kinks if x > k)](x)


def density(x: Any) -> Any:
    return (-x * x / 2).exp() / (2 * arb.pi()).sqrt()


def one_dimensional(name: str, q: float) -> dict[str, str]:
    """E phi, E phi^2 and dQ/dq = E[phi^2 (z^2 - 1)]/(2q), E phi' = E[phi z]/sqrt q.

    Derivatives by parts, no phi' needed.
    """
    truth, root = FUNCTIONS[name], arb(q).sqrt()
    r = reach(name, q)
    sums = [arb(0)] * 4
    for z, w in nodes(axis(q, -r, r, [k / math.sqrt(q) for k in truth.kinks]), 40):
        f, weight = apply(truth, root * z), w * density(z)
        for i, term in enumerate((f, f * f, f * z / root, f * f * (z * z - 1) / (2 * arb(q)))):
            sums[i] += weight * term
    return dict(
        zip(("mean", "second_moment", "mean_slope", "q_slope"), map(text, sums), strict=True)
    )


def gamma(name: str, q1: float, q2: float, c: float) -> list[Any]:
    """[Gamma, Gamma', Gamma''] at |c| < 1."""
    truth, r1, r2 = FUNCTIONS[name], arb(q1).sqrt(), arb(q2).sqrt()
    s = math.sqrt(1 - c * c)
    square, cc, width = 1 - arb(c) ** 2, arb(c), (REACH + (4 if name in STEEP else 0)) * s
    images = [
        k / math.sqrt(q2) / c + sign * s / abs(c) * step
        for k in truth.kinks
        for sign in (1, -1)
        for step in (0, 1.5, 3, 5, 8, 12)
    ]
    own = [k / math.sqrt(q1) for k in truth.kinks]
    r = reach(name, max(q1, q2))
    totals = [arb(0)] * 3
    kinks2 = [k / math.sqrt(q2) for k in truth.kinks]
    lam, kap = 1 / square, cc / square
    for x, wx in nodes(axis(q1, -r, r, [*images, *own])):
        centre = c * float(x.mid())
        fx = wx * density(x) * apply(truth, r1 * x)
        sums = [arb(0)] * 3
        low = centre - width - (2 * s * math.sqrt(q2) if name == "exp" else 0)
        high = centre + width + (2 * s * math.sqrt(q2) if name == "exp" else 0)
        steps = [centre + s * t for t in (-6, -4, -2, 0, 2, 4, 6)]
        for w, ww in nodes(axis(q2, low, high, [*kinks2, *steps])):
            a, b = (x - cc * w) * lam, (w - cc * x) * lam
            d = w - cc * x
            value = ww * (-d * d * lam / 2).exp() * apply(truth, r2 * w)
            first = a * b + kap
            sums[0] += value
            sums[1] += value * first
            sums[2] += value * (
                lam * lam + kap * kap - lam * (a * a + b * b) + 2 * kap * a * b + first * first
            )
        for i in range(3):
            totals[i] += fx * sums[i]
    scale = 1 / (2 * arb.pi() * square).sqrt()
    return [total * scale for total in totals]


def relative_gap(name: str, q: float, theta: str) -> Any:
    """1 - C(cos theta) at q1 = q2 = q, as E(phi(u) - phi(v))^2/(2 Q)."""
    truth, root, angle = FUNCTIONS[name], arb(q).sqrt(), arb(theta)
    c, s = angle.cos(), angle.sin()
    sf = float(s.mid())
    centres = [k / math.sqrt(q) for k in truth.kinks]
    grid = [
        k + sign * sf * step
        for k in centres
        for sign in (1, -1)
        for step in (0, 0.5, 1, 2, 3, 4, 6, 8, 10, 12)
    ]
    r = reach(name, q)
    total, norm = arb(0), arb(0)
    for x, wx in nodes(axis(q, -r, r, [*grid, *centres]), 30):
        fx, weight = apply(truth, root * x), wx * density(x)
        norm += weight * fx * fx
        cuts = sorted({float(((arb(k) / root - c * x) / s).mid()) for k in truth.kinks})
        inner = [-REACH, *(t for t in (-6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0)), REACH]
        inner = sorted({*inner, *(t for t in cuts if -REACH < t < REACH)})
        inside = arb(0)
        for y, wy in nodes(inner, 16):
            difference = apply(truth, root * (c * x + s * y)) - fx
            inside += wy * density(y) * difference * difference
        total += weight * inside
    return total / (2 * norm)


def text(value: Any) -> str:
    return arb(value.mid()).str(25, radius=False)


CASES = [
    (1, 1, 0.5),
    (1, 1, -0.7),
    (1, 1, 0.97),
    (1, 1, -0.99),
    (0.01, 0.01, 0.3),
    (0.01, 1, 0.98),
    (0.5, 2, 0.8),
    (10, 10, 0.9),
    (10, 3, -0.96),
]
LARGE = [(100, 100, 0.6), (100, 100, 0.98), (100, 1, 0.97), (100, 100, -0.97)]
ANGLES = ["1e-2", "1e-4", "1e-8"]


def record(name: str) -> dict[str, Any]:
    cases = CASES + ([] if name == "exp" else LARGE)
    out: dict[str, Any] = {"moments": [], "gammas": [], "gaps": []}
    for q in (0.01, 0.5, 1, 2, 3, 10, *(() if name == "exp" else (100,))):
        out["moments"].append({"q": q, **one_dimensional(name, q)})
    for q1, q2, c in cases:
        out["gammas"].append(
            {"q1": q1, "q2": q2, "c": c, "values": [text(v) for v in gamma(name, q1, q2, c)]}
        )
    for theta in ANGLES:
        out["gaps"].append({"q": 1, "theta": theta, "gap": text(relative_gap(name, 1, theta))})
    return out


def main(names: list[str]) -> None:
    found = json.loads(FILE.read_text()) if FILE.exists() else {"records": {}}
    found["versions"] = {
        "python": platform.python_version(),
        "python-flint": flint.__version__,
        "bits": ctx.prec,
    }
    for name in names or list(FUNCTIONS):
        found["records"][name] = record(name)
        FILE.write_text(json.dumps(found, indent=1) + "\n")
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
