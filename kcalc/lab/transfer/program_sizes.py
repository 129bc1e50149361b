"""Sizes along a program: a forward pass, and a backward pass along the same edges.

The rule of an operation gives the size of its result and, for each input, the factor by which the
size of a gradient changes on the way back. Parameters are treated like any other array. A parameter
that is not a weight (a gain, a temperature, a table of biases) keeps its size and changes by order
1, whatever reads it. Its gradient sums over the entries that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from ...foundation.errors import KcalcError
from .powers import ONE, Power
from .program import Program, Ref, Step, total
from .sizes import Part, Setting, Use, passed, two_roles, used

Node = Hashable
ALONE = (
    "it is assumed to keep coordinates of order 1 in the forward and backward pass, so its rules, "
    "and the rules of the parameters before and after it, are a guess"
)


@dataclass(frozen=True)
class Value:
    """An array, together with what is known about its size and origin.

    ``of`` is the size of an entry, and ``axes`` says how the axes grow. ``real`` is False for ids
    and choices, which pass no gradient. ``parameter`` is the parameter whose values the array
    contains, possibly reordered and multiplied by fixed numbers of size ``of``; ``gains`` are
    learned factors of these values, and ``length`` is the parameter that gives the norm of their
    rows. ``fixed`` says whether the array was computed only from parameters and numbers, and
    ``numbers`` whether it was computed only from numbers. ``maker`` contains the weights that
    produced the array, up to elementwise functions. ``unlike`` lists the parts of the array that
    follow different rules, if any. ``scores`` says whether the array is a sum of products of two
    feature maps.
    """

    of: Power
    axes: tuple[Power, ...]
    real: bool = True
    parameter: str | None = None
    gains: tuple[str, ...] = ()
    length: str | None = None
    fixed: bool = False
    numbers: bool = False
    maker: Node | None = None
    unlike: tuple[Part, ...] | None = None
    scores: bool = False

    @property
    def total(self) -> Power:
        """Return the growth of the number of entries."""
        return total(self.axes)


@dataclass(frozen=True)
class Kept:
    """The use of a parameter at a node, as "weight", "bias" or "length"."""

    name: str
    node: Node
    kind: str


def whole(node: Node) -> str:
    """Return the name of the step that applies the weights at a node.

    A step with several weights has one node for each of them.
    """
    return str(node).partition(" #")[0]


Found = Value | list[Value]
Rule = Callable[["Fold", Step], Found]


@dataclass
class Fold:
    """The state of the two passes over a program.

    ``edges`` is {array: [(array that it reads, factor of the gradient)]}. ``settled`` is {function:
    (factor by which its input must be multiplied, whether the input is a sum of products of two
    feature maps)}, and ``sized`` is {output: the factor by which it must be multiplied}. ``behind``
    is {weights, or (weights, "bias"): the power by which the model multiplies them}, and ``after``
    is {weights: the power by which it multiplies their output, including a bias}.
    ``guessed`` lists operations without a rule. ``columns`` is {weights: the parts of a
    concatenation that they read}. ``codes`` lists operations that normalise the result of a
    readout. ``shares`` is {weights: the growth of the number of positions that share them}.
    """

    program: Program
    setting: Setting
    unknown: str | None
    values: dict[Node, Found] = field(default_factory=dict)
    edges: dict[Node, list[tuple[Node, Power]]] = field(default_factory=dict)
    uses: dict[Node, Use] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    settled: dict[Node, tuple[Power, bool]] = field(default_factory=dict)
    sized: dict[Node, Power] = field(default_factory=dict)
    behind: dict[Node, Power] = field(default_factory=dict)
    after: dict[Node, Power] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    columns: dict[Node, tuple[Part, ...]] = field(default_factory=dict)
    codes: list[str] = field(default_factory=list)
    shares: dict[Node, Power] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)

    # -- what rules ask ----------------------------------------------------------------------------

    def value(self, given: object) -> Value:
        """Return the value of an array argument."""
        assert isinstance(given, Ref)
        found = self.values[given.name]
        return found[0] if isinstance(found, list) else found

    def edge(self, step: Step, given: object, factor: Power) -> None:
        """Add an edge that passes gradients to an argument."""
        assert isinstance(given, Ref)
        if self.value(given).real:
            self.edges.setdefault(step.name, []).append((given.name, factor))

    def shared(self, step: Step, axes: Sequence[Power], given: object) -> Power:
        """Return how many entries of an array with these axes read one entry of an argument."""
        ratio = total(axes) / self.value(given).total
        return ratio if self.setting.order.grows(ratio) else ONE

    def like(self, step: Step, x: Value, k: int = 0) -> Value:
        """Return ``x`` with the axes of the k-th array that the step returns."""
        return replace(x, axes=step.axes[k], real=x.real and step.real[k])

    def settle(self, step: Step, x: Value, place: str = "") -> Power:
        """Return the factor that gives the input of a function size 1, and record the factor.

        Unless a function is homogeneous, its shape on the typical range of its inputs depends on
        their size. ``place`` is the array to multiply, if it is not the input of the step.
        """
        if self.setting.order.alike(x.of, ONE) or not x.real:
            return ONE
        self.settled[place or step.name] = (ONE / x.of, x.scores)
        return ONE / x.of

    def grows(self, power: Power) -> bool:
        """Return whether a number of entries grows or shrinks."""
        return self.setting.order.grows(power) or self.setting.order.grows(1 / power)

    # -- weights -----------------------------------------------------------------------------------

    def weights(
        self, step: Step, x: Value, w: Value, fans: tuple[Power, Power, Power], hot: bool = False
    ) -> Use:
        """Record that a step applies the weights ``w`` to ``x``, and return this use."""
        assert w.parameter is not None
        key, n = step.name, 1
        while key in self.uses:  # the operation has several weights
            n += 1
            key = f"{step.name} #{n}"
        use = used(self.setting, key, x.of, fans, hot)
        if x.unlike is not None and self.setting.order.grows(fans[0]):
            self.parted(step, x, use, fans)
        self.uses[key] = use
        shares = total(step.axes[0]) / fans[2]
        if self.setting.order.grows(shares) and step.name not in self.guessed:
            self.shares[key] = shares
        if w.of != 1:
            self.behind[key] = w.of
        self.kept.append(Kept(w.parameter, key, "weight"))
        if w.length is not None:
            self.kept.append(Kept(w.length, key, "length"))
        return use

    def parted(self, step: Step, x: Value, use: Use, fans: tuple[Power, Power, Power]) -> None:
        """Record gradients for weights that read a concatenation of which only some parts grow.

        Raises: KcalcError for parts with different sizes or growth rates.
        """
        order = self.setting.order
        parts: tuple[Part, ...] = tuple(x.unlike or ())
        grown = [part for part in parts if order.grows(part.channels)]
        alike = all(order.alike(part.of, parts[0].of) for part in parts)
        if (
            not grown
            or not alike
            or not all(order.alike(part.channels, grown[0].channels) for part in grown)
        ):
            raise two_roles(order, step.name, parts)
        self.columns[use.node] = parts
        for part in parts:
            if part not in grown and self.value(Ref(str(part.node))).real:
                own = used(self.setting, use.node, x.of, (part.channels, *fans[1:]))
                self.edges.setdefault(step.name, []).append((part.node, self.backward_of(own)))

    def bias(self, step: Step, use: Use, given: object) -> None:
        """Record the bias that is added after some weights."""
        found = self.value(given)
        assert found.parameter is not None
        if found.of != 1:
            self.behind[use.node, "bias"] = found.of
        self.kept.append(Kept(found.parameter, use.node, "bias"))
        self.gained(step, found, use)

    def gained(self, step: Step, w: Value, use: Use) -> None:
        """Record gradients of learned factors of weights or of their bias."""
        for name in w.gains:
            shares = total(step.axes[0]) / self.value(Ref(name)).total
            factor = shares if self.setting.order.grows(shares) else ONE
            self.edges.setdefault(step.name, []).append((name, factor * use.output))

    def backward_of(self, use: Use) -> Power:
        """Return the factor by which weights multiply the size of a gradient."""
        return passed(self.setting, use)

    def role(self, given: object, kind: str) -> None:
        """Record how a parameter that is not a weight is read."""
        x = self.value(given)
        if x.parameter is not None:
            self.roles.setdefault(x.parameter, kind)

    # -- what has no rule --------------------------------------------------------------------------

    def guess(self, step: Step, why: str = "") -> Found:
        """Return the assumed result of an operation without a rule, if the user allows guesses.

        Raises: KcalcError if the user does not; the message names the option.
        """
        told = f"{step.name!r} ({step.kind})"
        if self.unknown is None:
            reason = f": {why}" if why else ""
            raise KcalcError(
                f"node {told} has no width rule{reason}; compute it with operations that "
                'have width rules, or use unknown="heuristic", which assumes that it '
                "keeps coordinates of order 1 in the forward and backward pass"
            ).at(step.name)
        self.guessed.append(step.name)
        for ref in step.refs:
            x = self.value(ref)
            if x.parameter is not None and len(x.axes) > 1 and self.grows(x.total):
                fans = (x.axes[1], x.axes[0], x.axes[0])
                self.weights(step, Value(ONE, ()), x, fans)
            else:
                self.edge(step, ref, self.shared(step, step.axes[0], ref))
        found = [Value(ONE, axes, real) for axes, real in zip(step.axes, step.real, strict=True)]
        return found if step.several else found[0]
