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


def test_signs_that_models_need_hold_in_the_copy() -> None:
    torch.manual_seed(0)
    model, inputs, _ = returned_mask()
    _, mask = kc.shape(kc.read(model, *inputs)).apply_to(model)(100 * inputs[0])
    assert mask.min() >= 0 and mask.max() <= 1
    model, inputs, _ = coupling()
    copy = kc.shape(kc.read(model, *inputs)).apply_to(model)
    x = rows().requires_grad_()
    y, volume = copy(x)
    jacobian = torch.autograd.grad(y[:, 4:].sum(), x)[0][:, 4:]
    assert torch.allclose(jacobian.log().sum(1), volume, atol=1e-5)


# -- ranges that nothing needs ---------------------------------------------------------------------


def own_rms() -> nn.Module:
    def run(m: Any, x: Any) -> Any:
        q = F.relu(m.b(x)).square().mean(1, keepdim=True)
        return m.o(m.a(x) / torch.sqrt(q + 1e-6))

    return Of(run, a=mlp(8, 16), b=mlp(8, 16), o=mlp(16, 3))


def test_squares_under_a_root_need_no_range_of_what_is_squared() -> None:
    s = kc.shape(kc.read(own_rms(), rows()))
    assert isinstance(s, kc.RegionalShaping)
    assert {"a.1", "a.3", "b.1", "b.3"} <= set(s.constants.by_node)
    assert any("root" in reason for reason in s.left_alone.values())  # of the square itself


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


def squeeze_and_excite() -> nn.Module:
    def run(m: Any, x: Any) -> Any:
        h = m.b(F.relu(m.a(x)))
        gate = torch.sigmoid(m.d(F.relu(m.c(h.mean((2, 3))))))[:, :, None, None]
        return m.o(F.relu(m.z(h * gate)).mean((2, 3)))

    maps = {"a": nn.Conv2d(3, 16, 3), "b": nn.Conv2d(16, 16, 3), "z": nn.Conv2d(16, 16, 1)}
    return Of(run, **maps, c=nn.Linear(16, 8), d=nn.Linear(8, 16), o=nn.Linear(16, 4))


def gated_unit() -> nn.Module:
    def run(m: Any, x: Any) -> Any:
        return m.o(m.a(x) * torch.sigmoid(m.b(x)))

    return Of(run, a=mlp(8, 16), b=mlp(8, 16), o=mlp(16, 3))


@pytest.mark.parametrize("build", [squeeze_and_excite, gated_unit])
@pytest.mark.parametrize("activation", [None, "tanh"])
def test_gates_stay_positive_unless_they_are_asked_to_be_shaped(
    build: Any, activation: str | None
) -> None:
    x = images() if build is squeeze_and_excite else rows()
    s = kc.shape(kc.read(build(), x), activation, assume_independent=True)
    assert isinstance(s, kc.Shaping) and "sigmoid" not in s.constants.by_node
    (gate,) = [edit for edit in s.changes if "a gate" in edit or "sigmoid" in edit]
    phi = s.network.layer("sigmoid").activation
    values = phi(np.linspace(-50, 50, 101))
    assert "sigmoid" in gate and (values >= 0).all() and s.options["gates"] == "normalise"
    asked = kc.shape(kc.read(build(), x), gates="shape", zeta=4, assume_independent=True)
    assert "sigmoid" in asked.constants.by_node


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


def test_an_activation_of_a_gated_sum_is_left_alone_and_others_are_shaped() -> None:
    model, inputs = film(), (rows(), rows(5))
    reading = kc.read(model, *inputs)
    s = kc.shape(reading, "tanh")
    assert isinstance(s, kc.RegionalShaping) and "heuristic" in repr(s)
    ((node, why),) = s.left_alone.items()
    assert node == "relu_2" and "product" in why and "assume_independent=True" in why
    assert {"a.1", "a.3", "relu", "o.1", "o.3"} == set(s.constants.by_node)
    assert (
        "relu_2" in str(s)
        and "relu_2" in s._repr_html_()
        and s.to_dict()["left_alone"] == {node: why}
    )
    assert torch.isfinite(s.apply_to(model)(*inputs)).all()
    whole = kc.shape(reading, "tanh", assume_independent=True)
    assert isinstance(whole, kc.Shaping) and "relu_2" in whole.constants.by_node


def test_several_places_of_one_region_are_left_alone_each_with_its_reason() -> None:
    """Post-activation blocks: the sum in front of an activation holds another one."""

    def run(m: Any, x: Any) -> Any:
        x = F.relu(m.i(x))
        for one, two in zip(m.one, m.two, strict=True):
            x = F.relu(x + two(F.relu(one(x))))
        return m.o(x)

    parts = {n: nn.ModuleList(nn.Linear(16, 16) for _ in range(3)) for n in ("one", "two")}
    model = Of(run, i=nn.Linear(8, 16), **parts, o=mlp(16, 3))
    s = kc.shape(kc.read(model, rows()))
    assert isinstance(s, kc.RegionalShaping)
    assert set(s.left_alone) == {"relu_3", "relu_7"}  # relu_5 reads what relu_3 returns, as it is
    assert all(f"{node!r}" in why for node, why in s.left_alone.items())
    assert torch.isfinite(s.apply_to(model)(rows())).all()


@pytest.mark.parametrize(("method", "given"), [("tat", {"tau": 0.3}), ("eoc", {"sigma_b": 0.1})])
def test_products_end_the_regions_of_methods_without_a_rule_for_them(
    method: str, given: dict[str, float]
) -> None:
    model = Of(lambda m, x: m.o(m.a(x) * m.b(x)), a=mlp(8, 16), b=mlp(8, 16), o=mlp(16, 3))
    s = kc.shape(kc.read(model, rows()), "tanh", method, **given)
    assert isinstance(s, kc.RegionalShaping) and "Product" in s.left_alone["mul"]
    assert {"a.1", "b.3", "o.1"} <= set(s.constants.by_node)


def test_a_layer_in_groups_behind_a_concatenation_is_left_alone() -> None:
    def run(m: Any, x: Any) -> Any:
        h = F.relu(m.a(x))
        h = F.relu(m.g(torch.cat([h, F.relu(m.b(h))], 1)))
        return m.o(F.relu(m.c(h)).mean((2, 3)))

    maps = {"a": nn.Conv2d(3, 8, 3), "b": nn.Conv2d(8, 8, 3, padding=1)}
    groups = nn.Conv2d(16, 16, 3, groups=8)
    model = Of(run, **maps, g=groups, c=nn.Conv2d(16, 16, 1), o=nn.Linear(16, 3))
    s = kc.shape(kc.read(model, images()))
    assert isinstance(s, kc.RegionalShaping) and set(s.left_alone) == {"g"}
    copy = s.apply_to(model)
    assert torch.equal(copy.get_parameter("g.weight"), groups.weight)
    assert torch.isfinite(copy(images())).all()


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
