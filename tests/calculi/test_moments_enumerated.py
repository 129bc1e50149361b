"""Exact moments against all the weights there are.

Laws of few values, every combination of them propagated and differentiated.

The values of a law differ from entry to entry of a matrix (its variance and kurtosis do not), so
that no pre-activation is 0.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import moments_oracle as oracle
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from wiring import wired

from kcalc import activations, chain, repeat, residual
from kcalc.calculi.moments import depth_stability, moments, moments_at_depth
from kcalc.calculi.moments.laws import WeightLaw
from kcalc.network.layers import Affine, Concat, Identity, Input, Nonlinear, Scale, Sum
from kcalc.network.network import Network

Node = Hashable
START = np.array([0.8, -0.6])
HALF, STEEP = activations.leaky_relu(sp.Rational(1, 2)), activations.leaky_relu(-3)
ALPHA, N = sp.Symbol("alpha", positive=True), sp.Symbol("n", integer=True, positive=True)


def values_of(kurtosis: int, entry: int) -> tuple[np.ndarray, np.ndarray]:
    """The values of one entry and their probabilities: variance 1, the given kurtosis."""
    if kurtosis == 1:
        return np.array([1.0, -1.0]), np.array([0.5, 0.5])
    p = 1 - (0.3 + 0.6 * math.modf(entry * 0.6180339887)[0]) / kurtosis
    small = math.sqrt(1 - math.sqrt((kurtosis - 1) * (1 - p) / p))
    large = math.sqrt(1 + math.sqrt((kurtosis - 1) * p / (1 - p)))
    return np.array([small, -small, large, -large]), np.array([p, p, 1 - p, 1 - p]) / 2


def enumerated(network: Network, kurtoses: dict[Node, int]) -> dict[Any, list[float]]:
    """{(what, node): [E s, E s^2]} of |y|^2 and |J|^2, over all weights."""
    shapes: dict[Node, tuple[int, int]] = {}

    def shaped(node: Node, shape: tuple[int, int]) -> np.ndarray:
        shapes[node] = shape
        return np.ones((1, *shape))

    oracle.propagated(network, shaped, START)
    owners = [node for node, shape in shapes.items() for _ in range(math.prod(shape))]
    laws = [values_of(kurtoses[node], k) for k, node in enumerate(owners, 1)]
    count = math.prod(len(law[0]) for law in laws)
    state, chance = np.arange(count), np.ones(count)
    found: dict[Node, list[np.ndarray]] = {node: [] for node in shapes}
    for node, (values, chances) in zip(owners, laws, strict=True):
        state, digit = np.divmod(state, len(values))
        chance = chance * chances[digit]
        found[node].append(values[digit])
    weights = {
        node: np.stack(columns, axis=1).reshape(count, *shapes[node])
        for node, columns in found.items()
    }
    squares, jacobians = oracle.propagated(network, lambda node, shape: weights[node], START)
    return {
        (name, node): [float(chance @ s), float(chance @ s**2)]
        for name, table in (("y", squares), ("J", jacobians))
        for node, s in table.items()
    }


def found_by(network: Network, kurtoses: dict[Node, Any]) -> dict[Any, list[Any]]:
    laws = {node: WeightLaw(f"kurtosis {k}", k - 3, stated=False) for node, k in kurtoses.items()}
    found = moments(network, weights=laws, input_fourth=sp.Rational(337, 625))
    return {
        (name, node): [m.mean, m.fourth]
        for name, table in (("y", found.nodes), ("J", found.weights))
        for node, m in table.items()
    }


def net(*steps: Any) -> Network:
    return wired(("x", Input(2)), *steps)


W1, TAIL = ("W1", Affine(2, sigma_w=1.3), "x"), ("U", Affine(1))
HEAD = [W1, ("a", Nonlinear(HALF))]
ADDED, NARROW = Sum((0.9, -1.2)), Affine(2, sigma_w=0.7)
# networks, and the kurtoses of layers where they are not 1
CASES: dict[str, tuple[Network, dict[Node, int]]] = {
    "widths": (
        net(
            ("W1", Affine(3, sigma_w=1.3)),
            ("a", Nonlinear("relu")),
            ("W2", Affine(1)),
            ("b", Nonlinear(STEEP)),
            ("W3", Affine(2)),
        ),
        {"W2": 4, "W3": 2},
    ),
    "joined": (
        net(
            *HEAD,
            ("V", NARROW),
            ("U", Affine(2, sigma_w=1.1), "x"),
            ("s", ADDED, "V U"),
            ("b", Nonlinear(STEEP)),
        ),
        {"V": 2},
    ),
    "two of one": (
        net(
            *HEAD,
            ("b", Nonlinear("relu"), "W1"),
            ("V", NARROW),
            ("s", ADDED, "a V"),
            ("U", Affine(2)),
        ),
        {"W1": 3},
    ),
    "stacks": (
        net(
            W1,
            ("W2", Affine(1, sigma_w=0.7), "x"),
            ("W3", Affine(2), "x"),
            ("W4", Affine(1), "x"),
            ("c", Concat(), "W1 W2"),
            ("d", Concat(), "W3 W4"),
            ("s", Sum((0.9, -0.4)), "c d"),
            ("U", Affine(1, sigma_w=1.5)),
        ),
        {},
    ),
    "dense": (
        net(
            *HEAD,
            ("c", Concat(), "x a"),
            ("m", Scale(-0.8)),
            ("V", Affine(1)),
            ("b", Nonlinear("relu")),
            ("d", Concat(), "b m"),
            TAIL,
            ("out", Scale(2)),
        ),
        {},
    ),
    "undone": (
        net(
            *HEAD,
            ("b", Nonlinear(activations.leaky_relu(2))),
            ("V", NARROW, "x"),
            ("s", Sum((0.9, -0.4)), "b V"),
            ("c", Concat(), "s W1"),
            TAIL,
        ),
        {},
    ),
    # products that others read, and layers that do nothing that others read: no addend is private
    "between": (
        net(
            W1,
            ("W2", NARROW, "x"),
            ("m", Scale(1.4), "W1"),
            ("i", Nonlinear("identity"), "m"),
            ("k", Identity(), "W2"),
            ("s", Sum((0.9, -0.4)), "i k"),
            ("c", Concat(), "s m k"),
            TAIL,
        ),
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_enumerated(name: str) -> None:
    network, others = CASES[name]
    kurtoses = dict.fromkeys(network.nodes_of(Affine), 1) | others
    found, truth = found_by(network, kurtoses), enumerated(network, kurtoses)
    assert found.keys() == truth.keys()
    for key, expected in truth.items():
        assert found[key] == pytest.approx(expected, rel=1e-11), key


# -- the same with symbols -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["joined", "stacks", "dense"])
def test_expressions_agree_with_numbers(name: str) -> None:
    network = CASES[name][0]
    scaled = wired(*network.steps(), ("scaled", Scale(ALPHA), network.outputs))
    symbolic, numeric = moments(scaled), moments(scaled.subs({ALPHA: 1.3}))
    for table, other in ((symbolic.nodes, numeric.nodes), (symbolic.weights, numeric.weights)):
        assert table.keys() == other.keys()
        for node, moment in other.items():
            one = table[node].subs({ALPHA: 1.3})
            expected = moment.mean, moment.fourth
            assert (one.mean, one.fourth) == pytest.approx(expected, rel=1e-13), node


def relu_block(sigma_w: Any, width: Any = N) -> Network:
    return chain(Input(width), Affine(width, sigma_w=sigma_w), Nonlinear("relu"))


def test_factors_of_a_relu_layer() -> None:
    found = moments_at_depth(relu_block(sp.sqrt(2) * ALPHA), 3)
    for factor, expected in (
        (found.fourth_factor, ALPHA**4 * (N + 5) / N),
        (found.minus_factor, ALPHA**4 * (N - 1) / N),
        (found.relative_factor, (N + 5) / N),
    ):
        assert sp.simplify(factor - expected) == 0
    shown = "DepthMoments(3 nodes, depth 3, input |x|^2 = 1, q = 1/n, mean factor alpha**2)"
    assert repr(found) == shown
    for one in (found, found.stability(ALPHA)):
        assert [note.node for note in one.assumptions] == ["block", "block"]
    k = sp.Symbol("k", integer=True, positive=True)
    general = found.jacobian("affine_1", k)
    numbers = moments(repeat(relu_block(0.8 * sp.sqrt(2), 4), 3)).weights
    for block, expected in enumerate(numbers.values(), 1):
        one = general.subs({N: 4, ALPHA: 0.8, k: block})
        assert (one.mean, one.fourth) == pytest.approx((expected.mean, expected.fourth), rel=1e-13)
    for block in (0, 4, 1.5):
        with refused("integer.*1.*3"):
            found.jacobian("affine_1", block)
    assert moments_at_depth(relu_block(1)).jacobian("affine_1", 7).mean != 0
    with refused("its Affine nodes are affine_1"):
        found.jacobian("relu", 1)


def test_scalings_that_keep_moments_bounded() -> None:
    """(1 + rate a^power + ...)^L -> exp(rate L a^power), the factors at small a."""
    branches = {
        1: chain(Affine(N, sigma_w=ALPHA)),
        2: chain(Affine(N, sigma_w=ALPHA), Nonlinear("relu"), Affine(N, sigma_w=3 * ALPHA)),
    }
    for m, branch in branches.items():
        found = depth_stability(chain(Input(N), residual(branch)), "alpha")
        assert found.mean_power == 2 * m and found.parameter == ALPHA
        assert found.critical == () and found.bounded is None
        small = {ALPHA: sp.Rational(1, 10**6), N: 8}
        fourth = found.relative_factor * found.mean_factor**2
        for rate, factor in (
            (found.mean_rate, found.mean_factor),
            (found.fourth_rate, fourth),
        ):
            expected = float((factor.subs(small) - 1) / small[ALPHA] ** (2 * m))
            assert float(rate.subs(small)) == pytest.approx(expected, rel=1e-10)
        second, fourth = (sp.exp(r * sp.Symbol("s")) for r in (found.mean_rate, found.fourth_rate))
        assert str(found).splitlines()[1] == (
            f"bounded as depth grows if and only if s = depth * alpha^{2 * m} is bounded; then "
            f"E|y|^2 -> {second}, E|y|^4 -> {fourth}"
        )
    kept = residual(chain(Affine(N)), sp.sqrt(1 - ALPHA**2), ALPHA)
    found = depth_stability(chain(Input(N), kept), ALPHA)
    assert found.mean_factor == 1 and found.critical == ()
    assert found.mean_power is found.rate is None


def test_blocks_without_symbols_are_bounded_or_not() -> None:
    edge = sp.Rational(2) ** sp.Rational(1, 4)  # E|y|^4 times sigma^4/4 (1 + 5/n) = 1 at n = 5
    for sigma, bounded in ((edge, True), (sp.sqrt(2), False)):
        found = depth_stability(relu_block(sigma, 5))
        assert found.bounded is bounded and found.parameter is None
        shown = "bounded at every depth" if bounded else "not bounded as depth grows"
        assert str(found).splitlines()[1] == shown
        rate = float(sp.log(sigma**4 / 2))
        assert float(found.rate) == pytest.approx(rate, abs=1e-14)
    with refused("its symbols are none"):
        depth_stability(relu_block(1, 5), "alpha")
    with refused("symbols.*alpha"):
        depth_stability(relu_block(ALPHA), sp.Symbol("beta"))
    found = depth_stability(relu_block(ALPHA), "alpha", features=None)
    assert found.critical == (sp.sqrt(2),) and found.to_dict()["critical"] == ["sqrt(2)"]
    assert len(str(depth_stability(relu_block(ALPHA, None), features=N)).splitlines()) == 1
    edge = depth_stability(relu_block(sp.sqrt(2) * ALPHA), ALPHA)
    assert edge.critical == (1,) and sp.simplify(edge.rate - sp.log(1 + 5 / N)) == 0
    assert "the mean is preserved at alpha = 1, where log E|y|^4 grows by" in str(edge)


LAST = Affine(N, sigma_w=sp.sqrt(ALPHA))
BRANCH = chain(Affine(N, sigma_w=sp.sqrt(2 * ALPHA)), Nonlinear("relu"), LAST)
RESNET = chain(Input(N), repeat(residual(BRANCH), 6))


@pytest.mark.parametrize(
    ("network", "most"),
    [
        (RESNET, (36, 80)),
        (oracle.crelu(3, N, ALPHA), (12, 24)),
    ],
)
def test_expressions_stay_products(network: Network, most: tuple[int, int]) -> None:
    """Written out they would have hundreds of operations, or thousands."""
    found = moments(network)
    for table, bound in zip((found.nodes, found.weights), most, strict=True):
        assert max(moment.fourth.count_ops() for moment in table.values()) < bound
