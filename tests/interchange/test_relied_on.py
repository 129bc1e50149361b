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
from torch_zoo.twin import Model  # noqa: E402

from kcalc.interchange.shaping_models.value_ranges import (  # noqa: E402
    explodes,
    shown,
    sinks,
)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    first = nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU()
    return nn.Sequential(*first, nn.Linear(24, outputs))


def rows(width: int = 8) -> Any:
    return torch.randn(6, width)


# -- models, each with the nodes that have to stay as they are ------------------------------------

# (how its inputs are made, its parts, the nodes)
RELYING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], set[str]]] = {}


def relying(*nodes: str, inputs: Any = (rows,), **parts: Any) -> Any:
    """Enters a function of a module of ``parts`` and the inputs: sizes (in, out), of an MLP in a
    list, or modules and parameters.
    """

    def enter(run: Callable[..., Any]) -> Callable[..., Any]:
        RELYING[run.__name__] = run, inputs, parts, set(nodes)
        return run

    return enter


def made(part: Any) -> Any:
    if isinstance(part, list):
        return mlp(*part)
    return nn.Linear(*part) if isinstance(part, tuple) else part()


def vector() -> Any:
    return nn.Parameter(torch.randn(16))


def tokens() -> Any:
    return torch.randn(2, 5, 8)


@relying("tanh", "exp", s=[4, 4], t=[4, 4])
def coupling(m: Any, x: Any) -> Any:
    scale, shift = torch.tanh(m.s(x[:, :4])), m.t(x[:, :4])
    return torch.cat([x[:, :4], x[:, 4:] * torch.exp(scale) + shift], 1), scale.sum(1)


@relying("add", "add_2", inputs=(tokens,), q=(8, 8), k=(8, 8), v=(8, 8), o=[8, 3])
def linear_attention(m: Any, x: Any) -> Any:
    q, k, v = F.elu(m.q(x)) + 1, F.elu(m.k(x)) + 1, m.v(x)
    total = torch.einsum("bnd,bd->bn", q, k.sum(1)) + 1e-6
    read = torch.einsum("bnd,bde->bne", q, torch.einsum("bnd,bne->bde", k, v))
    return m.o(read / total[..., None])


@relying(
    *("softplus", "exp"),
    inputs=(tokens,),
    dt=[8, 16],
    z=[8, 16],
    o=[16, 3],
    a=vector,
    bias=vector,
)
def step_sizes(m: Any, x: Any) -> Any:
    """The decay and the step of a state space model, as in Mamba-2."""
    step = F.softplus(m.dt(x) + m.bias)
    decay = torch.exp(torch.cumsum(step * -torch.exp(m.a), 1))
    return m.o(m.z(x) * decay)


@relying("softplus", n=[8, 4])
def poisson_draws(m: Any, x: Any) -> Any:
    return torch.poisson(F.softplus(m.n(x)))


@relying("relu", a=[8, 16], b=(8, 16), o=[16, 3])
def root_of_a_mean(m: Any, x: Any) -> Any:
    return m.o(torch.sqrt(F.relu(m.a(x)).mean(1, keepdim=True) + 1e-6) * m.b(x))


@relying("sigmoid", "log", inputs=(lambda: torch.randn(6, 5, 8),), n=[8, 4])
def cross_entropy_of_a_mean(m: Any, x: Any) -> Any:
    return torch.log(torch.sigmoid(m.n(x)).mean(1).clamp(1e-6, 1 - 1e-6))


@relying("clamp", "log", "pow", inputs=(rows, lambda: rows(4)), m=[8, 4], v=[8, 4])
def gaussian_likelihood(m: Any, x: Any, y: Any) -> Any:
    return F.gaussian_nll_loss(m.m(x), y, F.softplus(m.v(x)) + 1e-3, reduction="none")


@relying("sigmoid", "sub", i=[8, 16], g=(16, 16), a=(16, 16), o=[16, 3])
def highway(m: Any, x: Any) -> Any:
    x = m.i(x)
    gate = torch.sigmoid(m.g(x))
    return m.o(gate * F.relu(m.a(x)) + (1 - gate) * x)


@relying("sigmoid", g=[8, 16], a=[8, 16], o=[16, 3])
def returned_mask(m: Any, x: Any) -> Any:
    mask = torch.sigmoid(m.g(x))
    return m.o(mask * m.a(x)), mask


@relying("sigmoid", "exp", r=(8, 16), h=[8, 16], v=(8, 16), o=[16, 3], rate=vector)
def recurrence(m: Any, x: Any) -> Any:
    """A decay a beside sqrt(1 - a^2); its exponent is a gate times a number by channel."""
    a = torch.exp(-8 * F.softplus(m.rate) * torch.sigmoid(m.r(x)))
    return m.o(a * m.h(x) + torch.sqrt(1 - a**2) * m.v(x))


@relying("cos", "sin", t=[8, 16], a=[8, 16], b=[8, 16], o=[16, 3])
def rotation(m: Any, x: Any) -> Any:
    angle = m.t(x)
    return m.o(torch.cos(angle) * m.a(x) - torch.sin(angle) * m.b(x))


@relying(
    *("neg", "sub", "sigmoid"),
    inputs=(rows, lambda: torch.rand(6, 1)),
    n=[8, 24],
    s=(24, 1),
    c=(24, 3),
)
def opacity(m: Any, x: Any, distance: Any) -> Any:
    h = F.relu(m.n(x))
    return (1 - torch.exp(-F.relu(m.s(h)) * distance)) * torch.sigmoid(m.c(h))


@relying("sigmoid", g=[8, 1], a=[8, 16], o=[16, 3])
def mask_of_one_channel(m: Any, x: Any) -> Any:
    """A product that is not read, of a gate that all channels share."""
    return m.o(torch.sigmoid(m.g(x)) * m.a(x))


def activations(shaping: Any) -> set[str]:
    return {k.activation.name for k in shaping.constants.by_node.values()}


@pytest.mark.parametrize("name", RELYING)
def test_what_the_model_relies_on_is_left_alone_and_the_rest_is_shaped(name: str) -> None:
    torch.manual_seed(0)
    run, makers, parts, left = RELYING[name]
    model = Model(run, **{key: made(part) for key, part in parts.items()})
    inputs = [make() for make in makers]
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
    "rms": lambda z: z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-6),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_activations_and_norms_written_out_are_shaped_as_others_are(name: str) -> None:
    def run(m: Any, x: Any) -> Any:
        return m.b(torch.tanh(m.m(WRITTEN_OUT[name](m.a(x)))))

    model = Model(run, a=nn.Linear(8, 16), m=nn.Linear(16, 16), b=nn.Linear(16, 3))
    s = kc.shape(kc.read(model, rows()))
    assert isinstance(s, kc.Shaping) and not any("left" in w.text for w in s.warnings)


# -- outputs ---------------------------------------------------------------------------------------


def test_scales_of_densities_stay_positive() -> None:
    def run(m: Any, x: Any) -> Any:
        h = F.relu(m.n(x))
        return torch.exp(m.s(h)), F.elu(m.r(h)) + 1

    model = Model(run, n=mlp(8, 24), s=nn.Linear(24, 3), r=nn.Linear(24, 3))
    out = kc.shape(kc.read(model, rows())).apply_to(model)(10 * rows())
    assert all(bool((scale >= 0).all()) for scale in out)


# -- hypotheses that fail in one place -------------------------------------------------------------


def test_products_end_the_regions_of_methods_without_a_rule_for_them() -> None:
    model = Model(lambda m, x: m.o(m.a(x) * m.b(x)), a=mlp(8, 16), b=mlp(8, 16), o=mlp(16, 3))
    s = kc.shape(kc.read(model, rows()), "tanh", "tat", tau=0.3)
    assert isinstance(s, kc.RegionalShaping) and "Product" in s.left_alone["mul"]
    assert {"a.1", "b.3", "o.1"} <= set(s.constants.by_node)


def test_where_nothing_is_left_the_error_names_nodes_and_reasons() -> None:
    def run(m: Any, x: Any) -> Any:
        return m.b(torch.sqrt(F.softplus(m.a(x)).mean(1, keepdim=True)) * x)

    with refused("activations.*'softplus'.*root"):
        kc.shape(kc.read(Model(run, a=nn.Linear(8, 8), b=nn.Linear(8, 3)), rows()))

    def film(m: Any, x: Any, c: Any) -> Any:
        gain, offset = m.film(c).chunk(2, 1)
        return m.o(F.relu(gain * m.b(F.relu(m.a(x))) + offset))

    model = Model(film, a=mlp(8, 16), film=nn.Linear(5, 32), b=nn.Linear(16, 16), o=mlp(16, 3))
    with refused("zeta"):  # an error about a target is one about the whole
        kc.shape(kc.read(model, rows(), rows(5)), zeta=0.5)


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
    "log of softplus": (sp.log(sp.log(1 + sp.exp(y))), set()),
    "softsign": (y / (1 + sp.Abs(y)), set()),
    "a norm": (z / sp.sqrt(y**2 + z**2 + 1), set()),
    "decay": (sp.sqrt(1 - sp.exp(3 * y)), {y}),
    "guarded": (sp.log(sp.Max(y, sp.Rational(1, 9))), {y}),
    "power": (z * y ** sp.Rational(3, 2), {y}),
    "both of a power": (y**z, {y, z}),
    "power of a number": (2 ** -(y**2), set()),
    "a polynomial without roots": (sp.log(y**2 - y + 1), set()),
    "inverse sine": (sp.asin(y) + z, {y}),
    "root in a logarithm": (sp.log(sp.sqrt(y) + 1), {y}),
    "bounded": (sp.log(sp.tanh(y) + z), {z}),
}


@pytest.mark.parametrize("name", NEEDS)
def test_what_an_expression_needs_the_range_of(name: str) -> None:
    expr, symbols = NEEDS[name]
    assert set().union(*(inside for _, inside in sinks(expr))) == symbols


def test_which_symbols_the_size_of_an_expression_depends_on() -> None:
    assert shown(y**2 + z) == shown(sp.exp(y) * z) == {z}
    grows = (y, False), (sp.exp(y), True), (z * sp.exp(y), True), (sp.exp(z) * y, False)
    decays = (1 / (1 + sp.exp(-y)), False), (sp.sqrt(y) * sp.exp(-y), False)
    for expr, expected in grows + decays:
        assert explodes(expr, y) is expected
