"""The part of the page about tokens.

It shows size, token cosine and c along the residual stream, the maps of the last two, and two
gradient modes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import Network, c_map, gradients, node_values, token_map
from ... import layers as L
from ...calculi.attention import SampledGradients, SampledValues
from ...foundation.errors import KcalcError
from ...maps import Assumption
from ...network import read_tokens
from .markup import number

Node = Hashable
Measured = tuple[float, float]  # a value and its standard error
USUAL = 128  # default number of tokens
POINTS = 25
ROUNDING = 1e-14


@dataclass(frozen=True)
class Place:
    """The values at a node of the residual stream, each with its standard error.

    The values are q, the token cosine, and c at equal positions in two inputs.
    """

    node: str
    q: Measured
    tokens: Measured | None
    c: Measured | None


@dataclass
class OverTokens:
    """The page's data about tokens.

    ``maps`` has rows (cosine, token map, C map), and ``modes`` has rows (node, mean, difference)
    for gradients.
    """

    about: str
    places: list[Place]
    levels: dict[Node, tuple[float, float, float]]
    assumptions: tuple[Assumption, ...]
    sampled: bool
    own: bool = False  # whether the caller gave tokens, instead of using exchangeable tokens
    maps: list[tuple[float, float | None, float]] = field(default_factory=list)
    fixed: list[tuple[float, float]] = field(default_factory=list)
    modes: list[tuple[str, Measured, Measured | None]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return the table for the residual stream: node, q, token cosine, c."""
        return [(p.node, shown(p.q, 5), shown(p.tokens), shown(p.c)) for p in self.places]

    @property
    def mode_rows(self) -> list[tuple[str, ...]]:
        """Return the gradient table: node, mean, difference."""
        return [(node, shown(mean), shown(apart)) for node, mean, apart in self.modes]

    @property
    def verdict(self) -> str:
        """Describe the network's effect on tokens and inputs in one sentence."""
        ends = [place for place in self.places if place.tokens is not None]
        if not ends:
            return "each input has one token, or its tokens are equal along the stream"
        last = ends[-1]
        words = (
            f"at {last.node}, two tokens of the same input have a cosine of {shown(last.tokens)}"
        )
        return (
            words
            if last.c is None
            else (
                f"{words}, and the tokens at the same position in two inputs have a cosine of "
                f"{shown(last.c)}"
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Return the curves as plain data."""
        return {
            "q": [place.q[0] for place in self.places],
            "tokens": [place.tokens and place.tokens[0] for place in self.places],
            "c": [place.c and place.c[0] for place in self.places],
            "maps": [list(row) for row in self.maps],
            "modes": [[mean[0], apart and apart[0]] for _, mean, apart in self.modes],
        }


def usual_tokens(network: Network) -> int:
    """Return the default number of tokens: ``USUAL``, or the number of positions if it is fixed."""
    lengths = [
        network.layer(node).length
        for node in network.nodes_of(L.Positions)
        if network.layer(node).kind == "learned"
    ]
    return min([USUAL, *(int(length) for length in lengths if isinstance(length, int))])


def over_tokens(network: Network, tokens: Any, token_cosine: Any) -> OverTokens | None:
    """Return the values over tokens, or None if there is no attention and no ``tokens``.

    Raises: KcalcError under the same conditions as kernel maps, and for a token cosine without a
    number of tokens.
    """
    if tokens is None and not network.nodes_of(L.Attend):
        read_tokens(tokens, token_cosine)
        return None
    given = usual_tokens(network) if tokens is None else tokens
    values: Any = node_values(network, tokens=given, token_cosine=token_cosine)
    sampled = isinstance(values, SampledValues)
    own = np.ndim(np.asarray(given, dtype=object)) > 0
    alone = not own and given == 1
    found = OverTokens(
        _about(given, token_cosine, tokens is None), [], {}, values.assumptions, sampled, own
    )
    for node in network:
        place = _place(node, values[node], alone)
        found.levels[node] = (
            place.q[0],
            place.c[0] if place.c else np.nan,
            place.tokens[0] if place.tokens else np.nan,
        )
        if node in network.cut_nodes():
            found.places.append(place)
    if not sampled:
        _maps(found, network, given, token_cosine, values)
    _gradients(found, network, given, token_cosine)
    return found


def _about(tokens: Any, cosine: Any, chosen: bool) -> str:
    if np.ndim(np.asarray(tokens, dtype=object)):
        return "The page uses the given tokens."
    apart = "any two different inputs have c = 0."
    if tokens == 1:
        return f"Each input has one token with q = 1; {apart}"
    size = f"{tokens} tokens (a number chosen for this page)" if chosen else f"{tokens} tokens"
    return (
        f"Each input has {size} with q = 1 and pairwise cosine "
        f"{0 if cosine is None else cosine:g}; {apart}"
    )


def _place(node: Node, value: Any, alone: bool) -> Place:
    """Return the values at a node. ``alone``: whether every input has only one token.

    After pooling, there is also only one token.
    """
    if hasattr(value, "q_error"):
        pairs = (
            (value.q, value.q_error),
            (value.token_cosine, value.token_cosine_error),
            (value.c, value.c_error),
        )
        q, own, across = (
            None if mean is None else (_clean(mean), float(error)) for mean, error in pairs
        )
        return Place(str(node), q or (np.nan, 0.0), None if alone else own, across)
    own = None if value.token_cosine1 == 1 or alone else (_clean(value.token_cosine1), 0.0)
    return Place(str(node), (float(value.q1), 0.0), own, (_clean(value.c), 0.0))


def _clean(value: Any) -> float:
    return 0.0 if abs(float(value)) < ROUNDING else float(value)


def _maps(
    found: OverTokens, network: Network, tokens: int, cosine: Any, values: Mapping[Node, Any]
) -> None:
    """Compute the maps for exchangeable tokens, at the first output if there are several."""
    output = network.outputs[0]
    several = len(network.outputs) > 1

    def at(curve: Any, points: np.ndarray) -> Any:
        return curve(points)[output] if several else curve(points)

    try:
        across = c_map(network, tokens=tokens, token_cosine=cosine)
        grid = np.cos(np.linspace(np.pi / 2, 0, POINTS))
        grid[0] = 0.0
        own = token_map(network, tokens)
        inside = _place(output, values[output], tokens == 1).tokens is not None
        rows = zip(
            grid, at(own, grid) if inside else [None] * POINTS, at(across, grid), strict=True
        )
        found.maps = [(float(x), None if y is None else float(y), float(z)) for x, y, z in rows]
        # other networks cannot be stacked
        if inside and not several and not network.nodes_of(L.Embedding, L.Positions):
            found.fixed = [(point.value, point.slope) for point in own.fixed_points()]
    except KcalcError as error:
        found.refused["maps over tokens"] = str(error)


def _gradients(found: OverTokens, network: Network, tokens: Any, cosine: Any) -> None:
    """Compute both gradient modes along the residual stream, for the first output."""
    output = network.outputs[0]
    if len(network.outputs) > 1:
        found.about += f" Maps and gradients refer to the output {output!r}."
    try:
        known = gradients(network, output=output, tokens=tokens, token_cosine=cosine)
    except KcalcError as error:
        found.refused["gradients over tokens"] = str(error)
        return
    errors = known.errors if isinstance(known, SampledGradients) else {}
    modes = {"mean": known.mean or {}, "difference": known.difference or {}}
    for node in network.cut_nodes():
        if node not in network.inputs:
            mean, difference = (
                (table[node], errors.get(name, {}).get(node, 0.0)) if node in table else None
                for name, table in modes.items()
            )
            if mean is not None:
                found.modes.append((str(node), mean, difference))


def shown(pair: Measured | None, digits: int = 4) -> str:
    """Format a value for display, with its standard error if it has one."""
    if pair is None:
        return "-"
    mean, error = pair
    text = number(mean, digits)
    return text if error < ROUNDING else f"{text} \u00b1 {number(error, 1)}"
