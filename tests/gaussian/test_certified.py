"""Certified local kernel quantities contain the truth (mpmath at 40 digits by other routes, frozen
values, each other) and are narrow.
"""

from __future__ import annotations

import gzip
import json
import math
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy as sp
from flint import arb, ctx
from refusals import refused
from thinning import mostly_slow

import kcalc as kc
from kcalc.activations import activation, combine
from kcalc.fields.balls import Enclosure, ball_field, working
from kcalc.gaussian.certified import cross, hermite_coefficients
from kcalc.gaussian.certified.hermite import cross_series, hermite
from kcalc.gaussian.certified.line import certified, moment
from kcalc.gaussian.certified.plane import Plane

X = sp.Symbol("x", real=True)
FIELD = ball_field(30)
ORACLE = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "oracles" / "local_maps.json.gz").read_bytes())
)["records"]
OPEN = [
    *(
        "tanh",
        "sigmoid",
        "softplus",
        "swish",
        "mish",
        "gelu_tanh",
        "softsign",
        "atan",
        "asinh",
        "bentid",
        "squareplus",
        "logcosh",
    ),
    *("elu", "selu", "celu", "hard_tanh", "hard_sigmoid", "hard_swish", "hard_shrink", "relu6"),
]
"""Entries whose C map has no closed form in elementary functions and erf alone."""


@pytest.fixture(autouse=True)
def _precision_is_left_alone():
    before = ctx.prec
    yield
    assert ctx.prec == before


def encloses(ball, truth, slack=0.0) -> bool:
    """Whether |mid - truth| <= radius + slack, all exactly.

    Truth is an mpf, a decimal string or a number.
    """
    found = Enclosure.of(ball)
    value = Enclosure._ends(truth)[0]
    room = Fraction(slack) * max(1, abs(value))
    low, high = Enclosure._ends(found)
    return low - room <= value <= high + room


def width(ball) -> float:
    return float(ball.rad()) / max(1.0, abs(float(ball.mid())))


# --- truth by other routes ------------------------------------------------------------------------


def clipped_mean(m, s):
    """E clip(m + s z, -1, 1) in closed form."""
    a, b = (-1 - m) / s, (1 - m) / s
    below, above = mpmath.ncdf(a), mpmath.ncdf(-b)
    return above - below + m * (1 - below - above) + s * (mpmath.npdf(a) - mpmath.npdf(b))


def hard_tanh_gamma(q, gap):
    """E[clip(u) clip(v)]: the inner expectation in closed form, the outer one by quadrature split
    where it bends.
    """
    r, c = mpmath.sqrt(q), 1 - gap
    s = mpmath.sqrt(gap * (2 - gap)) * r
    bends = sorted(
        {side / r + step * s / r for side in (1, -1) for step in (-12, -6, -3, -1, 0, 1, 3, 6, 12)}
        | {mpmath.mpf(side) / r for side in (1, -1)}
    )
    edges = [-14, *(b for b in bends if -14 < b < 14), 14]
    clip = lambda x: max(-1, min(1, x))  # noqa: E731
    return mpmath.quad(lambda z: clip(r * z) * clipped_mean(c * r * z, s) * mpmath.npdf(z), edges)


@pytest.mark.parametrize(
    ("q", "gap"),
    mostly_slow([(1, "1.9999"), (1, "0.5"), (4, "0.05"), (0.25, "1e-6"), (100, "1e-12")]),
)
def test_hard_tanh_against_conditional_expectations(q, gap):
    with mpmath.workdps(45):
        u = FIELD.number(Fraction(gap))
        exact_gap = mpmath.mpf(Fraction(gap).numerator) / Fraction(gap).denominator
        truth = hard_tanh_gamma(mpmath.mpf(q), exact_gap)
        got = cross(
            activation("hard_tanh"),
            activation("hard_tanh"),
            u,
            FIELD.number(q),
            FIELD.number(q),
            0,
            FIELD,
        )[0]
        assert encloses(got, truth, 1e-38)
    assert width(got) < 1e-31


def trapezoid_gamma(f, c, step, reach=13):
    """E[f(z1) f(z2)] in rotated coordinates by the trapezoidal rule.

    Exponentially accurate for functions analytic in a strip.
    """
    a, b = mpmath.sqrt((1 + c) / 2), mpmath.sqrt((1 - c) / 2)
    grid = [step * k for k in range(-int(reach / step), int(reach / step) + 1)]
    inner = [(x, mpmath.npdf(x)) for x in grid]
    outer = [mpmath.mpf(k) / 2 for k in range(-2 * reach, 2 * reach + 1)]
    return sum(
        mpmath.npdf(y)
        / 2
        * step
        * mpmath.fsum(w * f(a * x + b * y) * f(a * x - b * y) for x, w in inner)
        for y in outer
    )


@pytest.mark.parametrize("name", ["tanh", "softplus"])
def test_smooth_functions_against_the_trapezoidal_rule(name):
    f = {"tanh": mpmath.tanh, "softplus": lambda x: mpmath.log1p(mpmath.exp(x))}[name]
    c = Fraction(61, 64)
    with mpmath.workdps(34):
        truth = trapezoid_gamma(f, mpmath.mpf(61) / 64, mpmath.mpf("0.14"))
    one = FIELD.number(1)
    got = cross(activation(name), activation(name), FIELD.number(1 - c), one, one, 0, FIELD)[0]
    assert encloses(got, truth, 1e-28) and width(got) < 1e-31


def test_moments_against_mpmath_integrals():
    with mpmath.workdps(45):
        for name, f in (
            ("tanh", mpmath.tanh),
            ("atan", mpmath.atan),
            ("mish", lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x)))),
        ):
            root = mpmath.sqrt(2)
            edges = [-16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16]
            truth = mpmath.quad(lambda z, f=f, root=root: f(root * z) ** 2 * mpmath.npdf(z), edges)
            got = moment(activation(name), "second_moment", FIELD.number(2), FIELD)
            assert encloses(got, truth, 1e-38) and width(got) < 1e-35
        s = mpmath.mpf(10)
        tails = (
            mpmath.exp(200) * mpmath.ncdf(-2 * s)
            - 2 * mpmath.exp(50) * mpmath.ncdf(-s)
            + mpmath.mpf(1) / 2
        )
        truth = 50 + tails
        assert encloses(activation("elu").second_moment(100, field=FIELD), truth, 1e-40)


# --- frozen values --------------------------------------------------------------------------------


def check_rows(name: str, rows: list[int]) -> None:
    record, phi = ORACLE[name], activation(name)
    for row in rows:
        c, i, j = record["points"][row]
        q1, q2 = record["q"][int(i)], record["q"][int(j)]
        order = 2 if abs(c) < 1 else 0
        drop, *rest = phi.taylor(1 - c, q1, q2, order, FIELD)
        truths = [Fraction(value) for value in record["values"][row][: order + 1]]
        with FIELD.working():
            found = [
                1 - drop,
                *(coefficient * math.factorial(k) for k, coefficient in enumerate(rest, start=1)),
            ]
        assert width(found[0]) < 1e-28, (name, c, q1, q2)
        for k, (ball, truth) in enumerate(zip(found, truths, strict=True)):
            assert encloses(ball, truth, (1e-16, 1e-14, 1e-13)[k]), (name, c, q1, q2, k)


def chosen(name: str, few: int, large: int) -> list[int]:
    """Row numbers with q <= 10, and with some q > 50."""
    record = ORACLE[name]
    q = [max(record["q"][int(i)], record["q"][int(j)]) for _, i, j in record["points"]]
    return [n for n, value in enumerate(q) if value <= 10][:few] + [
        n for n, value in enumerate(q) if value > 50
    ][:large]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(OPEN) & set(ORACLE)))
def test_twenty_points_and_three_large_ones_are_inside(name, every):
    check_rows(name, chosen(name, 20, 3)[:: max(1, every // 3)])


@pytest.mark.parametrize("name", mostly_slow(sorted(ORACLE), 4))
def test_frozen_moments_are_inside(name):
    record, phi = ORACLE[name], activation(name)
    last = 9 if name == "exp" else len(record["q"]) - 1
    for row in (0, last // 2, last):
        q = FIELD.number(record["q"][row])
        truths = dict(
            zip(
                ("mean", "second_moment", "mean_slope", "q_slope"),
                record["moments"][row],
                strict=True,
            )
        )
        for quantity, truth in truths.items():
            slack = 1e-16 * (1 + abs(float(truths["second_moment"])) ** 0.5)
            by_integral = moment(phi, quantity, q, FIELD)
            assert encloses(by_integral, Fraction(truth), slack), (name, quantity, q)
            assert encloses(getattr(phi, quantity)(q, field=FIELD), Fraction(truth), slack), (
                name,
                quantity,
                q,
            )
            assert by_integral.overlaps(getattr(phi, quantity)(q, field=FIELD))
            assert width(by_integral) < 1e-28


# --- each other -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tanh", "hard_swish", "gelu_tanh"])
@pytest.mark.parametrize("digits", mostly_slow([15, 50]))
def test_more_digits_lie_inside_fewer(name, digits):
    phi, field = activation(name), ball_field(digits)
    for gap, q2 in ((0.3, 2.0), (2.0**-20, None)):
        wide = phi.taylor(gap, 1.5, q2, 1, ball_field(15))
        narrow = phi.taylor(gap, 1.5, q2, 1, field)
        for one, other in zip(wide, narrow, strict=True):
            assert one.overlaps(other)
            assert width(other) < 10.0 ** (2 - digits)


@pytest.mark.parametrize("name", ["tanh", "relu6", "softplus"])
def test_the_series_and_the_plane_agree(name):
    phi, q, gap = activation(name), FIELD.number(2), FIELD.number(0.25)
    with working(FIELD.bits + 24):
        table = hermite(certified(phi, q, FIELD), q, 384, FIELD)
        series = cross_series(table, table, 1 - gap, 2)
        factor = (certified(phi, q, FIELD), q.sqrt())
        plane = Plane(factor, factor, gap, [-70.0] * 3, FIELD.bits + 24, 30).values()
    for one, other in zip(series, plane, strict=True):
        assert one.overlaps(other) and width(one) < 1e-28 and width(other) < 1e-28


def test_balls_as_arguments_enclose_their_ends():
    phi = activation("hard_tanh")
    gap, q = (0.125, 2.0**-70), (1.5, 2.0**-70)
    around = phi.taylor(arb(*gap), arb(*q), None, 1, FIELD)
    with FIELD.working():
        ends = [
            (arb(gap[0]) + s * arb(gap[1]), arb(q[0]) + t * arb(q[1]))
            for s in (1, -1)
            for t in (1, -1)
        ]
    for u, v in ends:
        for wide, narrow in zip(around, phi.taylor(u, v, None, 1, FIELD), strict=True):
            assert wide.contains(narrow) and float(wide.rad()) < 1e-18


# --- known numbers, ends of the interval ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sign", "q2"),
    mostly_slow([("hard_tanh", 1, None), ("softplus", -1, 2.0), ("hard_shrink", 1, 2.0)]),
)
def test_derivatives_at_the_ends_continue_those_inside(name, sign, q2):
    phi = activation(name)
    at_end = phi.taylor(1 - sign, 1.0, q2, 1, FIELD)
    near = phi.taylor(Fraction(1 - sign) + sign * Fraction(1, 2**40), 1.0, q2, 1, FIELD)
    assert abs(float(at_end[1]) - float(near[1])) < 1e-5


@pytest.mark.parametrize(
    ("name", "order"), [("relu", 2), ("hard_tanh", 2), ("hard_shrink", 1), ("selu", 2)]
)
def test_infinite_derivatives_say_so(name, order):
    with refused("infinite"):
        activation(name).taylor(0, 1, None, order, FIELD)


def test_hermite_coefficients_of_tanh_and_relu():
    first = hermite_coefficients(activation("tanh"), 1, 4, FIELD)
    with mpmath.workdps(40):
        edges = [-14, -7, -3, -1, 0, 1, 3, 7, 14]
        one = mpmath.quad(lambda z: mpmath.tanh(z) * z * mpmath.npdf(z), edges)
        three = mpmath.quad(
            lambda z: mpmath.tanh(z) * (z**3 - 3 * z) / mpmath.sqrt(6) * mpmath.npdf(z), edges
        )
        assert (
            encloses(first[1], one, 1e-33)
            and encloses(first[3], three, 1e-33)
            and first[0].contains(0)
        )
        relu = hermite_coefficients(activation("relu"), 2.0, 3, FIELD)
        assert encloses(relu[0], 1 / mpmath.sqrt(mpmath.pi), 1e-38) and encloses(
            relu[1], 1 / mpmath.sqrt(2), 1e-38
        )
    with refused("exact q"):
        hermite_coefficients(activation("relu"), Fraction(1, 3), 3, FIELD)


# --- activations made of others, and the user's own -----------------------------------------------

MADE = {
    "transformed": lambda: activation("tanh").transformed(1.3, 0.56, 2.1, -0.5),
    "reversed": lambda: activation("hard_tanh").transformed(-1.3, 0.56, 2.1, -0.5),
    "composed": lambda: activation("softplus").composed(activation("tanh")),
    "composed with a kink": lambda: activation("relu").composed(
        activation("softplus").transformed(output_shift=-1)
    ),
    "combined": lambda: combine(
        [(1, activation("tanh"), 1), (sp.Rational(1, 2), activation("relu"), 2)]
    ),
    "own": lambda: activation(sp.Piecewise((0, sp.Rational(1, 10) > X), (sp.sqrt(X), True))),
    "gaussian bump": lambda: activation(X * sp.exp(-(X**2))),
    "rational": lambda: activation(1 / (1 + X**4)),
    "fast growth": lambda: activation(sp.exp(X**2 / 10)),
    "numeric kink": lambda: activation(sp.Max(sp.exp(X) - 2, 0)),
}


@pytest.mark.parametrize("kind", mostly_slow(sorted(MADE)))
def test_made_activations_agree_with_double_precision(kind):
    phi = MADE[kind]()
    for ball, number in zip(
        phi.taylor(0.3, 1, None, 1, FIELD), phi.taylor(0.3, 1, None, 1), strict=True
    ):
        assert abs(float(ball) - number) < 1e-12 and width(ball) < 1e-28


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: activation(sp.besselj(0, X)), "besselj has no certified"),
        (
            lambda: activation("sign").composed(
                activation("softplus").transformed(output_shift=-1)
            ),
            "only known to double precision",
        ),
        (lambda: activation(lambda x: np.tanh(x), name="mine"), "callable"),
    ],
)
def test_what_cannot_be_proven_is_refused(make, message):
    with refused(message):
        make().taylor(0.3, 1, None, 0, FIELD)


def test_growth_may_be_declared():
    phi = activation(sp.tan(sp.atan(X) / 2), name="half-angle")
    with refused("declare growth"):
        phi.second_moment(1, field=FIELD)
    object.__setattr__(phi, "growth", (1, 0, 0))
    assert abs(float(phi.second_moment(1, field=FIELD)) - phi.second_moment(1)) < 1e-14


def test_bad_arguments_are_refused():
    phi = activation("tanh")
    with refused("positive"):
        phi.second_moment(-1, field=FIELD)
    with refused("cosine"):
        phi.taylor(2.5, 1, None, 0, FIELD)
    with refused("converge"):
        activation(sp.exp(X**2 / 10)).second_moment(3, field=FIELD)
    with refused("jumps"):
        activation("hard_shrink").taylor(0.3, arb(1, 2.0**-90), None, 0, FIELD)


# --- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["relu", "tanh", "erf"])
def test_the_kernel_calculus_folds_over_balls(name):
    from kcalc.calculi.kernel import kernel_over
    from kcalc.fields.jets import Jet
    from kcalc.network.compose import interpret

    for net in (
        kc.architectures.vanilla(3, name),
        kc.architectures.rescaled_resnet(2, shortcut_weight=0.6, activation=name),
    ):
        (source,) = net.inputs
        with FIELD.working():
            kernel = kernel_over(FIELD, True, True)
            one = FIELD.number(1)
            states = interpret(
                net, kernel, {source: kernel.start(source, one, one, Jet((FIELD.number(0.5),)))}
            )
            _, _, gap = kernel.whole(states[net.outputs[0]])
            value = 1 - gap.value
        assert abs(float(value) - float(kc.c_map(net)(0.5))) < 1e-13 and width(value) < 1e-28
