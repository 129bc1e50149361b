"""Read elementwise operations of a trace as activations, weighted sums, products or biases."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import sympy as sp

from ..activations import X
from ..fields.degrees import expandable
from ..foundation.errors import KcalcError
from ..network import layers as L
from ..network.network import Network, sum_weights
from .builder import Builder, Form
from .fusion import (
    LARGEST,
    Constant,
    Still,
    Unary,
    Unusable,
    as_number,
    combination,
    exact_number,
    is_affine,
    linear_factor,
    simplified,
)
from .tokens import vectors_of
from .trace import Op, Pointwise

Node = Hashable
BEHIND = (
    "it adds one bias per channel after an activation; these biases are read as independent, with "
    "mean 0 and root mean square {:.3g}"
)
SLOPES = "its slopes differ between channels; they are all read as their root mean square, {:.4g}"


class ElementwiseRules(Builder):
    """The rules for elementwise operations."""

    def pointwise(self, op: Pointwise) -> Form:
        """Return how an elementwise operation is read."""
        forms = [self.forms[name] for name in op.reads]
        if gone := next((form for form in forms if isinstance(form, Unusable)), None):
            return self.opaque(op, op.label, gone.reason)
        if any(self._turned(name, op) for name in op.reads):
            shapes = ", ".join(str(self.by_name[name].shape) for name in op.reads)
            reason = (
                "broadcasting aligns the batch axis of one array with a different axis of another"
            )
            return self.opaque(op, op.label, f"for arrays of shapes {shapes}, {reason}")
        if any(isinstance(form, Constant) for form in forms):
            if any(self._spread(name, op) for name in op.reads):
                reason = "a feature map with 1 channel is broadcast over the channels of an array"
                return self.opaque(op, op.label, reason)
            special = self._with_array(op, forms)
            if special is not None:
                return special
            numbers = [form.number if isinstance(form, Constant) else None for form in forms]
            for form, number in zip(forms, numbers, strict=True):
                if isinstance(form, Constant) and number is None:
                    text = (
                        f"{form.held.parameter or 'a constant'} of shape {form.held.value.shape} "
                        f"is not a single number"
                    )
                    return self.opaque(
                        op, op.label, f"it combines a feature map with an array; {text}"
                    )
            forms = [
                f if isinstance(f, Unary) else Unary(None, n, "")
                for f, n in zip(forms, numbers, strict=True)
            ]
        plain = [form for form in forms if isinstance(form, Unary)]
        form = self._with_branches(op, plain) or self._combined(op, self._switched_on(op, plain))
        self._switched_off(op, form)
        return (
            self._approximate(op, form)
            if op.text and isinstance(form, Unary) and form.source is not None
            else form
        )

    def _switched_off(self, op: Pointwise, form: Form) -> None:
        """Remember the branch that a trained gain of 0 multiplies, as in ReZero."""
        given = {name: self.forms[name] for name in op.reads}
        gain = any(
            isinstance(f, Constant) and f.held.parameter and f.held.trained and f.number == 0
            for f in given.values()
        )
        maps = [n for n, f in given.items() if isinstance(f, Unary) and f.source is not None]
        if gain and maps and isinstance(form, Unary) and form.source is None:
            self.off[op.name] = tuple(maps)

    def _with_branches(self, op: Pointwise, forms: list[Unary]) -> Form | None:
        """Return a sum with branches whose gain is 0, which have weight 0, or None."""
        numbers = [form.expr for form in forms if form.source is None]
        off = any(name in self.off for name in op.reads)
        if not off or len(numbers) == len(forms) or any(number != 0 for number in numbers):
            return None
        kind, weights = self._kind(op)
        if kind != "sum":
            return None
        terms: dict[str, Any] = {}
        for name, form, weight in zip(op.reads, forms, weights, strict=True):
            if form.source is not None:
                node = self.label(name)
                terms[node] = terms.get(node, 0) + weight
            for branch in self.off.get(name, ()):
                terms.setdefault(self.label(branch), sp.S.Zero)
        return self.node(op, L.Sum(tuple(as_number(w) for w in terms.values())), list(terms))

    def _switched_on(self, op: Pointwise, forms: list[Unary]) -> list[Unary]:
        """Replace numbers by nodes, so that branches with a gain of 0 are not lost.

        A number stays if its branch is a function of the same node as another input.
        """
        sources = {form.source for form in forms} - {None}
        found = list(forms)
        for i, name in enumerate(op.reads) if sources else ():
            branches = [self.forms[branch] for branch in self.off.get(name, ())]
            if any(getattr(branch, "source", None) not in sources for branch in branches):
                node = self.label(name)
                found[i] = Unary(node, X, node)
        return found

    def _kind(self, op: Pointwise) -> tuple[str, Any]:
        """Return :func:`combination` for the inputs of an operation, or ("", None)."""
        symbols = [sp.Symbol(f"y{i}", real=True) for i in range(len(op.reads))]
        try:
            return combination(simplified(op.function(*symbols)), symbols) or ("", None)
        except (KcalcError, TypeError, ValueError, ArithmeticError):
            return "", None

    def _turned(self, name: str, op: Pointwise) -> bool:
        """Whether broadcasting moves the examples of a feature map to another axis."""
        form = self.forms[name]
        fewer = len(self.by_name[name].shape) < len(op.shape)
        return fewer and isinstance(form, Unary) and form.source is not None

    def _spread(self, name: str, op: Pointwise) -> bool:
        """Whether broadcasting repeats a single channel of an input."""
        axis, shape = self.axes[name], self.by_name[name].shape
        return axis is not None and shape[axis] == 1 != op.shape[axis - len(shape)]

    def _approximate(self, op: Pointwise, form: Unary) -> Form:
        """Make a separate node for a function that only approximates the model's function.

        The note about the difference is attached to that node.
        """
        whole = form.expr == X and form.source == op.name  # a sum is already a node
        node = op.name if whole else self._materialise(str(form.source), form.expr, form.home, op)
        self.note(node, "approximate", op.text)
        return Unary(node, X, node)

    def _combined(self, op: Pointwise, forms: list[Unary]) -> Form:
        forms = self._after_stop(op, forms)
        sources = {form.source for form in forms} - {None}
        if len(sources) <= 1:
            if sum(sp.count_ops(form.expr) for form in forms) > LARGEST:
                nodes = [
                    self.label(name) if f.source is not None else None
                    for name, f in zip(op.reads, forms, strict=True)
                ]
                return self._combined(
                    op,
                    [f if n is None else Unary(n, X, n) for f, n in zip(forms, nodes, strict=True)],
                )
            try:
                expr = simplified(op.function(*(form.expr for form in forms)))
            except (KcalcError, TypeError, ValueError, ArithmeticError) as error:
                return self.opaque(
                    op, op.label, f"it has no expression in kcalc ({str(error)[:80]})"
                )
            source = next(iter(sources), None)
            if source is not None and isinstance(expr, sp.Expr) and not expr.has(X):
                return Unary(None, expr, op.name)
            if source is not None and self._rescales(op, source, expr):
                return Unary(source, X, source)
            return Unary(source, expr, op.name)
        return self._several(op, forms)

    def _after_stop(self, op: Pointwise, forms: list[Unary]) -> list[Unary]:
        """Turn the input of a function into a separate node if no gradient passes through it."""
        reads = [form for form in forms if form.source is not None]
        if len(reads) != 1 or not isinstance(reads[0].expr, Still) or _compares(op, forms):
            return forms
        name = next(n for n in op.reads if self.forms[n] is reads[0])
        node = self.label(name)
        return [Unary(node, X, node) if form is reads[0] else form for form in forms]

    def _rescales(self, op: Pointwise, source: str, expr: Any) -> bool:
        """Merge a factor into the weights of a sum, as in (x + y) / sqrt 2, if possible.

        This is possible if nothing else reads the sum. Returns: whether the factor was merged.
        """
        layer, parents = self.layers[source]
        factor = linear_factor(expr) if isinstance(expr, sp.Expr) else None
        if (
            not isinstance(layer, L.Sum)
            or factor is None
            or factor in (0, 1)
            or source in self.trace.outputs
        ):
            return False
        places = [
            name
            for name in op.reads
            if self.forms[name] == Unary(source, X, source) and self._alone(source, name)
        ]
        if len(places) != 1:
            return False
        weights = tuple(
            as_number(simplified(sp.sympify(w, strict=True) * factor))
            for w in sum_weights(layer, len(parents))
        )
        self.layers[source] = (
            replace(layer, weights=None if all(w == 1 for w in weights) else weights),
            parents,
        )
        return True

    def _several(self, op: Pointwise, forms: list[Unary]) -> Form:
        keys = list(
            dict.fromkeys((form.source, form.expr) for form in forms if form.source is not None)
        )
        symbols = [sp.Symbol(f"y{i}", real=True) for i in range(len(keys))]
        named: dict[tuple[str | None, Any], Any] = dict(zip(keys, symbols, strict=True))
        try:
            expr = simplified(op.function(*(named.get((f.source, f.expr), f.expr) for f in forms)))
        except (KcalcError, TypeError, ValueError, ArithmeticError):
            expr = None
        found = (
            combination(expr, symbols)
            if all(isinstance(form.expr, sp.Expr) for form in forms)
            else None
        )
        if found is None:
            return self.opaque(
                op,
                op.label,
                f"{op.label} of several feature maps is neither a weighted sum nor a product",
            )
        kind, detail = found
        names = {(f.source, f.expr): name for f, name in zip(forms, op.reads, strict=True)}
        counts = [
            self.by_name[name].shape[axis]
            for name in map(names.__getitem__, keys)
            if (axis := self.axes[name]) is not None
        ]
        if len(set(counts)) > 1:
            return self.opaque(
                op,
                kind,
                f"a feature map of {min(counts)} channels is broadcast over {max(counts)} channels",
            )
        self._check_places(op, {key[0]: names[key] for key in keys}, kind == "product")
        if kind == "extreme":
            return self._extreme(op, [names[key] for key in keys], detail)
        if kind == "product":
            return self._product(op, [self.label(names[key]) for key in keys], detail)
        terms: dict[str, Any] = {}
        for key, weight in zip(keys, detail, strict=True):
            factor = linear_factor(key[1])
            place = key[0] if factor is not None and factor != 0 else self.label(names[key])
            terms[place] = terms.get(place, 0) + weight * (
                factor if factor is not None and factor != 0 else 1
            )
        weights = tuple(as_number(simplified(w)) for w in terms.values())
        return self.node(op, L.Sum(None if all(w == 1 for w in weights) else weights), list(terms))

    def _extreme(self, op: Op, reads: list[str], sign: int) -> Form:
        """Read a maximum (``sign`` 1) or minimum (-1) as (x + y + sign |x - y|) / 2."""
        nodes, half = [self.label(name) for name in reads], sp.Rational(1, 2)
        apart, size = (replace(op, name=f"{op.name}.{part}") for part in ("difference", "size"))
        difference = self.node(apart, L.Sum((1, -1)), nodes).home
        distance = self._nonlinear(size, difference, sp.Abs(X), self.width(op))
        return self.node(op, L.Sum((half, half, sign * half)), [*nodes, distance])

    def _product(self, op: Op, parents: list[str], factor: Any) -> Form:
        self.node(op, L.Product(), parents)
        return (
            Unary(op.name, factor * X, op.name)
            if factor == 1
            else Unary(op.name, factor * X, f"{op.name}.scale")
        )

    def _check_places(self, op: Op, reads: Mapping[Any, str], product: bool) -> None:
        """Add a note if some inputs have fewer locations than the result.

        Factors of a product that have a single location are read exactly and need no note.
        """
        shapes = [self.shapes[source] for source in reads]
        few = [shape for shape in shapes if math.prod(shape) != math.prod(op.shape)]
        axes = [(self.by_name[name].shape, self.axes[name]) for name in reads.values()]
        channels = [shape[axis] for shape, axis in axes if axis is not None]
        single = channels and all(math.prod(shape) == op.shape[0] * channels[0] for shape in few)
        if not few or (product and single and len(few) < len(shapes)):
            return
        told = ", ".join(map(str, dict.fromkeys(shapes)))
        self.note(
            op.name, "locations", f"feature maps of shapes {told} are broadcast against each other"
        )

    def _with_array(self, op: Pointwise, forms: list[Form]) -> Form | None:
        """Read an operation with constant arrays, such as biases, gains and shifts per channel.

        Returns None if all arrays are single numbers, or if one is unknown.
        """
        maps = [form for form in forms if isinstance(form, Unary) and form.source is not None]
        arrays = [form for form in forms if isinstance(form, Constant)]
        if (
            len(maps) != 1
            or len(arrays) != 1
            or len(forms) != 2
            or maps[0].source is None
            or not isinstance(maps[0].expr, sp.Expr)
        ):
            return None
        y, v = sp.symbols("y v", real=True)
        try:
            expr = op.function(*(y if form is maps[0] else v for form in forms))
            expr = sp.expand(expr) if isinstance(expr, sp.Expr) and expandable(expr) else expr
        except (TypeError, ValueError, AttributeError):
            return None
        fixed, source = arrays[0], maps[0].source
        layer = self.layers[source][0]
        place = next(name for name, form in zip(op.reads, forms, strict=True) if form is maps[0])
        by_channel = fixed.along(op.shape, self.axes[op.name])
        bare, added, times = maps[0].expr == X, expr == y + v, expr == v * y
        if (
            added
            and by_channel
            and bare
            and isinstance(layer, L.Affine)
            and not layer.bias
            and not (fixed.number is not None and fixed.held.parameter is None)
            and self._alone(source, place)
        ):
            weights, biases = layer.trained, fixed.held.trained
            both = "indirectly" if biases == "indirectly" else "weights" if weights else "biases"
            self.layers[source] = (
                replace(
                    layer,
                    bias=True,
                    sigma_b=self.sigma_b(source, fixed.held.value),
                    trained=weights if biases == weights or weights == "indirectly" else both,
                ),
                self.layers[source][1],
            )
            return maps[0]
        if fixed.number is not None:
            return None
        if self.of_tokens and (form := self._positions(op, place, expr, y, v, fixed)) is not None:
            return form
        along = fixed.value_axes(op.shape) <= {self.tokens.get(source)}
        if isinstance(layer, L.TokenMix) and added and bare and along:
            return self.without_token_bias(maps[0], source, fixed.held.value)
        alone = isinstance(layer, L.Input) and self.readers[source] == 1
        if alone and expr in (y + v, y - v, v * y, y / v) and is_affine(maps[0].expr):
            text = "an array first shifts or scales the input; the q value is that of the result"
            self.note(source, "approximate", text)
            return Unary(source, X, source)
        return (
            self._by_channel(op, maps[0], place, fixed, (bare, added, times))
            if by_channel
            else None
        )

    def _by_channel(
        self,
        op: Pointwise,
        form: Unary,
        place: str,
        fixed: Constant,
        kinds: tuple[bool, bool, bool],
    ) -> Form | None:
        """Read gains, biases after activations, and slopes that differ by channel.

        ``kinds``: three flags, which tell whether the feature map is a node without pending
        functions, whether the array is an addend, and whether the array is a factor. Returns None
        for other operations.
        """
        bare, added, times = kinds
        source, values = str(form.source), np.asarray(fixed.held.value, dtype=np.float64)
        layer = self.layers[source][0]
        if isinstance(layer, L.Normalisation) and (added or times) and bare:
            text = "its gains and biases differ by channel; they are left out"
            self.note(source, "approximate", text, of_weights=True)
            return form
        if added and (not bare or isinstance(layer, L.Nonlinear | L.Sum | L.Product)):
            sigma, node = self.spread(values), self.label(place)
            self.note(op.name, "approximate", BEHIND.format(sigma), of_weights=True)
            made = L.Positions("constant", sigma, 1, fixed.held.trained) if sigma else None
            return form if made is None else self.node(op, made, [node])
        size = float(np.sqrt(np.square(values).mean()))
        if op.label == "prelu" and self.sigmas:
            slope = float(np.copysign(size, values.mean()))
            self.note(op.name, "approximate", SLOPES.format(slope), of_weights=True)
            given = (self.forms[name] for name in op.reads)
            made = op.function(*(form.expr if f is form else sp.Float(slope) for f in given))
            return Unary(source, simplified(made), op.name)
        if times and self.sigmas:
            text = (
                f"its factors differ between channels; they are all read as their root mean "
                f"square, {size:.6g}"
            )
            self.note(op.name, "approximate", text, of_weights=True)
            return Unary(self.label(place), sp.Float(size) * X, op.name)
        return None

    def _positions(
        self, op: Pointwise, place: str, expr: Any, y: Any, v: Any, fixed: Constant
    ) -> Form | None:
        """Read positional vectors, which are added to the tokens of every input.

        Returns None for other arrays.
        """
        axis, varied = self.axes[op.name], fixed.value_axes(op.shape)
        if expr != y + v or axis not in varied or len(op.shape) < 3:
            return None
        value = np.broadcast_to(np.asarray(fixed.held.value, dtype=np.float64), op.shape)
        if 0 in varied and not (value == value[:1]).all():
            return None
        rows = np.moveaxis(value, axis, -1)[0].reshape(-1, op.shape[axis])
        kind = vectors_of(rows)
        sigma = self.spread(rows) if self.sigmas else 1
        if sigma == 0:
            return Unary(self.label(place), X, self.label(place))
        return self.node(
            op,
            L.Positions(kind, sigma, 1 if kind == "constant" else len(rows), fixed.held.trained),
            [self.label(place)],
        )

    def without_token_bias(self, form: Unary, node: str, bias: np.ndarray) -> Form:
        """Drop the biases of a layer that mixes locations.

        These biases are the same for all channels.

        If all locations have the same bias, it is kept as a shift. Otherwise, a note is added.
        """
        values = np.asarray(bias, dtype=np.float64).reshape(-1)
        if not self.sigmas or not values.any():
            return form
        if (values == values[0]).all():
            return Unary(node, X + exact_number(values[0], np.asarray(bias).dtype), f"{node}.bias")
        size = float(np.sqrt(np.square(values).mean()))
        self.note(
            node,
            "approximate",
            "its per-location biases, which are the same for all channels, are left out (root "
            f"mean square {size:.3g})",
        )
        return form

    def _alone(self, source: str, place: str) -> bool:
        """Whether only one operation uses the output of ``source``.

        ``place``: the operation through which the output is read. Operations in between do not
        change the output.
        """
        while place != source:
            if self.readers[place] != 1 or not self.by_name[place].reads:
                return False
            place = self.by_name[place].reads[0]
        return self.readers[source] == 1


def _compares(op: Pointwise, forms: list[Unary]) -> bool:
    """Whether a function is a comparison, which has no gradient."""
    try:
        return not isinstance(sp.sympify(op.function(*(form.expr for form in forms))), sp.Expr)
    except (KcalcError, TypeError, ValueError, ArithmeticError):
        return False


def extreme_parts(network: Network, node: Node) -> tuple[Node, ...]:
    """Return the nodes ``x - y`` and ``|x - y|`` of a maximum or minimum, else ()."""
    layer, parents = network.layer(node), network.parents(node)
    if not isinstance(layer, L.Sum) or len(parents) != 3:
        return ()
    size = network.layer(parents[2])
    if not isinstance(size, L.Nonlinear) or size.activation.expr != sp.Abs(X):
        return ()
    (difference,) = network.parents(parents[2])
    apart = network.layer(difference)
    alike = isinstance(apart, L.Sum) and network.parents(difference) == parents[:2]
    return (difference, parents[2]) if alike and apart.weights == (1, -1) else ()
