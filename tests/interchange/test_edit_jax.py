"""Edits of JAX functions: only the edited calls change.

The oracle is the same function with other activations and other weights of its sums, by hand.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.activations.jax_function import jax_function
from kcalc.interchange.apply import edits_of

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

L = kc.layers
R = np.random.default_rng(5)
SIZES = {"a": (6, 8), "b": (8, 8), "c": (8, 8), "d": (8, 3), "w": (3, 8, 8)}
P = {
    name: np.asarray(R.standard_normal(shape) / np.sqrt(shape[-2]), np.float32)
    for name, shape in SIZES.items()
}
X = R.standard_normal((4, 6)).astype(np.float32)
OTHER = R.standard_normal((7, 6)).astype(np.float32)


def scanned(p: Any, x: Any) -> Any:
    return lax.scan(lambda h, v: (jnp.tanh(h) @ v, None), x @ p["a"], p["w"])[0]


def residual(p: Any, x: Any) -> Any:
    h = x @ p["a"]
    for one, two in zip(p["w"], (p["b"], p["c"]), strict=False):
        h = h + jnp.tanh(jnp.tanh(h) @ one) @ two
    return jnp.tanh(h) @ p["d"]


def shaped(function: Any, p: Any = P) -> tuple[Any, Any, Any]:
    s = kc.shape(kc.read(function, p, X), "tanh")
    return s, *s.apply_to(function, p, X)


SOURCE = """
import jax.numpy as jnp

def net(p, x):
    h = jnp.tanh(x @ p["a"])
    return jnp.tanh(h @ p["b"]) @ p["d"]
"""


def test_code_may_move_but_not_change(tmp_path: Any) -> None:
    def written(name: str, text: str) -> Any:
        names: dict[str, Any] = {}
        path = tmp_path / name / "net.py"
        path.parent.mkdir()
        path.write_text(text)
        exec(compile(text, str(path), "exec"), names)
        return names["net"]

    first = written("first", SOURCE)
    s = kc.shape(kc.read(first, P, X))
    new, params = s.apply_to(first, P, X)
    moved = written(
        "moved", "\n# a comment\n\n" + SOURCE.replace("    h =", "    # more\n    h  =")
    )
    changed = written("changed", SOURCE.replace("    h =", "    x = jnp.tanh(x)\n    h ="))
    same, again = kc.apply_edits((moved, P), s.edits)
    assert np.array_equal(same(again, OTHER), new(params, OTHER))
    other, _ = kc.apply_edits((changed, P), s.edits)
    with refused("1 when the model was read, 0 for these inputs.*shape the model again"):
        other(params, OTHER)


def test_turns_of_a_loop_are_edited_together() -> None:
    s, _, _ = shaped(scanned)
    first = kc.Edits("jax", "", s.edits.only("activation").items[:1])
    with refused(r"runs 3 times.*\(1\) do not cover all runs"):
        kc.apply_edits((scanned, P), first)

    from types import SimpleNamespace

    reading, count = kc.read(scanned, P, X), itertools.count(1)
    network = reading.network.map_layers(
        lambda _, layer: L.Nonlinear(layer.activation.transformed(output_scale=next(count))),
        L.Nonlinear,
    )
    edits = edits_of(reading, SimpleNamespace(network=network))
    assert all("loop" in why for why in edits.left_alone.values()) and len(edits.left_alone) == 2


def test_an_activation_inside_of_a_custom_derivative_is_left_alone() -> None:
    @jax.custom_vjp
    def block(h: Any, w: Any) -> Any:
        return jnp.tanh(h) @ w

    def back(saved: Any, g: Any) -> Any:
        h, w = saved
        return g @ w.T * (1 - jnp.tanh(h) ** 2), jnp.tanh(h).T @ g

    block.defvjp(lambda h, w: (block(h, w), (h, w)), back)

    def function(p: Any, x: Any) -> Any:
        return jnp.tanh(block(jnp.tanh(x @ p["a"]) @ p["b"], p["c"])) @ p["d"]

    s, new, params = shaped(function)
    assert isinstance(s, kc.RegionalShaping)
    inside = {str(edit.node) for edit in s.edits.only("activation")}
    assert len(inside) == 2 and not inside & {str(node) for node in s.left_alone}
    f, g = (jax_function(k.transformed) for k in s.constants.by_node.values())
    twin = lambda q, x: g(block(f(x @ q["a"]) @ q["b"], q["c"])) @ q["d"]  # noqa: E731
    found, wanted = (
        jax.value_and_grad(lambda q, run=run: (run(q, OTHER) ** 2).sum())(params)
        for run in (new, twin)
    )
    assert jax.tree.all(jax.tree.map(lambda x, y: np.allclose(x, y, atol=1e-4), found, wanted))


def test_what_is_for_pytorch_only_says_so(tmp_path):
    s, made, _ = shaped(residual)
    s.edits.save(tmp_path / "edits.json")
    with refused("PyTorch.*apply_edits"):
        s.patch(tmp_path / "net.patch")
    with refused("PyTorch.*apply_edits"):
        kc.load_edited(lambda: residual, tmp_path / "weights.pt", tmp_path / "edits.json")
    with refused(r"\(function, params\)"):
        kc.apply_edits(residual, s.edits)
    assert "residual, edited" in repr(made)
