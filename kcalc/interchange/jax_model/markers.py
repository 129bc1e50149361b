"""Marks that identify normalisation and dropout modules in a jaxpr.

While kcalc traces a model, normalisation and dropout modules emit a mark instead of their
operations.

The mark contains the module's settings, so kcalc need not infer them from sums and square roots.
Jaxprs with marks stay in a separate tracing context and never enter JAX's caches for the user's
functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ..trace import Drop, Normalise
from .jaxpr_values import KnownArray, Ref, Value
from .reader import JaxReader, rule

NORMALISE, DROP = "kcalc_normalise", "kcalc_dropout"
SLOTS = ("gain", "bias", "mean", "variance")
_here = threading.local()


@cache
def _primitive(name: str) -> Any:
    from jax.extend.core import Primitive
    from jax.interpreters import batching

    primitive = Primitive(name)
    primitive.def_impl(_refused)
    primitive.def_abstract_eval(lambda x, *_, **__: x)
    batching.primitive_batchers[primitive] = _batched
    return primitive


def _refused(*_: Any, **__: Any) -> Any:
    raise KcalcError("a model that applies normalisation or dropout to a constant cannot be read")


def _batched(arrays: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, int]:
    """Apply the batching rule of ``jax.vmap`` to a mark: move the mapped axis to axis 0.

    A batch norm with an axis name also averages over the mapped axis.
    """
    import jax.numpy as jnp

    if any(d is not None for d in dims[1:]):
        raise KcalcError(
            "normalisation with different gains per example (an ensemble of models) cannot be read"
        )
    x = jnp.moveaxis(arrays[0], dims[0], 0) if dims[0] is not None else arrays[0]
    if "axes" not in params:
        return _primitive(DROP).bind(x, **params), 0
    axes = tuple(a + 1 for a in params["axes"])
    params |= {"axes": (0, *axes) if params["over_examples"] else axes, "over_examples": False}
    return _primitive(NORMALISE).bind(x, *arrays[1:], **params), 0


def normalised(
    x: Any,
    kind: str,
    axes: Sequence[int],
    epsilon: float,
    label: str,
    groups: int = 1,
    over_examples: bool = False,
    unread: str = "",
    **arrays: Any,
) -> Any:
    """Return ``x`` marked as normalised.

    ``arrays``: gain, bias, mean and variance; any of them may be missing or None. ``unread``: the
    reason if no normalisation layer does the same.
    """
    import jax.numpy as jnp

    held = tuple(slot for slot in SLOTS if arrays.get(slot) is not None)
    x = jnp.asarray(x)
    axes = tuple(sorted(int(a) % x.ndim for a in axes))
    return _primitive(NORMALISE).bind(
        x,
        *(jnp.asarray(arrays[slot]) for slot in held),
        kind=kind,
        axes=axes,
        groups=int(groups),
        epsilon=float(epsilon),
        label=label,
        held=held,
        over_examples=over_examples,
        unread=unread,
    )


def dropped(x: Any, rate: float, label: str, on: bool) -> Any:
    """Return ``x`` with a dropout mark; ``on``: whether dropout is active in this call."""
    import jax.numpy as jnp

    if on and hasattr(_here, "dropping"):
        _here.dropping.add(label)
    return _primitive(DROP).bind(jnp.asarray(x), rate=float(rate), label=label)


def labels_dropping(run: Callable[..., Any], *arguments: Any) -> set[str]:
    """Return the labels of the dropout layers that are active when ``run`` is called.

    Only the shapes of ``arguments`` matter. Returns no labels if the call fails.
    """
    import jax

    found = _here.dropping = set[str]()
    try:
        jax.eval_shape(run, *arguments)
    except Exception:  # the user's code may raise anything in another mode
        return set()
    finally:
        del _here.dropping
    return found


@rule(NORMALISE)
def _normalise(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref, params = values[0], eqn.params
    if not isinstance(ref, Ref) or any(not isinstance(v, KnownArray) for v in values[1:]):
        return reader.not_read("normalisation", "its gains depend on the input")
    if params["unread"]:
        return reader.not_read("normalisation", params["unread"])
    if params["over_examples"]:
        return reader.not_read(
            "batch normalisation",
            "it averages over a named axis that no vmap defines; trace a batch",
        )
    ref = reader.spread(ref)
    arrays = {
        slot: np.asarray(v.array)
        for slot, v in zip(params["held"], values[1:], strict=True)
        if isinstance(v, KnownArray)
    }
    running = (
        (arrays["mean"], arrays["variance"]) if "mean" in arrays and "variance" in arrays else None
    )
    axes = tuple(sorted(ref.order[a] for a in params["axes"]))
    made = reader.over(
        ref,
        Normalise,
        _label(reader, params["label"]),
        kind=params["kind"],
        axes=axes,
        groups=params["groups"],
        epsilon=params["epsilon"],
        gain=arrays.get("gain"),
        bias=arrays.get("bias"),
        running=running,
    )
    reader.norm_views[made.name] = {
        slot: v.view
        for slot, v in zip(params["held"], values[1:], strict=True)
        if isinstance(v, KnownArray) and v.view is not None
    }
    return [made]


def _label(reader: JaxReader, label: str) -> str:
    """Return the name of a marked module, or the scope if the scope already ends with this name."""
    if reader.scope and reader.scope[-1].lower() == label.rsplit(".", 1)[-1].lower():
        return ".".join(reader.scope)
    return label if "." in label or not reader.scope else reader.wish(label)


@rule(DROP)
def _drop(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref = values[0]
    assert isinstance(ref, Ref)
    ref = reader.spread(ref)
    label = eqn.params["label"]
    made = reader.over(ref, Drop, _label(reader, label), rate=round(eqn.params["rate"], 12))
    reader.drops[made.name] = label
    return [made]


@contextmanager
def marking(patches: Sequence[tuple[Any, str, Any]] = ()) -> Iterator[None]:
    """Return a context for tracing with separate JAX caches and replaced attributes.

    ``patches``: (owner, name of the attribute, replacement). The attributes are restored on exit.
    """
    with ExitStack() as stack:
        stack.enter_context(_own_caches())
        for owner, name, replacement in patches:
            stack.callback(setattr, owner, name, owner.__dict__[name])
            setattr(owner, name, replacement)
        yield


@cache
def _context() -> Any:
    import jax

    return jax.make_user_context(None)


def _own_caches() -> Any:
    return _context()(object())
