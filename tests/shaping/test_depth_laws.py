"""Laws of depth against closed forms, and against recursions of many blocks."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import pytest
import sympy as sp
from refusals import refusals
from wiring import wired

import kcalc as kc
from kcalc import activation, chain, depth_laws, repeat, residual
from kcalc.network.layers import Affine, Attend, Nonlinear, RMSNorm, Sum

A = kc.architectures
T = 32
X = sp.Symbol("x", real=True)


def stack(**options: Any) -> kc.Network:
    return A.transformer_stack(2, 64, 4, **options)


def average(f: Any) -> float:
    return float(mp.quad(lambda z: f(z) * mp.npdf(z), [-mp.inf, 0, mp.inf]))


# E gelu^2, and E gelu'^2, the slope of the map of covariances at equal tokens
SIZE = average(lambda z: (z * mp.ncdf(z)) ** 2)
SLOPE = average(lambda z: (mp.ncdf(z) + z * mp.npdf(z)) ** 2)


def test_deepnorm_is_nearly_critical() -> None:
    """Of ReLU MLPs the mean mode is kept, and attention alone draws tokens together."""
    blocks = 24
    net = A.transformer_stack(blocks, 64, 4, "relu", "deepnorm", std="xavier")
    found = depth_laws(net, T)
    a, b = (2 * blocks) ** 0.5, (8 * blocks) ** -1.0  # alpha^2, beta^4
    assert found.cosine_rate == pytest.approx(a / (a + b), rel=1e-9)
    assert found.gradient_mean == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("placement", ["peri", "sandwich"])
def test_norms_behind_branches_make_them_add_one_each(placement: str) -> None:
    found = depth_laws(stack(placement=placement), T)
    assert found.growth == pytest.approx(2, rel=1e-9)
    assert found.cosine_exponent == pytest.approx(SLOPE / SIZE / 2 - 1, rel=1e-6)


def test_gradients_of_activations_that_flatten_are_stretched_exponentials() -> None:
    # phi^2 ~ |x|^(1/2), so q = (3/4 k L)^(4/3), and squared gradients gain c q^(-1/2) a block
    phi = X / (1 + X**2) ** sp.Rational(3, 8)
    found = depth_laws(repeat(residual(chain(Affine(), Nonlinear(activation(phi)))), 2))
    k = average(lambda z: abs(z) ** 0.5)
    square = sp.lambdify(X, phi.diff() ** 2, "mpmath")
    area = mp.quad(lambda t: square(mp.sinh(t)) * mp.cosh(t), [-80, -20, -5, 0, 5, 20, 80])
    c = float(area) / math.sqrt(2 * math.pi)
    assert (found.law, found.exponent) == ("power", pytest.approx(4 / 3)) and found.heuristic
    assert found.growth == pytest.approx((0.75 * k) ** (4 / 3), rel=1e-5)
    assert found.gradient_stretch == pytest.approx(1 / 3, rel=1e-3)
    assert found.gradient_mean == pytest.approx(3 * c * (0.75 * k) ** (-2 / 3), rel=3e-3)


@pytest.mark.slow
def test_values_that_saturate_without_a_norm_leave_differences_alone() -> None:
    """Attention adds 4/3 (2 pi q)^(-1/2) to the mean mode, and the MLP adds 1/2 to q."""
    values = (("d", Nonlinear("tanh"), "x"), ("v", Affine()), ("a", Attend(), "q k v"))
    ends = (("r", RMSNorm()), ("m", Affine()), ("n", Nonlinear("relu")), ("w", Affine()))
    net = wired(
        *(("p", RMSNorm()), ("q", Affine()), ("k", Affine(), "p"), *values, ("o", Affine())),
        *(("s", Sum((1, 1)), "x o"), *ends, ("e", Sum((1, 1)), "s w")),
    )
    found = depth_laws(net, 8)
    assert found.growth == pytest.approx(1.5, rel=1e-4) and found.gradient_stretch == 0.5
    mean = 8 / 3 / math.sqrt(2 * math.pi * 1.5)
    assert found.gradient_mean == pytest.approx(mean, rel=1e-4)
    assert found.gradient_difference == 0  # a power law


test_what_has_no_law_is_refused = refusals(
    [
        (stack(placement="none"), {"tokens": T}, "put a norm before attention"),
        (stack(attention={"wide": False}), {"tokens": T}, "depth laws need the exact gradients"),
        (A.gpt2(2), {"tokens": T}, "needs exchangeable tokens, but causal masks"),
        (stack(), {}, "tokens"),
        (stack(), {"tokens": T, "token_cosine": 2}, "token_cosine"),
        (
            residual(chain(Affine(), Nonlinear(kc.activations.rectified_power(2)), Affine())),
            {},
            "faster than any exponential",
        ),
        ("vanilla", {}, "Network"),
        (
            residual(chain(Affine(sigma_w=0.1), Nonlinear("exp"), Affine())),
            {},
            "no depth law at large q: a Gaussian moment of activation 'exp'",
        ),
        (wired(("a", Affine()), ("b", Affine(), "x")), {}, "one input and one output"),
    ],
    lambda net, options: depth_laws(net, **options),
)


def test_cosines_of_pre_norm_relu_streams_approach_1_like_a_power_of_the_logarithm() -> None:
    """With tau = ln L, du / dtau = -(u - 1 + C(1 - u)), the flow of a ReLU chain in its depth."""
    block = chain(RMSNorm(), Affine(), Nonlinear("relu"), Affine())
    found = depth_laws(residual(block, shortcut_weight=1, residual_weight=0.3))
    assert found.law == "linear" and found.cosine_exponent == 0
    assert f"{4.5 * math.pi**2:.6g} (ln L)^-2" in found.assumptions[-1].text
    smooth = depth_laws(residual(chain(RMSNorm(), Affine(), Nonlinear("tanh"))))
    assert f"L^{smooth.cosine_exponent:.4g}," in smooth.assumptions[-1].text


@pytest.mark.parametrize(("cosine", "words"), [(1, "a power of ln L"), (0.3, "here cosine 0.3")])
def test_linear_branches_keep_cosines(cosine: float, words: str) -> None:
    found = depth_laws(residual(chain(RMSNorm(), Affine())), token_cosine=cosine)
    assert found.cosine == cosine and words in found.assumptions[-1].text
