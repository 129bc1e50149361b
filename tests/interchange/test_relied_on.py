"""Activations whose range a model relies on keep it; everything else is shaped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc.interchange.shaping_models.value_ranges import (  # noqa: E402
    sinks,
)


class Of(nn.Module):
    """A module of a function of itself and the inputs."""

    def __init__(self, function: Callable[..., Any], /, **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def mlp(inputs: int, outputs: int, act: Any = nn.ReLU, width: int = 24) -> nn.Sequential:
    first = (nn.Linear(inputs, width), act(), nn.Linear(width, width), act())
    return nn.Sequential(*first, nn.Linear(width, outputs))


def images() -> Any:
    return torch.randn(2, 3, 8, 8)


def rows(width: int = 8, count: int = 6) -> Any:
    return torch.randn(count, width)


# -- models, each with the nodes that have to stay as they are ------------------------------------

Case = tuple[nn.Module, tuple[Any, ...], set[str]]


def coupling() -> Case:
    def run(m: Any, x: Any) -> Any:
        scale, shift = torch.tanh(m.s(x[:, :4])), m.t(x[:, :4])
        return torch.cat([x[:, :4], x[:, 4:] * torch.exp(scale) + shift], 1), scale.sum(1)

    return Of(run, s=mlp(4, 4), t=mlp(4, 4)), (rows(),), {"tanh", "exp"}


def beta_density() -> Case:
    def run(m: Any, x: Any) -> Any:
        a, b = F.softplus(m.a(x)) + 1, F.softplus(m.b(x)) + 1
        return torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)

    return Of(run, a=mlp(8, 4), b=mlp(8, 4)), (rows(),), {"add", "add_2"}


def linear_attention() -> Case:
    def run(m: Any, x: Any) -> Any:
        q, k, v = F.elu(m.q(x)) + 1, F.elu(m.k(x)) + 1, m.v(x)
        total = torch.einsum("bnd,bd->bn", q, k.sum(1)) + 1e-6
        read = torch.einsum("bnd,bde->bne", q, torch.einsum("bnd,bne->bde", k, v))
        return m.o(read / total[..., None])

    parts = {name: nn.Linear(8, 8) for name in "qkv"}
    return Of(run, **parts, o=mlp(8, 3)), (torch.randn(2, 5, 8),), {"add", "add_2"}


def step_sizes() -> Case:
    """The decay and the step of a state space model, as in Mamba-2."""

    def run(m: Any, x: Any) -> Any:
        step = F.softplus(m.dt(x) + m.bias)
        decay = torch.exp(torch.cumsum(step * -torch.exp(m.a), 1))
        return m.o(m.z(x) * decay)

    model = Of(run, dt=mlp(8, 16), z=mlp(8, 16), o=mlp(16, 3))
    model.a, model.bias = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(16))
    return model, (torch.randn(2, 5, 8),), {"softplus", "exp"}


def poisson_draws() -> Case:
    return Of(lambda m, x: torch.poisson(F.softplus(m.n(x))), n=mlp(8, 4)), (rows(),), {"softplus"}


def quotient() -> Case:
    def run(m: Any, x: Any) -> Any:
        return m.a(x) / F.softplus(m.b(x))

    return Of(run, a=mlp(8, 4), b=mlp(8, 4)), (rows(),), {"softplus"}


def shares() -> Case:
    def run(m: Any, x: Any) -> Any:
        h = F.relu(m.a(x))
        return m.o(h / (h.sum(1, keepdim=True) + 1e-6))

    return Of(run, a=mlp(8, 16), o=mlp(16, 3)), (rows(),), {"relu"}


def root_of_a_mean() -> Case:
    def run(m: Any, x: Any) -> Any:
        return m.o(torch.sqrt(F.relu(m.a(x)).mean(1, keepdim=True) + 1e-6) * m.b(x))

    return Of(run, a=mlp(8, 16), b=nn.Linear(8, 16), o=mlp(16, 3)), (rows(),), {"relu"}


def generalised_mean() -> Case:
    def run(m: Any, x: Any) -> Any:
        return m.o(F.relu(m.b(F.relu(m.a(x)))).clamp(min=1e-6).pow(3).mean((2, 3)).pow(1 / 3))

    parts = {"a": nn.Conv2d(3, 16, 3), "b": nn.Conv2d(16, 16, 3)}
    return Of(run, **parts, o=mlp(16, 3)), (images(),), {"pow"}


def cross_entropy_of_a_mean() -> Case:
    def run(m: Any, x: Any) -> Any:
        return torch.log(torch.sigmoid(m.n(x)).mean(1).clamp(1e-6, 1 - 1e-6))

    return Of(run, n=mlp(8, 4)), (torch.randn(6, 5, 8),), {"sigmoid", "log"}


def gaussian_likelihood() -> Case:
    def run(m: Any, x: Any, y: Any) -> Any:
        variance = F.softplus(m.v(x)) + 1e-3
        return F.gaussian_nll_loss(m.m(x), y, variance, reduction="none")

    return Of(run, m=mlp(8, 4), v=mlp(8, 4)), (rows(), rows(4)), {"clamp", "log", "pow"}


def highway() -> Case:
    def run(m: Any, x: Any) -> Any:
        x = m.i(x)
        gate = torch.sigmoid(m.g(x))
        return m.o(gate * F.relu(m.a(x)) + (1 - gate) * x)

    parts = {"i": mlp(8, 16), "g": nn.Linear(16, 16), "a": nn.Linear(16, 16)}
    return Of(run, **parts, o=mlp(16, 3)), (rows(),), {"sigmoid", "sub"}


def returned_mask() -> Case:
    def run(m: Any, x: Any) -> Any:
        mask = torch.sigmoid(m.g(x))
        return m.o(mask * m.a(x)), mask

    return Of(run, g=mlp(8, 16), a=mlp(8, 16), o=mlp(16, 3)), (rows(),), {"sigmoid"}


def recurrence() -> Case:
    """A decay a beside sqrt(1 - a^2); its exponent is a gate times a number by channel."""

    def run(m: Any, x: Any) -> Any:
        a = torch.exp(-8 * F.softplus(m.rate) * torch.sigmoid(m.r(x)))
        return m.o(a * m.h(x) + torch.sqrt(1 - a**2) * m.v(x))

    model = Of(run, r=nn.Linear(8, 16), h=mlp(8, 16), v=nn.Linear(8, 16), o=mlp(16, 3))
    model.rate = nn.Parameter(torch.randn(16))
    return model, (rows(),), {"sigmoid", "exp"}


def rotation() -> Case:
    def run(m: Any, x: Any) -> Any:
        angle = m.t(x)
        return m.o(torch.cos(angle) * m.a(x) - torch.sin(angle) * m.b(x))

    parts = {name: mlp(8, 16) for name in "tab"}
    return Of(run, **parts, o=mlp(16, 3)), (rows(),), {"cos", "sin"}


def opacity() -> Case:
    def run(m: Any, x: Any, distance: Any) -> Any:
        h = F.relu(m.n(x))
        return (1 - torch.exp(-F.relu(m.s(h)) * distance)) * torch.sigmoid(m.c(h))

    parts = {"s": nn.Linear(24, 1), "c": nn.Linear(24, 3)}
    inputs = rows(), torch.rand(6, 1)
    return Of(run, n=mlp(8, 24), **parts), inputs, {"neg", "sub", "sigmoid"}


def mask_of_one_channel() -> Case:
    """A product that is not read, of a gate that all channels share."""

    def run(m: Any, x: Any) -> Any:
        return m.o(torch.sigmoid(m.g(x)) * m.a(x))

    return Of(run, g=mlp(8, 1), a=mlp(8, 16), o=mlp(16, 3)), (rows(),), {"sigmoid"}


RELYING = [
    coupling,
    beta_density,
    linear_attention,
    step_sizes,
    poisson_draws,
    quotient,
    shares,
    root_of_a_mean,
    generalised_mean,
    cross_entropy_of_a_mean,
    gaussian_likelihood,
    highway,
    returned_mask,
    recurrence,
    rotation,
    opacity,
    mask_of_one_channel,
]


def activations(shaping: Any) -> set[str]:
    return {k.activation.name for k in shaping.constants.by_node.values()}


@pytest.mark.parametrize("case", RELYING, ids=lambda case: case.__name__)
def test_what_the_model_relies_on_is_left_alone_and_the_rest_is_shaped(case: Any) -> None:
    torch.manual_seed(0)
    model, inputs, left = case()
    s = kc.shape(kc.read(model, *inputs))
    assert isinstance(s, kc.RegionalShaping)
    assert left <= set(s.left_alone) and activations(s) == {"relu"}
    text, frame = str(s), s.to_dict()["left_alone"]
    assert all(node in text and frame[node] == s.left_alone[node] for node in left)
    out = s.apply_to(model)(*inputs)
    for found in out if isinstance(out, tuple) else (out,):
        assert torch.isfinite(found).all()


# -- ranges that nothing needs ---------------------------------------------------------------------


WRITTEN_OUT: dict[str, Any] = {
    "mish": lambda z: z * torch.tanh(torch.log(1 + torch.exp(z))),
    "swish": lambda z: z / (1 + torch.exp(-z)),
    "softsign": lambda z: z / (1 + z.abs()),
    "rms": lambda z: z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-6),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_activations_and_norms_written_out_are_shaped_as_others_are(name: str) -> None:
    def run(m: Any, x: Any) -> Any:
        return m.b(torch.tanh(m.m(WRITTEN_OUT[name](m.a(x)))))

    model = Of(run, a=nn.Linear(8, 16), m=nn.Linear(16, 16), b=nn.Linear(16, 3))
    s = kc.shape(kc.read(model, rows()))
    assert isinstance(s, kc.Shaping) and not any("left" in w.text for w in s.warnings)


# -- gates -----------------------------------------------------------------------------------------


# -- outputs ---------------------------------------------------------------------------------------


def test_a_mixture_of_densities_keeps_its_weights_and_scales() -> None:
    def run(m: Any, x: Any) -> Any:
        h = F.relu(m.n(x))
        scales = torch.exp(m.s(h)), F.elu(m.r(h)) + 1
        return torch.softmax(m.p(h), -1), m.m(h), *scales

    parts = {name: nn.Linear(24, 3) for name in "pmsr"}
    model = Of(run, n=mlp(8, 24), **parts)
    out = kc.shape(kc.read(model, rows())).apply_to(model)(10 * rows())
    assert all(bool((out[i] >= 0).all()) for i in (0, 2, 3))
    assert torch.allclose(out[0].sum(1), torch.ones(6))


# -- hypotheses that fail in one place -------------------------------------------------------------


def film() -> nn.Module:
    def run(m: Any, x: Any, c: Any) -> Any:
        h = F.relu(m.a(x))
        gain, offset = m.film(c).chunk(2, 1)
        return m.o(F.relu(gain * m.b(h) + offset))

    return Of(run, a=mlp(8, 16), film=nn.Linear(5, 32), b=nn.Linear(16, 16), o=mlp(16, 3))


@pytest.mark.parametrize(("method", "given"), [("tat", {"tau": 0.3}), ("eoc", {"sigma_b": 0.1})])
def test_products_end_the_regions_of_methods_without_a_rule_for_them(
    method: str, given: dict[str, float]
) -> None:
    model = Of(lambda m, x: m.o(m.a(x) * m.b(x)), a=mlp(8, 16), b=mlp(8, 16), o=mlp(16, 3))
    s = kc.shape(kc.read(model, rows()), "tanh", method, **given)
    assert isinstance(s, kc.RegionalShaping) and "Product" in s.left_alone["mul"]
    assert {"a.1", "b.3", "o.1"} <= set(s.constants.by_node)


def test_where_nothing_is_left_the_error_names_nodes_and_reasons() -> None:
    def run(m: Any, x: Any) -> Any:
        return m.b(torch.sqrt(F.softplus(m.a(x)).mean(1, keepdim=True)) * x)

    with refused("activations.*'softplus'.*root"):
        kc.shape(kc.read(Of(run, a=nn.Linear(8, 8), b=nn.Linear(8, 3)), rows()))
    with refused("zeta"):  # an error about a target is one about the whole
        kc.shape(kc.read(film(), rows(), rows(5)), zeta=0.5)


# -- other frameworks ------------------------------------------------------------------------------


def test_the_same_in_jax() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def model(params: Any, x: Any) -> Any:
        h = jax.nn.relu(x @ params["a"])
        scale = jax.nn.softplus(h @ params["s"])
        return h @ params["m"] / scale, jnp.log(scale)

    random = np.random.default_rng(0)
    shapes = {"a": (6, 16), "s": (16, 3), "m": (16, 3)}
    params = {k: jnp.asarray(random.standard_normal(v), jnp.float32) for k, v in shapes.items()}
    x = jnp.asarray(random.standard_normal((4, 6)), jnp.float32)
    s = kc.shape(kc.read(model, params, x))
    assert isinstance(s, kc.RegionalShaping) and activations(s) == {"relu"}
    assert any("division" in why for why in s.left_alone.values())
    new, drawn = s.apply_to(model, params, x)
    assert all(np.isfinite(value).all() for value in new(drawn, x))


# -- the ranges of activations ---------------------------------------------------------------------


y, z = sp.symbols("y z", real=True)
NEEDS: dict[str, tuple[Any, set[Any]]] = {
    "softplus": (sp.log(1 + sp.exp(y)), set()),
    "sigmoid": (1 / (1 + sp.exp(-y)), set()),
    "log of softplus": (sp.log(sp.log(1 + sp.exp(y))), set()),
    "softsign": (y / (1 + sp.Abs(y)), set()),
    "a norm": (z / sp.sqrt(y**2 + z**2 + 1), set()),
    "quotient": (z / y, {y}),
    "square": (1 / y**2, {y}),
    "decay": (sp.sqrt(1 - sp.exp(3 * y)), {y}),
    "sine from cosine": (sp.sqrt(1 - y**2), {y}),
    "guarded": (sp.log(sp.Max(y, sp.Rational(1, 9))), {y}),
    "power": (z * y ** sp.Rational(3, 2), {y}),
    "inverse sine": (sp.asin(y) + z, {y}),
}


@pytest.mark.parametrize("name", NEEDS)
def test_what_an_expression_needs_the_range_of(name: str) -> None:
    expr, symbols = NEEDS[name]
    assert set().union(*(inside for _, inside in sinks(expr))) == symbols
