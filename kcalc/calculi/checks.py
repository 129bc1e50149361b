"""Checks of states during a pass through a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

import numpy as np
import sympy as sp
from sympy.core.function import AppliedUndef

from ..fields import NUMPY, SYMPY
from ..fields.arguments import TINY
from ..fields.jax_field import is_jax
from ..fields.jets import Jet
from ..foundation.errors import KcalcError
from ..network.network import Network
from ..network.notes import read_at
from ..network.primitives import Norm

Number = Any
Node = Hashable
Value = TypeVar("Value")

CANCELLED = 1e-8
"""A difference below this fraction of its terms has less than half the digits of a double."""

EQUAL = 1e-14
"""A variance below this fraction of q may be 0 up to rounding errors."""

MORE_DIGITS = 50
"""The digits of balls that replace double precision if it has too few digits."""


def refuse_displaced(network: Network, what: str) -> None:
    """Reject a network whose strides, windows or sizes differ from its model's.

    ``what`` is the name of a computation that uses positions. Raises: KcalcError naming the node,
    the difference and remedies.
    """
    for note in network.notes:
        if note.level == "locations":
            raise KcalcError(
                f"node {note.node!r}: {note.text}, so its positions differ from those of the "
                f"model, and {what} would describe a different model. kc.c_map(net) and "
                "kc.ntk(net) do not use positions. Use net.with_notes([]) to remove this note "
                "and treat the positions in the network as those of the model"
            )


def refuse_other_sizes(network: Network, shapes: Mapping[Node, tuple[int, ...]]) -> None:
    """Reject image ``shapes``, {input: shape}, other than the shapes used to read the model.

    The model may use different paddings and windows at another size. Raises: KcalcError naming the
    input and remedies.
    """
    for note in network.notes:
        shape = shapes.get(note.node) if note.level == "exact" else None
        if shape is not None and note != read_at(note.node, tuple(shape)):
            raise KcalcError(
                f"the images of the input {note.node!r} have shape {shape}, but the network was "
                f"{note.text}. The model may use different paddings and windows at another size. "
                "Read the model at this size, or remove the note with net.with_notes([])"
            )


class Exploded(KcalcError):
    """Error raised if a q value is beyond double precision."""


class LostDigits(KcalcError):
    """Error raised if a result would have too few correct digits in double precision."""


def in_enough_digits(run: Callable[[Any], Value]) -> Value:
    """Return ``run(field)`` in double precision, or over balls if double precision has too few."""
    try:
        return run(NUMPY)
    except LostDigits as lost:
        from ..fields.balls import ball_field

        field = ball_field(MORE_DIGITS)
        try:
            with field.working():
                return run(field)
        except KcalcError:
            raise lost from None


def refuse_exploded(node: Node, q: Number) -> NoReturn:
    """Raise the error for a node whose q is beyond double precision."""
    raise Exploded(
        f"node {node!r} has q = {q}, but q values must stay positive and finite; they explode or "
        "vanish before this node. Use the sigma_w returned by kc.gain(activation) to preserve q, "
        "and net.normalised() to normalise the weights of sums"
    )


def check_q(field: Any, q: Number, node: Node) -> None:
    """Reject a q value that is not positive and finite, naming the node.

    Also reject q values that are too small for full double precision.
    """
    value = q.value if isinstance(q, Jet) else q
    if is_jax(value):  # possibly traced: a bad value shows up as nan
        return
    if field is SYMPY:
        if value == 0 or (isinstance(value, sp.Number) and value <= 0):  # its sign test may hang
            raise KcalcError(
                f"node {node!r} has q = {value}, so its feature map is 0 and its c value is "
                "undefined"
            )
        return
    # the usual case in deep networks
    if isinstance(value, float) and TINY <= value < np.inf:
        return
    if field is not NUMPY and np.ndim(value) == 0:  # a number whose exponent has no bounds
        wide: Any = value
        finite = wide.is_finite() if hasattr(wide, "is_finite") else abs(wide) < math.inf
        good, plain_values = np.array(finite and not value <= 0), np.array(value, dtype=object)
    else:
        plain_values = np.asarray(value, dtype=float)
        good = np.isfinite(plain_values) & (plain_values >= TINY)
    if not good.all():
        refuse_exploded(node, plain_values[~good].ravel()[0])


def check_variance(field: Any, var: Number, q: Number, node: Node) -> None:
    """Reject normalisation by a variance that is 0 or has lost its digits."""
    value, scale = (v.value if isinstance(v, Jet) else v for v in (var, q))
    if is_jax(value):
        return
    what = f"node {node!r} normalises a feature map whose"
    if field is SYMPY:
        if value == 0:
            raise KcalcError(f"{what} channels are all equal, so its variance is 0")
    elif field is not NUMPY:
        if not value > 0:
            close = (
                "variance over channels is 0, or too close to 0 for the requested number of digits"
            )
            raise KcalcError(f"{what} {close}; request more digits")
    elif np.any(np.asarray(value <= CANCELLED * scale)):
        remedy = "use larger inputs or weights, or call the map's ball(...) for certified digits"
        why = (
            f"less than {CANCELLED:g} times its q, so too few of its digits are correct in double "
            "precision"
        )
        if np.any(np.asarray(value <= EQUAL * scale)):
            why = f"0, or less than {EQUAL:g} times its q, which double precision rounds to 0"
            remedy = f"remove the normalisation if all channels are equal; otherwise, {remedy}"
        raise LostDigits(f"{what} variance over channels is {why}; {remedy}")


def check_several(op: Norm, node: Node) -> None:
    """Reject statistics over a single channel."""
    if op.reads == 1:
        raise KcalcError(
            f"node {node!r} normalises over a single channel, so its output is constant; use "
            "more channels, or remove this node"
        )


def plain(value: Number) -> bool:
    """Whether a value is a single concrete number rather than an array, a jet or a symbol."""
    if isinstance(value, sp.Basic):
        return bool(value.is_number) and not value.atoms(AppliedUndef)
    return not isinstance(value, Jet) and np.ndim(value) == 0


def is_one(value: Number) -> bool:
    """Whether a value is a plain number that is exactly 1."""
    return isinstance(value, int | float | Fraction | sp.Basic) and value == 1
