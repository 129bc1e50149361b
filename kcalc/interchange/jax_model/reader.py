"""Read a jaxpr equation by equation.

Equations that depend on no input are evaluated. All others become operations of a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ..internal_errors import internal_error
from ..trace import (
    Compute,
    Held,
    Linear,
    Lookup,
    Names,
    NotRead,
    Op,
    Pointwise,
    Repeat,
    Reshape,
    Softmax,
    Stopped,
    Transpose,
)
from .jaxpr_values import KnownArray, Recipe, Ref, Value, View, made_shape
from .known import constants_of, given, moved, part, plain, view_after
from .named import named_function
from .pointwise import (
    LABELS,
    called,
    closed_function,
    function_of,
    inner_jaxpr,
    makes_complex,
    number,
    reads_complex,
)
from .stops import is_library, own_derivative, trained, with_slope

Rule = Callable[["JaxReader", Any, list[Value]], list[Value]]
RULES: dict[str, Rule] = {}
RANDOM = (
    "random_bits",
    "random_seed",
    "random_fold_in",
    "random_split",
    "threefry2x32",
    "random_wrap",
    "random_unwrap",
    "random_gamma",
    "rng_bit_generator",
)
FOREIGN = (
    "/jax/",
    "/jaxlib/",
    "/flax/",
    "/equinox/",
    "/keras/",
    "/kcalc/interchange/",
    "/functools.py",
    "/contextlib.py",
    "/optree/",
    "/jaxtyping/",
)
COUPLES = "it couples all entries along an axis (attention); kcalc has no rule for it"
REASONS = {
    "cumsum": "sums along an axis mix locations; kcalc has no rule for them",
    "sort": "sorting is not an elementwise function",
    "top_k": "sorting is not an elementwise function",
    "argmax": "indices are not feature maps",
    "while": "a loop whose number of iterations depends on the data has no fixed graph",
    "cond": "a branch that depends on the data has no fixed graph",
}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function that reads the named primitives."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


@dataclass(frozen=True, eq=False)
class EquationCall:
    """An equation that ran, with its inputs, its results and its place in the program.

    ``path``: the index of the equation in its jaxpr, preceded by (index, part) of each surrounding
    equation, from the outside in. ``whole``: False if equations inside it computed its results.
    """

    path: tuple[int, ...]
    eqn: Any
    reads: tuple[Value, ...]
    makes: tuple[Value, ...]
    whole: bool = True


class JaxReader:
    """The state while a model is read.

    The state contains the operations so far, in order, and the current place in the model.
    """

    def __init__(self, labels: Mapping[str, str], channel_axis: int, root: str = "") -> None:
        self.ops: dict[str, Op] = {}
        self.names = Names()
        self.recipes: dict[str, Recipe] = {}
        self.random: set[str] = set()
        self.drops: dict[str, str] = {}  # {dropout operation: label of its mark}
        self.views: dict[str, View] = {}
        self.norm_views: dict[str, dict[str, View]] = {}  # {normalisation: {"gain": ...}}
        self.expanded: dict[
            str, tuple[int, ...]
        ] = {}  # {operation that only adds axes of size 1: these axes}
        self.cuts: dict[tuple[str, int, int, int], str] = {}  # slices of layers made so far
        self.labels, self.channel_axis, self.root = labels, channel_axis, root
        self.scope: tuple[str, ...] = ()
        self.source = ""
        self.present: tuple[Any, list[Value], int] = (None, [], 0)  # the current equation
        self.path: tuple[int, ...] = ()  # see EquationCall
        self.tape: list[EquationCall] = []
        self._held: dict[tuple[int, tuple[int, ...]], tuple[KnownArray, str]] = {}

    # -- the loop ----------------------------------------------------------------------------------

    def run(
        self, jaxpr: Any, consts: Sequence[Value], args: Sequence[Value], part: int = 0
    ) -> list[Value]:
        """Return the outputs of a jaxpr for given inputs.

        ``part``: the index of the jaxpr among the jaxprs of the current equation.
        """
        known: dict[Any, Value] = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(
            zip(jaxpr.invars, args, strict=True)
        )
        scope, source, path, present = self.scope, self.source, self.path, self.present
        around = (*path, part) if path else ()
        for place, eqn in enumerate(jaxpr.eqns):
            self.scope, self.path = scope, (*around, place)
            self.scope, self.source = scope + self._scopes(eqn), _place(eqn) or source
            given, before = [_value(known, v) for v in eqn.invars], len(self.tape)
            values = self._noted(eqn, given, self.equation(eqn, given), before)
            known.update(zip(eqn.outvars, values, strict=True))
        self.scope, self.source, self.path, self.present = scope, source, path, present
        return [_value(known, v) for v in jaxpr.outvars]

    def _noted(self, eqn: Any, given: list[Value], values: list[Value], before: int) -> list[Value]:
        """Record an equation in ``tape``, the list of calls, and return its results as new objects.

        If the equation contains other equations, these are already in the list, from index
        ``before``. For functions with custom derivatives, they are removed, because the derivatives
        would not reflect an edit inside the function.
        """
        if eqn.primitive.name.startswith("custom_"):
            del self.tape[before:]
        inside = self.tape[before:]
        if not inside:
            values = [replace(v) if isinstance(v, Ref) else v for v in values]
            self.tape.append(EquationCall(self.path, eqn, tuple(given), tuple(values)))
        known = {id(v) for call in inside for v in call.makes} | {id(v) for v in given}
        if inside and any(isinstance(v, Ref) and id(v) not in known for v in values):
            self.tape.append(EquationCall(self.path, eqn, tuple(given), tuple(values), False))
        return values

    def _scopes(self, eqn: Any) -> tuple[str, ...]:
        stack = getattr(eqn.source_info.name_stack, "stack", ())
        names = [
            str(s.name)
            for s in stack
            if type(s).__name__ == "Scope" and not _foreign_scope(str(s.name))
        ]
        parts = [part for name in names for part in name.split("/")]
        return tuple(parts[1:] if parts and not self.scope and parts[0] == self.root else parts)

    def equation(self, eqn: Any, values: list[Value]) -> list[Value]:
        """Return the results of an equation, or unread operations if its rule fails."""
        before, calls = set(self.ops), len(self.tape)
        try:
            return self._read(eqn, values)
        except Exception as error:  # a failure in one part must not stop the rest from being read
            self.forget(set(self.ops) - before)
            self.present, name = (eqn, values, calls), called(eqn) or eqn.primitive.name
            where = f"the reading of {name} at {self.wish(name)!r}"
            return self.not_read(name, internal_error(error, where))

    def _read(self, eqn: Any, values: list[Value]) -> list[Value]:
        """Return the results of an equation."""
        self.present = eqn, values, len(self.tape)
        inner, name = inner_jaxpr(eqn), eqn.primitive.name
        if "callback" in name or not eqn.outvars:
            return self.not_read("callback", "it calls Python code, which kcalc cannot trace")
        if inner is not None:
            return self._call(eqn, inner, values)
        if all(isinstance(v, KnownArray) for v in values):
            return self.evaluate(eqn, [v for v in values if isinstance(v, KnownArray)])
        if makes_complex(eqn) or reads_complex(eqn):
            reason = "kernel calculus needs real feature maps"
            return self.not_read("complex numbers", reason)
        if name in RULES:
            return RULES[name](self, eqn, values)
        return self.elementwise(eqn, values)

    def elementwise(self, eqn: Any, values: list[Value]) -> list[Value]:
        """Return the result of an elementwise primitive. Other primitives are not read."""
        name = eqn.primitive.name
        function = function_of(
            name, eqn.params, [getattr(v.aval, "dtype", None) for v in eqn.invars]
        )
        if function is not None and len(eqn.outvars) == 1:
            return [self.pointwise(eqn, values, function, str(LABELS.get(name, name)))]
        return self.not_read(
            name,
            REASONS.get(name, f"kcalc has no rule for the JAX primitive {name!r}"),
        )

    def _call(self, eqn: Any, inner: Any, values: list[Value]) -> list[Value]:
        """Return the results of a function call."""
        own = own_derivative(eqn)
        if not own:
            return self._called(eqn, inner, values)
        if isinstance(own, str) or not isinstance(values[0], Ref):
            told = own if isinstance(own, str) else called(eqn)
            return [self._unknown(made, told) for made in self._called(eqn, inner, values)]
        function = closed_function(inner.jaxpr, inner.consts)
        if function is not None and len(values) == 1:
            return [self.pointwise(eqn, values, with_slope(function, own), called(eqn))]
        told = f"the function {called(eqn)} with a custom derivative"
        return [self._unknown(made, told) for made in self._called(eqn, inner, values)]

    def _unknown(self, made: Value, told: str) -> Value:
        """Return a value with its gradient marked as unknown; ``told`` names the operation."""
        if isinstance(made, KnownArray):
            return replace(made, trained="indirectly" if made.trained else False)
        return self.over(self.spread(made), Stopped, self.wish("own_gradient"), unknown=told)

    def _called(self, eqn: Any, inner: Any, values: list[Value]) -> list[Value]:
        name = called(eqn)
        refs = {(v.name, v.order, v.shape): v for v in values if isinstance(v, Ref)}
        numbers = [v.number for v in values if isinstance(v, KnownArray)]
        library = is_library(inner.jaxpr)
        if name == "_pad" and library:
            return RULES[name](self, eqn, values)
        if name in ("softmax", "log_softmax", "_softmax") and library and refs:
            made = softmax_call(self, inner, values) if name != "log_softmax" else None
            return self.not_read(name.strip("_"), COUPLES) if made is None else [made]
        whole = [v for v in refs.values() if len(eqn.outvars) == 1 and v.shape == made_shape(eqn)]
        if len(refs) == 1 and whole and all(n is not None for n in numbers):
            function = named_function(name, inner) or closed_function(inner.jaxpr, inner.consts)
            if function is not None:
                return [self.pointwise(eqn, values, function, name.strip("_") or "function")]
        return self.run(inner.jaxpr, constants_of(inner), values)

    # -- arrays that depend on no input ------------------------------------------------------------

    def evaluate(self, eqn: Any, values: list[KnownArray]) -> list[Value]:
        """Evaluate an equation with known inputs, and record the parameters used."""
        name = eqn.primitive.name
        origins = frozenset[str]().union(*(v.origins for v in values))
        random = name in RANDOM or any(v.random for v in values)
        arrays = moved(eqn, values)
        if arrays is None:
            found = eqn.primitive.bind(*(given(v.array) for v in values), **eqn.params)
            arrays = [plain(a) for a in (found if eqn.primitive.multiple_results else [found])]
        out: list[Value] = []
        for index, array in enumerate(arrays):
            view = view_after(eqn, values, index)
            own = (
                origins
                if view is None or name not in ("slice", "split", "dynamic_slice")
                else frozenset(f"{o}[{part(eqn, values, index)}]" for o in origins)
            )
            out.append(KnownArray(array, own, random, view, trained(name, values)))
        return out

    def held(self, known: KnownArray, order: tuple[int, ...]) -> str:
        """Return the name of the operation for a known array, with axes permuted by ``order``."""
        key = (id(known), order)
        if key not in self._held:
            value = KnownArray(np.transpose(known.array, order)).compact()
            parameter = "+".join(sorted(known.origins)) or None
            kind = Held(
                name=self.names(parameter or "constant"),
                shape=value.shape,
                source=self.source,
                value=value,
                parameter=parameter,
                trained=known.trained,
            )
            if known.view is not None:
                self.views[kind.name] = known.view
            if known.random:
                self.random.add(kind.name)
            self.ops[kind.name] = kind
            self._held[key] = (known, kind.name)
        return self._held[key][1]

    def held_names(self) -> dict[int, str]:
        """Return {id() of a known array: its operation}."""
        return {value: name for (value, _), (_, name) in self._held.items()}

    # -- operations --------------------------------------------------------------------------------

    def wish(self, label: str) -> str:
        """Return the preferred name of an operation: the surrounding modules, then its label."""
        return ".".join([*self.scope, label])

    def add(
        self,
        kind: type[Op],
        label: str,
        shape: Sequence[int],
        reads: Sequence[str],
        /,
        **fields: Any,
    ) -> str:
        """Append an operation named after the surrounding modules, and return its name."""
        return self.put(kind, self.wish(label), shape, reads, **fields)

    def put(
        self,
        kind: type[Op],
        label: str,
        shape: Sequence[int],
        reads: Sequence[str],
        /,
        **fields: Any,
    ) -> str:
        """Append an operation, and return its name."""
        name = self.names(label)
        self.ops[name] = kind(
            name=name,
            shape=tuple(int(k) for k in shape),
            reads=tuple(reads),
            source=self.source,
            **fields,
        )
        return name

    def over(
        self, ref: Ref, kind: type[Op], label: str, /, read: str | None = None, **fields: Any
    ) -> Ref:
        """Return the result of an operation on an array, with the same shape and axes.

        ``read``: the operation that it reads, by default the operation of ``ref``.
        """
        shape = self.ops[ref.name].shape
        return replace(ref, name=self.put(kind, label, shape, [read or ref.name], **fields))

    def forget(self, names: set[str]) -> None:
        """Remove operations."""
        self.ops = {name: op for name, op in self.ops.items() if name not in names}
        self.recipes = {name: recipe for name, recipe in self.recipes.items() if name not in names}
        self._held = {key: pair for key, pair in self._held.items() if pair[1] not in names}
        self.cuts = {key: made for key, made in self.cuts.items() if made not in names}

    def fresh(self, name: str) -> Ref:
        """Return a reference to an operation's output, with its axes in order."""
        shape = self.ops[name].shape
        return Ref(name, tuple(range(len(shape))), shape)

    def not_read(self, what: str, reason: str) -> list[Value]:
        """Add an unread operation for every output of the current equation."""
        eqn, values, before = self.present
        del self.tape[before:]
        reads = list(dict.fromkeys(v.name for v in values if isinstance(v, Ref)))
        label, told = what.replace(" ", "_"), {"what": what, "reason": reason}
        own = {
            "compute": self._computed_by(eqn, values, reads),
            "is_complex": makes_complex(eqn),
        }
        return [
            self.fresh(self.add(NotRead, label, v.aval.shape, reads, **told, **own))
            for v in eqn.outvars
        ]

    def _computed_by(self, eqn: Any, values: list[Value], reads: list[str]) -> Compute | None:
        """Return a function that computes an equation from the arrays of the operations it reads.

        Returns None for function calls, for several results, and for integer or random inputs.
        """
        import jax.numpy as jnp

        real = all(
            jnp.issubdtype(v.aval.dtype, jnp.inexact)
            for v, value in zip(eqn.invars, values, strict=True)
            if isinstance(value, Ref)
        )
        random = any(isinstance(v, KnownArray) and v.random for v in values)
        refs = [v for v in values if isinstance(v, Ref)]
        single = len(eqn.outvars) == 1 and inner_jaxpr(eqn) is None and bool(refs)
        whole = all(self.base_shape(v) == self.ops[v.name].shape for v in refs)
        if not (single and real and whole) or random or eqn.primitive.multiple_results:
            return None

        def compute(arrays: Sequence[Any]) -> Any:
            import jax

            known = dict(zip(reads, arrays, strict=True))
            with jax.enable_x64(True):
                numbers = [
                    jnp.asarray(_widened(known[v.name].transpose(v.order)))
                    if isinstance(v, Ref)
                    else jnp.asarray(_widened(np.asarray(v.array)))
                    for v in values
                ]
                return np.asarray(eqn.primitive.bind(*numbers, **eqn.params))

        return compute

    def plain(self, ref: Ref) -> Ref:
        """Return an array as the output of an operation, without permuted or broadcast axes."""
        ref = self.spread(ref)
        if ref.order == tuple(range(len(ref.order))):
            return ref
        return self.fresh(self.add(Transpose, "transpose", ref.shape, [ref.name], order=ref.order))

    def spread(self, ref: Ref) -> Ref:
        """Return the array with broadcast axes of size 1 expanded."""
        wanted = self.base_shape(ref)
        if wanted == self.ops[ref.name].shape:
            return ref
        return replace(ref, name=self.add(Repeat, "repeat", wanted, [ref.name]))

    def base_shape(self, ref: Ref) -> tuple[int, ...]:
        """Return the shape of a reference in its operation's order of axes."""
        shape = [0] * len(ref.shape)
        for axis, size in zip(ref.order, ref.shape, strict=True):
            shape[axis] = size
        return tuple(shape)

    def aligned(self, ref: Ref, order: tuple[int, ...]) -> str:
        """Return an operation that outputs an array with its axes in the given order.

        See Ref.order for the meaning of ``order``.
        """
        if ref.order == order or not ref.order:
            return ref.name
        move = tuple(ref.order[v] for v in inverse(order))
        shape = self.ops[ref.name].shape
        return self.add(Transpose, "transpose", [shape[a] for a in move], [ref.name], order=move)

    def reshaped(self, ref: Ref, shape: Sequence[int], label: str = "reshape") -> Ref:
        """Return an array with a different shape."""
        return self.fresh(self.add(Reshape, label, shape, [self.plain(ref).name]))

    def pointwise(
        self, eqn: Any, values: Sequence[Value], function: Callable[..., Any], label: str
    ) -> Value:
        """Append an elementwise operation. Single-valued constants become part of its function."""
        shape = made_shape(eqn)
        refs = [v for v in values if isinstance(v, Ref)]
        order = next(
            (
                v.order
                for v in refs
                if v.shape == shape and self.base_shape(v) == self.ops[v.name].shape
            ),
            None,
        )
        order = order or next(
            (v.order for v in refs if len(v.order) == len(shape)), tuple(range(len(shape)))
        )
        fixed: dict[int, Any] = {}
        reads: list[str] = []
        for slot, value in enumerate(values):
            if isinstance(value, Ref):
                reads.append(self.aligned(value, order))
            elif value.number is not None:
                fixed[slot] = number(value.number)
            else:
                reads.append(
                    self.held(
                        value,
                        inverse(order)
                        if value.array.ndim == len(order)
                        else tuple(range(value.array.ndim)),
                    )
                )
        filled = _filled(function, fixed, len(values)) if fixed else function
        if len(reads) == 1 and len(refs) == 1 and _is_identity(filled):
            return replace(refs[0], shape=shape) if len(refs[0].shape) == len(shape) else refs[0]
        base = np.broadcast_shapes(*(self.ops[name].shape for name in reads))
        name = self.add(Pointwise, label, base, reads, function=filled, label=label)
        return Ref(name, order, shape) if len(base) == len(shape) else self.fresh(name)

    def _owned(self, weight: KnownArray, label: str) -> tuple[str, str]:
        """Return a key for the parameter that contains the weights, and a name for the layer."""
        parameter = "+".join(sorted(weight.origins)) or f"constant {id(weight.array)}"
        single = len(weight.origins) == 1
        wish = self.labels.get(parameter.split("[")[0], "") if single else ""
        index = parameter.partition("[")[2].rstrip("]").replace("][", ".") if wish else ""
        return parameter, self.names(".".join(p for p in (wish, index) if p) or self.wish(label))

    def lookup(self, table: KnownArray, shape: Sequence[int], ids: str) -> Ref:
        """Append a Lookup of rows of a table."""
        parameter, name = self._owned(table, "embedding")
        fields = {"weight": np.asarray(table.array), "parameter": parameter}
        fields["trained"] = table.trained
        self.ops[name] = Lookup(
            name=name, shape=tuple(shape), reads=(ids,), source=self.source, **fields
        )
        return self.fresh(name)

    def linear(
        self, weight: KnownArray, neutral: Callable[[Any], Any], label: str, **fields: Any
    ) -> str:
        """Append a Linear operation.

        ``neutral``: converts the weight to the layout (outputs, inputs / groups, kernel...).
        """
        parameter, name = self._owned(weight, label)
        array = np.asarray(neutral(np.asarray(weight.array)))
        told = {"weight": array, "parameter": parameter, "trained": weight.trained, **fields}
        op = Linear(name=name, source=self.source, **told)
        self.ops[name] = op
        self.recipes[name] = Recipe(
            op, None if weight.view is None else weight.view.then(neutral), None, weight.origins
        )
        return name


@rule("stop_gradient")
def _stopped(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    """Read a gradient stop."""
    (ref,) = values
    assert isinstance(ref, Ref)
    return [reader.over(reader.spread(ref), Stopped, reader.wish("stop_gradient"))]


def softmax_call(reader: JaxReader, inner: Any, values: Sequence[Value]) -> Ref | None:
    """Read a call to JAX's softmax along one axis; return None for other calls."""
    (ref, *others) = values
    if others or not isinstance(ref, Ref):
        return None
    axes = {
        tuple(e.params["axes"])
        for e in inner.jaxpr.eqns
        if e.primitive.name in ("reduce_max", "reduce_sum")
    }
    if len(axes) != 1 or len(axis := next(iter(axes))) != 1:
        return None
    ref = reader.spread(ref)
    fields = {"what": "softmax", "reason": COUPLES, "axis": ref.order[axis[0]]}
    return reader.over(ref, Softmax, reader.wish("softmax"), **fields)


def _foreign_scope(name: str) -> bool:
    """Whether a scope belongs to a library, not to a module of the model.

    Examples are scopes of Equinox's layers and of einsum.
    """
    return name.startswith("eqx.nn.") or "->" in name


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse of a permutation."""
    out = [0] * len(order)
    for i, axis in enumerate(order):
        out[axis] = i
    return tuple(out)


def _filled(function: Callable[..., Any], fixed: dict[int, Any], count: int) -> Callable[..., Any]:
    def filled(*values: Any) -> Any:
        rest = iter(values)
        return function(*(fixed[slot] if slot in fixed else next(rest) for slot in range(count)))

    return filled


def _is_identity(function: Callable[..., Any]) -> bool:
    import sympy as sp

    x = sp.Symbol("x", real=True)
    try:
        return function(x) == x
    except (TypeError, ValueError, ArithmeticError, KcalcError):
        return False


def _widened(array: np.ndarray) -> np.ndarray:
    """Convert real and complex numbers to double precision."""
    if np.iscomplexobj(array):
        return array.astype(np.complex128)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _value(known: dict[Any, Value], variable: Any) -> Value:
    if hasattr(variable, "val"):
        return KnownArray(np.asarray(variable.val))
    return known[variable]


def _place(eqn: Any) -> str:
    """Return "file:line" of the user's code if it is known."""
    frames = getattr(getattr(eqn.source_info, "traceback", None), "frames", None) or ()
    for frame in frames:
        if not any(part in frame.file_name for part in FOREIGN) and not frame.file_name.startswith(
            "<"
        ):
            return f"{frame.file_name.rsplit('/', 1)[-1]}:{frame.line_num}"
    return ""
