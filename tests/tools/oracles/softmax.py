"""Frozen truth for overlaps of softmax rows to 20 digits, by a route that shares nothing with
kcalc.

Rows A, B of T softmax weights have Gaussian scores a_j, b_j of variances v1, v2 and covariance k at
equal j. Derivatives are moments of the rows themselves, since the derivative of an expectation by a
covariance is that of its integrand by both scores:

    S       = E sum AB                    dS/dv1 = E[(sum A^2)(sum AB) - sum A^2 B]
    dS/dk   = E[sum AB - sum A^2 B - sum A B^2 + (sum AB)^2]
    S_self  = E sum A^2                   dS_self/dv = E[sum A^2 - 4 sum A^3 + 3 (sum A^2)^2]

and moments are integrals of ``g_i(x) = e^(i x) exp(-e^x)``, since
``Z^-m = int e^(m u) exp(-e^u Z) du / (m - 1)!``. The Gaussians are split, ``a = l1 z + own``,
``b = l2 z + own'`` with l1 l2 = k and l1 / l2 rational: all functions are needed on one lattice,
averages over what is own are products of polynomials, sums over z products of matrices, both of
integers, multiples of 2^-150. What is left out or left to the trapezoidal rule is below 1e-20;
``--check`` repeats some points with half the steps. The numbers of a point are taken as the doubles
nearest to them.

Run ``python tests/tools/oracles/softmax.py`` to write softmax.json (10 minutes); ``--resume`` keeps the
points that it has.
"""

from __future__ import annotations

import json
import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from flint import arb, ctx, fmpz_mat, fmpz_poly

ctx.prec = 160
BITS = 150
UNIT = arb(2) ** BITS
FILE = Path(__file__).parents[2] / "oracles" / "softmax.json"
SCALE = 1.0  # of all steps
ORDERS = range(4)
Row = list[Any]
PAIRS = [
    (2, 2.0, 2.0, 1.0), (2, 1.0, 4.0, 2.0), (2, 1.0, 4.0, -2.0), (2, 25.0, 25.0, 24.0),
    (2, 0.01, 0.04, 0.005), (2, 25.0, 25.0, -25.0), (3, 1.0, 1.0, 0.999), (3, 2.25, 9.0, 3.0),
    (3, 9.0, 1.0, -3.0), (3, 0.0001, 0.0001, 5e-05), (3, 4.0, 4.0, 4.0), (3, 25.0, 4.0, 10.0),
    (4, 1.5, 1.5, 0.6), (5, 0.25, 1.0, 0.25), (5, 16.0, 4.0, -6.0), (7, 1.0, 2.0, 1.2),
    (8, 6.25, 6.25, 0.01), (8, 25.0, 25.0, 25.0), (12, 1.44, 1.44, 0.504), (12, 0.5, 0.5, -0.5),
    (16, 4.0, 9.0, 6.0), (16, 4.0, 9.0, -6.0), (16, 1.0, 1.0, 0.1), (32, 25.0, 1.0, 4.0),
    (32, 9.0, 9.0, 8.0), (50, 2.0, 2.0, -1.9), (64, 4.0, 4.0, 2.4), (64, 0.01, 1.0, 0.05),
    (64, 25.0, 25.0, 12.0), (64, 1e-6, 1e-6, 9e-07), (100, 1.0, 9.0, 2.5), (100, 3.0, 3.0, 2.999),
    (128, 1.0, 1.0, 1.0), (128, 16.0, 16.0, -4.0), (200, 2.25, 1.0, 1.5), (256, 0.09, 0.36, -0.18),
    (256, 6.25, 6.25, 6.0), (500, 9.0, 4.0, 5.0), (512, 1.0, 1.0, 0.9), (512, 25.0, 25.0, 24.9),
    (777, 2.0, 5.0, -3.0), (1000, 0.04, 0.04, 0.01), (1024, 1.0, 1.0, 0.1), (1024, 9.0, 9.0, 9.0),
    (1024, 4.0, 1.0, 2.0), (1024, 16.0, 9.0, 11.0), (2048, 2.25, 2.25, -2.25),
    (2048, 6.0, 6.0, 3.0), (4096, 1.0, 1.0, 0.95), (4096, 4.0, 4.0, 0.5),
    (4096, 12.25, 12.25, 12.0), (5000, 0.25, 0.25, 0.2), (8192, 1.0, 4.0, 1.5),
    (8192, 9.0, 9.0, -3.0), (10000, 2.0, 2.0, 2.0), (16384, 4.0, 4.0, 3.9), (20000, 1.0, 1.0, 0.5),
    (20000, 6.25, 6.25, 5.0), (32768, 0.5, 2.0, 0.9), (32768, 16.0, 16.0, 8.0),
    (65536, 1.0, 1.0, 0.3), (65536, 4.0, 1.0, -2.0), (65536, 25.0, 25.0, 20.0),
    (65536, 9.0, 9.0, 9.0),
]  # fmt: skip
ALONE = [
    (2, 0.01),
    (2, 1.58184),
    (2, 25.0),
    (3, 1.0),
    (5, 4.0),
    (12, 1.44),
    (16, 1e-8),
    (64, 4.0),
    (128, 1.0),
    (512, 14.0),
    (1000, 25.0),
    (1024, 1.0),
    (4096, 9.0),
    (8192, 1.0),
    (65536, 0.25),
    (65536, 4.0),
    (65536, 25.0),
    (1 << 20, 2.0),
]


def lattice(first: int, count: int, d: Any) -> list[Row]:
    """``g_i`` at ``d (first ... first + count - 1)``, for every order i."""
    out: list[Row] = [[] for _ in ORDERS]
    for j in range(first, first + count):
        e = (d * j).exp()
        value = (-e).exp()
        for i in ORDERS:
            out[i].append(value)
            value = value * e
    return out


def owned(first: int, count: int, d: Any, width: Any) -> list[Row]:
    """``E g_i(x + width z)`` on the lattice.

    a convolution where it is fine enough, else a sum over nodes between its points.
    """
    wide = float(width)
    if wide == 0:
        return [[fixed(x) for x in part] for part in lattice(first, count, d)]
    if float(d) <= 0.5 * wide * SCALE:
        reach = math.ceil((10.6 + 3 * wide) * wide / float(d))
        root = (2 * arb.pi()).sqrt()
        kernel = fmpz_poly(
            [
                fixed((-((d * j / width) ** 2) / 2).exp() * (d / width) / root)
                for j in range(-reach, reach + 1)
            ]
        )
        products = (
            fmpz_poly([fixed(x) for x in part]) * kernel
            for part in lattice(first - reach, count + 2 * reach, d)
        )
        return [[part[j] >> BITS for j in range(2 * reach, 2 * reach + count)] for part in products]
    assert wide < 0.6
    step = arb(0.5) * arb(SCALE)
    reach = math.ceil((10.6 + 3 * wide) / float(step))
    nodes = [
        (width * step * k, (-((step * k) ** 2) / 2).exp() * step / (2 * arb.pi()).sqrt())
        for k in range(-reach, reach + 1)
    ]
    out: list[Row] = [[arb(0)] * count for _ in ORDERS]
    for shift, weight in nodes:
        for j in range(count):
            e = (d * (first + j) + shift).exp()
            value = (-e).exp() * weight
            for i in ORDERS:
                out[i][j] += value
                value = value * e
    return [[fixed(x) for x in part] for part in out]


def split(v1: float, v2: float, size: float) -> tuple[Fraction, Fraction]:
    """(l1^2, l2 / l1) with l1 l2 = size, l1^2 <= v1, l2^2 <= v2, l2 / l1 as simple as can be."""
    one, two, k = Fraction(v1), Fraction(v2), Fraction(size)
    for total in range(2, 60):
        for p in range(1, total):
            ratio = Fraction(p, total - p)
            if k / ratio <= one and k * ratio <= two:
                return k / ratio, ratio
    raise ValueError((v1, v2, size))


class Side:
    """The functions of one row on its grid of u, a matrix (u, z) per order, and their averages over
    z.
    """

    def __init__(
        self,
        tokens: int,
        variance: float,
        shared: Any,
        d: Any,
        stride: int,
        reach: int,
        sign: int,
        weights: Row,
    ) -> None:
        width = math.sqrt(variance)
        step = max(1, math.floor(0.2 * SCALE / float(d)))
        self.h = d * step
        low = math.floor((-math.log(tokens) - 52 - min(variance / 2, 8 * width)) / float(self.h))
        high = math.ceil((5 + 10.6 * width) / float(self.h))
        own = (
            (arb(variance) - shared * shared).sqrt() if arb(variance) > shared * shared else arb(0)
        )
        first, count = low * step - stride * reach, (high - low) * step + 2 * stride * reach + 1
        values = owned(first, count, d, own)
        offsets = [stride * (k + reach) for k in range(-reach, reach + 1)]
        if sign < 0:
            offsets.reverse()
        windows = [
            fmpz_mat([[part[row * step + o] for o in offsets] for row in range(high - low + 1)])
            for part in values
        ]
        column = fmpz_mat(len(weights), 1, weights)
        means, slopes = (
            [float(arb(x)) * 2.0 ** (-2 * BITS) for x in (windows[i] * column).entries()]
            for i in (0, 1)
        )
        kept = [
            k
            for k, (m, s) in enumerate(zip(means, slopes, strict=True))
            if tokens * s * m ** (tokens - 1) > 1e-23
        ]
        self.rows = [[[part[row * step + o] for o in offsets] for row in kept] for part in values]


def fixed(x: Any) -> Any:
    """A ball as an integer multiple of ``2^-BITS``."""
    return (x * UNIT).mid().floor().unique_fmpz()


def pair(tokens: int, v1: float, v2: float, covariance: float) -> list[str]:
    """S, dS/dk, dS/dv1."""
    square, ratio = split(v1, v2, abs(covariance))
    l1 = arb(square.numerator) / arb(square.denominator)
    l1 = l1.sqrt()
    l2 = l1 * ratio.numerator / ratio.denominator
    large = max(float(l1), float(l2))
    spacing = min(0.55, 0.2 / large) * SCALE
    d = l1 * arb(spacing) / ratio.denominator
    reach = math.ceil((10.6 + 2 * large) / spacing)
    z = arb(spacing)
    weights = [
        fixed((-((z * k) ** 2) / 2).exp() * z / (2 * arb.pi()).sqrt())
        for k in range(-reach, reach + 1)
    ]
    one = Side(tokens, v1, l1, d, ratio.denominator, reach, 1, weights)
    two = Side(tokens, v2, l2, d, ratio.numerator, reach, -1 if covariance < 0 else 1, weights)
    left = [
        fmpz_mat([[x * w >> BITS for x, w in zip(row, weights, strict=True)] for row in part])
        for part in one.rows
    ]
    right = [fmpz_mat(part).transpose() for part in two.rows]
    phi = [arb(x) / UNIT**2 for x in (left[0] * right[0]).entries()]
    crossed = (left[1] * right[1]).entries()
    before = [x ** (tokens - 2) for x in phi]  # Phi^(T-2)
    count, several = len(phi), tokens * (tokens - 1)
    single = fmpz_mat(count, 1, [fixed(tokens * x * y) for x, y in zip(before, phi, strict=True)])
    double = fmpz_mat(
        count, 1, [fixed(several * x * y / UNIT**2) for x, y in zip(before, crossed, strict=True)]
    )

    def total(i: int, j: int, with_: Any) -> Any:
        entries = crossed if (i, j) == (1, 1) else (left[i] * right[j]).entries()
        return arb((fmpz_mat(1, count, entries) * with_)[0, 0]) / UNIT**3 * one.h * two.h

    ab, aab = total(1, 1, single), total(2, 1, single)
    abb = aab if v1 == v2 else total(1, 2, single)
    squared = total(2, 2, single) + total(1, 1, double)
    first = (total(3, 1, single) + total(2, 0, double)) / 2  # E (sum A^2)(sum AB)
    return [digits(x) for x in (ab, ab - aab - abb + squared, first - aab)]


def alone(tokens: int, variance: float) -> list[str]:
    """S_self and its derivative by the variance."""
    width = math.sqrt(variance)
    v, h = arb(variance).sqrt(), arb(0.12) * arb(SCALE)
    step = min(0.4, 0.12 / width) * SCALE
    reach = math.ceil((10.6 + 4 * width) / step)
    nodes = [
        (v * arb(step) * k, (-((arb(step) * k) ** 2) / 2).exp() * arb(step) / (2 * arb.pi()).sqrt())
        for k in range(-reach, reach + 1)
    ]
    two = three = square = arb(0)
    low = math.floor((-math.log(tokens) - 52 - min(variance / 2, 8 * width)) / float(h))
    for row in range(low, math.ceil((5 + 10.6 * width) / float(h))):
        g = [arb(0)] * 5
        for shift, weight in nodes:
            e = (h * row + shift).exp()
            value = (-e).exp() * weight
            for i in range(5):
                g[i] += value
                value = value * e
        before = g[0] ** (tokens - 2)
        full = before * g[0]
        two += tokens * g[2] * full
        three += tokens * g[3] * full / 2
        square += (tokens * g[4] * full + tokens * (tokens - 1) * g[2] ** 2 * before) / 6
        if float(g[0]) ** tokens < 1e-40 and float(g[2]) * tokens * float(full) < 1e-40:
            break
    return [digits(two * h), digits((two - 4 * three + 3 * square) * h)]


def digits(x: Any) -> str:
    return x.str(20, radius=False)


def main() -> None:
    global SCALE
    if "--check" in sys.argv:
        SCALE = 0.5
        known = json.loads(FILE.read_text())
        for point in (
            (2, 1.0, 4.0, -2.0),
            (5, 0.25, 1.0, 0.25),
            (12, 1.44, 1.44, 0.504),
            (1024, 1.0, 1.0, 0.1),
        ):
            row = next(r for r in known["pairs"] if tuple(r["point"]) == point)
            print(point, pair(*point), row["values"], flush=True)
        return
    found: dict[str, Any] = {"pairs": [], "alone": []}
    known = json.loads(FILE.read_text()) if "--resume" in sys.argv else found
    for kind, make, points in (("alone", alone, ALONE), ("pairs", pair, PAIRS)):
        old = {tuple(row["point"]): row["values"] for row in known[kind]}
        for point in points:
            found[kind].append({"point": point, "values": old.get(point) or make(*point)})
            print(kind, *point, *found[kind][-1]["values"], flush=True)
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
