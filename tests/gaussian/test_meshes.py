"""Meshes and quadrature rules: what they must resolve, where they must end, what they refuse."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from gaussian_pieces import BENT, ELU, MIXED, STEPS, Given, Pieces, wave
from refusals import refused

from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations import quadrature
from kcalc.gaussian.expectations.quadrature import (
    DEPTH,
    gauss_legendre,
    is_noise,
    mesh,
    normal_density,
    panel_nodes,
    rule,
    split,
    z_edges,
    z_range,
)

DYADIC = [2.0**k for k in range(1, 5)]


def zero(x: np.ndarray) -> np.ndarray:
    return 0 * x


def given(*derivatives: object, **marks: object) -> Given:
    return Given("given", (*derivatives, *[zero] * (5 - len(derivatives))), **marks)  # type: ignore[arg-type]


def test_panels() -> None:
    """Degree 39 is exact on every panel; 20 nodes each, in order."""
    edges = np.array([-1.0, 0.5, 2.0])
    x, w = panel_nodes(edges)
    assert (
        x.shape == w.shape == (2, 20)
        and (np.diff(x.ravel()) > 0).all()
        and x.min() > -1
        and x.max() < 2
    )
    for power in (0, 1, 2, 20, 39):
        assert (w * x**power).sum(axis=1) == pytest.approx(
            np.diff(edges ** (power + 1)) / (power + 1), rel=1e-13
        )
    assert panel_nodes(edges, 3)[0].shape == (2, 3)
    assert gauss_legendre(2)[0] == pytest.approx([-1 / math.sqrt(3), 1 / math.sqrt(3)])


def test_split() -> None:
    assert split(np.array([0.0, 2.5, 3.0, 4.0]), 1.0) == pytest.approx(
        [0, 2.5 / 3, 5 / 3, 2.5, 3, 4], abs=1e-15
    )
    assert split(np.array([-1.0, -0.75]), 0.1) == pytest.approx(
        [-1, -1 + 0.25 / 3, -1 + 0.5 / 3, -0.75], abs=1e-15
    )


def test_normal_weights() -> None:
    assert normal_density(np.array([0.0, -2.0])) == pytest.approx(
        np.array([1, math.exp(-2)]) / math.sqrt(2 * math.pi), rel=1e-15
    )
    nodes = quadrature.normal_rule(np.array([-0.5, 0.25, 2.0]))
    assert float(nodes.w.sum()) == pytest.approx(
        float(mpmath.ncdf(2) - mpmath.ncdf(-0.5)), rel=1e-14
    )
    assert float(nodes.w @ nodes.z) == pytest.approx(
        float(mpmath.npdf(-0.5) - mpmath.npdf(2)), rel=1e-14
    )


def test_the_last_legendre_coefficients() -> None:
    nodes, _ = gauss_legendre(20)
    for degree in range(20):
        values = np.polynomial.legendre.legval(nodes, np.eye(20)[degree] * 2.5)
        wanted = np.eye(20)[degree][12:] * 2.5
        assert quadrature._last_legendre_rows() @ values == pytest.approx(wanted, abs=1e-13)


def test_noise_is_small_and_does_not_fall() -> None:
    flat, falling = np.full(8, 1e-13), 1e-13 * 0.1 ** np.arange(8.0)
    assert list(is_noise(np.stack([flat, falling, 20 * flat]), np.ones(3))) == [True, False, False]
    assert not is_noise(flat, 0.05) and is_noise(flat, 0.2)
    assert is_noise(np.array([3.0, 3, 3, 3, 3, 1, 1, 0]) * 1e-14, 1.0) and not is_noise(
        np.array([3.0, 3, 3, 4, 3, 1, 1, 1]) * 1e-14, 1.0
    )


@pytest.mark.parametrize("f", [BENT, MIXED, STEPS], ids=lambda f: f.name)
def test_polynomials_need_no_more_than_kinks_and_powers_of_two(f: Pieces) -> None:
    assert list(mesh(f, 16.0)) == sorted({0.0, *DYADIC, *(-x for x in DYADIC), *f.kink_points})
    assert list(mesh(f, 1.0)) == sorted({-1.0, 0.0, 1.0, *(k for k in f.kink_points if abs(k) < 1)})


def narrow(width: float, marked: bool) -> Given:
    """exp(-((x - 2.3)/width)^2/2) and its derivatives."""

    def y(x: np.ndarray) -> np.ndarray:
        return (x - 2.3) / width

    def bump(x: np.ndarray) -> np.ndarray:
        return np.exp(-(y(x) ** 2) / 2)

    return given(
        lambda x: x + bump(x),
        lambda x: 1 - y(x) / width * bump(x),
        lambda x: (y(x) ** 2 - 1) / width**2 * bump(x),
        lambda x: (3 * y(x) - y(x) ** 3) / width**3 * bump(x),
        landmarks=((2.3, width),) if marked else (),
    )


@pytest.mark.parametrize(
    ("f", "most"),
    [
        (ELU, 14),
        (wave(1.0, 0.3), 14),
        (wave(20.0, 0.3), 257),
        (narrow(1.0, False), 30),
        (narrow(1e-3, True), 60),
        (narrow(1e-6, True), 70),
    ],
    ids=lambda f: getattr(f, "name", str(f)),
)
def test_every_panel_is_resolved_and_few_are_made(f: Pieces | Given, most: int) -> None:
    """phi, phi' and phi'' are their interpolants of degree 19, to rounding beside their greatest
    values; bisection stops where they are.
    """
    edges = mesh(f, 16.0)
    assert len(edges) <= most and {-16.0, -2.0, 0.0, 2.0, 16.0} <= set(edges)
    nodes, _ = gauss_legendre(20)
    left, right = edges[:-1, None], edges[1:, None]
    t = np.linspace(-0.99, 0.99, 13)
    for order in range(3):
        values = f.numeric(order)((left + right) / 2 + (right - left) / 2 * nodes)
        inside = f.numeric(order)((left + right) / 2 + (right - left) / 2 * t)
        vander = np.polynomial.legendre.legvander(nodes, 19)
        fitted = np.linalg.solve(vander, values.T).T @ np.polynomial.legendre.legvander(t, 19).T
        rounding = 2e-14 + 2e-15 / min(
            (width for _, width in getattr(f, "landmarks", ())), default=1.0
        )
        assert np.abs(fitted - inside).max() <= 10 * rounding * np.abs(values).max(), order


def test_landmarks_seed_the_mesh() -> None:
    f = narrow(2.0**-12, True)
    wanted = {
        2.3 + 2.0**-12 * s for s in (0, *(sign * 2.0**k for k in range(-1, 5) for sign in (1, -1)))
    }
    assert wanted <= set(mesh(f, 16.0))
    assert all(abs(x) <= 2 for x in mesh(f, 2.0))


def test_what_cannot_be_resolved_is_refused() -> None:
    with refused("varies too fast"):
        mesh(wave(3e5, 0.0), 16.0)
    for step in (1.0, 1e-4):
        jump = given(lambda x, step=step: x + step * (x > 1 / 3), lambda x: 1 + zero(x))
        with refused(r"0\.333333"):
            mesh(jump, 16.0)
    # where floats are far apart
    with refused("smooth.*300000"):
        mesh(given(lambda x: x + 1e5 * (x > 3e5 + 1 / 3), lambda x: 1 + zero(x)), 2.0**19)
    with refused(r"smooth.*-5\.2"):
        mesh(
            given(
                lambda x: 1 / (x + 5.2), lambda x: -1 / (x + 5.2) ** 2, lambda x: 2 / (x + 5.2) ** 3
            ),
            16.0,
        )
    with refused(r"smooth.*0\.3"):
        mesh(given(lambda x: np.abs(x - 0.3), lambda x: np.sign(x - 0.3)), 16.0)


def test_steps_that_are_rounding_are_let_be() -> None:
    """What changes by less than 1e-6 of the greatest value over the narrowest of panels
    is no jump.
    """
    edges = mesh(given(lambda x: x + 1e-9 * (x > 1 / 3), lambda x: 1 + zero(x)), 16.0)
    assert (
        20 < len(edges) < 60 and np.diff(edges).min() > 2e-10 and np.abs(edges - 1 / 3).min() < 2e-9
    )
    cubic = [
        lambda x: x**3 + 1e-3 * (x > 1 / 3),
        lambda x: 3 * x * x,
        lambda x: 6 * x,
        lambda x: 6 + zero(x),
    ]
    assert len(mesh(given(*cubic), 16.0)) < 60  # 2.4e-7 of the greatest value
    rough = np.random.default_rng(1)
    assert (
        len(
            mesh(
                given(lambda x: x + 1e-13 * rough.standard_normal(x.shape), lambda x: 1 + zero(x)),
                16.0,
            )
        )
        == 9
    )


def test_derivatives_by_values_share_their_rounding() -> None:
    """Where derivatives come from values (numeric_only), noise in them is judged beside the values
    too.
    """
    rough = np.random.default_rng(2)
    noise = lambda x: 1e-9 + 1e-13 * rough.standard_normal(x.shape)  # noqa: E731
    assert len(mesh(given(lambda x: 1 + zero(x), noise, numeric_only=True), 16.0)) == 9
    with pytest.raises(KcalcError):
        mesh(
            given(lambda x: 1 + zero(x), lambda x: 1e-9 + 1e-11 * rough.standard_normal(x.shape)),
            16.0,
        )
    flat, far = Pieces("flat", (), ((1000.0, 0.001),)), np.array([8.0])
    assert quadrature._scale(flat, 1, 16.0)(far) == pytest.approx(0.001)
    assert quadrature._scale(flat, 0, 16.0)(far) == pytest.approx(1000, rel=1e-4)
    both = given(lambda x: 1000 + zero(x), lambda x: 0.001 + zero(x), numeric_only=True)
    assert quadrature._scale(both, 1, 16.0)(far) == quadrature._scale(both, 0, 16.0)(far) == 1000


def test_envelopes() -> None:
    """max |f| over [-|x|, |x|], and no less than a share of the greatest within reach of ordinary
    inputs.
    """
    size = quadrature._envelope(lambda x: np.where(x < 0, x * x, x / 2), 100.0)
    x = np.array([-50.0, -7.0, 5.0, 90.0])
    assert (size(x) >= x * x).all() and (size(x) <= 1.2 * x * x).all()
    assert size(np.zeros(1)) == size(np.array([0.5])) == pytest.approx(0.05 * 16, rel=0.06)
    assert size(np.array([1e9])) == pytest.approx(1e4)
    assert quadrature._envelope(lambda x: x, 100.0, ((30.0, 10.0),))(np.zeros(1)) == pytest.approx(
        0.05 * 37
    )
    assert quadrature._envelope(lambda x: x, 100.0, ((-30.0, 10.0), (1.0, 0.1)))(
        np.zeros(1)
    ) == pytest.approx(0.05 * 37)
    assert (
        quadrature._envelope(lambda x: np.where(x > 3, np.inf, 1.0), 100.0)(np.array([50.0])) == 1.0
    )
    assert quadrature._envelope(lambda x: x, 2.0, ((30.0, 10.0),))(np.array([1.0])) <= 1.05


@pytest.mark.parametrize(("power", "q"), [(0, 1.0), (3, 0.01), (12, 4.0)])
@pytest.mark.parametrize("depth", [DEPTH, 44.0])
def test_ranges_hold_what_matters(power: int, q: float, depth: float) -> None:
    """phi(sqrt q z)^2 N(z) is below exp(-depth) of its peak outside, and little more is kept."""
    f = Pieces("power", (), ((0.0,) * power + (1.0,),))
    low, high = z_range(f, q, depth)
    z = np.arange(0.01, 40, 0.01)
    logs = 2 * power * np.log(z) - z * z / 2
    needed = z[logs > logs.max() - depth][-1]
    least = math.sqrt(2 * depth) - 0.5
    assert -low == high == pytest.approx(max(needed, least), abs=0.5) and high >= needed - 0.01
    assert high >= least


def test_ranges_follow_growth_to_either_side() -> None:
    f = Pieces("growing", (), ((1.0,),), (3.0,))
    low, high = z_range(f, 4.0)
    assert low == pytest.approx(-(math.sqrt(2 * DEPTH) - 0.5), abs=1e-12)
    assert high == pytest.approx(12 + math.sqrt(2 * DEPTH), abs=0.51)
    assert z_range(Pieces("nothing", (), ((0.0,),)), 1.0) == (-high_of(DEPTH), high_of(DEPTH))


def high_of(depth: float) -> float:
    return math.sqrt(2 * depth) - 0.5


def test_divergence_is_refused() -> None:
    fast = given(lambda x: np.exp(x * x / 8))
    z_range(fast, 1.0)
    for q in (2.0, 1.99, 3.0):
        with refused(f"diverges .* at q = {q:g}"):
            z_range(fast, q)
    with refused("diverges"):
        z_range(Pieces("great", (), ((1e142,),)), 4.0)  # its square comes near to an overflow
    z_range(Pieces("smaller", (), ((1e140,),)), 4.0)
    with refused("diverges"):
        # its peak is too near the end of what is looked at
        z_range(Pieces("steep", (), ((1.0,),), (7.0,)), 4.0)
    z_range(Pieces("less steep", (), ((1.0,),), (6.5,)), 4.0)
    for one_sided in (
        lambda x: np.exp(np.where(x > 0, x * x / 8, 0)),
        lambda x: np.exp(np.where(x < 0, x * x / 8, 0)),
    ):
        with refused("diverges"):
            z_range(given(one_sided), 2.5)


@pytest.mark.parametrize("q", [1e-4, 0.3, 1.0, 5e4])
def test_edges_and_rules(q: float) -> None:
    """The mesh seen from the standard normal: kinks at k/sqrt q, ends at the range.

    Panels of a rule no wider than 1.
    """
    edges, (low, high) = z_edges(STEPS, q), z_range(STEPS, q)
    assert (edges[0], edges[-1]) == (low, high) and (np.diff(edges) > 0).all()
    expected = [x / math.sqrt(q) for x in (*STEPS.kink_points, 0.0, 2.0, -4.0)]
    assert {x for x in expected if low < x < high} <= set(edges)
    nodes = rule(STEPS, q)
    assert nodes.z.size == 20 * (split(edges, 1.0).size - 1) and float(
        nodes.w @ nodes.z**4
    ) == pytest.approx(3, rel=1e-13)
    assert np.diff(nodes.z).max() < 0.2
    assert z_edges(STEPS, q, 10.0)[-1] < 6
