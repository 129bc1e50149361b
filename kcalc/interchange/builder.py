"""Collect the nodes of a network while kcalc reads a trace.

Elementwise expressions stay pending until another operation needs them as a node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import sympy as sp

from ..activations import X
from ..fields.degrees import check_degree
from ..foundation.errors import KcalcError, glimpse
from ..network.layers import (
    Input,
    Layer,
    Nonlinear,
    Opaque,
    Scale,
    StopGradient,
    SurrogateGradient,
)
from .fusion import (
    Constant,
    Still,
    Unary,
    Unusable,
    as_number,
    is_affine,
    linear_factor,
    recognised,
    released,
    slope_of,
)
from .independence import Resemblance
from .internal_errors import ModelError, internal_error
from .layout import channel_axes, guessed_axes, id_arrays
from .model_reading import Note
from .ownership import Owners
from .reading_notes import biased
from .trace import Attention, Entry, Lookup, Op, Trace

Form = Unary | Constant | Unusable
GAIN_OF_0 = "a trained gain is 0 here; to read what it multiplies, give it another value"
CORRELATED = "its {0} are correlated with the {0} of {1!r}; they are read as independent"


class Builder:
    """The state of one pass over a trace.

    The state contains the results of all operations read so far, and the nodes of the network.
    """

    def __init__(self, trace: Trace, sigmas: bool) -> None:
        self.trace, self.sigmas = trace, sigmas
        self.by_name = {op.name: op for op in trace.ops}
        self.axes = channel_axes(trace)
        self.guessed = guessed_axes(trace, self.axes)
        self.ids = id_arrays(trace)
        self.of_tokens = any(isinstance(op, Attention | Lookup) for op in trace.ops)
        shapes = [op.shape for op in trace.ops if isinstance(op, Entry) and op.shape]
        self.examples = shapes[0][0] if shapes else 1
        self.readers = Counter(name for op in trace.ops for name in op.reads) + Counter(
            trace.outputs
        )
        self.forms: dict[str, Form] = {}
        self.layers: dict[str, tuple[Layer, tuple[str, ...]]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.notes: list[Note] = []
        # notes about the distribution of outputs, which matters only to activations and norms
        self.of_biases: list[Note] = []
        self.epsilons: dict[str, float] = {}  # {norm: epsilon}
        self.joined: dict[str, tuple[int, ...]] = {}  # the channels of a Concat's inputs
        self.owners = Owners()
        self.weights_like, self.biases_like = Resemblance(), Resemblance()
        self.tokens: dict[str, int] = {}  # {node: the axis along which it mixes locations}
        self.made: dict[tuple[str, Any], str] = {}
        # {node: operations from which it was read}
        self.read_at: dict[str, dict[str, None]] = {}
        # {stopped expression: expression inside the stop}
        self.stopped: dict[tuple[Any, Any], str] = {}
        # {operation that is a number because a trained gain is 0: what this gain multiplies}
        self.off: dict[str, tuple[str, ...]] = {}

    def note(self, node: str, level: str, text: str, of_weights: bool = False) -> None:
        """Record a difference from the model at a node.

        ``of_weights``: whether the difference concerns the current weights.
        """
        self.notes.append(self._noted(node, level, text, of_weights))

    def _noted(self, node: str, level: str, text: str, of_weights: bool) -> Note:
        source = self.by_name[node].source if node in self.by_name else ""
        return Note(node, level, text, source, of_weights)

    def node(self, op: Op, layer: Layer, parents: Sequence[str] | None = None) -> Unary:
        """Add a node for an operation; ``parents`` default to the nodes that it reads."""
        parents = [self.label(name) for name in op.reads] if parents is None else parents
        self.layers[op.name], self.shapes[op.name] = (layer, tuple(parents)), op.shape
        return Unary(op.name, X, op.name)

    def width(self, op: Op) -> int | None:
        """Return the number of channels of an operation's output.

        Returns None if no channel axis is known.
        """
        axis = self.axes.get(op.name)
        return None if axis is None or op.name in self.guessed else op.shape[axis]

    def opaque(self, op: Op, what: str, reason: str) -> Unary:
        """Add a placeholder node for an operation that kcalc does not understand."""
        parents = list(
            dict.fromkeys(
                self.label(name)
                for name in op.reads
                if not isinstance(self.forms[name], Constant | Unusable)
            )
        )
        self.note(op.name, "not read", f"{what}: {reason}")
        first = next(o.name for o in self.trace.ops if isinstance(o, Entry))
        return self.node(op, Opaque(what, reason, self.width(op)), parents or [first])

    def label(self, name: str, final: bool = False) -> str:
        """Return the label of the node for an operation's output.

        If the output is a pending expression, the node is created now.
        """
        form, op = self.forms[name], self.by_name[name]
        if isinstance(form, Unary) and form.source is not None:
            return self._materialise(form.source, form.expr, form.home, op)
        what = (
            "an array that depends on no input"
            if isinstance(form, Constant)
            else "a number"
            if isinstance(form, Unary)
            else form.reason
        )
        if final and not (isinstance(form, Unary) and form.expr == 0):
            raise KcalcError(
                f"{self.trace.framework}: the output {name!r} is {what}, which a network cannot "
                "compute"
            )
        branches = self.off.get(name, ())
        reason = GAIN_OF_0 if branches else f"{what} is read as a feature map"
        self.forms[name] = self.opaque(replace(op, reads=branches), "constant", reason)
        return name

    def _materialise(self, source: str, expr: Any, home: str, op: Op) -> str:
        if expr == X:
            return source
        made = self.made.get((source, expr))
        if made is None:
            made = self.made[source, expr] = self._new(source, expr, home, op)
        self.read_at.setdefault(made, {})[op.name] = None
        return made

    def _new(self, source: str, expr: Any, home: str, op: Op) -> str:
        at = self.by_name.get(home) or replace(op, name=home)
        if isinstance(expr, sp.Expr) and expr.has(Still):
            return self._with_stops(at, source, expr, self.width(op))
        factor = linear_factor(expr) if isinstance(expr, sp.Expr) else None
        alone = isinstance(self.layers[source][0], Input) and self.readers[source] == 1
        if alone and isinstance(expr, sp.Expr) and is_affine(expr) and expr.has(X):
            self.note(
                source,
                "approximate",
                f"the input first passes through {expr}; the q value is that of the result",
            )
            return source
        if factor is not None and factor != 0:
            self.node(at, Scale(as_number(factor)), [source])
            return at.name
        return self._nonlinear(at, source, expr, self.width(op))

    def _with_stops(self, op: Op, source: str, expr: Any, width: int | None) -> str:
        """Return the node for an expression that contains gradient stops."""
        value, slope = released(expr), slope_of(expr)
        if slope == 0:
            return self._stopped(op, source, expr, width)
        linear = linear_factor(value)
        try:
            check_degree(value)
            if linear is not None and sp.simplify(slope - linear) == 0:
                self.node(op, Scale(as_number(linear)), [source])
            elif sp.simplify(slope - sp.diff(value, X)) == 0:
                return self._nonlinear(op, source, value, width)
            else:
                self.node(op, SurrogateGradient(recognised(value), slope), [source])
            return op.name
        except KcalcError as error:
            reason = str(error)
        except Exception as error:
            reason = internal_error(error, f"the activation at {op.name!r}")
        self.note(op.name, "not read", f"{glimpse(value)}: {reason}")
        self.node(op, Opaque("activation", reason, width), [source])
        return op.name

    def _stopped(self, op: Op, source: str, expr: Any, width: int | None) -> str:
        """Return the node for an expression that passes no gradient.

        The gradient stop follows the stopped operation if it is known. Otherwise, it comes before
        the function of ``source``.
        """
        before = self.stopped.get((source, expr))
        if before is not None or released(expr) == X:
            self.node(op, StopGradient(), [source if before is None else self.label(before)])
            return op.name
        stop = replace(op, name=f"{op.name}.stop")
        self.node(stop, StopGradient(), [source])
        return self._nonlinear(op, stop.name, released(expr), width)

    def _nonlinear(self, op: Op, source: str, expr: Any, width: int | None) -> str:
        if not isinstance(expr, sp.Expr):
            reason = "a comparison is read as a feature map"
        elif not expr.has(X):
            reason = f"it is {expr} for every input"
        else:
            try:
                self.node(op, Nonlinear(recognised(expr)), [source])
                return op.name
            except KcalcError as error:
                reason = str(error)
            except Exception as error:
                reason = internal_error(error, f"the activation at {op.name!r}")
        self.note(op.name, "not read", f"{glimpse(expr)}: {reason}")
        self.node(op, Opaque("activation", reason, width), [source])
        return op.name

    def sigma_b(self, node: str, values: Any) -> float:
        """Return the root mean square of an Affine's biases; add a note if their mean is not 0."""
        if self.sigmas and biased(values):
            numbers = np.asarray(values, dtype=np.float64)
            text = (
                f"its biases have mean {numbers.mean():.4g}; they are read as Gaussian with mean 0 "
                f"and the same root mean square"
            )
            self.of_biases.append(self._noted(node, "approximate", text, True))
        if self.sigmas and (kin := self.biases_like(node, values)):
            self.note(node, "approximate", CORRELATED.format("biases", kin), of_weights=True)
        return self.spread(values)

    def spread(self, values: Any) -> float:
        """Return the root mean square of some values, or 0 if sigmas are not read."""
        if not self.sigmas:
            return 0
        return self.finite(
            float(np.sqrt(np.mean(np.square(np.asarray(values, dtype=np.float64)))))
            if np.size(values)
            else 0.0
        )

    def finite(self, spread: float) -> float:
        """Return ``spread`` if it is finite.

        Raises: KcalcError if it is nan or infinite.
        """
        if not math.isfinite(spread):
            raise ModelError(
                f"{self.trace.framework}: the weights contain nan or infinity; fix the model, or "
                "read it with sigmas=False"
            )
        return spread
