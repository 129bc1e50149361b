"""Forward second moments, layer by layer [Scaling sec. 4, App. A, B]."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce, singledispatchmethod
from itertools import combinations
from operator import or_
from typing import Any

import sympy as sp

from ...fields import SYMPY
from ...foundation.errors import KcalcError, NoRule
from ...maps.maps import Assumption
from ...network import primitives as P
from ...network.compose import no_rule
from ...network.network import Network
from ...network.primitives import reader_counts
from ..tangent import refuse_jumps
from ..windows import TapWindow, convolution
from . import activation_moments as act
from . import affine, pools
from .linear import combined, expanded
from .state import ChannelPart, EntryLaw, State, locations_of, with_diagonal
from .windows import cut

Node = Hashable
Number = Any


@dataclass
class ScalingForward:
    """The calculus of forward second moments.

    ``symbolic``: values are SymPy expressions, equal at all locations. ``pairs``: the nodes at
    which pairs of locations are followed. ``correlation``: {Pool: r} given by the caller. The rules
    fill ``weights``, ``notes``, ``violations``, ``slopes`` ({Nonlinear: E phi'^2 per part}),
    ``windows`` of pools, and ``correlations`` ({Pool: r}).
    """

    network: Network
    symbolic: bool
    pairs: frozenset[Node] = frozenset()
    correlation: Mapping[Node, Number] = field(default_factory=dict)
    weights: dict[Node, affine.Weight] = field(default_factory=dict)
    slopes: dict[Node, tuple[Any, ...]] = field(default_factory=dict)
    windows: dict[Node, TapWindow] = field(default_factory=dict)
    correlations: dict[Node, Any] = field(default_factory=dict)
    notes: dict[tuple[Node, str], Assumption] = field(default_factory=dict)
    violations: dict[tuple[Node, str], Assumption] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sources = (
            node for node, op, _ in self.network.operations if isinstance(op, P.Fresh | P.Source)
        )
        self.bits = {node: 1 << i for i, node in enumerate(sources)}
        self.read = {node: reads[0] for node, _, reads in self.network.operations if reads}
        self.readers = reader_counts(self.network.operations)

    def number(self, value: Any) -> Number:
        """Return a number of the calculus: a SymPy expression or a float."""
        return SYMPY.number(value) if self.symbolic else float(value)

    def square(self, value: Any) -> Number:
        """Return the square of a number given by a layer; exact if the number is exact."""
        if self.symbolic:
            return SYMPY.number(value) ** 2
        return float(SYMPY.number(value) ** 2) if isinstance(value, sp.Basic) else float(value) ** 2

    def note(self, node: Node, text: str, kind: str = "convention") -> None:
        """Record an assumption."""
        self.notes.setdefault((node, text), Assumption(node, text, kind))

    def violated(self, node: Node, text: str) -> None:
        """Record that an assumption of the calculus does not hold."""
        self.violations.setdefault((node, text), Assumption(node, text, "heuristic"))

    # -- rules -------------------------------------------------------------------------------------

    @singledispatchmethod
    def rule(self, op: P.Primitive, node: Node, inputs: list[State]) -> State:
        """Return the state that a primitive emits.

        Raises: NoRule, or KcalcError naming the node.
        """
        divides = (
            "it divides by a statistic of its input, so second moments do not determine its "
            "gradient; use net.without_normalization() (and net.normalised() for the sums)"
        )
        raise no_rule("weight scalings", op, node, {P.Norm: divides})

    @rule.register
    def _(self, op: P.Fresh, node: Node, inputs: list[State]) -> State:
        """f = E[W^2] R + sigma_b^2 with E[W^2] = sigma_w^2 / (n k^2 / groups).

        R is the sum of E x^2 over the input channels and taps that an output reads, without
        padding.
        """
        (below,) = inputs
        if op.standardised:
            raise NoRule(
                f"node {node!r}: weight scalings have no rule for standardised weights, which are "
                f"not independent; use standardised=False"
            )
        outputs = op.features
        if outputs is None:
            raise KcalcError(
                f"the width of node {node!r} is unknown; pass features={{{node!r}: ..., None: "
                "others}} or one number for all"
            )
        window = self._window(op, node, below)
        taps = 1 if window is None else window.taps
        channels = below.channels
        affine.check_groups(op, node, below)
        variance = self.square(op.sigma_w) / (self.number(channels) / op.groups * taps)
        one = affine.channel_sum(op, below, self.number)
        read, read_pairs = affine.gathered(one, below, window, node in self.pairs)
        self.weights[node] = affine.Weight(
            channels, outputs, op.groups, taps, variance, window, read, read_pairs
        )
        bias = self.square(op.sigma_b)
        if bias == 0 and not self.symbolic:
            for text in affine.atoms(below, float(channels) / op.groups * taps, read):
                self.violated(node, text)
        shape = None if window is None else window.shape
        part = affine.emitted(
            ChannelPart(outputs, read, read_pairs, one.rho), variance, bias, node in self.pairs
        )
        bit = self.bits[node]
        return State(
            (part,),
            shape,
            locations_of(shape),
            EntryLaw("normal"),
            below.support | bit,
            bit,
        )

    def _window(self, op: P.Fresh, node: Node, below: State) -> TapWindow | None:
        if below.locations is not None:
            window = convolution(op, node, below.locations, delta=False)
            if self.symbolic and cut(window) and window.taps > 1:
                raise KcalcError(
                    f"node {node!r} pads with zeros, so the moments differ between locations, "
                    "and there is no symbolic rule for this case; substitute numbers with "
                    "net.subs, or use padding='valid' or 'circular'"
                )
            return window
        if not op.dense:
            raise KcalcError(
                f"node {node!r} is a convolution (kernel {op.kernel}, stride {op.stride}), but "
                "its input has no locations; pass image_shape=(height, width)"
            )
        return None

    @rule.register
    def _(self, op: P.Post, node: Node, inputs: list[State]) -> State:
        """Return E phi(z)^2 for normal z.

        A rectifier with slopes a and b gives f (a^2 + b^2) / 2 under any symmetric distribution
        with second moment f.
        """
        (below,) = inputs
        phi = op.activation
        refuse_jumps(phi, node)
        if below.law.kind == "max":
            return pools.activated(self, phi, node, below)
        self._check_law(phi, node, below)
        what = f"the mean square before node {node!r}"
        parts = tuple(
            self._activated(phi, node, part, what, below.locations is not None)
            for part in below.parts
        )
        self.slopes[node] = tuple(act.slope_square(phi, part.level, what) for part in below.parts)
        law = EntryLaw("mixed")
        if below.law.symmetric:
            law = EntryLaw(
                "post", phi, node, tuple(part.level for part in below.parts), rho=below.parts[0].rho
            )
        return State(
            parts,
            below.locations,
            below.size,
            law,
            below.support,
            source=below,
            sides=self._sides(phi),
            slopes=tuple(act.mean_slope(phi, part.level, what) for part in below.parts),
        )

    def _sides(self, phi: Any) -> tuple[Number, Number] | None:
        sides = act.rectifier(phi)
        return None if sides is None else (self.number(sides[0]), self.number(sides[1]))

    def _check_law(self, phi: Any, node: Node, below: State) -> None:
        if below.law.kind == "post":
            raise KcalcError(
                f"node {node!r} applies an activation to another activation ({below.law.node!r}), "
                "whose values are not symmetric; compose the two with phi.composed(inner), or put "
                "an Affine between them"
            )
        rectifies = act.half(phi) is not None
        if below.law.kind == "mixed":
            self.violated(
                node,
                f"{phi.name} reads values that are not symmetric; they are treated as normal with "
                "the same mean square",
            )
        elif below.law.kind == "symmetric" and not rectifies:
            self.violated(
                node,
                f"{phi.name} reads values that are not Gaussian; they are treated as normal with "
                "the same mean square",
            )
        elif not rectifies:
            self.note(
                node,
                f"E {phi.name}^2 and E {phi.name}'^2 are computed for Gaussian pre-activations, "
                "as in the limit of infinite width",
            )
        elif len(below.terms) > 1:
            self.note(
                node,
                "it reads a sum whose distribution is symmetric up to terms of order 1/width",
            )

    def _activated(
        self, phi: Any, node: Node, part: ChannelPart, what: str, located: bool
    ) -> ChannelPart:
        level = act.after(phi, part.level, what)
        if not located:
            return ChannelPart(part.channels, level)
        rho = act.correlation_after(phi, part.rho, part.level, what)
        if node not in self.pairs or part.level.values.size == 1:
            return ChannelPart(part.channels, level, None, rho)
        covariance, _ = act.pairs_after(phi, part.level, part.pairs, what)
        return ChannelPart(part.channels, level, with_diagonal(covariance, level), rho)

    @rule.register
    def _(self, op: P.Mix, node: Node, inputs: list[State]) -> State:
        """Return sum_i w_i^2 f_i plus cross terms.

        Cross terms are 0 for addends with different last weights.
        """
        if len(inputs) == 1:
            return self._scaled(inputs[0], op.weights[0])
        weights = [self.number(w) for w in op.weights]
        first = inputs[0]
        self._same_channels(node, inputs)
        if any(one.locations != first.locations or one.size != first.size for one in inputs):
            raise KcalcError(
                f"node {node!r} (Sum) adds feature maps with different locations: "
                f"{[one.locations or one.size for one in inputs]}"
            )
        parts = combined(inputs, weights, uncorrelated, f"node {node!r}")
        law, support, final = _together(inputs)
        terms = tuple(zip(weights, inputs, strict=True))
        if taken_as_uncorrelated(terms):
            self.note(node, "inputs are treated as uncorrelated")
        return State(parts, first.locations, first.size, law, support, final, terms)

    def _same_channels(self, node: Node, inputs: list[State]) -> None:
        widths = [one.channels for one in inputs]
        if any(
            sp.simplify(w - widths[0]) != 0 if self.symbolic else w != widths[0] for w in widths
        ):
            raise KcalcError(
                f"node {node!r} (Sum) adds feature maps of different widths: "
                f"{', '.join(map(str, widths))}"
            )

    @rule.register
    def _(self, op: P.Join, node: Node, inputs: list[State]) -> State:
        first = inputs[0]
        if any(one.locations != first.locations or one.size != first.size for one in inputs):
            raise KcalcError(
                f"node {node!r} (Concat) joins feature maps with different locations; pool them "
                "to the same size first"
            )
        law, support, final = _together(inputs)
        parts = tuple(p for one in inputs for p in one.parts)
        return State(
            parts,
            first.locations,
            first.size,
            first.law if len(inputs) == 1 else law,
            support,
            final,
        )

    def _scaled(self, below: State, factor: Any) -> State:
        """Return the state of a feature map multiplied by ``factor``."""
        square = self.square(factor)
        law = self._scaled_law(below.law, factor, square)
        return below.with_parts(
            [part.scaled(square) for part in below.parts], self.number(factor), law
        )

    def _scaled_law(self, law: EntryLaw, factor: Any, square: Number) -> EntryLaw:
        if law.kind not in ("max", "post") or self.symbolic:
            return law
        if not factor > 0:
            return EntryLaw("mixed")
        if law.kind == "max":
            return replace(law, levels=tuple(level.scaled(square) for level in law.levels))
        assert law.activation is not None
        return replace(law, activation=law.activation.transformed(output_scale=factor))

    @rule.register
    def _(self, op: P.Mask, node: Node, inputs: list[State]) -> State:
        """Return f / (1 - p), because the entries that are kept are divided by 1 - p.

        Every location has a separate mask.
        """
        (below,) = inputs
        keep = 1 - self.number(op.rate)
        if keep == 1:
            return below
        law = EntryLaw("symmetric" if below.law.symmetric else "mixed")
        return replace(
            below.with_parts([part.masked(keep) for part in below.parts], 1, law), terms=()
        )

    @rule.register
    def _(self, op: P.Reshape, node: Node, inputs: list[State]) -> State:
        (below,) = inputs
        return replace(below.with_parts(below.parts), locations=None)

    @rule.register
    def _(self, op: P.Window, node: Node, inputs: list[State]) -> State:
        if op.matrix is not None:
            raise no_rule("weight scalings", op, node)
        return inputs[0] if inputs[0].locations is None else pools.pooled(self, op, node, inputs[0])


def _together(inputs: Sequence[State]) -> tuple[EntryLaw, int, int]:
    """Return (distribution, ``support``, ``final``) for a sum or concatenation of feature maps."""
    kinds = {one.law.kind for one in inputs}
    symmetric = all(one.law.symmetric for one in inputs)
    law = EntryLaw("normal" if kinds == {"normal"} else "symmetric" if symmetric else "mixed")
    finals = [one.final for one in inputs]
    final = reduce(or_, finals) if all(finals) else 0
    return law, reduce(or_, (one.support for one in inputs)), final


def taken_as_uncorrelated(terms: Sequence[tuple[Number, State]]) -> bool:
    """Whether a sum omits a cross term only because the inputs are different."""
    items = [state for _, state in terms]
    if not all(uncorrelated(one, two) for one, two in combinations(items, 2)):
        items = [leaf for _, leaf in expanded(terms)]
    pairs = ((one, two) for one, two in combinations(items, 2) if one is not two)
    return any(uncorrelated(*pair) and not _by_signs(*pair) for pair in pairs)


def _by_signs(one: State, two: State) -> bool:
    """Whether flipping the sign of one feature map's last weights changes only that map."""
    alone = one.final and not one.final & two.support
    return bool(alone or (two.final and not two.final & one.support))


def uncorrelated(one: State, two: State) -> bool:
    """True if E x y = 0 by symmetry.

    There are two cases. Either the second feature map does not depend on the last weights of the
    first, and flipping the sign of these weights flips the first feature map. Or both are symmetric
    and share no inputs or weights.
    """
    if _by_signs(one, two):
        return True
    alone = not (one.terms or two.terms or one is two or one.support & two.support)
    return alone and one.law.symmetric and two.law.symmetric
