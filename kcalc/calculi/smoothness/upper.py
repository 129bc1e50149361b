"""Upper bounds on every feature map over a set of parameters, by a forward fold.

They bound the size of the feature map, its Lipschitz constants in parameters and inputs, and its
curvature in the parameters. For a feature map Z(theta), where |.| is the Frobenius norm for all
examples together or for a single example:

    affine:     |Z'| <= w |Z| + beta sqrt(R);   DZ' = W DZ + dP Z + db 1^T
                |D2Z'| <= the norm of [[p2 |Z|, p1 |DZ|], [p1 |DZ|, w |D2Z|]]
    activation: |Z'| <= l1 |Z| + |phi(0)| sqrt(count);   |DZ'| <= l1 |DZ|
                |D2Z'| <= l2 |DZ|_one |DZ| + l1 |D2Z|
    sum:        weighted sums, source by source.
    concat:     roots of sums of squares.

w >= |W|, beta >= |b|, p1 >= |DP| and p2 >= |D2P| bound the layer's parameters. R is the number of
rows (examples times locations), l1 >= |phi'| and l2 >= |phi''|. Bounds on DZ are kept per source:
the parameters of one layer, or all parameters before a node that every path crosses. Different
sources correspond to orthogonal directions, so the squares of their bounds add up. A residual block
x + g(x) multiplies the bounds for earlier sources by 1 + |Jg|, and adds new sources.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.guests import KERNELS
from ...maps.maps import Assumption
from ...network import primitives as P
from ...network.compose import no_rule, refuse_dropping
from .logs import NONE, ONE, Gain, Log, largest_eigenvalue, log, number, plus, root_sum_square
from .normalisers import BatchNormalisation
from .parameters import Choices, ParameterSet, parameter_set
from .windows import affine_window, pool_norms

Node = Hashable
Sources = dict[Node, Log]


def _bounds(phi: Any, reach: float = math.inf) -> Any:
    """Proven bounds on an activation; see :func:`kcalc.activation_bounds`."""
    return KERNELS["activation bounds", "balls"](phi, reach)


@dataclass(frozen=True)
class Bound:
    """Natural logs of bounds on one feature map Z; arrays are (all examples, any one example).

    ``size`` bounds |Z|_F, ``spectral`` |Z|_2, and ``bend`` |D2Z|. ``own`` is {source: bound on
    |DZ|}, and ``inputs`` is {input: bound on the Lipschitz constant}.
    """

    size: Log
    spectral: Log
    own: Sources
    bend: Log
    inputs: dict[Node, float]
    channels: int
    locations: tuple[int, int] | None

    @property
    def slope(self) -> Log:
        """The log of the bound on |DZ| over all parameters."""
        return root_sum_square(self.own.values()) if self.own else np.full(2, NONE)

    @property
    def places(self) -> int:
        """The number of locations."""
        return math.prod(self.locations) if self.locations else 1


def start(
    node: Node,
    size: tuple[float, float],
    spectral: float,
    channels: int,
    locations: tuple[int, int] | None,
) -> Bound:
    """The bound on an input; ``size`` is |X|_F (all examples, one example), ``spectral`` |X|_2."""
    sizes = np.array([log(s) for s in size])
    widest = np.array([log(min(spectral, size[0])), sizes[1]])
    return Bound(sizes, widest, {}, np.full(2, NONE), {node: 0.0}, channels, locations)


@dataclass
class Upper:
    """The rules of the forward fold for upper bounds.

    ``examples``: the number of examples; ``epsilon``: the epsilon of BatchNorm; ``cuts``: the nodes
    that every path crosses. The rules fill ``sets``, {Affine: its parameters}; ``rough``, {node:
    the reason why its derivative is not Lipschitz}; ``gains``, {node: bounds on its Jacobian with
    respect to each of its inputs}.
    """

    examples: int
    choices: Choices
    epsilon: float
    cuts: frozenset[Node]
    sets: dict[Node, ParameterSet] = field(default_factory=dict)
    rough: dict[Node, str] = field(default_factory=dict)
    gains: dict[Node, tuple[Gain, ...]] = field(default_factory=dict)
    notes: list[Assumption] = field(default_factory=list)

    def rule(self, op: P.Primitive, node: Node, inputs: list[Bound]) -> Bound:
        """The bound that a primitive emits."""
        # 0 times infinity occurs if all weights after a kink are 0
        with np.errstate(invalid="ignore"):
            found = self._rule(op, node, inputs)
        self.gains.setdefault(node, (ONE,) * len(inputs))
        bend = np.where(np.isnan(found.bend), math.inf, found.bend)
        bound = replace(found, bend=bend, spectral=np.minimum(found.spectral, found.size))
        return replace(bound, own={node: bound.slope}) if node in self.cuts and bound.own else bound

    @singledispatchmethod
    def _rule(self, op: P.Primitive, node: Node, inputs: list[Bound]) -> Bound:
        raise no_rule("smoothness bounds", op, node)

    @_rule.register
    def _(self, op: P.Norm, node: Node, inputs: list[Bound]) -> Bound:
        if op.over == "batch":
            return self._over_batch(node, inputs[0])
        divides = (
            "it divides by a norm without epsilon, so its derivative is unbounded near feature "
            "maps without variance, and no Lipschitz constant exists; use BatchNorm (with "
            "epsilon here), normalisation= of weights, or net.without_normalization()"
        )
        raise no_rule("smoothness bounds", op, node, {P.Norm: divides})

    def _rows(self, places: int) -> np.ndarray:
        """The log of the number of rows, for (all examples, one example)."""
        return np.log(np.array([self.examples * places, places], float))

    @_rule.register
    def _(self, op: P.Fresh, node: Node, inputs: list[Bound]) -> Bound:
        (z,) = inputs
        if op.features is None:
            raise KcalcError(
                f"the number of features of node {node!r} is unknown, but bounds depend on it; "
                "pass features="
            )
        taps, spread, locations = affine_window(op, node, z.locations)
        p = self.sets[node] = parameter_set(op, node, z.channels // op.groups * taps, self.choices)
        rows = self._rows(math.prod(locations) if locations else 1)
        w, first, offset = log(p.spectral), log(p.first), log(p.bias) + rows / 2
        patches = scaled(z, log(spread))
        spectral = patches.spectral if taps == 1 else patches.size
        out, fresh = scaled(patches, w), first + spectral
        own = root_sum_square([fresh, rows / 2]) if p.trained_bias else fresh
        self.gains[node] = (Gain(log(p.least) if taps == 1 else NONE, w + log(spread)),)
        return replace(
            out,
            size=plus(out.size, offset),
            spectral=plus(w + spectral, offset),
            own=out.own | {node: own},
            bend=largest_eigenvalue(log(p.second) + spectral, first + patches.slope, out.bend),
            channels=op.features,
            locations=locations,
        )

    @_rule.register
    def _(self, op: P.Post, node: Node, inputs: list[Bound]) -> Bound:
        (z,) = inputs
        phi = op.activation
        known = _bounds(phi)
        reach = number(float(z.size[1]))
        value, slope, curve = known.value, known.slope, known.curvature
        if math.isinf(slope):
            what = (
                "no bound on the whole line"
                if known.note
                else ("a slope that is unbounded on the line")
            )
            value, slope, curve = self._local(phi, node, reach, what)
        elif math.isinf(curve) and math.isfinite(reach):
            curve = _bounds(phi, reach).curvature
        least = (
            known.least_slope
            if known.least_slope >= 1e-6
            else _bounds(phi, rounded_up(reach)).least_slope
        )
        self.gains[node] = (Gain(log(least), log(slope)),)
        moves = np.isfinite(z.slope).any()
        if math.isinf(curve) and moves:
            self.rough[node] = _why_rough(phi)
        count = self._rows(z.places) / 2 + math.log(z.channels) / 2
        out = scaled(z, log(slope))
        size = plus(out.size, log(known.at_zero) + count)
        size = np.minimum(size, log(value) + count) if math.isfinite(value) else size
        bend = plus(out.bend, log(curve) + z.slope + z.slope[1]) if moves else out.bend
        return replace(out, size=size, spectral=size, bend=bend)

    def _local(self, phi: Any, node: Node, reach: float, what: str) -> tuple[float, float, float]:
        """Bounds on (|phi|, |phi'|, |phi''|) for pre-activations |x| <= reach.

        ``what`` describes phi on the whole line.

        Raises: KcalcError if no bound on the slope is proven for this interval.
        """
        near = _bounds(phi, reach)
        if math.isinf(near.slope):
            raise KcalcError(
                f"node {node!r}: the derivative of {phi.name!r} is unbounded, or no bound is "
                f"proven, even over |x| <= {reach:.3g}, so there is no Lipschitz constant; use "
                "an activation with bounded slope, a smaller radius, or smaller inputs"
            )
        text = (
            f"{phi.name} has {what}; the bound covers only the pre-activations that the parameter "
            "set and the inputs allow"
        )
        self.notes.append(Assumption(node, text, "exact"))
        return near.value, near.slope, near.curvature

    @_rule.register
    def _(self, op: P.Mix, node: Node, inputs: list[Bound]) -> Bound:
        weights = [log(abs(float(w))) for w in op.weights]
        self.gains[node] = tuple(Gain(w, w) for w in weights)
        if len(inputs) == 1:
            return scaled(inputs[0], weights[0])
        return _joined(
            [scaled(z, w) for z, w in zip(inputs, weights, strict=True)], plus, inputs[0].channels
        )

    @_rule.register
    def _(self, op: P.Join, node: Node, inputs: list[Bound]) -> Bound:
        if len(inputs) > 1:
            self.gains[node] = (Gain(NONE, 0.0),) * len(inputs)
        return _joined(inputs, lambda *logs: root_sum_square(logs), sum(z.channels for z in inputs))

    @_rule.register
    def _(self, op: P.Mask | P.Reshape, node: Node, inputs: list[Bound]) -> Bound:
        (z,) = inputs
        if isinstance(op, P.Mask):
            refuse_dropping("smoothness bounds", op, node)
            self.notes.append(
                Assumption(node, "dropout is the identity, as in evaluation", "convention")
            )
            return z
        return replace(z, spectral=z.size, channels=z.channels * z.places, locations=None)

    @_rule.register
    def _(self, op: P.Window, node: Node, inputs: list[Bound]) -> Bound:
        if op.matrix is not None:
            raise no_rule("smoothness bounds", op, node)
        (z,) = inputs
        norm, least, locations = pool_norms(op, node, z.locations)
        self.gains[node] = (Gain(log(least), log(norm)),)
        if isinstance(op, P.Max) and np.isfinite(z.slope).any():
            self.rough[node] = (
                "maximum pooling has kinks where two entries are equal, so its derivative is not "
                "Lipschitz; use mean pooling"
            )
            z = replace(z, bend=np.full(2, math.inf))
        return replace(scaled(z, log(norm)), spectral=z.size + log(norm), locations=locations)

    def _over_batch(self, node: Node, z: Bound) -> Bound:
        rows = self.examples * z.places
        bounds = BatchNormalisation(self.epsilon).bounds(z.channels, rows)
        first = log(bounds.first)
        self.gains[node] = (Gain(NONE, log(self.epsilon) / -2),)
        self.notes.append(
            Assumption(
                node,
                f"batch statistics over all examples, epsilon = {self.epsilon:g}, no gain or "
                f"offset",
                "convention",
            )
        )
        # an entry depends on all examples
        whole = {source: np.full(2, v[0] + first) for source, v in z.own.items()}
        size = np.full(2, min(float(z.size[0]) + first, log(bounds.value)))
        bend = np.full(
            2, plus(float(z.bend[0]) + first, log(bounds.second) + 2 * float(z.slope[0]))
        )
        return replace(scaled(z, first), size=size, spectral=size, own=whole, bend=bend)


def scaled(z: Bound, factor: float) -> Bound:
    """Return the bound on a multiple of a feature map; ``factor`` is the log of the multiplier."""
    return replace(
        z,
        size=z.size + factor,
        spectral=z.spectral + factor,
        own={source: v + factor for source, v in z.own.items()},
        bend=z.bend + factor,
        inputs={node: v + factor for node, v in z.inputs.items()},
    )


def _joined(parts: list[Bound], add: Any, channels: int) -> Bound:
    def tables(chosen: list[Mapping[Node, Log]]) -> dict[Node, Log]:
        sources = dict.fromkeys(source for table in chosen for source in table)
        return {s: add(*[table[s] for table in chosen if s in table]) for s in sources}

    return Bound(
        add(*[z.size for z in parts]),
        add(*[z.spectral for z in parts]),
        tables([z.own for z in parts]),
        add(*[z.bend for z in parts]),
        tables([z.inputs for z in parts]),
        channels,
        parts[0].locations,
    )


def rounded_up(reach: float) -> float:
    """Round a reach up to a power of 2^(1/4), so that similar layers share one cached bound."""
    return 2.0 ** (math.ceil(4 * math.log2(reach)) / 4) if 0 < reach < 1e60 else reach


def _why_rough(phi: Any) -> str:
    if any(phi.jump_sizes(1)):
        where = next(k for k, jump in zip(phi.kink_points, phi.jump_sizes(1), strict=True) if jump)
        return (
            f"the derivative of {phi.name!r} jumps at {where:g}; use an activation with a "
            "Lipschitz derivative (tanh, softplus ...)"
        )
    return (
        f"the derivative of {phi.name!r} is not Lipschitz (phi'' is unbounded), and C^1 is not "
        "enough; use a smoother activation"
    )
