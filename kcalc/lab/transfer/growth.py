"""Find the sizes that grow from a base network to a larger one, such as channels and depth."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

import sympy as sp

from ... import Network
from ... import layers as L
from ... import network as P
from ...foundation.errors import KcalcError
from ...network import owner
from .branches import Branch, along_stream, branches, grown_places, refuse_nested, streams
from .powers import DEPTH, HALF, ONE, WIDTH, ZERO, Power, width_symbols
from .shortcuts import PROBES, Carried, carried, carried_alone, stream

Node = Hashable


class NotInNetwork(KcalcError):
    """Raised if a network omits, or cannot express, part of the model's computation."""


WEIGHTS = (L.Affine, L.Embedding, L.Positions, L.ClassToken)
ALIKE = ("kernel", "stride", "bias", "standardised")


@dataclass(frozen=True)
class Growth:
    """How the sizes of a network grow.

    ``channels`` and ``groups`` have an entry for each node with weights or attention. ``scores`` is
    {Attend node: the factor by which its scores must be multiplied}. ``branches`` contains the
    residual branches if their number grows; otherwise it is empty. ``ratios`` is {symbol: ratio}
    for known ratios. ``along`` contains the nodes on the stream whose number grows with the
    branches. ``carried`` describes the powers of the depth by which the network already multiplies
    its branches.
    """

    channels: Mapping[Node, Power]
    groups: Mapping[Node, Power]
    scores: Mapping[Node, Power]
    branches: tuple[Branch, ...]
    ratios: Mapping[sp.Symbol, float] = field(default_factory=dict)
    along: frozenset[Node] = frozenset()
    carried: Carried = field(default_factory=Carried)


def open_growth(network: Network, axes: tuple[str, ...] | None, ratio: Any = None) -> Growth:
    """Return the growth of a network whose open widths (``None`` or symbols) share one ratio.

    Raises: KcalcError if no width is open, or if depth is requested without residual branches.
    """
    width = axes is None or "width" in axes
    channels: dict[Node, Power] = {}
    for node in network.nodes_of(*WEIGHTS):
        given = network.features[node]
        is_open = (given is None or isinstance(given, sp.Basic)) and node not in network.outputs
        channels[node] = WIDTH if width and is_open else ONE
    if width and WIDTH not in channels.values():
        raise KcalcError(
            "every hidden layer has a fixed width; build the network with features=None, or pass "
            "a network of another width as base="
        )
    found = branches(network)
    if axes is not None and "depth" in axes and not found:
        raise KcalcError(
            "the network has no residual branches x + f(x), and depth exponents are defined "
            "only in terms of the number of such branches; leave 'depth' out of axes"
        )
    deep = found if axes is None or "depth" in axes else ()
    refuse_nested(deep)
    scores = {n: _open_scores(network.layer(n), width) for n in network.nodes_of(L.Attend)}
    known = {} if ratio is None else {WIDTH: float(ratio)}
    along = along_stream(network, deep, grown_places(network, deep)) if deep else frozenset()
    for node, op, _ in network.operations:
        if node in along and isinstance(op, P.Fresh):
            raise KcalcError(
                f"node {owner(node)!r} and similar nodes have weights on the stream between "
                "residual branches, but depth exponents exist only if nothing except the "
                "number of branches grows; leave 'depth' out of axes"
            )
    given = carried_alone(network, deep, along) if deep else Carried()
    return Growth(channels, {}, scores, deep, known, along, given)


def _open_scores(layer: Any, width: bool) -> Power:
    """Return the factor by which attention scores must be multiplied; 1 for a fixed head width."""
    grown = width and layer.key_width is None
    return WIDTH**-HALF if grown and layer.scale == "sqrt" else ONE


def growth_between(base: Network, network: Network, axes: tuple[str, ...] | None) -> Growth:
    """Return the growth from one network to another of the same form.

    Raises: KcalcError if they differ in anything but widths and the number of branches.
    """
    old, new = branches(base), branches(network)
    deep = new if len(old) != len(new) else ()
    refuse_nested(deep)
    names = labels(base), labels(network)
    weights = network.nodes_of(*WEIGHTS, L.Attend)
    pairs = {node: counterparts(base, network, node, names) for node in weights}
    small, large = _places(base, old), _places(network, new)
    for node, others in pairs.items():  # a stage may begin with a block without a shortcut
        own = large.get(node)
        pairs[node] = [one for one in others if small.get(one) == own] or others
    _check_places((base, old), (network, new), pairs)
    along, given = frozenset(), Carried()
    if len(new) == len(old):
        _check_forms(_forms(base), _forms(network), deep=False)
    else:
        along, given = _stream((base, old), (network, new))
        _check_streams((base, old), (network, new))
    ratios: dict[Node, Fraction] = {}
    for node in network.nodes_of(*WEIGHTS, L.Attend):
        ratios[node] = _one_ratio(
            node, network.features[node], [base.features[p] for p in pairs[node]]
        )
    groups = {
        node: _one_ratio(
            node, network.layer(node).groups, [base.layer(p).groups for p in pairs[node]]
        )
        for node in network.nodes_of(L.Affine)
    }
    heads = {
        node: _one_ratio(
            node, _key_width(network, node), [_key_width(base, p) for p in pairs[node]]
        )
        for node in network.nodes_of(L.Attend)
    }
    symbols = width_symbols([*ratios.values(), *groups.values(), *heads.values()])
    known = {s: float(r) for r, s in symbols.items() if s != 1}
    if deep:
        known[DEPTH] = len(new) / len(old)
    _check_axes(axes, wide=any(r != 1 for r in ratios.values()), deep=bool(deep))
    scores = {
        node: _scores(network.layer(node), base.layer(pairs[node][0]), ratio, symbols[ratio], node)
        for node, ratio in heads.items()
    }
    return Growth(
        {node: symbols[r] for node, r in ratios.items()},
        {node: symbols[r] for node, r in groups.items()},
        scores,
        deep,
        known,
        along,
        given,
    )


def _stream(
    base: tuple[Network, tuple[Branch, ...]], network: tuple[Network, tuple[Branch, ...]]
) -> tuple[frozenset[Node], Carried]:
    """Return (nodes on the stream whose number grows, exponents of the depth in the branches).

    Raises: KcalcError if the base has no branches, or if no power of the depth fits the stream.
    """
    if not base[1]:
        raise KcalcError("the base has no residual branches, but the larger network has some")
    if not network[1]:
        raise KcalcError("the base has residual branches, but the larger network has none")
    places = grown_places(*network, base[0])
    forms, streams = [], []
    for one in (base, network):
        along = along_stream(*one, places)
        forms.append(_forms(one[0], along | {branch.sum for branch in one[1]}))
        streams.append(stream(*one, along))
    _check_forms(*forms, deep=True)
    return along, carried(*streams)


def _check_axes(axes: tuple[str, ...] | None, wide: bool, deep: bool) -> None:
    """Check that the growth matches ``axes``, and that something grows.

    Raises: KcalcError if it does not match, or if nothing grows.
    """
    if not wide and not deep:
        raise KcalcError("the base has the same widths and depth as the network, so nothing grows")
    for axis, grown in (("width", wide), ("depth", deep)):
        if axes is not None and (axis in axes) != grown:
            told = "has a different" if grown else "has the same"
            advice = f"{'add' if grown else 'leave out'} {axis!r} in axes"
            raise KcalcError(f"the base {told} {axis}; {advice}, or use another base")


def _check_places(
    base: tuple[Network, tuple[Branch, ...]],
    network: tuple[Network, tuple[Branch, ...]],
    pairs: Mapping[Node, list[Node]],
) -> None:
    """Reject weights whose counterparts have a different position in a branch.

    Raises: KcalcError for such weights, and if the networks differ in anything but the number of
    branches.
    """
    small, large = (_places(*one) for one in (base, network))
    for node, others in pairs.items():
        for other in others:
            if large.get(node) != small.get(other):
                raise KcalcError(
                    f"node {node!r} and its counterpart {other!r} in the base model are at "
                    "different places on residual branches; if the depths differ, kcalc matches "
                    "nodes by name, for example blocks.7.up with blocks.0.up"
                )
    outside, inside = (
        [sum((place == "outside") == out for place in one.values()) for one in (small, large)]
        for out in (True, False)
    )
    if outside[0] != outside[1] or inside[0] * len(network[1]) != inside[1] * len(base[1]):
        raise KcalcError(
            "the depths of the networks differ in more than their numbers of equal residual "
            "branches x + f(x), but depth exponents are defined only for changes of that number; "
            "use the same depth as the base"
        )


def _check_streams(
    base: tuple[Network, tuple[Branch, ...]], network: tuple[Network, tuple[Branch, ...]]
) -> None:
    """Raise a KcalcError if the numbers of branches of several streams grow by different ratios."""
    before, after = (streams(*one) for one in (base, network))
    if len(before) != len(after):
        raise KcalcError(
            f"the model has {len(after)} residual streams with branches x + f(x), but the base has "
            f"{len(before)}; use a base in which every stream has the same fraction of its blocks"
        )
    counts = [(len(one), len(other)) for one, other in zip(before, after, strict=True)]
    if len({Fraction(own, other) for other, own in counts}) > 1:
        text = "; ".join(
            f"from {one} to {other} at {owner(stream[-1].sum)!r}"
            for (one, other), stream in zip(counts, after, strict=True)
        )
        raise KcalcError(
            f"the numbers of branches of the residual streams grow by different ratios ({text}), "
            "but the rules have only one ratio of depths; use a base in which every stream has the "
            "same fraction of its blocks"
        )


def _places(network: Network, found: tuple[Branch, ...]) -> dict[Node, str]:
    """Return {node with weights: "outside" branches, "inside" a branch, or "last" in a branch}."""
    inside = {owner(node) for branch in found for node in branch.inside}
    last = {owner(branch.last) for branch in found if branch.last is not None}
    return {
        node: "last" if node in last else "inside" if node in inside else "outside"
        for node in network.nodes_of(*WEIGHTS)
    }


def counterparts(
    base: Network, network: Network, node: Node, names: tuple[dict[Node, str], dict[Node, str]]
) -> list[Node]:
    """Return the counterparts of a node in the base: nodes with the same name, up to numbers.

    In a base with another depth, ``blocks.0.up`` is the counterpart of ``blocks.7.up``. ``names``
    contains the labels of both networks.

    Raises: KcalcError if there is no counterpart.
    """
    kind = type(network.layer(node))
    known = {names[0][n]: n for n in base.nodes_of(kind)}
    # the first call of a function has no number, and the second has the suffix _2
    same = partial(_same_layer, network, node, {label: n for n, label in names[1].items()})
    named = matching_name(names[1][node], known, same) or matching_name(
        re.sub(r"_\d+$", "", names[1][node]), known, same
    )
    if not named:
        raise NotInNetwork(
            f"node {node!r} ({kind.__name__}) has no counterpart in the base, which differs in "
            "more than width and depth; build both networks with the same function"
        )
    if kind is L.Affine:
        own = network.layer(node)
        for other in named:
            layer = base.layer(other)
            for what in ALIKE:
                if getattr(own, what) != getattr(layer, what):
                    raise KcalcError(
                        f"node {node!r} has {what} {getattr(own, what)}, but node {other!r} "
                        f"in the base model has {getattr(layer, what)}; the base may differ "
                        "only in width and depth"
                    )
    return named


def labels(network: Network) -> dict[Node, str]:
    """Return {node: its name, with any range of channels replaced by the number of the part}.

    For example, ``qkv[128:192]`` is the second of three parts of a fused projection. It matches the
    second part in the base, ``qkv[64:96]``, even if keys have fewer heads.
    """
    found: dict[Node, str] = {}
    parts: dict[str, list[tuple[tuple[int, ...], Node]]] = {}
    for node in network:
        name = str(node)
        ranges = re.findall(r"\[([^\]]*)\]", name)
        found[node] = name
        if ranges:
            starts = tuple(int(digits) for digits in re.findall(r"\d+", " ".join(ranges)))
            parts.setdefault(re.sub(r"\[[^\]]*\]", "[]", name), []).append((starts, node))
    for name, nodes in parts.items():
        for place, (_, node) in enumerate(sorted(nodes, key=lambda one: one[0])):
            found[node] = name.replace("[]", f"[{'i' * (place + 1)}]")
    return found


def matching_name(
    name: str, known: Mapping[str, Any], same: Callable[[str], bool] | None = None
) -> list[Any]:
    """Return the values for ``name``, or for the most similar names.

    Similar names differ only in numbers. Names that differ in a single number take precedence: in
    the first number at which no known name begins like ``name`` (the 5 of ``stage1.5.up``, if there
    is a ``stage1.0``), then in the leftmost number. If ``same`` is true of some of the similar
    names, the others are left out.
    """
    if name in known:
        return [known[name]]
    parts = re.split(r"(\d+)", name)
    places = list(range(1, len(parts), 2))
    begins = ["".join(parts[: place + 1]) for place in places]
    new = [
        place
        for place, begin in zip(places, begins, strict=True)
        if not any(re.match(re.escape(begin) + r"(?!\d)", other) for other in known)
    ]
    patterns = [{place} for place in (*new[:1], *places)] + [set(places)]
    for free in patterns:
        text = "".join(r"\d+" if i in free else re.escape(part) for i, part in enumerate(parts))
        found = [other for other in known if re.fullmatch(text, other)]
        if found:
            alike = [other for other in found if same is not None and same(other)]
            return [known[other] for other in alike or found]
    return []


def _same_layer(network: Network, node: Node, nodes: Mapping[str, Node], label: str) -> bool:
    """Return whether the node with a label has the same layer and sizes as ``node``."""
    other = nodes.get(label)
    if other is None or type(network.layer(other)) is not type(network.layer(node)):
        return False
    sizes = [
        (network.features[one], *(network.features[parent] for parent in network.parents(one)))
        for one in (node, other)
    ]
    layers = [[getattr(network.layer(one), what, None) for what in ALIKE] for one in (node, other)]
    return sizes[0] == sizes[1] and layers[0] == layers[1]


def _one_ratio(node: Node, own: Any, others: list[Any]) -> Fraction:
    """Return the ratio of a size to the size of its counterparts.

    Raises: KcalcError if it is unknown or differs between counterparts.
    """
    if own is None and all(other is None for other in others):
        return Fraction(1)
    if not isinstance(own, int) or not all(isinstance(other, int) for other in others):
        raise KcalcError(f"node {node!r}: the number of channels must be known in both networks")
    ratios = {Fraction(own, other) for other in others}
    if len(ratios) > 1:
        raise NotInNetwork(
            f"node {node!r} has several counterparts of different widths in the base model; "
            "use a base of the same depth"
        )
    return ratios.pop()


def _key_width(network: Network, node: Node) -> int | None:
    """Return the number of channels in a head's queries, or None if it is unknown."""
    layer = network.layer(node)
    queries = network.features[network.parents(node)[0]]
    if layer.key_width is None and queries is not None and layer.heads is not None:
        return queries // layer.heads
    return layer.key_width


def _scores(own: Any, base: Any, ratio: Fraction, grown: Power, node: Node) -> Power:
    """Return the factor by which the scores of an attention node must be multiplied.

    Together with the scale in the network, this factor divides scores by the number of channels per
    head, relative to the base.
    """
    present = {"sqrt": HALF, "linear": ONE}
    if isinstance(own.scale, str):
        if own.scale != base.scale:
            raise KcalcError(
                f"node {node!r}: the scale of the scores is {own.scale!r}, but it is "
                f"{base.scale!r} in the base model; use the same scale"
            )
        return grown ** (present[own.scale] - 1)
    change = float(own.scale) / float(base.scale) if not isinstance(base.scale, str) else math.nan
    for power in (ZERO, HALF, ONE):
        if math.isclose(change, float(ratio) ** -float(power), rel_tol=1e-6):
            return grown ** (power - 1)
    raise KcalcError(
        f"node {node!r}: the scale of the scores is {own.scale}, but it is {base.scale} in the "
        "base model; both must be the same, or their ratio must be a power of the number of "
        "channels per head"
    )


def _check_forms(small: Mapping[str, _Form], large: Mapping[str, _Form], deep: bool) -> None:
    """Reject operations without weights that differ from the base.

    Raises: KcalcError if there are any.
    """
    if deep:  # node numbers differ, so every form must occur in both
        strange = [n for n, form in large.items() if not form.among(small.values())]
        strange += [n for n, form in small.items() if not form.among(large.values())]
    else:
        strange = [
            n
            for n in {**large, **small}
            if n not in small or n not in large or not large[n].among([small[n]])
        ]
    if not strange:
        return
    name = strange[0]
    shown = [one[name].text if name in one else "has no counterpart" for one in (large, small)]
    node = next(one[name].node for one in (large, small) if name in one)
    # programs attribute these factors to the weights before them
    kinds = ("multiplies by", "adds with factors", "computes Max(0")
    factors = any(all(t.startswith(w) for t in shown) for w in kinds)
    kind = NotInNetwork if factors else KcalcError
    raise kind(
        f"node {node!r} {shown[0]}, but {shown[1]} in the base model; use the same "
        "functions, norms and multipliers as the base. kc.transfer reports which "
        "multipliers to change"
    )


@dataclass(frozen=True)
class _Form:
    """The function that an operation without weights computes, regardless of array sizes.

    ``key`` identifies the function and its numerical arguments. ``unbiased`` identifies both
    without the factors sqrt(1 - 1 / n), which tend to 1. Such a factor comes from a hand-written
    norm with the unbiased standard deviation ``h.std()`` of n channels.
    """

    key: tuple[Any, ...]
    text: str
    unbiased: tuple[Any, ...] = ()
    node: str = ""

    def among(self, others: Iterable[_Form]) -> bool:
        """Return whether one of the others is the same form."""
        return any(
            self.key == other.key or (self.unbiased and self.unbiased == other.unbiased)
            for other in others
        )


def _forms(network: Network, sums: Container[Node] = ()) -> dict[str, _Form]:
    """Return {label: form} without the ``sums`` on the stream.

    The factors of these sums have separate rules.
    """
    found, added = {}, set(network.nodes_of(L.Positions))
    known, norms = labels(network), _bessel(network)
    for node, op, reads in network.operations:
        carries = isinstance(op, P.Mix) and node in sums
        factors = [norms.get(read, 1.0) for read in reads]
        form = None if owner(node) in added or carries else _form(op, factors)
        if form is not None:
            found[known.get(node, str(node))] = replace(form, node=str(node))
    return found


def _bessel(network: Network) -> dict[Node, float]:
    """Return {norm over n channels: the factor sqrt(1 - 1 / n) of an unbiased deviation}.

    If the norm has groups, n is the number of channels per group.
    """
    counts = {
        node: (network.features[owner(node)], op.groups)
        for node, op, _ in network.operations
        if isinstance(op, P.Norm)
    }
    return {
        node: math.sqrt(1 - groups / channels)
        for node, (channels, groups) in counts.items()
        if isinstance(channels, int) and channels > groups
    }


def _form(op: Any, factors: Sequence[float]) -> _Form | None:
    """Return the form; None for weights, inputs, attention and operations that only move data.

    ``factors`` contains one entry for each node that the operation reads: the factor from
    :func:`_bessel`, or 1 if the node is not such a norm.
    """
    if isinstance(op, P.Post | P.Surrogate):
        phi, symbols = op.activation, bool(op.activation.free_symbols)
        values = [str(phi.expr)] if symbols else _printed(phi(PROBES))
        free = () if symbols else ("Post", *_printed(phi(PROBES / factors[0])))
        return _Form(("Post", *values), f"computes {phi.expr}", free)
    if isinstance(op, P.Mix):
        symbols = any(hasattr(w, "free_symbols") for w in op.weights)
        weights = [str(w) if symbols else f"{float(w):.6g}" for w in op.weights]
        free = (
            () if symbols else _printed([w / f for w, f in zip(op.weights, factors, strict=True)])
        )
        text = "multiplies by" if len(weights) == 1 else "adds with factors"
        return _Form(
            ("Mix", *weights), f"{text} {', '.join(weights)}", ("Mix", *free) if free else ()
        )
    if isinstance(op, P.Norm):
        return _Form(
            ("Norm", op.centred, op.over, op.batch_c is None), f"is a {op.kind} over {op.over}"
        )
    if isinstance(op, P.Mask):
        return _Form(("Mask", op.rate), f"drops with probability {op.rate}")
    if isinstance(op, P.Window):
        keys = (op.pooling, op.stride, op.padding)
        return _Form(("Window", *map(str, keys)), f"is a {op.kind} with stride {op.stride}")
    return _Form(("Prod",), "multiplies its inputs") if isinstance(op, P.Prod) else None


def _printed(numbers: Iterable[Any]) -> tuple[str, ...]:
    return tuple(f"{float(number):.5g}" for number in numbers)
