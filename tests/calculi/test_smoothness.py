"""Bounds of ``smoothness`` against Jacobians and Hessians by automatic differentiation of networks
written out by hand.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import Network, chain, repeat, residual
from kcalc.activations.base import X
from kcalc.calculi.smoothness import smoothness
from kcalc.calculi.smoothness.logs import shown
from kcalc.network.layers import (
    Affine,
    Concat,
    Dropout,
    Flatten,
    Input,
    Layer,
    Nonlinear,
    Opaque,
    Pool,
    Sum,
    TokenMix,
)


def residual_net(width: int, blocks: int) -> kc.Network:
    affine = Affine(width, bias=False)
    block = residual(chain(affine, Nonlinear("tanh"), affine))
    return chain(Input(width), affine, repeat(block, blocks))


def wn(w: jnp.ndarray, eps: float) -> jnp.ndarray:
    """Weight normalisation of (fan-in, outputs): columns feed outputs."""
    return w / jnp.sqrt(eps + (w * w).sum(0))


def normalised_forward(
    ws: list[jnp.ndarray], X: np.ndarray | jnp.ndarray, eps: float, scale: float
) -> Any:
    z = X @ (ws[0] / jnp.sqrt(eps + ws[0] ** 2))
    for a, b in zip(ws[1::2], ws[2::2], strict=True):
        z = z + jnp.tanh(z @ (scale * wn(a, eps))) @ (scale * wn(b, eps))
    return z


# -- lower bounds ----------------------------------------------------------------------------------


def test_the_printed_form_of_the_explicit_bound() -> None:
    """sigma(X)^2 min (eps/(eps+w^2)^1.5)^2 prod (1 - |Jg|)^2 over a ball in the first layer, all
    other parameters free.
    """
    net, rng = residual_net(5, 3), np.random.default_rng(1)
    X, w = rng.normal(size=(4, 5)), rng.normal(size=(5, 5))
    s = smoothness(
        net,
        X=X,
        weights={"affine_1": w},
        radius={"affine_1": 0.7},
        normalisation={"affine_1": "entry", None: "weight"},
        epsilon=0.5,
        scale={"affine_1": 1.0, None: "contracting"},
    )
    sigma = np.linalg.svd(X, compute_uv=False)[-1]
    slope = 0.5 / (0.5 + (np.abs(w).max() + 0.7) ** 2) ** 1.5
    assert s.regularity == pytest.approx((sigma * slope) ** 2 * (1 - 0.99**2) ** 6, rel=1e-6)
    assert s.ingredients["affine_1"]["sigma_data"] == pytest.approx(sigma)
    assert s.pl_constant == pytest.approx(2 / 4 * s.regularity)
    low, high = s.blocks["sum_1", "sum_2"]
    assert low == pytest.approx(1 - 0.99**2, rel=1e-6) and high == pytest.approx(1 + 0.99**2)


# -- upper bounds ----------------------------------------------------------------------------------


def test_descent_on_a_quadratic_is_exactly_the_rate() -> None:
    """One example and one weight.

    l = (w x - y)^2 / 2, where the linear rate of theorem 2.3 holds with equality.
    """
    s = smoothness(chain(Input(1), Affine(1, bias=False)), X=[[2.0]], radius=9.0, targets=[[1.0]])
    assert (
        s.beta == pytest.approx(4.0)
        and s.step_size == pytest.approx(0.5)
        and s.pl_constant == pytest.approx(2 * 4.0)
    )
    for eta in (0.1, 0.4):
        assert s.rate(eta) == pytest.approx((1 - 4 * eta) ** 2)
    with refused(r"2/beta"):
        s.rate(0.6)


# -- refusals --------------------------------------------------------------------------------------


def small(phi: object = "tanh", **options: object) -> Network:
    return chain(Input(3), Affine(3, **options), Nonlinear(phi), Affine(2))  # type: ignore[arg-type]


def image(*layers: Layer) -> Network:
    return chain(Input(2, (4, 4)), *layers, Flatten(), Affine(1))


BIASED = {"weight": np.eye(3), "bias": np.ones(2)}


def test_kinks_have_lipschitz_constants_but_no_step_size() -> None:
    steep = kc.Activation("|x|^1.5", sp.Abs(X) ** sp.Rational(3, 2), (sp.Integer(0),))
    for phi, why in (("relu", "jumps at 0"), (steep, "C\\^1 is not enough")):
        s = smoothness(small(phi), radius=1.0, loss="cross_entropy")
        assert s.parameter_lipschitz > 0 and math.isfinite(s.parameter_lipschitz)
        for name in ("beta", "step_size", "parameter_curvature"):
            with refused(why):
                getattr(s, name)
        assert s.hypotheses[0].holds is False and s.to_dict()["step_size"] is None


test_what_is_refused = refusals(
    [
        (small(), {"radius": None}, "radius"),
        (small(), {"radius": -1}, "radius"),
        (small(), {"normalisation": "weight", "radius": None}, "biases=False"),
        (small(), {"normalisation": "batch"}, "add a BatchNorm layer"),
        (small(), {"normalisation": "entry", "radius": 1, "epsilon": 0}, "epsilon"),
        (small(), {"normalisation": "entry", "radius": 1, "scale": "big"}, "scale"),
        (small(), {"radius": {"nonlinear_1": 1}}, "Nonlinear"),
        (small(), {"X": np.ones((2, 5))}, "shape"),
        (small(), {"loss": "hinge"}, "unknown loss"),
        (small(), {"targets": np.ones((3, 2))}, "targets"),
        (small(), {"weights": {"affine_1": np.ones((2, 2))}}, "shape"),
        (small(), {"weights": {"affine_1": {"kernel": np.ones((3, 3))}}}, "weight"),
        (small("sign"), {}, "jumps"),
        (small("exp"), {"radius": 1e9}, "unbounded"),
        (kc.architectures.vanilla(2), {}, "features"),
        (
            chain(Input(3), Affine(2), Opaque("thing", "not understood")),
            {},
            "thing",
        ),
        (chain(Input(3), Affine(2, kernel=3)), {}, "image_shape"),
        (chain(Input(3, (4,)), Affine(2)), {}, r"image_shape=\(4,\); bounds require"),
        (chain(Input(3), Affine(2, standardised=True)), {}, "standardis"),
        (chain(Input(3), Affine()), {}, "of node 'affine_1' is unknown"),
        (image(Affine(2, kernel=3, padding="reflect")), {}, "reflect padding"),
        (image(Affine(2, kernel=5, padding="valid")), {}, "'affine_1'.*not fit"),
        (image(Pool("weighted_mean", 2)), {}, "weighted pooling"),
        (image(TokenMix(np.eye(16))), {}, "TokenMix"),
        (chain(Input(3), Pool("mean")), {}, "no locations"),
        (small(), {"X": np.ones((0, 3))}, "same number of examples"),
        (small(), {"weights": {"affine_1": BIASED}}, r"expected shape \(3,\)"),
    ],
    lambda network, options: smoothness(network, **{"radius": 1} | options),
)


def test_missing_residual_bound_and_missing_mu() -> None:
    s = smoothness(small(), radius=1.0)
    with refused("level="):
        _ = s.beta
    still = smoothness(small(), radius=0)  # all weights are 0
    assert still.input_lipschitz["input"] == 0.0 and math.isfinite(still.parameter_lipschitz)
    s = smoothness(small(), radius=1.0, loss="cross_entropy")
    assert s.pl_constant is None
    with refused("no PL constant"):
        s.rate()


def test_several_inputs_and_outputs() -> None:
    net = wired(
        ("a", Input(2)),
        ("b", Input(3)),
        ("wa", Affine(2, bias=False), "a"),
        ("wb", Affine(2, bias=False), "b"),
        ("sum", Sum((2, -1)), "wa wb"),
        ("alone", Affine(1, bias=False), "wa"),
    )
    data = {"a": np.array([[3.0, 4.0]]), "b": np.array([[1.0, 2.0, 2.0]])}
    with refused("choose one with output="):
        smoothness(net, X=data, radius=1.0)
    s = smoothness(net, X=data, radius=0.5, output="sum")
    assert s.input_lipschitz == {"a": pytest.approx(1.0), "b": pytest.approx(0.5)}
    assert s.parameter_lipschitz == pytest.approx(math.hypot(2 * 5, 3)) and "alone" not in s.layers
    # D F = (2 a^T, -b^T) on every output: attained
    assert s.regularity == pytest.approx(4 * 25 + 9)
    with refused("X is missing for the input 'b'"):
        smoothness(net, X={"a": data["a"]}, radius=1.0, output="sum")


def test_the_step_of_least_squares_is_exact() -> None:
    """One layer without bias: the Hessian of the mean of (w x_n - y_n)^2 is 2 X^T X / N."""
    X = np.random.default_rng(0).normal(size=(3, 2))
    net = chain(Input(2), Affine(1, bias=False))
    found = smoothness(net, X=X, radius=1e-9, loss="square", level=1.0)
    assert found.beta == pytest.approx(2 * np.linalg.norm(X, 2) ** 2 / 3, rel=1e-12)
    assert smoothness(net, radius=1.0).examples == 1


def test_logarithms_print_as_numbers() -> None:
    assert shown(1000 * math.log(10) + math.log(2.5)) == "2.5e+1000"
    assert (shown(math.log(3)), shown(-math.inf)) == ("3", "0")


@pytest.mark.parametrize(
    ("options", "slope", "most"),
    [({}, 1.0, 1.0), ({"epsilon": 4.0, "scale": 3.0}, 1.5, 3.0)],
)
def test_one_normalised_weight_by_hand(
    options: dict[str, float], slope: float, most: float
) -> None:
    """``P(w) = s w / sqrt(e + w^2)``, e = s = 1 by default: sup P' = s / sqrt(e), sup P = s."""
    one = smoothness(
        chain(Input(1), Affine(1, bias=False)), X=[[3.0]], normalisation="weight", **options
    )
    assert one.parameter_lipschitz == pytest.approx(3 * slope, rel=1e-12)
    assert one.input_lipschitz == {"input": pytest.approx(most, rel=1e-12)}


def test_one_normalised_weight_in_a_ball() -> None:
    """``P'(w) = (1 + w^2)^(-3/2)`` is least at the end |w| = 2.5 of the ball around 2."""
    net, near = chain(Input(1), Affine(1, bias=False)), {"affine_1": np.array([[2.0]])}
    one = smoothness(net, X=[[3.0]], normalisation="weight", weights=near, radius=0.5)
    assert one.regularity == pytest.approx(9 / 7.25**3)


def test_weights_without_a_radius_do_not_move() -> None:
    """|D F|^2 <= |x|^2 |v|^2 + |tanh|^2, for |v| <= 1 and three ones x; idle layers."""
    a, v = Affine(2, bias=False), Affine(1, bias=False)
    net = wired(("x", Input(3)), ("a", a), ("c", Concat(), "a"), ("d", Dropout(0.5)),
                ("t", Nonlinear("tanh")), ("v", v))  # fmt: skip
    found = smoothness(net, X=np.ones((1, 3)), weights={"a": np.ones((3, 2))}, radius={"v": 1})
    assert found.parameter_lipschitz == pytest.approx(math.sqrt(3 + 2))


def test_a_kink_that_is_out_of_reach_does_not_bend() -> None:
    """hard_tanh(w x) = w x for |w x| <= 1: at |w| <= 1 and x = 0.5 its curvature is 0, at 3 not."""
    net = chain(Input(1), Affine(1, bias=False), Nonlinear("hard_tanh"))
    near = smoothness(net, X=[[0.5]], radius=1.0)
    assert near.parameter_curvature < 1e-300 and near.parameter_lipschitz == pytest.approx(0.5)
    with refused("'hard_tanh' jumps at -1"):
        assert smoothness(net, X=[[3.0]], radius=1.0).parameter_curvature
