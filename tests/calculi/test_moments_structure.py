"""Exact moments of sums of private weights, of activations of stacks and of activations in a row.

Refusals, and depth as a symbol.
"""

from __future__ import annotations

from typing import Any

import moments_oracle as oracle
import pytest
import sympy as sp
from scipy import stats

import kcalc as kc
from kcalc.calculi.moments import depth_stability, moments, moments_at_depth
from kcalc.calculi.moments.laws import LAWS, law_of
from kcalc.calculi.moments.moment import Moment
from kcalc.network.layers import (
    Affine,
    Concat,
    Dropout,
    Flatten,
    Identity,
    Input,
    Nonlinear,
    Pool,
    Scale,
    Sum,
)
from kcalc.network.network import Network

n = sp.Symbol("n", integer=True, positive=True)
alpha = sp.Symbol("alpha", positive=True)
SIGMAS = 4.0
HALF = kc.activations.leaky_relu(sp.Rational(1, 2))
X = ("x", Input(3), ())


def net(*steps: Any) -> Network:
    return Network.from_steps([X, *steps])


def agrees(network: Network, law: Any = "gaussian", draws: int = 12_000) -> None:
    """Every mean of |y|^2, |y|^4, |J|^2, |J|^4 within 4 standard errors of drawn networks."""
    found = oracle.deviations(moments(network, weights=law), network, draws, 11, law)
    assert max(found.values()) < SIGMAS, max(found.items(), key=lambda item: item[1])


@pytest.mark.parametrize("law", ["gaussian", "uniform"])
def test_private_weights_added_up_are_one_product(law: str) -> None:
    """relu(a W1 x + b W2 y) with y = relu(W0 x): the sum is fresh, and fed by two matrices."""
    agrees(
        net(
            ("W0", Affine(4, sigma_w=1.3), ("x",)),
            ("y", Nonlinear("relu"), ("W0",)),
            ("W1", Affine(4, sigma_w=1.2), ("x",)),
            ("W2", Affine(4), ("y",)),
            ("d", Dropout(0.5), ("W2",)),
            ("sum", Sum((0.7, -1.4)), ("W1", "d")),
            ("z", Nonlinear(HALF), ("sum",)),
            ("W3", Affine(2), ("z",)),
        ),
        law,
    )


def test_activations_of_stacks_and_of_negative_multiples() -> None:
    """leaky(-1.3 [W1 x, [W2 x, leaky(W1 x)]]), nested, its beginning shared with another
    activation.
    """
    agrees(
        net(
            ("W1", Affine(3), ("x",)),
            ("W2", Affine(2), ("x",)),
            ("a", Nonlinear(HALF), ("W1",)),
            ("inner", Concat(), ("W2", "a")),
            ("first", Nonlinear("relu"), ("W2",)),
            ("stack", Concat(), ("W1", "inner")),
            ("scaled", Scale(-1.3), ("stack",)),
            ("z", Nonlinear(HALF), ("scaled",)),
            ("again", Nonlinear("relu"), ("z",)),
            ("join", Concat(), ("again", "first", "z")),
            ("W3", Affine(2), ("join",)),
        )
    )


def test_an_activation_undone_is_linear() -> None:
    """leaky_relu(2) of leaky_relu(1/2) is the identity.

    Relu of -leaky_relu(1/2)(y) is relu(-y)/2.
    """
    twice = net(
        ("W", Affine(4), ("x",)),
        ("a", Nonlinear(HALF), ("W",)),
        ("b", Nonlinear(kc.activations.leaky_relu(2)), ("a",)),
    )
    found = moments(twice).out
    assert found.mean == pytest.approx(4 / 3, rel=1e-14) and found.fourth == pytest.approx(
        (4 / 3) ** 2 * (1 + 2 / 4), rel=1e-14
    )
    flipped = net(
        ("W", Affine(4), ("x",)),
        ("a", Nonlinear(HALF), ("W",)),
        ("s", Scale(-1), ("a",)),
        ("b", Nonlinear("relu"), ("s",)),
    )
    found = moments(flipped).out  # s = sum of relu(-y_i)^2/4, y_i normal of variance 1/3
    v, f = sp.Rational(1, 24), sp.Rational(3, 32) / 9
    assert found.mean == pytest.approx(float(4 * v), rel=1e-14) and found.fourth == pytest.approx(
        float(4 * f + 12 * v**2), rel=1e-14
    )


def test_equal_sums_are_one_vector_and_stacks_of_sums_are_followed() -> None:
    """[W1 x, W2 x] + a [W3 x, W4 x], twice, added to a newer stack: read slot by slot."""
    heads = [
        (f"W{i}", Affine(3 if i % 2 else 2, sigma_w=0.8 + i / 10), ("x",)) for i in range(1, 5)
    ]
    agrees(
        net(
            *heads,
            ("one", Concat(), ("W1", "W2")),
            ("two", Concat(), ("W3", "W4")),
            ("sum", Sum((1, 0.5)), ("one", "two")),
            ("same", Sum((1, 0.5)), ("one", "two")),
            ("V1", Affine(3), ("sum",)),
            ("V2", Affine(2), ("same",)),
            ("three", Concat(), ("V1", "V2")),
            ("end", Sum((0.5, 0.5, -1)), ("sum", "same", "three")),
            ("W", Affine(2), ("end",)),
        )
    )


def refused(*steps: Any, **options: Any) -> str:
    with pytest.raises(kc.KcalcError) as caught:
        moments(net(*steps), **options)
    return str(caught.value)


def test_what_does_not_close_is_refused() -> None:
    W = ("W", Affine(3), ("x",))
    relu = ("a", Nonlinear("relu"), ("W",))
    assert (
        "'r'" in (text := refused(W, ("j", Concat(), ("W", "x")), ("r", Nonlinear("relu"), ("j",))))
        and "network's input" in text
    )
    text = refused(W, ("j", Concat(), ("x", "W")), ("r", Nonlinear("relu"), ("j",)))
    assert "'r'" in text and "network's input" in text
    text = refused(
        W, ("V", Affine(3), ("W",)), ("s", Sum(), ("W", "V")), ("r", Nonlinear("relu"), ("s",))
    )
    assert "'r'" in text and "a sum" in text
    text = refused(W, relu, ("m", Scale(-1), ("a",)), ("r", Nonlinear("relu"), ("m",)))
    assert "maps to 0" in text
    text = refused(
        W, ("m", Scale(sp.Symbol("a", real=True)), ("W",)), ("r", Nonlinear("relu"), ("m",))
    )
    assert "unknown sign" in text
    assert "cancel" in refused(W, relu, ("s", Sum((1, -1)), ("a", "a")))
    assert "widths" in refused(W, ("V", Affine(n), ("x",)), ("s", Sum(), ("W", "V")))
    assert "standardised" in refused(("W", Affine(3, standardised=True), ("x",)))
    assert "pooling" in refused(W, ("p", Pool("mean"), ("W",)))
    assert "rule" in refused(W, ("p", kc.layers.Product(), ("W", "x")))
    parts = [(f"W{i}", Affine(k), ("x",)) for i, k in enumerate((2, 3, 3, 2))]
    stacks = [("one", Concat(), ("W0", "W1")), ("two", Concat(), ("W2", "W3"))]
    assert "line up" in refused(*parts, *stacks, ("s", Sum(), ("one", "two")))


def test_layers_that_do_nothing_keep_weights_private() -> None:
    plain = net(
        ("W", Affine(4), ("x",)),
        ("V", Affine(4), ("x",)),
        ("s", Sum(), ("W", "V")),
        ("r", Nonlinear("relu"), ("s",)),
    )
    kept = net(
        ("W", Affine(4), ("x",)),
        ("i", Identity(), ("W",)),
        ("h", Scale(2), ("i",)),
        ("V", Affine(4), ("x",)),
        ("f", Flatten(), ("V",)),
        ("l", Nonlinear("identity"), ("f",)),
        ("s", Sum((0.5, 1)), ("h", "l")),
        ("r", Nonlinear("relu"), ("s",)),
    )
    # y_i normal of variance 2/3: E relu^2 = 1/3, E relu^4 = 3/2 (2/3)^2
    by_hand = 4 * (1.5 * (2 / 3) ** 2) + 12 * (1 / 3) ** 2
    assert moments(plain).out.fourth == pytest.approx(by_hand, rel=1e-14)
    assert moments(kept).out.fourth == pytest.approx(by_hand, rel=1e-14)


# -- laws, symbols, depth --------------------------------------------------------------------------


def test_laws_by_kurtosis_and_as_themselves() -> None:
    assert law_of(-2) is LAWS["rademacher"] and law_of(LAWS["uniform"]) is LAWS["uniform"]
    with pytest.raises(kc.KcalcError, match="-2.1"):
        law_of(-2.1)
    chain = net(("W", Affine(2), ("x",)), ("V", Affine(1), ("W",)))
    assert moments(chain, weights=-1.2).out.fourth == pytest.approx(
        moments(chain, weights="uniform").out.fourth, rel=1e-14
    )


def test_symbols_are_filled_in_one_after_the_other() -> None:
    m = sp.Symbol("m", integer=True, positive=True)
    found = moments(
        Network.from_steps([("x", Input(n), ()), ("W", Affine(m, sigma_w=alpha), ("x",))]),
        jacobian=True,
    )
    half = found.subs({"n": 5})
    assert sp.simplify(half.out.mean - m * alpha**2 / 5) == 0 and half.symbolic
    done = half.subs({m: 4, alpha: sp.Rational(1, 2)})
    assert done.out.mean == pytest.approx(0.2, rel=1e-15) and not done.symbolic
    assert done.out.fourth == pytest.approx(0.04 * (1 + 2 / 4), rel=1e-14)
    assert half.to_dict()["nodes"]["W"]["mean"] == str(half.out.mean) == half.out.text("mean")
    assert done.subs({}).out is done.out and done.out.subs({n: 3}) is done.out
    with pytest.raises(kc.KcalcError, match="beta"):
        found.subs({"beta": 1})
    with pytest.raises(kc.KcalcError, match="no symbols"):
        moments(net(("W", Affine(2), ("x",)))).subs({"n": 1})
    assert Moment.of_expressions(sp.Integer(0), sp.Integer(0)).relative == 0


def test_symbolic_moments_without_jacobians_and_with_floats() -> None:
    """Rademacher weights and relu.

    a preactivation can be 0, so that |J|^2 has no exact moments, but |y|^2 has.
    """
    found = moments(
        net(("W", Affine(n, sigma_w=0.3), ("x",)), ("r", Nonlinear("relu"), ("W",))),
        weights="rademacher",
    )
    assert found.jacobians is None and float(found.out.mean.subs(n, 6)) == pytest.approx(
        6 * 0.09 / 3 / 2, rel=1e-14
    )
    block = Network.from_steps(
        [
            ("x", Input(n), ()),
            ("W", Affine(n, sigma_w=0.7), ("x",)),
            ("r", Nonlinear("relu"), ("W",)),
        ]
    )
    three = moments(kc.repeat(block, 3)).subs({n: 10}).out
    assert three.mean == pytest.approx((0.49 / 2) ** 3, rel=1e-12)
    assert three.fourth == pytest.approx(((0.49 / 2) ** 2 * (1 + 5 / 10)) ** 3, rel=1e-12)


def test_a_width_for_symbols_is_refused() -> None:
    open_ = Network.from_steps([("x", Input(), ()), ("W", Affine(sigma_w=alpha), ("x",))])
    with pytest.raises(kc.KcalcError, match="symbols"):
        moments(open_, features=4).width_for(0.1)
    plain = moments(Network.from_steps([("x", Input(), ()), ("W", Affine(), ("x",))]), features=4)
    assert plain.width_for(0.1) == 20  # 2/n


def relu_block(sigma_w: Any, width: Any = n) -> Network:
    return Network.from_steps(
        [
            ("x", Input(width), ()),
            ("W", Affine(width, sigma_w=sigma_w), ("x",)),
            ("r", Nonlinear("relu"), ("W",)),
        ]
    )


def test_depth_stability_says_what_it_found() -> None:
    text = str(moments_at_depth(relu_block(sp.sqrt(2) * alpha), 3))
    assert text.splitlines()[0] == "E|y|^2 = |x|^2 (alpha**2)^(3)"
    assert text.splitlines()[1].endswith("^(3)")
    found = depth_stability(relu_block(sp.sqrt(2) * alpha), alpha)
    assert (
        found.critical == (1,)
        and sp.simplify(found.rate - sp.log(1 + 5 / n)) == 0
        and found.bounded is None
    )
    assert "the mean is kept at alpha = 1; there log E|y|^4 grows by" in str(found)
    open_ = depth_stability(relu_block(alpha))
    assert open_.bounded is None and len(str(open_).splitlines()) == 1
    assert depth_stability(relu_block(1, 8)).bounded is True and "bounded at every depth" in str(
        depth_stability(relu_block(1, 8))
    )
    assert depth_stability(relu_block(sp.sqrt(2), 8)).bounded is False  # E|y|^4 grows by 1 + 5/8


def test_bad_blocks() -> None:
    for depth in (0, sp.Rational(3, 2), 2.5):
        with pytest.raises(kc.KcalcError, match="depth"):
            moments_at_depth(relu_block(1), depth)
    two = net(("W", Affine(3), ("x",)), ("V", Affine(3), ("x",)))
    with pytest.raises(kc.KcalcError, match="2: W, V"):
        moments_at_depth(two)
    with pytest.raises(kc.KcalcError, match="3 -> 4"):
        moments_at_depth(net(("W", Affine(4), ("x",))))


def test_laws_have_the_excess_of_their_densities() -> None:
    """Fourth over squared second moments of scipy's laws; by hand for those with atoms."""
    known = {
        "gaussian": stats.norm(),
        "uniform": stats.uniform(-1, 2),
        "laplace": stats.laplace(),
        "logistic": stats.logistic(),
        "truncated normal": stats.truncnorm(-2, 2),
    }
    for name, law in known.items():
        excess = float(law.moment(4) / law.moment(2) ** 2 - 3)
        assert float(LAWS[name].excess) == pytest.approx(excess, abs=1e-12), name
    for name, share in (("rademacher", sp.Integer(1)), ("sparse ternary", sp.Rational(1, 3))):
        assert LAWS[name].excess == 1 / share - 3 and LAWS[name].atoms
    assert not any(LAWS[name].atoms for name in known)
