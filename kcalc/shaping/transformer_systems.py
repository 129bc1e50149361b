"""Equations for the constants of transformers, and their solution."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError, Remedy, UnreachableTarget
from ..foundation.rootfinding import zero_between
from ..network.layers import Affine, Attend, Normalisation
from ..network.network import Network, is_normalised
from .residual_blocks import with_residual_weights
from .tokens import with_norms
from .transformer_parts import Parts, stream, with_sigmas
from .transformer_stream import (
    DIFFERENCE,
    GROWTH,
    MEAN,
    SLOPE,
    VARIANCE,
    Start,
    Stream,
)

Node = Hashable
ORDER = (GROWTH, MEAN, SLOPE, DIFFERENCE, VARIANCE)
SHIFTS = ((0.0, 0.0), (-1.0, 0.0), (0.0, -1.5), (-2.0, 0.5), (1.0, 0.0))  # added to starting points
SOLVED = 1e-9
FARTHEST, FAR, NEAR = 30.0, 1e3, 10.0
EVALUATIONS = 60
TIGHT = 1e-6
STEEPER = Remedy(
    "edge", {"mlp": "dks", "zeta": 2.0}, "steeper MLPs may reach it: mlp='dks' with zeta=2"
)


@dataclass(frozen=True)
class Request:
    """A problem to solve: the network, its parts, the start of its stream, and the targets."""

    network: Network
    parts: Parts
    start: Start
    targets: Mapping[str, float]

    def scaled(self, network: Network, factor: float) -> Network:
        """Multiply sigma_w and sigma_b of all queries by ``factor``."""
        queries = {a.queries for a in self.parts.attentions}

        def changed(node: Node, layer: Affine) -> Affine:
            if node not in queries:
                return layer
            weight, bias = float(layer.sigma_w) * factor, float(layer.sigma_b) * factor
            return replace(layer, sigma_w=weight, sigma_b=bias)

        return network.map_layers(changed, Affine)

    def check_scores(self) -> None:
        """Raise a KcalcError if the weights do not determine the scale of scores."""
        for a in self.parts.attentions:
            if a.normed:
                raise KcalcError(
                    f"node {a.node!r} reads normalised queries or keys, so the scales of their "
                    "weights have no effect; omit score_variance, and set "
                    "kc.layers.Attend(scale=...) instead"
                )


SELECTS = (
    "node {!r} selects experts, and nearly equal tokens may get different ones, so the slope of "
    "the token map at equal tokens is infinite; pass gradient_difference instead of token_slope"
)


class TransformerSystem(ABC):
    """The constants of a transformer as functions of unknowns, one per target.

    The unknowns are logarithms.
    """

    request: Request
    targets: dict[str, float]

    @abstractmethod
    def built(self, x: Any) -> Network:
        """Build the network for given values of the unknowns."""

    @abstractmethod
    def begin(self) -> list[float]:
        """Return the starting values of the unknowns, one per target."""

    @abstractmethod
    def check_reach(self) -> None:
        """Raise UnreachableTarget with the reachable range if targets cannot be reached."""

    def at(self, x: Any) -> Stream:
        """Return the stream for given values of the unknowns."""
        return Stream.of(self.built(x), self.request.start)

    def misses(self, x: Any) -> Any:
        """Return log(value / target) for every target."""
        if np.abs(x).max(initial=0.0) > FARTHEST:
            return np.full(len(x), FAR)
        found = self.at(x)
        return np.array([math.log(found[name] / value) for name, value in self.targets.items()])

    def solved(self) -> Any:
        """Return the unknowns that meet the targets.

        Raises: UnreachableTarget with the reachable range.
        """
        from scipy.optimize import root

        options: Any = {"maxfev": EVALUATIONS}
        start = np.array(self.begin(), dtype=float)
        for number, shift in enumerate(SHIFTS if len(start) else ()):
            moved = start + np.array([*shift, 0.0, 0.0])[: len(start)]
            try:
                with np.errstate(all="ignore"):
                    x = root(self.misses, moved, method="hybr", tol=1e-13, options=options).x
                if np.abs(self.misses(x)).max() < SOLVED and np.abs(x - start).max() < NEAR:
                    return x
            except KcalcError:  # the search left the range of the kernel maps
                pass
            if number == 0:
                self.check_reach()
        if not len(start):
            return start
        asked = ", ".join(f"{name} = {value:g}" for name, value in self.targets.items())
        raise UnreachableTarget(
            f"found no constants with {asked}; pass other values for these targets (targets that "
            "you omit may have default values)"
        )


class Ratios(TransformerSystem):
    """Solve for the ratios of branch to shortcut weights and for the query scale.

    Blocks with attention share one ratio, and the other blocks another. Targets that determine the
    ratios have default values.

    Raises: KcalcError for more targets than constants, and for a growth target if norms fix q.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        parts = request.parts
        self.groups = [blocks for blocks in (parts.attending, parts.others) if blocks]
        between = [b.entry for b in parts.blocks if b.entry != parts.entry]
        normed = [n for n in between if isinstance(request.network.layer(n), Normalisation)]
        if GROWTH in request.targets and normed:
            raise KcalcError(
                f"the stream passes through the norm at node {normed[0]!r}, so it cannot "
                "grow; pass gradient_mean instead of growth"
            )
        self.grows = not normed and not all(is_normalised(tuple(b.weights)) for b in parts.blocks)
        self.targets = self._completed(dict(request.targets))

    def built(self, x: Any) -> Network:
        """Build the network for given values of the unknowns."""
        along: dict[Node, float] = {}
        through: dict[Node, float] = {}
        for log_ratio, blocks in zip(x, self.groups, strict=False):
            ratio = math.exp(log_ratio)
            for block in blocks:
                kept = not is_normalised(tuple(block.weights))
                own = float(block.weights[0]) if kept else 1 / math.hypot(1, ratio)
                along[block.node], through[block.node] = own, own * ratio
        made = with_residual_weights(self.request.network, along, through)
        return self.request.scaled(made, self.scale(x))

    def scale(self, x: Any) -> float:
        """Return the factor that multiplies the queries."""
        return math.exp(x[-1]) if len(x) > len(self.groups) else 1.0

    def _completed(self, targets: dict[str, float]) -> dict[str, float]:
        own = [name for name in targets if name != VARIANCE]
        first = {GROWTH: 2.0} if self.grows else {MEAN: 1.1}
        for default, names in ((first, (GROWTH, MEAN)), ({SLOPE: 1.0}, (SLOPE, DIFFERENCE))):
            if len(own) < len(self.groups) and not any(name in targets for name in names):
                targets |= default
                own += default
        selecting = self.at([0.0] * len(self.groups)).selecting if SLOPE in targets else None
        if selecting is not None:
            raise KcalcError(SELECTS.format(selecting))
        most = len(self.groups) + 1
        if len(targets) > most or (VARIANCE in targets and len(own) >= most):
            raise KcalcError(
                f"{len(targets)} targets are more than this network's {most} constants (the "
                "query-key scale, and a weight for every kind of branch); omit one of "
                f"{', '.join(targets)}"
            )
        if len(targets) > len(self.groups):
            self.request.check_scores()
        return {name: targets[name] for name in ORDER if name in targets}

    def begin(self) -> list[float]:
        """Return initial ratios for which all branches together produce the target growth."""
        blocks = self.request.parts.blocks
        values = self.at([-FARTHEST] * len(self.groups)).values
        share = max(float(values[b.branch].q1) / float(values[b.shortcut].q1) for b in blocks)
        wanted = self.targets.get(GROWTH, 2.0)
        total = wanted - 1 if wanted > 1 else 1.0
        level = 0.5 * math.log(total / (len(blocks) * max(share, 1e-300)))
        return [*[level] * len(self.groups), 0.0][: len(self.targets)]

    def check_reach(self) -> None:
        """Raise UnreachableTarget if the targets cannot be reached.

        The error concerns the first target or, if that can be reached, the second target given the
        first.
        """
        names = list(self.targets)
        first = names[0]
        ends = [self.at([x] * len(self.groups))[first] for x in (-12.0, *np.arange(-6.0, 5.0))]
        low, high = min(ends), max(ends)
        if not low < self.targets[first] < high:
            raise UnreachableTarget(
                f"{first} = {self.targets[first]:g} is unreachable: as branches grow from small "
                f"to large, it ranges from {low:.6g} to {high:.6g}"
            )
        if len(self.groups) == 2 and len(names) > 1 and names[1] in (SLOPE, DIFFERENCE):
            found = [self._emphasised(group, names) for group in (0, 1)]
            reach = [value for value in found if value is not None]
            wanted = self.targets[names[1]]
            if len(reach) == 2 and not min(reach) < wanted * (1 - TIGHT) < max(reach) - 2 * TIGHT:
                low, high = min(reach), max(reach)
                near = low + (0.9 if wanted > low else 0.1) * (high - low)
                argument = "token_slope" if names[1] == SLOPE else "gradient_difference"
                raise UnreachableTarget(
                    f"{names[1]} = {wanted:g} is unreachable at {first} = {self.targets[first]:g}: "
                    f"it is {found[0]:.6g} with only attention branches and {found[1]:.6g} with "
                    f"only MLP branches; pass a value in between, such as {argument}={near:.2g}"
                ).advising(STEEPER if wanted > max(reach) * (1 - TIGHT) else "")

    def _emphasised(self, group: int, names: list[str]) -> float | None:
        """Return the second target's value if one kind of branch alone meets the first target."""

        def unknowns(x: float) -> list[float]:
            return [x if k == group else -FARTHEST for k in range(2)]

        def miss(x: float) -> float:
            return math.log(self.at(unknowns(x))[names[0]] / self.targets[names[0]])

        if miss(-12.0) * miss(6.0) > 0:
            return None
        return self.at(unknowns(zero_between(miss, -12.0, 6.0, 1e-9)))[names[1]]


class Skipless(TransformerSystem):
    """Attention ``a I + A - c 1 1^T / T`` without shortcuts, with gains that keep q = 1.

    A contains the softmax weights of T tokens. The unknowns are a (if ``c = 0``) and the query
    scale (if there is a target for the score variance).

    Raises: KcalcError for attention that is not a plain softmax, for a centre other than 0 or 1,
    and for targets that no constant meets.
    """

    def __init__(self, request: Request, centre: float | None) -> None:
        self.request = request
        layers = [(a, request.network.layer(a.node)) for a in request.parts.attentions]
        for attention, op in layers:
            if op.normaliser != "softmax" or op.sink:
                raise KcalcError(
                    f"node {attention.node!r} is not a plain softmax, which identity and centre "
                    "need; use normaliser='softmax' and sink=False"
                )
        own = {float(op.centre) for _, op in layers} if centre is None else {centre}
        if own not in ({0}, {1}):
            raise KcalcError(
                f"centre must be 0 or 1, the same for all attentions, got "
                f"{', '.join(f'{c:g}' for c in sorted(own))}"
            )
        self.centre = own.pop()
        self.identity = next((float(op.identity) for _, op in layers if op.identity != 0), 1.0)
        self.targets = self._completed(dict(request.targets))

    def _completed(self, targets: dict[str, float]) -> dict[str, float]:
        asked = [name for name in (SLOPE, DIFFERENCE) if name in targets]
        if self.centre == 0:
            if len(asked) > 1:
                raise KcalcError(
                    "token_slope and gradient_difference depend on the same constant, the "
                    "identity; pass only one of them"
                )
            targets |= {} if asked else {SLOPE: 1.0}
        elif asked:
            near = self.at([0.0] * (VARIANCE in targets))[asked[0]]
            raise UnreachableTarget(
                f"with centre=1, attention preserves nearly equal tokens, so {asked[0]} depends "
                f"only on the MLPs and is {near:.6g} for any identity; choose zeta, or use "
                "centre=0"
            )
        if VARIANCE in targets:
            self.request.check_scores()
        return {name: targets[name] for name in ORDER if name in targets}

    def constants(self, x: Any) -> tuple[float, float]:
        """Return the identity weight and the query scale."""
        known = list(x)
        a = math.exp(known.pop(0)) if self.centre == 0 else self.identity
        return a, math.exp(known[0]) if known else 1.0

    def built(self, x: Any) -> Network:
        """Build the network for given unknowns.

        A single pass with norms after the output maps determines the value gains.
        """
        a, scale = self.constants(x)
        made = self.request.network.map_layers(
            lambda node, layer: replace(layer, identity=a, centre=self.centre), Attend
        )
        made = self.request.scaled(made, scale)
        outputs = [attention.output for attention in self.request.parts.attentions]
        values = Stream(
            with_norms(stream(made, self.request.parts), outputs),
            self.request.parts,
            self.request.start,
        ).values
        return with_sigmas(made, {n: float(values[n].q1) ** -0.5 for n in outputs})

    def begin(self) -> list[float]:
        """Return the identity weight for which the slope at equal tokens meets the target."""
        count = len(self.request.parts.attentions)
        at = math.log(100.0)
        ends = self.at([at, 0.0][: len(self.targets)]) if self.centre == 0 else self.at([])
        found = []
        if self.centre == 0:
            name = next(name for name in (SLOPE, DIFFERENCE) if name in self.targets)
            mlps = ends[name] * 1.01 ** (2 * count)
            ratio = (mlps / self.targets[name]) ** (0.5 / count) - 1
            found.append(-math.log(ratio) if ratio > 0 else 5.0)
        if VARIANCE in self.targets:
            found.append(0.5 * math.log(self.targets[VARIANCE] / ends[VARIANCE]))
        return found

    def check_reach(self) -> None:
        """Raise UnreachableTarget unless identity weights from 0.05 to 10^6 reach the target."""
        name = next(iter(self.targets))
        if self.centre == 1:
            return
        rest = [0.0] * (len(self.targets) - 1)
        low, high = (self.at([x, *rest])[name] for x in (-3.0, 14.0))
        if not low < self.targets[name] < high:
            raise UnreachableTarget(
                f"{name} = {self.targets[name]:g} is unreachable: it ranges from {low:.4g} to "
                f"{high:.6g} for identities from 0.05 to 10^6; another zeta changes the upper end"
            )
