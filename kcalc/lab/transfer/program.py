"""The operations of two PyTorch models of the same form, side by side.

Sizes that differ between the two models are the ones that grow. A kernel-calculus network omits
many operations that only move data. It cannot express that a parameter is read twice or that values
are selected. The program contains all operations.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import sympy as sp

from ... import Reading
from ...foundation.errors import KcalcError
from .powers import HALF, ONE, WIDTH, ZERO, Power

POWERS = (HALF, -HALF, 1, -1, 3 * HALF, -3 * HALF, 2, -2)
RANDOM = ("rand", "bernoulli", "multinomial", "normal", "dropout", "poisson", "exponential")
UNSIZED = ("nonzero", "unique", "masked_select")
ALIKE = 0.3  # sizes of arrays of random numbers may differ by this many e-folds
_Length = int | str  # of an axis; the name of a symbol if it depends on the data


@dataclass(frozen=True)
class Ref:
    """A reference to an array in the program."""

    name: str


@dataclass(frozen=True, eq=False)
class Step:
    """One operation.

    ``name`` is the operation's name in the user's model and the name of the array that it returns.
    ``kind`` is the name of the operator, such as "linear". ``args`` and ``base`` are its arguments
    by name in this model and in the base, with arrays as :class:`Ref`. ``axes`` says how the axes
    of every returned array grow. ``real`` says whether the arrays contain real numbers, and
    ``several`` whether the operation returns a list of arrays.
    """

    name: str
    kind: str
    args: Mapping[str, Any]
    base: Mapping[str, Any]
    axes: tuple[tuple[Power, ...], ...]
    real: tuple[bool, ...]
    several: bool

    @property
    def refs(self) -> list[Ref]:
        """Return the arrays that the step reads, in order."""
        return [leaf for leaf in leaves(self.args) if isinstance(leaf, Ref)]


@dataclass(frozen=True, eq=False)
class Program:
    """The operations of a model, matched with the operations of its base.

    ``parameters`` is {array: name}. ``inputs`` and ``outputs`` are arrays. ``constants`` is {array:
    the power of the ratios by which its values differ from those in the base}. ``axes`` contains
    the axes of all these arrays, and ``whole`` lists the integer arrays among them. ``ratios`` is
    {symbol: ratio}.
    """

    steps: tuple[Step, ...]
    parameters: Mapping[str, str]
    inputs: tuple[str, ...]
    constants: Mapping[str, Power]
    axes: Mapping[str, tuple[Power, ...]]
    whole: frozenset[str]
    outputs: tuple[str, ...]
    ratios: Mapping[sp.Symbol, float]


class Unlike(KcalcError):
    """Raised for two programs of different forms, for which there are no rules."""


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the values in nested lists and mappings."""
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for part in tree:
            yield from leaves(part)
    else:
        yield tree


def program_of(base: Reading, model: Reading) -> Program:
    """Return the program of a model and its base.

    Raises: KcalcError if the models run different operations, or if an axis grows in a way in which
    no parameter grows.
    """
    graphs = [one.trace.model.program.captured for one in (base, model)]  # pyright: ignore
    small, large = ([n for n in one.graph.nodes if _counts(n)] for one in graphs)
    for one, other in zip(small, large, strict=False):
        if str(one.target) != str(other.target) and one.op == "call_function":
            raise Unlike(
                f"node {other.name!r} calls {other.target}, but its counterpart in the base model "
                f"calls {one.target}"
            )
    if len(small) != len(large):
        raise Unlike(f"the model runs {len(large)} operations, but the base runs {len(small)}")
    pairs = dict(zip(large, small, strict=True))
    growth = _Growth(pairs, graphs, tuple(bool(one.remarks) for one in graphs))
    names = model.trace.model.program.names  # pyright: ignore[reportOptionalMemberAccess]
    return _Matched(pairs, graphs, growth, names).program()


def _counts(node: Any) -> bool:
    """Return whether a node returns arrays."""
    value = node.meta.get("val")
    held = node.op in ("placeholder", "get_attr", "call_function") and value is not None
    return held and (hasattr(value, "shape") or isinstance(value, list | tuple))


def has_mixtures(reading: Reading) -> bool:
    """Return whether one expert was captured for all experts of a mixture."""
    graph = reading.trace.model.program.captured.graph  # pyright: ignore
    return any(_kind(node) in ("route", "unread_mixture") for node in graph.nodes)


class _Growth:
    """Compute the growth of axes as powers of symbols, the ratios of the parameters' axes."""

    def __init__(self, pairs: Mapping[Any, Any], graphs: Sequence[Any], recorded: Any) -> None:
        self.recorded = any(recorded)
        held = graphs[1].held
        found = {
            Fraction(int(a), int(b))
            for node, other in pairs.items()
            if node in held and node.op != "call_function"
            for a, b in zip(_shape(node), _shape(other), strict=False)
            if a != b and b
        }
        self.known: dict[Fraction, Power] = {Fraction(1): ONE}
        own: list[Fraction] = []
        for ratio in sorted(found, key=lambda r: (abs(math.log(r)), r)):
            if not any(ratio == one**k for one in own for k in (2, 3)):
                own.append(ratio)
        symbols = (
            [WIDTH]
            if len(own) == 1
            else [sp.Symbol(f"n_{i}", positive=True) for i in range(1, len(own) + 1)]
        )
        order = sorted(own)
        self.ratios = {s: float(r) for s, r in zip(symbols, order, strict=True)}
        self.known |= dict(zip(order, symbols, strict=True))
        self.chosen: dict[tuple[_Length, _Length], Power] = {}  # lengths that depend on the data
        for node, other in pairs.items():
            if (place := _selected(node)) is not None:
                axis, source = place
                sizes = _shape(node)[axis], _shape(other)[axis]
                if isinstance(sizes[0], str) or sizes[0] != sizes[1]:
                    shapes = zip(_shape(source), _shape(pairs[source]), strict=False)
                    self.chosen[sizes] = total(self.of(a, b, str(node)) for a, b in shapes)

    def of(self, own: _Length, other: _Length, name: str) -> Power:
        """Return the growth of an axis as a power of the ratios.

        Raises: KcalcError for a length that does not grow with a parameter.
        """
        if (own, other) in self.chosen:
            return self.chosen[own, other]
        if isinstance(own, str) or isinstance(other, str):
            return ONE
        ratio = Fraction(own, other) if other else Fraction(1)
        if ratio not in self.known:
            power = self.power(float(ratio))
            if power is None and not self.recorded:
                raise KcalcError(
                    f"node {name!r} has an axis of length {own}, but the length is {other} in the "
                    "base model; the ratio of the lengths is not a power of the width ratios. Make "
                    "the axis grow with a width"
                )
            # in a recorded run, the number of entries may depend on the data
            self.known[ratio] = ONE if power is None else power
        return self.known[ratio]

    def power(self, ratio: float) -> Power | None:
        """Return a positive number as a power of the ratios, or None if it is not such a power."""
        symbols = list(self.ratios)
        if math.isclose(ratio, 1, rel_tol=1e-5):
            return ONE
        for one in symbols:
            for p in POWERS:
                if math.isclose(self.ratios[one] ** float(p), ratio, rel_tol=1e-4):
                    return one**p
        for one, two in product(symbols, symbols):
            for p, q in product((1, -1, HALF, -HALF), repeat=2):
                number = self.ratios[one] ** float(p) * self.ratios[two] ** float(q)
                if one != two and math.isclose(number, ratio, rel_tol=1e-4):
                    return one**p * two**q
        return None


class _Matched:
    """The nodes of the larger graph, matched with their counterparts in the base."""

    def __init__(
        self, pairs: Mapping[Any, Any], graphs: Sequence[Any], growth: _Growth, names: Any
    ) -> None:
        self.pairs, self.graphs, self.growth, self.names = pairs, graphs, growth, names
        self.numbers: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        self.given: dict[Any, str] = {}
        self.taken: set[str] = set()

    def program(self) -> Program:
        """Return the program."""
        captured = self.graphs[1]
        steps: list[Step] = []
        parameters: dict[str, str] = {}
        inputs: list[str] = []
        constants: dict[str, Power] = {}
        axes: dict[str, tuple[Power, ...]] = {}
        whole: set[str] = set()
        for node, other in self.pairs.items():
            held = captured.held.get(node)
            name = self.name(node)
            if held is not None and held[1] in captured.trainable:
                parameters[name] = held[1]
            elif held is not None:
                self.numbers[1][node] = held[0].detach().clone()
                self.numbers[0][other] = self.graphs[0].held[other][0].detach().clone()
            elif node.op == "call_function" and not self._computed(node, other):
                steps += self._steps(node, other)
                continue
            elif node.op != "call_function":
                inputs.append(name)
            if not hasattr(node.meta["val"], "shape"):
                continue  # a list of numbers, for getitem to select from
            axes[name] = self._axes(node, other)
            if not _is_real(node.meta["val"]):
                whole.add(name)
            if node in self.numbers[1]:
                constants[name] = self._scale(node, other)
        return Program(
            tuple(steps),
            parameters,
            tuple(inputs),
            constants,
            axes,
            frozenset(whole),
            tuple(self.name(node) for node in captured.outputs if _counts(node)),
            self.growth.ratios,
        )

    def name(self, node: Any) -> str:
        """Return the unique name of an array."""
        if node not in self.given:
            self.given[node] = self._free(self._wish(node))
        return self.given[node]

    def _free(self, wish: str) -> str:
        name, n = wish, 1
        while name in self.taken:
            n += 1
            name = f"{wish}_{n}"
        self.taken.add(name)
        return name

    def _wish(self, node: Any) -> str:
        captured = self.graphs[1]
        if node in captured.held:
            return captured.held[node][1] or node.name
        if node.op == "placeholder":
            return captured.labels.get(node, node.name)
        stack = node.meta.get("nn_module_stack") or {}
        path = [str(p) for p, _ in stack.values()][-1:]
        return self.names.get(node) or ".".join(p for p in (*path, _kind(node)) if p)

    def _axes(self, node: Any, other: Any) -> tuple[Power, ...]:
        return self._grown(node, _shape(node), _shape(other))

    def _grown(self, node: Any, *shapes: tuple[_Length, ...]) -> tuple[Power, ...]:
        """Return how the axes of an array of a node grow."""
        if len(shapes[0]) != len(shapes[1]):
            raise Unlike(
                f"node {self.name(node)!r} has {len(shapes[0])} axes, but it has {len(shapes[1])} "
                "in the base model"
            )
        return tuple(self.growth.of(a, b, self.name(node)) for a, b in zip(*shapes, strict=True))

    def _steps(self, node: Any, other: Any) -> list[Step]:
        """Return the steps of a call.

        If the call overwrites an array, operations that read the array later read the result of the
        call.
        """
        made = self._step(node, other)
        root = _written(node)
        if root is None:
            return [made]
        if root is not node.args[0]:  # writes through a view
            base = _written(other)
            args = {"self": Ref(self.name(root)), "src": Ref(made.name)}
            axes, real = self._axes(root, base), _is_real(root.meta["val"])
            name = self._free(f"{self.name(root)}.written")
            self.given[root] = name
            return [made, Step(name, "slice_scatter", args, args, (axes,), (real,), False)]
        self.given[root] = made.name
        return [made]

    def _step(self, node: Any, other: Any) -> Step:
        values = node.meta["val"], other.meta["val"]
        several = isinstance(values[0], list | tuple)
        parts = [list(v) if several else [v] for v in values]
        if len(parts[0]) != len(parts[1]):
            raise Unlike(
                f"node {self.name(node)!r} returns {len(parts[0])} arrays, but {len(parts[1])} in "
                "the base model"
            )
        axes = []
        for own, base in zip(*parts, strict=True):
            shapes = [tuple(map(_extent, getattr(v, "shape", ()))) for v in (own, base)]
            axes.append(self._grown(node, *shapes))
        return Step(
            self.name(node),
            _kind(node),
            _arguments(node, self.name),
            _arguments(other, str),
            tuple(axes),
            tuple(_is_real(v) for v in parts[0]),
            several,
        )

    def _computed(self, node: Any, other: Any) -> bool:
        """Return whether a call reads only numbers, and if so, compute its result."""
        from torch.fx.node import map_aggregate

        if any(word in _kind(node) for word in RANDOM) or _written(node) is not None:
            return False
        for one, known in ((node, self.numbers[1]), (other, self.numbers[0])):
            if any(read not in known for read in one.all_input_nodes):
                return False
            try:
                given = map_aggregate((one.args, one.kwargs), partial(_put, known))
                known[one] = one.target(*given[0], **given[1])
                if "empty" in _kind(one):  # uninitialised memory
                    known[one].zero_()
            except Exception:
                return False
        return True

    def _scale(self, node: Any, other: Any) -> Power:
        """Return the power of the ratios by which numbers differ from those in the base.

        Raises: KcalcError if they do not differ by a power.
        """
        own, base = self.numbers[1][node], self.numbers[0][other]
        if not own.is_floating_point() or not own.numel() or not base.numel():
            return ONE
        sizes = [_root_mean_square(one) for one in (own, base)]
        if not all(math.isfinite(one) and one > 0 for one in sizes):
            return ONE
        ratio = sizes[0] / sizes[1]
        power = self.growth.power(ratio)
        if own.numel() > 1 and abs(math.log(ratio)) < ALIKE and power is None:
            return ONE
        if power is None:
            raise KcalcError(
                f"node {self.name(node)!r} has the value {sizes[0]:.6g}, but {sizes[1]:.6g} in the "
                "base model; the ratio is not a power of the width ratio. Use the same multipliers "
                "as the base"
            )
        return power


def _root_mean_square(numbers: Any) -> float:
    """Return the root mean square of the entries of an array, which may be sparse."""
    import torch

    if numbers.layout == torch.sparse_coo:
        values = numbers.coalesce().values()
    else:
        values = numbers if numbers.layout == torch.strided else numbers.values()
    return math.sqrt(float(values.double().square().sum()) / numbers.numel())


def _written(node: Any) -> Any:
    """Return the array that a call writes into through its argument, or None for other calls."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments or not node.args or not _is_node(node.args[0]):
        return None
    alias = schema.arguments[0].alias_info
    if alias is None or not alias.is_write:
        return None
    root = node.args[0]
    while root.op == "call_function" and root.args and _is_node(root.args[0]):
        same = getattr(root.target, "_schema", None)
        views = same is not None and any(one.alias_info is not None for one in same.returns)
        if not views and root.target is not operator.getitem:
            break
        root = root.args[0]
    return root


def _selected(node: Any) -> tuple[int, Any] | None:
    """Return (axis whose length depends on the data, array that it selects from), or None."""
    if any(word in _kind(node) for word in UNSIZED) and _shape(node):
        return 0, node.all_input_nodes[0]
    if _kind(node) == "index":
        axis, first = next((k, one) for k, one in enumerate(node.args[1]) if one is not None)
        if str(getattr(first.meta["val"], "dtype", "")) == "torch.bool":
            return axis, first
    return None


def _put(known: Mapping[Any, Any], leaf: Any) -> Any:
    return known[leaf] if _is_node(leaf) else leaf


def _is_node(value: Any) -> bool:
    return hasattr(value, "all_input_nodes")


def _number(value: Any) -> Any:
    return _extent(value) if isinstance(getattr(value, "node", value), int) else value


def _is_real(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return bool(getattr(dtype, "is_floating_point", False) or getattr(dtype, "is_complex", False))


def _extent(size: Any) -> _Length:
    hint = getattr(getattr(size, "node", None), "hint", None)
    return size if isinstance(size, int) else str(size) if hint is None else int(hint)


def _shape(node: Any) -> tuple[_Length, ...]:
    return tuple(map(_extent, getattr(node.meta.get("val"), "shape", ())))


def _kind(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    if node.target is operator.getitem:
        return "getitem"
    name = schema.name.rpartition("::")[2] if schema is not None else str(node.target)
    return getattr(node.target, "__name__", name) if schema is None else name


def _arguments(node: Any, name: Callable[[Any], str]) -> dict[str, Any]:
    """Return the arguments of a call by name, with arrays as references."""
    from torch.fx.node import map_aggregate

    def told(leaf: Any) -> Any:
        if not _is_node(leaf):
            return leaf
        return Ref(name(leaf)) if _counts(leaf) else _number(leaf.meta.get("val"))

    args, kwargs = map_aggregate((list(node.args), dict(node.kwargs)), told)
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(i): value for i, value in enumerate(args)} | dict(kwargs)
    named: dict[str, Any] = {}
    for i, argument in enumerate(schema.arguments):
        if i < len(args) and not argument.kwarg_only:
            named[argument.name] = args[i]
        elif argument.name in kwargs:
            named[argument.name] = kwargs[argument.name]
        else:
            named[argument.name] = argument.default_value
    return named


def total(axes: Iterable[Power]) -> Power:
    """Return the growth of the number of entries of an array with these axes."""
    found = ONE
    for axis in axes:
        found *= axis
    return found


__all__ = ["ZERO", "Program", "Ref", "Step", "Unlike", "leaves", "program_of", "total"]
