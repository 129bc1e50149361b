"""Claims of Appendix C.1: linear recursions, and comparisons of iterates."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from sympy import Symbol, symbols

from ... import activation
from ..bench import Array, Bench, at_most, counterexample, equal, exact
from ..claim import Evidence
from ..families import power_maps
from .fixed_points import T, curved
from .paper import claim


@claim("DKS-lem28", "App. C.1, Lemma 28, eq. 25")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for $f(x)=\alpha x+\beta$ with $\alpha\ne1$: $f^n(x) =
    \alpha^n\bigl(x-\tfrac{\beta}{1-\alpha}\bigr)+\tfrac{\beta}{1-\alpha}$
    """
    a, b, x = symbols("alpha beta x")
    n = Symbol("n", integer=True, positive=True)
    rest = b / (1 - a)
    formula = a**n * (x - rest) + rest
    yield exact(formula.subs(n, 1) - (a * x + b), "the formula for $n=1$")
    yield exact(formula.subs(n, n + 1) - (a * formula + b), "the formula, from $n$ to $n+1$")
    wrong = 0
    for _ in bench.rounds(200, 2000):
        alpha, beta, start = (Fraction(int(v), 7) for v in bench.rng.integers(-20, 21, 3))
        if alpha == 1:
            continue
        value = start
        for k in range(1, 7):
            value = alpha * value + beta
            wrong += value != alpha**k * (start - beta / (1 - alpha)) + beta / (1 - alpha)
    yield equal(wrong, 0, "random fractions including $\\alpha=0$: iterates that differ", 0.0)
    value = 0.9
    for k in range(1, 6):
        value = 0.0 * value + 0.3
        yield equal(value, 0.0**k * (0.9 - 0.3) + 0.3, f"$\\alpha=0$, $n={k}$", 0.0)


def _broken_line(bench: Bench, increasing: bool, knots: int = 12) -> Array:
    """Draw the values of a random piecewise linear function at equidistant knots of [0, 1]."""
    values = bench.rng.random(knots) ** bench.uniform(0.3, 3)
    return np.sort(values) if increasing else values


def _compared(bench: Bench, increasing: bool, times: int) -> float:
    """Return the minimum of f1^n(x) - f2^n(x) over x and n, for random f1 >= f2 on [0, 1]."""
    knots = np.linspace(0, 1, 12)
    low = _broken_line(bench, increasing)
    high = low + (1 - low) * bench.rng.random(12) ** 3
    one = two = np.linspace(0, 1, 41)
    least = np.inf
    for _ in range(times):
        one, two = np.interp(one, knots, high), np.interp(two, knots, low)
        least = min(least, (one - two).min())
    return least


@claim("DKS-lem29", "App. C.1, Lemma 29")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $f_1\ge f_2$ on $[x_1,x_2]$ and $f_2$ is increasing there, then $f_1^n(x)\ge f_2^n(x)$ as
    long as $f_1^{n-1}(x)\in[x_1,x_2]$

    But: either the iterates $f_2^{n-1}(x)$ must stay in $[x_1,x_2]$ too, or $f_2$ must be
    increasing on the whole line
    """

    def f1(x: float) -> float:
        return x / 2

    def f2(x: float) -> float:
        return x - 1 if x >= 0 else 5.0

    grid = np.linspace(0, 1, 101)
    allowed = (
        bool(all(f1(x) >= f2(x) for x in grid))
        and bool((np.diff([f2(x) for x in grid]) > 0).all())
        and 0 <= f1(0.0) <= 1
    )
    found = f2(f2(0.0)) - f1(f1(0.0))
    yield counterexample(
        found if allowed else 0.0,
        "$f_1=x/2$ and $f_2=x-1$ on $[0,1]$, with $f_2=5$ for $x<0$: $f_1^2(0)=0<5=f_2^2(0)$, "
        "although $f_1(0)$ lies in $[0,1]$",
    )
    count = bench.size(300, 3000)
    yield at_most(
        0,
        [_compared(bench, True, 8) for _ in range(count)],
        "random increasing maps $f_2$ of $[0,1]$ into itself, with any $f_1\\ge f_2$",
        1e-13,
    )
    other = [_compared(bench, False, 8) for _ in range(count)]
    yield at_most(
        0.1 * count,
        int((np.array(other) < -1e-6).sum()),
        "if $f_2$ is not increasing, the inequality fails in at least a tenth of the cases",
        0.0,
    )
    slack = []
    for _ in range(count):
        a, b, lift = bench.uniform(0, 1.5), bench.normal(), bench.rng.exponential()
        one = two = bench.rng.random()
        while 0 <= one <= 1 and len(slack) < 8 * count:
            one, two = a * one + b + lift * (1 + np.sin(20 * one)), a * two + b
            slack.append(one - two)
    yield at_most(
        0, slack, "$f_2$ affine and increasing on the whole line, with iterates that leave $[0,1]$"
    )


@claim("DKS-lem30", "App. C.1, Lemma 30")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$0<\dfrac{f(b)-x_0}{b-x_0}<1$ for $b\in(x_0,1)$

    Under: f increasing and strictly convex, $f(1)=1$, $f(x_0)=x_0<1$
    """
    b, x0 = symbols("b x0")
    share = (b - x0) / (1 - x0)
    yield exact(
        (1 - share) * x0 + share - b,
        "$b$ is a mixture of $x_0$ and 1, and its image lies below the chord",
    )
    for C in curved(power_maps(bench, 300, 3000, zero=True)):
        start = bench.rng.choice([0.0, bench.normal(), 1 - bench.rng.exponential()])
        start = start if start < 0.999 else 0.0
        at = start + (1 - start) * T[29:-1]
        # convex, with fixed points start and 1
        ratios = (start + (1 - start) * C(T[29:-1]) - start) / (at - start)
        yield at_most(ratios, 1 - 1e-9, "random convex maps with random fixed points: below 1", 0.0)
        yield at_most(1e-8, ratios, "random convex maps: above 0", 0.0)
    found = []
    for name, size, bias in (
        ("tanh", 1.6, 0.05),
        ("erf", 2.0, 0.2),
        ("softplus", 0.3, 0.0),
        ("swish", 2.5, 0.0),
    ):
        C = (
            activation(name)
            .transformed(size, bias, output_shift=-0.3 if name in ("softplus", "swish") else 0.0)
            .c_map
        )
        points = C.fixed_points()
        if len(points) == 2 and points[0].value >= 0:
            star = points[0].value
            at = star + (1 - star) * np.linspace(0.05, 0.95, 10)
            found.append((C(at) - star) / (at - star))
    yield at_most(
        found,
        1 - 1e-9,
        "kcalc's C maps between their two fixed points: below 1",
        0.0,
        maps=len(found),
    )
    yield at_most(1e-9, found, "C maps in kcalc: above 0", 0.0)
