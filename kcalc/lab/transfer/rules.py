"""Turn sizes into rules: one record per parameter, multipliers for operations, and edits."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import sympy as sp

from ... import Network
from ... import network as P
from ...fields.arguments import one_number
from ...foundation.errors import KcalcError, glimpse
from ...foundation.plain_arguments import choice
from ...maps import Assumption
from ...network import owner
from .growth import Growth
from .optimizers import (
    GAUGES,
    OPTIMIZERS,
    RANKS,
    Rates,
    assumed_rank,
    bias_rates,
    decay_power,
    multiplier,
    named_optimizer,
    rates,
    taker,
)
from .powers import DEPTH, HALF, ONE, Power, order_of, value
from .result import ParameterRule, Transfer, numbers
from .sizes import Part, Setting, Sizes, Use, sizes, two_roles, used

Node = Hashable
HEURISTIC = "heuristic"
CODES = (
    "it normalises the output of a readout. This output starts at 1/sqrt(n) times its later size, "
    "so its first gradients are sqrt(n) times larger than the rules assume. Let the number of its "
    "channels grow with the width"
)
RANK_NOTES = {
    "full": "the rank of updates grows with the width (rank='full'), which needs more examples per "
    "step than channels",
    "fixed": "the rank of updates does not grow with the width (rank='fixed'), as with fewer "
    "examples per step than channels",
}
BOTH_ENDS = ({"embedding", "readout"}, {"input", "readout"})


@dataclass(frozen=True)
class Options:
    """The user's choices. ``branch`` is the exponent a of ``x + L^-a f(x)``.

    ``unknown`` is the assumption about operations without a rule; None raises an error. ``rank``
    says how the rank of updates grows, and is None if it does not matter for the optimiser.
    """

    optimizer: str
    gauge: str
    decay: Any
    branch: Any
    aligned: bool
    unknown: str | None = None
    rank: str | None = None


def options(
    optimizer: Any,
    gauge: Any = "none",
    decay: Any = 1,
    branch: Any = 1,
    alignment: Any = "full",
    unknown: Any = None,
    rank: Any = None,
) -> Options:
    """Check the options and return them.

    Raises: KcalcError for unknown names and for numbers out of range.
    """
    name = named_optimizer(optimizer)
    choice(gauge, "gauge", GAUGES)
    choice(alignment, "alignment", ("full", "none"))
    if unknown is not None:
        choice(unknown, "unknown", (HEURISTIC,))
    kept = exponent(decay, "decay")
    if kept not in (0, HALF, 1):
        raise KcalcError(f"decay must be 0, 1/2 or 1, got {glimpse(decay)}")
    depth = exponent(branch, "branch_exponent")
    if not HALF <= depth <= 1:
        raise KcalcError(f"branch_exponent must lie in [1/2, 1], got {glimpse(branch)}")
    if rank is not None:
        choice(rank, "rank", RANKS)
    grown = assumed_rank(name, rank)
    return Options(name, gauge, kept, depth, alignment == "full", unknown, grown)


def exponent(number: Any, what: str) -> Any:
    """Return ``number`` as a rational number.

    Raises: KcalcError naming ``what`` for anything else.
    """
    if isinstance(number, Fraction | sp.Rational):
        return sp.Rational(number)
    return sp.Rational(Fraction(one_number(number, what)).limit_denominator(1000))


@dataclass(frozen=True)
class Placement:
    """One use of a parameter in the network.

    ``kind`` is "weight", "bias", "gain" (of a norm, or another factor with one entry per channel),
    "vector" (added, or a separate token), "shared" (a factor that many channels share) or "length"
    (of the rows of weights, as in weight norm). ``shape`` is the shape of the parameter.
    ``base_std`` and ``base_entries`` are the standard deviation (None if unknown) and the number of
    entries that the parameter has in the base network. ``repeated`` says whether the larger network
    has more parameters of this name than the base network, up to block numbers, and ``zero``
    whether all entries start at 0. ``behind`` is the factor by which the model multiplies the
    parameter, relative to the base network.
    """

    name: str
    node: Node
    kind: str
    shape: tuple[int, ...] = ()
    base_std: float | None = None
    base_entries: int = 0
    repeated: bool = False
    zero: bool = False
    behind: Power = ONE


def _before_zeros(network: Network, zeros: frozenset[Node]) -> frozenset[Node]:
    """Return the weights whose output is read only by weights that start at 0.

    Operations that act on each channel separately may come in between.
    """
    readers: dict[Node, list[tuple[Node, Any]]] = {}
    for node, op, reads in network.operations:
        for read in reads:
            readers.setdefault(read, []).append((node, None if len(reads) > 1 else op))
    alike = P.Post | P.Surrogate | P.Mask | P.Reshape | P.Stop | P.Mix

    def silent(node: Node) -> bool:
        behind = readers.get(node, [])
        return bool(behind) and all(
            other in zeros or (isinstance(op, alike) and silent(other)) for other, op in behind
        )

    return frozenset(
        node for node, op, _ in network.operations if isinstance(op, P.Fresh) and silent(node)
    )


def placements(network: Network) -> list[Placement]:
    """Return the parameters of a kcalc network, ``node.weight`` and ``node.bias``."""
    found = []
    for node, op, _ in network.operations:
        if isinstance(op, P.Fresh):
            found.append(Placement(f"{owner(node)}.weight", node, "weight", _shape(op)))
            if op.bias:
                found.append(Placement(f"{owner(node)}.bias", node, "bias"))
    return found


def _shape(op: P.Fresh) -> tuple[int, ...]:
    """Return (outputs, inputs per output, taps), with 1 for unknown numbers of channels."""
    inputs = op.reads // op.groups if isinstance(op.reads, int) else 1
    taps = () if op.one_tap else (op.kernel if isinstance(op.kernel, tuple) else (op.kernel,))
    return (op.features if isinstance(op.features, int) else 1, inputs, *taps)


def setting(growth: Growth, chosen: Options) -> Setting:
    """Return the settings of both passes over a network, given the user's choices."""
    return Setting(
        growth.channels,
        growth.groups,
        growth.branches,
        chosen.branch,
        absorb=chosen.gauge == "none",
        aligned=chosen.aligned,
        capped=not chosen.aligned and chosen.optimizer == "sgd",
        order=order_of(growth.ratios),
        given=growth.carried.powers,
    )


def derive(
    network: Network, growth: Growth, chosen: Options, placed: Sequence[Placement]
) -> Transfer:
    """Derive the rules for all parameters of a kcalc network.

    Raises: KcalcError if there are no exponents, as for the depth with ``alignment="none"``.
    """
    if growth.branches and not chosen.aligned:
        raise KcalcError(
            "with alignment='none', there are no depth exponents; use the same depth as the base"
        )
    zeros = frozenset(one.node for one in placed if one.zero)
    told = replace(setting(growth, chosen), zeros=zeros)
    found = sizes(network, told)
    before = _before_zeros(network, zeros)
    book = _Book(growth, chosen, told, found, before)
    notes = (*growth.carried.notes, *_codes(network, found))
    return book.transfer(placed, notes, tuple(network.assumptions))


def _codes(network: Network, found: Sizes) -> Iterable[Assumption]:
    """Yield assumptions about norms that follow a readout."""
    for node, op, reads in network.operations:
        use = found.uses.get(reads[0]) if isinstance(op, P.Norm) else None
        if use is not None and use.role == "readout":
            yield Assumption(owner(node), CODES, "heuristic")


def derive_program(
    growth: Growth, chosen: Options, both: tuple[Setting, Sizes], rest: Guesses
) -> Transfer:
    """Derive the rules for all parameters of a program from its sizes."""
    book = _Book(growth, chosen, *both, rest.before_zeros)
    book.columns = rest.columns
    for node, power in rest.settled.items():
        book.settle(node, power, "input")
    for node, power in rest.sized.items():
        book.settle(node, power, "output")
    return book.transfer(rest.placed, rest.notes, (), rest.guessed)


@dataclass(frozen=True)
class Guesses:
    """Findings about a program, apart from its sizes.

    ``settled`` is {function: the factor by which its input must be multiplied}, and ``sized`` is
    {output: the factor by which it must be multiplied}. ``guessed`` is
    {parameter: an operation without a rule on a path through it}. ``before_zeros`` contains weights
    whose output is read only by weights that start at 0. ``columns`` is {weights: the parts of a
    concatenation that they read}.
    """

    placed: Sequence[Placement]
    settled: Mapping[Node, Power]
    sized: Mapping[Node, Power]
    guessed: Mapping[str, str]
    before_zeros: frozenset[Node]
    notes: tuple[Assumption, ...]
    columns: Mapping[Node, tuple[Part, ...]]


class _Book:
    """The rules derived so far, with the multipliers and edits that they need."""

    def __init__(
        self,
        growth: Growth,
        chosen: Options,
        told: Setting,
        found: Sizes,
        before_zeros: frozenset[Node] = frozenset(),
    ) -> None:
        self.growth, self.chosen, self.told, self.found = growth, chosen, told, found
        self.before_zeros = before_zeros
        self.kept_size: list[Node] = []
        self.columns: Mapping[Node, tuple[Part, ...]] = {}
        self.uneven: list[Node] = []
        self.multipliers: dict[str, Any] = {}
        self.edits: list[str] = []

    def transfer(
        self,
        placed: Sequence[Placement],
        first: Sequence[Assumption],
        last: Sequence[Assumption],
        guessed: Mapping[str, str] = MappingProxyType({}),
    ) -> Transfer:
        """Return the result.

        ``first`` and ``last`` are assumptions to list before and after the assumptions of the
        rules.
        """
        by_name: dict[str, list[Placement]] = {}
        for one in placed:
            by_name.setdefault(one.name, []).append(one)
        parameters = {
            name: replace(self.rule(name, uses), guessed=guessed.get(name, ""))
            for name, uses in by_name.items()
        }
        self.scores()
        self.branches()
        assumed = _assumptions(self.chosen, bool(self.growth.branches))
        return Transfer(
            self.chosen.optimizer,
            self.chosen.gauge,
            parameters,
            self.multipliers,
            tuple(self.edits),
            {str(symbol): ratio for symbol, ratio in self.growth.ratios.items()},
            (*assumed, *first, *self.notes(), *last),
        )

    def settle(self, node: Node, power: Power, what: str) -> None:
        """Add the multiplier for the input of a function, or for an output of the model."""
        self.multipliers[f"{node} ({what})"] = value(power, self.growth.ratios)
        place = f"input of {node!r}" if what == "input" else f"output {node!r}"
        self.edits.append(
            f"multiply the {place} by {self._told(power)}, so that it has the same size "
            "as in the base"
        )

    def rule(self, name: str, uses: list[Placement]) -> ParameterRule:
        """Return the rule for a parameter, determined by the strictest of its uses."""
        roles = [self._role(one) for one in uses]
        tied = set(roles) in BOTH_ENDS
        order = self.told.order
        table = min(uses, key=lambda one: self._role(one) == "readout") if tied else None
        largest = order.larger(*(self.found.gradients[one.node] for one in uses))
        if largest == 0:
            raise KcalcError(
                f"{name} at node {owner(uses[0].node)!r} does not affect any output that was read, "
                "so it has no gradient; return a value computed from it, or delete it"
            )
        every = [self._rates(one, table, largest) for one in uses]
        for k, one in enumerate(every):
            # if a layer is used several times, the largest use determines its gradient
            alike = order.alike(one.init_std, every[0].init_std)
            if not tied and not (alike and roles[k] == roles[0]):
                raise _conflict(name, (uses[0], roles[0], every[0]), (uses[k], roles[k], one))
        rate = order.smaller(*(one.learning_rate for one in every))
        strictest = next(one for one in every if one.learning_rate == rate)
        powers = {
            "init_std": order.smaller(*(one.init_std for one in every)),
            "learning_rate": strictest.learning_rate,
            "epsilon": strictest.epsilon,
            "weight_decay": ONE  # decay has no effect at fixed norm
            if OPTIMIZERS[strictest.optimizer].kept
            else decay_power(strictest.learning_rate, self.chosen.decay),
        }
        return ParameterRule(
            name,
            ", ".join(dict.fromkeys(roles)),
            strictest.optimizer,
            **numbers(powers, self.growth.ratios),
            exponents=powers,
            base_std=uses[0].base_std,
            base_entries=uses[0].base_entries,
            shape=uses[0].shape if uses[0].base_std is not None else (),
        )

    def _role(self, one: Placement) -> str:
        return self.found.uses[one.node].role if one.kind == "weight" else one.kind

    def _rates(self, one: Placement, table: Placement | None, largest: Power) -> Rates:
        """Return the powers for a use. ``table`` is another use of the weights of a readout.

        ``largest`` is the largest gradient of the uses, for uses behind a stopped gradient.
        """
        optimizer, gradient = self.chosen.optimizer, self.found.gradients[one.node]
        if gradient == 0:
            gradient = largest
        if one.kind != "weight":
            change, initial, slope = self._vector(one, gradient)
            behind = one.behind
            return bias_rates(optimizer, change / behind, initial / behind, slope * behind)
        use = self._started(self.found.uses[one.node])
        asked = multiplier(self.chosen.gauge, use)
        factor = one.behind if self.chosen.gauge == "none" else asked
        if table is not None and use.role == "readout" and self.chosen.gauge == "none":
            factor = use.initial / (self.found.uses[table.node].initial / table.behind)
        if factor != one.behind:
            self._multiply(one, use, factor / one.behind, table)
        if one.zero and OPTIMIZERS[taker(optimizer, use.role, one.shape)].kept:
            raise KcalcError(
                f"{one.name} starts at 0, and {OPTIMIZERS[optimizer].title} keeps the norm of each "
                "weight constant, so it would stay 0; initialise it at random, or train it with "
                "optimizer='adamw'"
            )
        found = rates((optimizer, self.chosen.rank), use, gradient, factor, one.shape)
        if one.node in self.columns:
            self._columns(one, use, found)
        return found

    def _columns(self, one: Placement, use: Use, found: Rates) -> None:
        """Add the edit for weights that read a concatenation of which only some parts grow.

        A factor on the other parts gives their columns the same learning rate as the other columns.

        Raises: KcalcError for optimisers that act on whole matrices, and in other gauges.
        """
        parts, order = self.columns[one.node], self.told.order
        whole = OPTIMIZERS[found.optimizer].takes != "all"
        if whole or self.chosen.gauge != "none" or not self.chosen.aligned:
            raise two_roles(order, one.node, parts)
        node = owner(one.node)
        for part in parts:
            if order.grows(part.channels):
                continue
            fans = (part.channels, use.fan_out, use.channels)
            own = used(self.told, one.node, use.reads, fans)
            factor = own.change / use.change
            if found.optimizer == "sgd":
                factor = factor**HALF  # the factor also multiplies their gradients
            rest = own.initial / factor / use.initial
            key = f"{owner(part.node)} (input of {node})"
            self.multipliers[key] = value(factor, self.growth.ratios)
            start = (
                ""
                if rest == 1
                else f", and multiply their columns by {self._told(rest)} after t.rescale"
            )
            self.edits.append(
                f"split {node!r} into two layers, a(h) + b(x), where b reads the channels of "
                f"{owner(part.node)!r}, and call kc.transfer again; or keep one layer and multiply "
                f"these channels by {self._told(factor)} at the input of {node!r}{start}"
            )
        if found.optimizer != "sgd":
            self.uneven.append(one.node)

    def _started(self, use: Use) -> Use:
        """Return the use with output size 1 if the output is narrow and read only by zero weights.

        This is the case in LoRA. The first steps of the zero weights are proportional to the narrow
        feature map, so they would otherwise shrink with the width. While these weights are 0,
        changes of the feature map have no effect.
        """
        narrow = self.told.order.exceeds(use.fan_in, use.fan_out)
        if use.node not in self.before_zeros or not narrow:
            return use
        self.kept_size.append(use.node)
        initial = use.output / use.reads / use.fan_in**HALF
        return replace(use, initial=initial, size=self.told.order.larger(initial, use.change))

    def _vector(self, one: Placement, gradient: Power) -> tuple[Power, Power, Power]:
        """Return (change, initial size, gradient size) for a parameter that is not a weight."""
        if one.kind == "bias":
            use = self.found.uses[one.node]
            return use.shift, use.output, gradient
        if one.kind == "length":
            use = self.found.uses[one.node]
            size = use.initial * use.fan_in**HALF
            return size, size, gradient * use.output / size
        state = self.found.states[one.node]
        change, initial = self.told.share(one.node), ONE
        if one.repeated and one.node in self.growth.along:
            # one parameter per branch: independent at first, aligned after training
            change, initial = 1 / DEPTH, DEPTH**-HALF
        if one.kind == "vector":
            return change * state.of, initial * state.of, gradient
        shared = state.channels if one.kind == "shared" else ONE  # they share its gradient
        return change, initial, gradient * state.of * shared

    def _multiply(self, one: Placement, use: Use, factor: Power, table: Placement | None) -> None:
        node = owner(one.node)
        self.multipliers[f"{node} (weights)"] = value(factor, self.growth.ratios)
        reason = ""
        if table is not None and use.role == "readout":
            reason = (
                f", because {one.name} is also the table of an embedding"
                if self._role(table) == "embedding"
                else f", because {owner(table.node)!r} also uses {one.name}, transposed"
            )
        what = "logits" if use.role == "readout" else "product with the weights"
        self.edits.append(f"multiply the {what} of {node!r} by {self._told(factor)}{reason}")

    def scores(self) -> None:
        """Add the multipliers for attention scores."""
        needed: dict[Power, list[Node]] = {}
        for node, power in self.growth.scores.items():
            if power != 1:
                needed.setdefault(power, []).append(node)
                self.multipliers[f"{node} (scores)"] = value(power, self.growth.ratios)
        for power, nodes in needed.items():
            self.edits.append(
                f"multiply the scores of {_listed(nodes)} by {self._told(power)}, because scores "
                "must be divided by the number of channels per head, not by its square root"
            )

    def branches(self) -> None:
        """Add multipliers for residual branches without final weights that could absorb them."""
        nodes: dict[Power, list[Node]] = {}
        for branch in self.growth.branches:
            power = self.told.factor(branch)
            if power != 1 and not (self.told.absorb and branch.last is not None):
                self.multipliers[f"{branch.sum} (branch)"] = value(power, self.growth.ratios)
                nodes.setdefault(power, []).append(branch.sum)
        for power, sums in nodes.items():
            self.edits.append(
                f"multiply the residual branches that {_listed(sums)} add by {self._told(power)}"
            )

    def notes(self) -> Iterable[Assumption]:
        """Yield the assumptions of rules that hold only for the first steps."""
        for node in dict.fromkeys(self.uneven):
            yield Assumption(
                owner(node),
                "the columns that read a fixed number of channels have gradients of a "
                "different size; epsilon is chosen for the other columns",
                "heuristic",
            )
        for node in dict.fromkeys(self.kept_size):
            yield Assumption(
                owner(node),
                "its output has size 1 initially, because the weights that read it start at "
                "0. This holds for the first steps; later the output may grow as the square "
                "root of the width",
                "heuristic",
            )

    def _told(self, power: Power) -> str:
        number = value(power, self.growth.ratios)
        text = str(power).replace("**", "^")
        return f"{text} = {number:.6g}" if isinstance(number, float) else text


def _conflict(
    name: str, one: tuple[Placement, str, Rates], two: tuple[Placement, str, Rates]
) -> KcalcError:
    """Return the error for a parameter whose uses require different rules."""
    places = ", ".join(f"{role} at node {owner(use.node)!r}" for use, role, _ in (one, two))
    asked = (
        f"initial weights {one[2].init_std} and {two[2].init_std}, learning rates "
        f"{one[2].learning_rate} and {two[2].learning_rate}"
    ).replace("**", "^")
    rows = all("[" in str(owner(use.node)) for use, _, _ in (one, two))
    advice = (
        "these are rows of one matrix, and a parameter can have only one rule; use a separate "
        "layer for each role"
        if rows
        else "untie them"
    )
    return KcalcError(f"{name} is used in two conflicting roles: {places} ({asked}); {advice}")


def _listed(nodes: Iterable[Node]) -> str:
    names = [repr(owner(node)) for node in nodes]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"


def _assumptions(chosen: Options, deep: bool) -> Iterable[Assumption]:
    aligned = "aligned with" if chosen.aligned else "independent of"
    yield Assumption(
        "network",
        f"weight updates are {aligned} the inputs of their layers; the numbers of examples, "
        "positions and steps do not grow with the network",
    )
    yield Assumption(
        "network",
        {
            0: "weight decay is the same as in the base",
            1: "the product of learning rate and weight decay is the same as in the base",
        }.get(chosen.decay, "weight decay grows as 1 / sqrt(learning rate)"),
    )
    if chosen.rank is not None:
        yield Assumption("network", RANK_NOTES[chosen.rank], "heuristic")
    if deep:
        yield Assumption("network", f"residual branches are multiplied by L^-{chosen.branch}")
