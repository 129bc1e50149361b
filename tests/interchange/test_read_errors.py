"""Whatever goes wrong inside a reader: one opaque node with the reason, and the rest is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_graphs import node, one, weights
from refusals import refused

import kcalc as kc
from kcalc.interchange import builder, recognise, rewriting
from kcalc.interchange.jax_model import finishing, softmax
from kcalc.interchange.jax_model import reader as jax_reader
from kcalc.interchange.onnx_model import graph_values as onnx_rules
from kcalc.interchange.rewriting import heads, mixing, norms, split_layers

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

from kcalc.interchange.torch_model import walker  # noqa: E402

pytestmark = pytest.mark.usefixtures("internal_errors")


def failing(kind: type[Exception]) -> Callable[..., Any]:
    def fail(*args: Any, **named: Any) -> Any:
        raise kind("the works")

    return fail


def told(reading: Any) -> list[str]:
    """Internal errors among the notes and remarks of a reading."""
    texts = [*(note.text for note in reading.notes), *reading.remarks]
    return [text for text in texts if "internal error" in text]


def check(reading: Any, kind: type[Exception], *words: str) -> None:
    """One opaque node or more that say what failed, and layers that are read around them."""
    found = told(reading)
    assert found and any(kind.__name__ in text for text in found)
    assert all(any(word in text for text in found) for word in words)
    assert reading.fidelity.counts.get("exact", 0) >= 2


def small() -> Any:
    def run(m: Any, x: Any) -> Any:
        h = torch.tanh(m.a(x))
        return m.c(h + m.b(h).relu() * 2)

    model = Model(run, a=nn.Linear(8, 8), b=nn.Linear(8, 8), c=nn.Linear(8, 4))
    return kc.read(model, (2, 8), sigmas=False)


def attending() -> Any:
    """Attention, a norm by hand, and parts of a layer."""

    def run(m: Any, x: Any) -> Any:
        x = m.first(x)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        q, k, v = (part[:, None] for part in m.qkv(x).chunk(3, -1))
        return m.last(F.scaled_dot_product_attention(q, k, v)[:, 0])

    return Model(run, first=nn.Linear(8, 8), qkv=nn.Linear(8, 24), last=nn.Linear(8, 8))


def attends() -> Any:
    return kc.read(attending(), (2, 5, 8), sigmas=False)


@pytest.mark.parametrize("where", ["_handled", "_taint", "_written"])
def test_a_walk_that_fails_at_every_call(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(walker.Walker, where, failing(KeyError))
    try:
        reading = small()
    except kc.KcalcError as error:
        assert "depends on its inputs" in str(error) or "internal error" in str(error)
    else:
        assert told(reading) or where == "_written"


def test_activations_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "recognised", failing(OSError))
    reading = small()
    assert any("the works" in note.text for note in reading.notes)


@pytest.mark.parametrize("rule", ["with_parts", "with_norms", "with_mixing", "with_heads"])
def test_rewriting_rules_that_fail(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    fail = failing(KeyError)
    fail.__name__ = rule
    monkeypatch.setattr(rewriting, rule, fail)
    if rule == "with_mixing":  # of attention that is not read
        monkeypatch.setattr(heads._Heads, "refused", lambda self, name: True)
    reading = attends()
    assert any(rule in text and "KeyError" in text for text in told(reading))


INSIDE: dict[str, tuple[Any, str]] = {
    "sources": (heads.Followed, "source"),
    "mixing": (mixing._Mixing, "attempt"),
    "norms": (norms.Norms, "_replaced"),
    "parts": (split_layers._Parts, "_resolve"),
}


@pytest.mark.parametrize("name", INSIDE)
def test_one_part_in_a_rewriting_rule_fails(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, method = INSIDE[name]
    if name in ("mixing", "parts"):  # where attention is not read
        monkeypatch.setattr(heads._Heads, "refused", lambda self, name: True)
    monkeypatch.setattr(owner, method, failing(RuntimeError))
    notes = [note for note in attends().notes if "internal error" in note.text]
    assert notes and all("RuntimeError" in note.text for note in notes)


def test_a_reading_that_fails_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognise, "assemble", failing(KeyError))
    with refused("internal error.*KeyError.*read the parts"):
        small()


# -- JAX -----------------------------------------------------------------------------------------

PARAMS = {name: np.eye(8, dtype=np.float32) for name in "abc"} | {"d": np.ones(8, np.float32)}


def jax_function(p: Any, x: Any) -> Any:
    h = jnp.tanh(x @ p["a"] + p["d"])
    h = h / jnp.sqrt((h * h).mean(-1, keepdims=True) + 1e-6)
    h = jnp.exp(h @ p["b"])
    return (h / h.sum(-1, keepdims=True)) @ p["c"]


def of_jax() -> Any:
    return kc.read(jax_function, PARAMS, np.ones((2, 8), np.float32), sigmas=False)


@pytest.mark.parametrize("kind", [kc.KcalcError, OSError])
def test_rules_of_jax_that_fail(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    monkeypatch.setattr(jax_reader, "function_of", failing(kind))
    check(of_jax(), kind, "tanh")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(norms.Norms, "_replaced"), (finishing, "bias_added"), (softmax, "_written_out")],
)
def test_the_end_of_a_reading_of_jax_fails(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.setattr(owner, name, failing(KeyError))
    assert told(of_jax())


# -- ONNX ----------------------------------------------------------------------------------------


def test_rules_of_onnx_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = node("MatMul", "x u", "a"), node("Softplus", "a", "b"), node("MatMul", "b v", "y")
    proto = one(*nodes, shape=[2, 6], u=weights(6, 6), v=weights(6, 6))
    monkeypatch.setitem(onnx_rules.RULES, ("", "Softplus"), failing(ZeroDivisionError))
    check(kc.read(proto, sigmas=False), ZeroDivisionError, "Softplus")


# -- arrays whose size the data decide -----------------------------------------------------------


def test_outputs_whose_size_the_data_decide() -> None:
    def run(m: Any, x: Any) -> Any:
        h = m.a(x)
        return h[h[:, 0] > 0]

    with refused("unknown size.*depends on the data"):
        kc.read(Model(run, a=nn.Linear(6, 8)), torch.randn(4, 6))


# -- builders ------------------------------------------------------------------------------------


def torch_builder(width: Any) -> Any:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU())


def careless(width: Any) -> Any:
    return nn.Linear(8, 4)


def nothing() -> Any:
    return nn.Linear(8, 4)


def equinox_builder(width: Any) -> Any:
    return pytest.importorskip("equinox").nn.MLP(8, 3, width, 2, key=jax.random.key(0))


@pytest.mark.parametrize("build", [torch_builder, careless, nothing, equinox_builder])
def test_builders_are_no_functions_of_arrays(build: Any) -> None:
    name = re.escape(build.__name__)
    with refused(rf"{name} .*call it first.*kc\.read\({name}\(\.\.\.\)") as caught:
        kc.read(build, (2, 8))
    assert "Tracer" not in str(caught.value)


def test_audits_say_what_kept_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognise.Recogniser, "_before", failing(KeyError))
    remarks = kc.audit(attending, torch.zeros(2, 5, 8)).remarks
    assert any("nothing is predicted" in text and "internal error" in text for text in remarks)
