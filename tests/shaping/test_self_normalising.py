"""Mean 0 and variance 1 from layer to layer.

SELU's constants, closed forms, 50-digit moments, the Jacobian of Klambauer et al.
"""

from __future__ import annotations

import json
import math
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from shaping_oracle import truth
from thinning import mostly_slow

import kcalc as kc
from kcalc.shaping.self_normalising import halved, scaled_halves, stability

A, L = kc.architectures, kc.layers

# Klambauer et al. 2017
SELU_SCALE = 1.0507009873554804934193349852946
SELU_ALPHA = 1.6732632423543772848170429916717
MEANS = {
    "exp": math.exp(0.5),
    "relu": 1 / math.sqrt(2 * math.pi),
    "gelu": 0.5 / math.sqrt(math.pi),
    "tanh": 0.0,
    "abs": math.sqrt(2 / math.pi),
}


def shaped(name: Any, depth: int = 4, **options: Any) -> Any:
    return kc.shape(A.vanilla(depth), name, method="self_normalising", **options)


def moment(function: Any, variance: Any = 1) -> Any:
    """E f(sqrt(variance) z) in 30 digits, split at 0."""
    with mpmath.workdps(30):
        root = mpmath.sqrt(variance)
        return mpmath.quad(lambda t: function(root * t) * mpmath.npdf(t), [-14, -3, 0, 3, 14])


def test_halves_of_elu_make_selu() -> None:
    k = shaped("elu", parameters="halves").constants["elu"]
    assert k.output_scale == pytest.approx(SELU_SCALE, rel=1e-15)
    assert k.negative_scale == pytest.approx(SELU_ALPHA, rel=1e-15)
    x = np.linspace(-4, 4, 41)
    selu = SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x))
    assert k.transformed(x) == pytest.approx(selu, abs=1e-14)


def test_selu_is_its_own_solution_either_way() -> None:
    shift, halves = (shaped("selu", parameters=p).constants["selu"] for p in ("shift", "halves"))
    assert shift.gamma == pytest.approx(1, abs=1e-15) and (shift.delta or 0) == pytest.approx(
        0, abs=1e-15
    )
    assert (halves.gamma, halves.negative_scale) == pytest.approx((1, 1), abs=2e-15)


def test_published_jacobian_of_selu() -> None:
    s = shaped("selu").stability["selu"]
    assert s.jacobian[0] == pytest.approx((0, 0.088834), abs=1e-6) and s.jacobian[
        1
    ] == pytest.approx((0, 0.782648), abs=1e-6)
    assert s.norm == pytest.approx(0.7877, abs=5e-5) and s.attractive
    assert s.eigenvalues == (0.0, s.jacobian[1][1])


@pytest.mark.parametrize(("name", "parameters"), [("elu", "halves"), ("softplus", "shift")])
def test_jacobian_by_differences_of_the_layer_map(name: str, parameters: str) -> None:
    k = shaped(name, parameters=parameters).constants[name]
    base = {
        "elu": lambda t: t if t > 0 else mpmath.expm1(t),
        "softplus": lambda t: mpmath.log1p(mpmath.exp(t)),
    }[name]

    def phi(t: Any) -> Any:
        return k.gamma * (
            base(t) * (getattr(k, "negative_scale", 1.0) if t < 0 else 1) + (k.delta or 0.0)
        )

    def layer(variance: Any) -> tuple[Any, Any]:
        mean = moment(phi, variance)
        return mean, moment(lambda t: phi(t) ** 2, variance) - mean**2

    step = mpmath.mpf("1e-4")
    up, down = layer(1 + step), layer(1 - step)
    slopes = [float((a - b) / (2 * step)) for a, b in zip(up, down, strict=True)]
    found = stability(k.transformed)
    assert [row[1] for row in found.jacobian] == pytest.approx(slopes, abs=1e-7)
    assert [float(v) for v in layer(1)] == pytest.approx([0, 1], abs=1e-14)


@pytest.mark.parametrize("name", sorted(MEANS))
def test_shifts_in_closed_form(name: str) -> None:
    k = shaped(name).constants[name]
    assert (k.delta or 0.0) == pytest.approx(-MEANS[name], abs=4e-16)
    if name == "exp":
        assert k.gamma == pytest.approx((math.exp(2) - math.e) ** -0.5, rel=1e-15)


@pytest.mark.parametrize(
    "name", mostly_slow(["tanh", "softplus", "swish", "elu", "leaky_relu", "gaussian"])
)
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_shifts_solve_any_activation_to_rounding(name: str, scale: float) -> None:
    s = shaped(name, input_scale=scale)
    values = truth(s.constants[name])
    assert float(values["Q(1)"]) == pytest.approx(1, abs=1e-14) and float(values["C(0)"]) < 1e-29
    assert max(s.residuals.values()) < 1e-13 and set(s.residuals) == {"E phi", "Q(1)", "Q_f(1)"}
    assert (
        s.values["C'(1)"] == pytest.approx(float(values["C'(1)"]), rel=1e-12)
        and s.values["C'(1)"] > 1
    )
    assert s.values["Q'(1)"] == pytest.approx(float(values["Q'(1)"]), rel=1e-12)
    assert s.values["C_f'(1)"] == pytest.approx(s.values["C'(1)"] ** 4, rel=1e-9)


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_halves_of_gelu_in_closed_form(scale: float) -> None:
    """alpha = E[phi; x > 0]/-E[phi; x < 0] = (m + h)/(h - m) with m = E phi / 2 and h = E|x|/4,
    from x Phi(a x) - x/2 being even.
    """
    k = shaped("gelu", input_scale=scale, parameters="halves").constants["gelu"]
    a = scale
    even, odd = a * a / math.sqrt(2 * math.pi * (1 + a * a)) / 2, a / math.sqrt(2 * math.pi) / 2
    assert k.negative_scale == pytest.approx((odd + even) / (odd - even), rel=1e-13)
    if scale == 1:
        assert k.negative_scale == pytest.approx(3 + 2 * math.sqrt(2), rel=1e-14)


@pytest.mark.parametrize("name", ["swish", "celu(2)", "hard_swish", "tanh"])
def test_halves_keep_mean_and_variance(name: str) -> None:
    s = shaped(kc.activations.celu(2) if name == "celu(2)" else name, parameters="halves")
    assert max(s.residuals.values()) < 1e-13
    assert s.constants[name].negative_scale > 0 and s.constants[name].output_shift is None
    assert kc.q_map(s.network)(1.0) == pytest.approx(1, abs=1e-12)
    assert kc.c_map(s.network)(0.0) == pytest.approx(0, abs=1e-12)


def test_iterates_return_to_the_fixed_point_where_it_attracts() -> None:
    q = kc.q_map(shaped("elu", depth=60, parameters="halves").network)(np.array([0.7, 1.5]))
    assert q == pytest.approx([1, 1], abs=1e-5)
    repelling = shaped("gelu", depth=60)
    assert any("repelling for gelu" in str(a) for a in repelling.assumptions)
    assert kc.q_map(repelling.network)(1.01) > 1.1
    assert shaped("relu").stability["relu"].attractive is None  # Q'(1) = 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("relu", r"relu mean 0.*0 over x < 0.*shift"),
        ("abs", r"would be -1"),
        ("leaky_relu", r"is 100, which makes it linear"),
    ],
)
def test_halves_that_cannot_balance_are_refused(name: str, message: str) -> None:
    with pytest.raises(kc.UnreachableTarget, match=message):
        shaped(name, parameters="halves")
    assert max(shaped(name).residuals.values()) < 1e-13


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("softplus", {"parameters": "halves"}, r"softplus\(0\) = 0\.693147 is not 0.*shift"),
        ("identity", {}, "linear"),
        ("tanh", {"parameters": "both"}, "unknown choice of parameters 'both'.*halves, shift"),
        ("tanh", {"input_scale": 0}, "input_scale"),
        ("tanh", {"input_scale": float("nan")}, "input_scale"),
        ("tanh", {"zeta": 1.5}, "input_scale"),
    ],
)
def test_bad_input(name: str, options: dict[str, Any], message: str) -> None:
    with refused(message):
        shaped(name, **options)


# For standard normal z: the density at z = 1, the probability of z > 1, and the variance of z
# where z > 1, else 0.
DENSITY = math.exp(-0.5) / math.sqrt(2 * math.pi)
BEYOND = math.erfc(math.sqrt(0.5)) / 2
VARIANCE = DENSITY + BEYOND - DENSITY**2


@pytest.mark.parametrize(
    ("text", "mean", "variance", "q_slope"),
    [
        ("sign(x)", 0.0, 1.0, 0.0),
        ("Heaviside(x)", 0.5, 0.25, 0.0),
        (
            "100 + sign(x - 1)",
            99 + 2 * BEYOND,
            4 * BEYOND * (1 - BEYOND),
            DENSITY * (1 - 2 * BEYOND) / (2 * BEYOND * (1 - BEYOND)),
        ),
        (
            "x*Heaviside(x - 1)",
            DENSITY,
            VARIANCE,
            (1.5 * DENSITY + BEYOND - 2 * DENSITY**2) / VARIANCE,
        ),
    ],
)
def test_activations_that_jump(text: str, mean: float, variance: float, q_slope: float) -> None:
    """Mean 0 and variance 1 in closed form.

    Q'(1) has the jumps' part, C'(1) is infinite, which is said.
    """
    s = shaped(kc.activation(sp.sympify(text, {"x": sp.Symbol("x", real=True)})))
    k = next(iter(s.constants.by_node.values()))
    assert (k.delta or 0.0) == pytest.approx(
        -mean, rel=1e-14, abs=1e-15
    ) and k.gamma == pytest.approx(variance**-0.5, rel=1e-12)
    assert s.values["Q'(1)"] == pytest.approx(q_slope, rel=1e-11, abs=1e-14)
    found = next(iter(s.stability.values())).eigenvalues[1]
    assert found == pytest.approx(q_slope, rel=1e-11, abs=1e-14)
    assert (
        s.values["C'(1)"] == s.values["C_f'(1)"] == math.inf and max(s.residuals.values()) < 1e-12
    )
    assert any("C'(1) is infinite" in str(a) for a in s.assumptions)
    assert json.loads(s.export("json"))["values"]["C'(1)"] is None


def test_several_activations_in_one_network() -> None:
    net = kc.chain(
        L.Input(), L.Affine(), L.Nonlinear("elu"), L.Affine(), L.Nonlinear("gelu"), L.Affine()
    )
    s: Any = kc.shape(net, method="self_normalising", parameters="halves")
    assert set(s.stability) == {"elu", "gelu"} and max(s.residuals.values()) < 1e-13
    data = json.loads(json.dumps(s.to_dict()))
    assert data["constants"]["elu"]["negative_scale"] == pytest.approx(SELU_ALPHA, rel=1e-15)
    assert data["stability"]["elu"]["eigenvalues"][1] == pytest.approx(0.782648, abs=1e-6)
    assert "1.67326*elu(x) for x < 0" in s.changes[0]
    assert repr(s).startswith("Shaping(self_normalising")


def wavy(x: Any) -> Any:
    return np.where(x > 0, x, 0.3 * np.sin(x))


def test_callables_have_halves_too() -> None:
    phi = kc.activation(wavy, name="wavy", kinks=[0])
    k = halved(phi)
    down = -float(moment(lambda t: 0.3 * mpmath.sin(t) if t < 0 else 0))
    assert k.negative_scale == pytest.approx(1 / math.sqrt(2 * math.pi) / down, rel=1e-13)
    with refused("is not 0"):
        scaled_halves(kc.activation("sigmoid"), 2)


def test_halves_on_jax_arrays() -> None:
    import jax
    import jax.numpy as jnp

    phi = shaped("elu", parameters="halves").constants["elu"].transformed
    x = np.array([-2.0, -0.5, 0.3, 4.0])
    with jax.enable_x64(True):
        values = np.asarray(phi(jnp.asarray(x)))
        slopes = np.asarray(jax.jit(jax.vmap(jax.grad(lambda t: phi(t))))(jnp.asarray(x)))
    assert values == pytest.approx(
        SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x)), abs=1e-14
    )
    assert slopes == pytest.approx(
        SELU_SCALE * np.where(x > 0, 1, SELU_ALPHA * np.exp(x)), abs=1e-14
    )
