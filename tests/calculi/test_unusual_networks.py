"""Networks at the edges of the rules: refusals that name the remedy, and values that exist."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import attending, wired

import kcalc as kc
from kcalc import activation, c_map, chain, gradients, ntk
from kcalc.calculi import location_maps
from kcalc.calculi.hermite_series import REPEATED, expansion
from kcalc.calculi.location_maps import TABLED, LocationMaps
from kcalc.fields import NUMPY
from kcalc.network.layers import (
    Affine,
    BatchNorm,
    Concat,
    Dropout,
    Identity,
    Input,
    Layer,
    LayerNorm,
    Nonlinear,
    PixelShuffle,
    Pool,
    Positions,
    Resize,
    StopGradient,
    Sum,
    SurrogateGradient,
    TokenMix,
)

RELU = Nonlinear("relu")
TWO = wired(("a", Affine(3)), ("b", Affine(3), "x"), features=3)
N, M = sp.symbols("n m", positive=True)
PARTS = ("a", Affine(N)), ("b", Affine(M), "x"), ("d", Affine(M), "x"), ("e", Affine(N), "x")
JOINED = *PARTS, ("c", Concat(), "a b"), ("f", Concat(), "d e"), ("s", Sum(), "c f")
BATCHES = Affine(5), BatchNorm(0.3), RELU, Affine(5), BatchNorm(0.5), Affine(2)
SHARED = ("a", Affine(8, 3)), ("f", RELU), ("g", Nonlinear("tanh"), "a"), ("s", Sum(), "f g")
MIXED = chain(Input(3), Affine(4), TokenMix([[1, 2], [2, 0]], random=True), RELU, Affine(2))


def over(*layers: Layer, shape: Any = (4, 4)) -> Any:
    return ntk(chain(Input(4), Affine(4), *layers), spatial="exact", image_shape=shape)


def tiny(*steps: Any) -> kc.Network:
    """Feature maps whose variance over channels has no digits in double precision."""
    return wired(
        ("a", Affine(sigma_w=1e-6)), *steps, ("n", LayerNorm()), ("o", Affine()), features=3
    )


SIGMOIDS = (
    ("f", Nonlinear("sigmoid")),
    ("b", Affine(sigma_w=1e-6), "x"),
    ("g", Nonlinear("sigmoid")),
    ("s", Sum((0.6, 0.8)), "f g"),
)
ATTENDING = wired(("e", Affine(), "x"), ("t", Nonlinear("tanh")), *attending(below="t"), features=4)

test_what_is_refused = refusals(
    [
        (lambda: ntk(chain(Input(3), RELU)), "no Affine"),
        (lambda: ntk(TWO).by_layer(0.5), r"K.layers\[node\]"),
        (lambda: ntk(TWO).regime(), "1 inputs and 2 outputs"),
        (lambda: ntk(chain(Affine(), Nonlinear("sign"), StopGradient())).regime(), "infinite"),
        (lambda: gradients(kc.architectures.vanilla(60, "tanh", sigma_w=1e6)), "lower sigma_w"),
        (lambda: ntk(MIXED), "tokenmix_1.*TokenMix"),
        (lambda: gradients(chain(Input(3), *BATCHES)), "batch_c = 0.5.*0.31831"),
        (lambda: kc.large_batch(chain(*BATCHES), c=1 - 1e-12), "same direction.*'batchnorm_1'"),
        (lambda: c_map(wired(*JOINED, features=3)), "'s'.*net.subs"),
        (lambda: wired(*TWO.steps(), ("c", Concat((3, 4)), "a b")), "'c'.*declares 4.*'b'"),
        (lambda: over(Resize(0.1)), "0 locations"),
        (lambda: over(PixelShuffle((2,))), "one factor per axis"),
        (lambda: over(Positions(), shape=(3,)), "'positions_1'.*tokens=128"),
        (
            lambda: ntk(
                chain(PixelShuffle(2), Affine(), RELU, Pool("mean"), Affine()),
                spatial="exact",
                image_shape=(2, 2),
            ).matrix(np.ones((1, 2, 2, 4))),
            "'pixelshuffle_1'.*Affine before",
        ),
        (
            lambda: ntk(
                wired(*SHARED, ("o", Affine())), spatial="exact", image_shape=(4, 4)
            ).matrix(np.zeros((1, 4, 4, 1))),
            "'s'.*sigma_b > 0",
        ),
        (
            lambda: c_map(chain(Affine(), LayerNorm(), Nonlinear("tanh"), RELU)).ball(0.5),
            "'nonlinear_2'.*intervals",
        ),
        (lambda: kc.node_values(chain(*[Affine(sigma_w=1e100)] * 2), tokens=3), "'affine_2'.*q ="),
        (lambda: kc.q_map(ATTENDING, tokens=3, token_cosine=0.2).derivative(2)(0.5), "use order 1"),
        (lambda: c_map(tiny(*SIGMOIDS))(0.5), "too few.*call the map's ball"),
    ],
    lambda call: call(),
)


def test_balls_have_the_digits_that_doubles_lack() -> None:
    """Sigmoids of tiny numbers are affine, and tanh(u) - u is -u^3/3 to leading order."""
    net, c = tiny(*SIGMOIDS), 0.5
    assert float(c_map(net).ball(c)) == pytest.approx(c, abs=1e-9)
    assert float(ntk(net).ball(c)) == pytest.approx(2 * c, abs=1e-9)
    cubic = tiny(("f", Nonlinear("tanh")), ("s", Sum((1, -1)), "a f"))
    assert float(c_map(cubic).ball(c)) == pytest.approx((9 * c + 6 * c**3) / 15, abs=1e-9)


@pytest.mark.parametrize(
    "last",
    [
        (("n", Dropout(0.1)),),
        (("n", SurrogateGradient("relu", "identity")),),
        (("g", RELU, "b"), ("n", Concat(), "f g")),
    ],
)
def test_scale_free_layers_after_an_overflow(last: Any) -> None:
    first = ("a", Affine(4)), ("b", Affine(4)), ("f", RELU)
    net = wired(*first, *last, ("o", Affine(3)), features=3)
    large = net.map_layers(lambda node, layer: Affine(4, sigma_w=1e100) if node in "ab" else layer)
    assert c_map(large)(0.3) == pytest.approx(c_map(net)(0.3), rel=1e-12)


def test_windows_of_one_location_are_the_identity() -> None:
    images = np.random.default_rng(0).normal(size=(2, 3, 3, 1))

    def matrix(*middle: Layer, standardised: bool = False) -> Any:
        second = Affine(9, 3, standardised=standardised)
        net = chain(Affine(9, 3), Nonlinear("erf"), *middle, second, RELU, Pool("mean"), Affine())
        return ntk(net, spatial="exact", image_shape=(3, 3)).matrix(images)

    np.testing.assert_array_equal(matrix(Pool("mean", 1)), matrix())
    # the channel means of an odd activation are 0
    np.testing.assert_array_equal(matrix(Identity(), standardised=True), matrix())
    assert ntk(chain(Affine(), Pool("mean", 1)))(0.3) == ntk(chain(Affine()))(0.3)


def test_c_values_of_equal_locations_are_those_of_pairs() -> None:
    one, two = np.random.default_rng(0).normal(size=(2, 3, 3, 1))
    net = chain(Affine(4, 3), RELU, Pool("mean"), Affine())
    C = c_map(net, spatial="exact", image_shape=(3, 3))
    alone, pairs = (C.c_values(one, two, pairs=p)["nonlinear_1"] for p in (False, True))
    np.testing.assert_array_equal(np.diag(pairs.reshape(9, 9)), alone.ravel())
    images = np.stack([one, two])
    np.testing.assert_array_equal(C.matrix(images, progress=True), C.matrix(images))


def test_gradients_through_a_signed_permutation() -> None:
    """Every token reads one token, times 2; E tanh'(u)^2 is that of u with q = 4."""
    net = chain(Input(3, (2,)), Affine(4), TokenMix([[0, 2], [2, 0]]), Nonlinear("tanh"), Affine(2))
    found, z = gradients(net).nodes, np.linspace(-9, 9, 4001)
    slope = np.sum((1 - np.tanh(2 * z) ** 2) ** 2 * np.exp(-(z**2) / 2)) * 9 / 2000
    assert found["tokenmix_1"] == pytest.approx(slope / np.sqrt(2 * np.pi), rel=1e-9)
    assert found["affine_1"] == pytest.approx(4 * found["tokenmix_1"], rel=1e-12)


def test_masks_on_one_of_two_addends() -> None:
    """d = relu(u) behind two masks that keep half, added to relu(u).

    Two masks multiply q by 4, so q is K(1) (4 + 1 + 2), and E f f' = K(c) (1 + 1 + 2).
    """
    half = Dropout(0.5, active=True)
    steps = ("a", Affine()), ("r", RELU), ("d", half), ("e", half), ("s", Sum(), "e r")
    relu = (np.sqrt(1 - 0.3**2) + (np.pi - np.arccos(0.3)) * 0.3) / np.pi
    found = c_map(wired(*steps, ("o", Affine()), features=3))(0.3)
    assert found == pytest.approx(relu * 4 / 7, rel=1e-12)


def test_formulas_behind_the_norm_of_an_activation() -> None:
    """A LayerNorm subtracts the mean of relu, so its output is shifted."""
    steps = ("a", Affine()), ("f", RELU), ("n", LayerNorm()), ("b", Affine(), "x")
    C = c_map(wired(*steps, ("s", Sum(), "n b"), ("o", Affine()), features=3))
    assert C.symbolic(1).evaluate({kc.symbols.c: 0.3}) == pytest.approx(C(0.3), rel=1e-12)


def test_q_maps_at_a_given_q() -> None:
    assert kc.q_map(chain(Affine(), RELU)).symbolic(3).evaluate({}) == 1.5


def test_gradients_through_a_norm_beside_another_activation() -> None:
    """The slope is relu'(u)/s + tanh'(u), where s^2 = 1/2 - 1/(2 pi) is the variance of relu."""
    steps = ("a", Affine()), ("f", RELU), ("n", LayerNorm()), ("g", Nonlinear("tanh"), "a")
    net = wired(*steps, ("s", Sum(), "n g"), ("o", Affine()), features=6)
    z = np.linspace(-9, 9, 9001)
    slope = (z > 0) / np.sqrt(0.5 - 1 / (2 * np.pi)) + 1 - np.tanh(z) ** 2
    mean = np.sum(slope**2 * np.exp(-(z**2) / 2)) / 500 / np.sqrt(2 * np.pi)
    assert gradients(net).nodes["a"] == pytest.approx(mean, rel=2e-3)


def test_surrogate_gradients_of_zero_rows() -> None:
    """The slope is u, so the kernel is E relu(u)^2 + E u^2 times q = 5/2."""
    net = chain(Input(2), Affine(8), SurrogateGradient("relu", "identity"), Affine(2))
    rows = np.array([[0.0, 0.0], [1.0, 2.0]])
    np.testing.assert_allclose(ntk(net).matrix(rows), [[0, 0], [0, 2.5 / 2 + 2.5**2]], rtol=1e-12)


def test_inputs_in_sums_have_mean_zero() -> None:
    net = wired(("a", Affine(), "x"), ("f", RELU), ("s", Sum(), "x f"), ("o", Affine()))
    assert any(a.node == "s" and "channel mean 0" in a.text for a in c_map(net).assumptions)


def test_many_norms_that_nearly_agree() -> None:
    """Norms that differ in the last digits, but too much in all to be one norm."""
    rows = np.random.default_rng(1).normal(size=(40, 5))
    rows /= np.sqrt((rows**2).mean(axis=1, keepdims=True))
    near = rows * np.sqrt(1 + np.arange(40)[:, None] * 3e-15)
    K = ntk(chain(Input(5), Affine(4), RELU, Affine(2)))
    np.testing.assert_allclose(K.matrix(near), K.matrix(rows), rtol=1e-12, atol=1e-12)


def test_hermite_series_of_many_q_values() -> None:
    phi, q = activation("erf"), np.linspace(1.0, 1.5, REPEATED + 1)
    found = expansion(phi, q)
    assert found is not None
    np.testing.assert_allclose(found.size, 2 / np.pi * np.arcsin(2 * q / (1 + 2 * q)), rtol=1e-13)
    assert expansion(phi, 2.0 ** np.arange(-40, 40)) is None


def test_kinks_beyond_the_density() -> None:
    x = sp.Symbol("x", real=True)
    far = activation(sp.Piecewise((x, x < 60), (2 * x, True)))
    assert [far.q_map.derivative(order)(1.0) for order in (1, 2)] == [1, 0]


@pytest.mark.slow
def test_tables_over_locations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pairs of q values have no table if their range is wide; each takes an integral."""
    maps, phi = LocationMaps(NUMPY), activation(sp.tanh(sp.Abs(sp.Symbol("x", real=True))))
    q, gap = np.exp(np.linspace(0.1, 0.9, TABLED + 1)), np.linspace(0, 2, TABLED + 1)
    monkeypatch.setattr(location_maps, "MOST", TABLED)
    with refused("no accurate table.*LayerNorm"):
        maps.taylor(phi, gap, q**60, q[::-1] ** 60, 1)
    found, few = maps.taylor(phi, gap, q, q[::-1], 1), [1, 7, 300]
    for table, value in zip(found, phi.taylor(gap[few], q[few], q[::-1][few], 1), strict=True):
        np.testing.assert_allclose(table[few], value, rtol=1e-12, atol=1e-13)


def test_norms_of_parts_that_hardly_vary() -> None:
    """Sigmoids of small numbers are affine, so c is kept; the parts are centred in doubles."""
    second = ("b", Affine(4, sigma_w=1e-3), "x"), ("g", Nonlinear("sigmoid"))
    first = ("a", Affine(4, sigma_w=1e-3)), ("f", Nonlinear("sigmoid"))
    net = wired(*first, *second, ("c", Concat(), "f g"), ("n", LayerNorm()), features=6)
    C = c_map(net)
    assert C(0.3) == pytest.approx(0.3, abs=1e-6)
    assert any(a.node == "n" and "8 digits" in a.text for a in C.assumptions)


def test_widths_in_the_ratio_of_a_concatenation() -> None:
    """The variance of |y|^2 / n of n channels is 2 q^2 / n; a and b are 4 and 8 channels."""
    net = wired(
        ("a", Affine()), ("b", Affine(), "x"), ("c", Concat((1, 2)), "a b"), ("o", Affine())
    )
    found = kc.fluctuations(net, features={"x": 4, "a": 4, "b": 8, "o": 3})["c"]
    assert found.log_variance == pytest.approx(2 / 12)
