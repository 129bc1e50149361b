"""Data for the page's sliders.

The data consist of programs before and after shaping, tables of local maps, slider ranges, and the
reasons for missing sliders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ... import Network
from ...activations import Activation, Leaky, activation
from ...calculi.subnetworks import maximal_slope, subnetworks
from ...foundation.errors import KcalcError
from .local_tables import LocalTable, packed, raw_table, shaped_table
from .program import ENTRY, Program, Step, compiled
from .replay import check, exact, run

OFFERED = ("relu", "tanh", "erf", "gelu", "swish", "softplus")
SHAPED_OFFERED = ("tanh", "softplus")
# Extreme slider positions: q of the input, and the shortcut weight (nan keeps the
# network's).
CORNER_Q = np.array([1.0, 0.5, 2.0, 1.0, 1.0])
CORNER_WEIGHT = np.array([np.nan, np.nan, np.nan, 0.02, 0.98])
ZETA = (1.05, 3.0)
WIDEST_Q = (1e-6, 8.0)  # beyond this value, tables of activations without closed forms take seconds
CLOSED_Q = (1e-9, 1e5)
MOST_DEPTH = 400
COARSE = 1e-7  # the allowed error in tables of constants that have no slider
MOST_LEAKY = 1 / (1 - 1 / math.pi)  # the slope of a centred |x|
STEEP = (0.6, 0.2)  # limits of psi - 1 for shaped tables, tried in turn


@dataclass
class Explorer:
    """The data for the page's maps. ``reasons`` explains which sliders are missing."""

    program: Program | None = None
    shaped: Program | None = None
    pairs: list[list[int]] = field(default_factory=list)
    tables: list[LocalTable] = field(default_factory=list)
    choices: list[dict[str, Any]] = field(default_factory=list)
    families: list[dict[str, Any]] = field(default_factory=list)
    depths: list[dict[str, Any]] = field(default_factory=list)
    shortcut: dict[str, Any] | None = None
    reasons: list[str] = field(default_factory=list)
    zeta: tuple[float, float] = ZETA
    own: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Return the largest measured error of any table."""
        return max((table.error for table in self.tables), default=0.0)


def explorer(
    network: Network,
    shaped: Network | None,
    own: Sequence[Activation],
    method: str = "dks",
    zeta: float | None = None,
) -> Explorer:
    """Return the slider data for a network and its shaped version. ``zeta`` is for DKS.

    Parts that cannot be computed are left out, and the reason is recorded.
    """
    found = Explorer(own=", ".join(dict.fromkeys(phi.name for phi in own)))
    try:
        found.program = compiled(network)
        check(found.program, network)
    except KcalcError as error:
        found.program = None
        found.reasons.append(f"The maps before shaping have no sliders: {error}.")
    if shaped is not None:
        try:
            found.shaped = compiled(shaped)
            check(found.shaped, shaped)
            found.pairs = _pairs(shaped, found.shaped)
        except KcalcError as error:
            found.shaped = None
            found.reasons.append(f"The maps after shaping have no sliders: {error}.")
    _depth_sliders(found)
    _shortcut_slider(found)
    if found.program is not None:
        _choices(found, found.program)
    if found.shaped is not None and shaped is not None:
        try:
            _families(found, shaped, own, method, zeta)
        except KcalcError as error:
            found.notes["shaped"] = (
                f"The maps after shaping are not drawn yet: {error}. Choose a shaped activation, "
                "if one is offered."
            )
            found.reasons.append(
                f"The maps of the shaped network with its own constants are not drawn: {error}."
            )
    return found


# -- sliders ---------------------------------------------------------------------------------------


def _depth_sliders(found: Explorer) -> None:
    programs = [p for p in (found.program, found.shaped) if p is not None]
    if not programs:
        return
    rows = [
        [i for i, piece in enumerate(p.pieces) if piece.count > 1 and piece.nonlinear]
        for p in programs
    ]
    if not rows[0]:
        found.reasons.append("Depth has no slider: no block of the network repeats.")
        return
    counts = [[p.pieces[i].count for i in row] for p, row in zip(programs, rows, strict=True)]
    linked = len(programs) == 2 and counts[0] == counts[1]
    if len(programs) == 2 and not linked:
        found.reasons.append(
            "The depth slider works only before shaping, because the shaped network repeats "
            "different blocks."
        )
    for j, i in enumerate(rows[0]):
        piece = programs[0].pieces[i]
        layers = piece.nonlinear
        most = max(piece.count, min(max(2 * piece.count, 20), MOST_DEPTH))
        label = (
            "Depth (repeated layers)"
            if len(rows[0]) == 1 and layers == 1
            else f"Repetitions of block {j + 1}"
        )
        where: dict[str, Any] = {"raw": i} if found.program is not None else {"shaped": i}
        if linked:
            where["shaped"] = rows[1][j]
        found.depths.append(
            {
                "count": piece.count,
                "most": most,
                "label": label,
                "layers": layers,
                "first": str(piece.steps[0].node),
                **where,
            }
        )


def _shortcut_slider(found: Explorer) -> None:
    weighted: set[tuple[float, float]] = set()
    for program in (found.program, found.shaped):
        for step in (s for piece in (program.pieces if program else ()) for s in piece.steps):
            if step.shortcut is not None and abs(sum(w * w for w in step.numbers) - 1) < 1e-9:
                along = abs(step.numbers[step.shortcut])
                weighted.add((round(along, 12), along))
    if not weighted:
        found.reasons.append(
            "The shortcut weight has no slider: the network has no sum of two terms whose squared "
            "weights add up to 1."
        )
        return
    found.shortcut = {
        "value": max(w for _, w in weighted),
        "common": len(weighted) == 1,
        "hint": _touched(found),
    }


def _touched(found: Explorer) -> str:
    """Describe the effect of the shortcut slider, and name the sums that it does not change."""
    hint = "amplitude of the shortcut in every sum of two terms whose squared weights add up to 1"
    if found.program is None:
        return hint
    sums = [s for piece in found.program.pieces for s in piece.steps if s.kind == "sum"]
    plain = sum(s.shortcut is None for s in sums)
    if not plain:
        return hint
    if plain == len(sums):
        return (
            f"{hint}. It changes only the 'after' column, because the sums in the network before "
            "shaping have no weights"
        )
    return (
        f"{hint}. Before shaping, {plain} of {len(sums)} sums have no pair of weights, so they do "
        "not change"
    )


# -- before shaping --------------------------------------------------------------------------------


def _choices(found: Explorer, program: Program) -> None:
    own = program.activations
    offers: list[tuple[str, Sequence[Activation]]] = []
    if own:
        offers.append((", ".join(dict.fromkeys(phi.name for phi in own)) + " (as built)", own))
        offers += [
            (name, [activation(name)] * len(own))
            for name in OFFERED
            if list(own) != [activation(name)] * len(own)
        ]
    else:
        found.choices.append({"label": "none (linear network)", "tables": []})
    for label, chosen in offers:
        try:
            found.choices.append({"label": label, "tables": _tables_for(found, program, chosen)})
        except KcalcError as error:
            found.choices.append({"label": label, "reason": str(error)})
    if own and "reason" in found.choices[0]:
        found.notes["raw"] = (
            "The maps before shaping are not drawn yet, because the page has no table for "
            f"{found.own}: {found.choices[0]['reason']}. Choose another activation to see the maps "
            "of a network that uses it."
        )


def _tables_for(found: Explorer, program: Program, chosen: Sequence[Activation]) -> list[int]:
    ranges = _visited(found, program, chosen)
    out = []
    for phi in chosen:
        if phi.degree is not None:
            table = raw_table(phi, 1.0, 1.0)
        else:
            low, high = ranges.get(phi, (1.0, 1.0))
            widest = CLOSED_Q if phi.closed_in_numpy else WIDEST_Q
            table = raw_table(
                phi, *_rounded(max(low, widest[0]), max(min(high, widest[1]), 2 * widest[0]))
            )
        out.append(_number(found, table))
    return out


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Return a slightly wider range whose bounds are powers of sqrt(2).

    With such bounds, similar ranges become equal, so their tables are computed only once.
    """
    return 2.0 ** (math.floor(2 * math.log2(low / 1.02)) / 2), 2.0 ** (
        math.ceil(2 * math.log2(high * 1.02)) / 2
    )


def _number(found: Explorer, table: LocalTable) -> int:
    for i, known in enumerate(found.tables):
        if known is table:
            return i
    found.tables.append(table)
    return len(found.tables) - 1


def _visited(
    found: Explorer, program: Program, chosen: Sequence[Activation]
) -> dict[Activation, tuple[float, float]]:
    """Return the range of q values at every activation over the extreme slider positions."""
    rough = {phi: _rough(phi) for phi in dict.fromkeys(chosen)}
    met: dict[Activation, list[Any]] = {}
    numbers = dict(zip(program.activations, chosen, strict=True))

    def local(own: Activation, q: Any, gap: Any) -> Any:
        phi = numbers[own]
        met.setdefault(phi, []).append(q)
        size, mean = rough[phi](q)
        return size, gap, mean

    at_corners = _weighted(program, CORNER_WEIGHT)
    for counts in _corners(found, program):
        run(at_corners, np.zeros(1), local, CORNER_Q, counts)
    usable = {
        phi: (values := np.array(rows))[(values > 0) & np.isfinite(values)]
        for phi, rows in met.items()
    }
    return {
        phi: (float(values.min()), float(values.max()))
        for phi, values in usable.items()
        if values.size
    }


def _corners(found: Explorer, program: Program) -> Iterator[list[int]]:
    counts = [piece.count for piece in program.pieces]
    yield counts
    if found.depths and "raw" in found.depths[0]:
        for most in (False, True):
            changed = list(counts)
            for slider in found.depths:
                changed[slider["raw"]] = slider["most"] if most else 1
            yield changed


def _weighted(program: Program, weights: Any) -> Program:
    """Return the program with new shortcut weights; where an entry is nan, the old weight stays."""

    def changed(step: Step) -> Step:
        if step.shortcut is None or len(step.numbers) != 2:
            return step
        along, across = step.numbers[step.shortcut], step.numbers[1 - step.shortcut]
        known = np.isfinite(weights)
        pair = (
            np.where(known, weights, along),
            np.where(known, np.sqrt((1 - weights) * (1 + weights)), across),
        )
        return replace(step, numbers=pair if step.shortcut == 0 else pair[::-1])

    pieces = tuple(
        replace(piece, steps=tuple(map(changed, piece.steps))) for piece in program.pieces
    )
    return replace(program, pieces=pieces)


def _rough(phi: Activation) -> Any:
    """Return an interpolated Q map and mean, accurate enough to find the range of q values."""
    degree = phi.degree
    if degree is not None:
        size, mean = float(phi.second_moment(1.0)), float(phi.mean(1.0))
        return lambda q: (size * q**degree, mean * q ** (degree / 2))
    grid, sizes, means = np.linspace(math.log(1e-7), math.log(1e3), 41), [], []
    for x in grid:
        try:
            sizes.append(math.log(phi.second_moment(math.exp(x))))
            means.append(float(phi.mean(math.exp(x))))
        except (KcalcError, ValueError, OverflowError):
            break
    if len(sizes) < 2:
        raise KcalcError(f"E phi^2 of {phi.name} is unknown")
    known = grid[: len(sizes)]
    rise = (sizes[1] - sizes[0]) / (known[1] - known[0])

    def maps(q: Any) -> tuple[Any, Any]:
        x = np.log(q)
        size = np.exp(np.interp(x, known, sizes) + rise * np.minimum(x - known[0], 0.0))
        return size, np.interp(x, known, means)

    return maps


# -- after shaping ---------------------------------------------------------------------------------


def _pairs(network: Network, program: Program) -> list[list[int]]:
    """Return the maximal subnetworks as [first piece, first step, last piece, last step].

    Repeated subnetworks are listed once.

    Raises: KcalcError if a subnetwork begins or ends inside repeated blocks.
    """
    blocks = network.blocks()
    place = {
        node: (i, r, k)
        for i, b in enumerate(blocks)
        for r, row in enumerate(b.pieces)
        for k, node in enumerate(row)
    }
    out: dict[tuple[int, ...], None] = {}
    for part in subnetworks(network):
        i, r, a = place[part.entry]
        j, t, b = place[part.exit]
        ends = a == len(blocks[i].pieces[r]) - 1
        follows = ends and (
            (i == j and t == r + 1) or (j == i + 1 and t == 0 and r == blocks[i].count - 1)
        )
        if (i, r) == (j, t):
            out[i, a, j, b] = None
        elif follows:
            out[j, ENTRY, j, b] = None
        elif ends and r == blocks[i].count - 1 and t == blocks[j].count - 1:
            out[i, a, j, b] = None
        else:
            raise KcalcError(
                f"the subnetwork {part.entry} -> {part.exit} begins or ends inside repeated blocks"
            )
    return [list(key) for key in out]


def _families(
    found: Explorer, shaped: Network, own: Sequence[Activation], method: str, zeta: float | None
) -> None:
    """Add the activations whose shaped versions the page can show.

    The first is the activation with which the network was shaped.
    """
    assert found.shaped is not None
    if not found.shaped.activations:
        return
    leaky = bool(own) and all(isinstance(phi, Leaky) for phi in own)
    slides = method == "dks" or (method == "tat" and leaky)
    if slides or method == "tat":
        try:
            _sliding(found, shaped, own)
        except KcalcError as error:
            found.reasons.append(f"zeta and eta have no sliders: {error}.")
    first = found.families[0] if found.families else {}
    if (
        slides
        and first.get("own")
        and not first.get("reason")
        and _holds(found, shaped, first, zeta)
    ):
        return
    words = f"{found.own} as shaped by {method.upper()}"
    found.families.insert(
        0, {"label": words, "kind": "fixed", "own": True, "tables": _as_shaped(found, found.shaped)}
    )
    found.reasons.append(
        f"The constants of {words} were computed once, for the original depths and shortcut "
        "weights; the sliders do not change them."
    )


def _holds(found: Explorer, shaped: Network, family: dict[str, Any], zeta: float | None) -> bool:
    """Return whether a family of activations reaches the local slope of the shaped network."""
    if zeta is None:
        return True
    psi = float(maximal_slope(shaped).inverse(zeta))
    if family["kind"] == "leaky":
        return psi <= MOST_LEAKY
    table = found.tables[family["table"]]
    return table.low <= math.log(psi - 1) <= table.high


def _as_shaped(found: Explorer, program: Program) -> list[int]:
    """Return tables for the shaped activations, over the q values that occur.

    Raises: KcalcError if an activation has no table.
    """
    met: dict[Activation, list[float]] = {}

    def local(phi: Activation, q: Any, gap: Any) -> Any:
        met.setdefault(phi, []).append(float(q[0]))
        return exact(phi, q, gap)

    run(program, np.zeros(1), local)
    return [
        _number(found, raw_table(phi, *_rounded(min(met[phi]), max(met[phi])), COARSE))
        for phi in program.activations
    ]


def _sliding(found: Explorer, shaped: Network, own: Sequence[Activation]) -> None:
    relu = _number(found, raw_table(activation("relu"), 1.0, 1.0))
    found.zeta = _zetas(shaped)
    low, high = _slopes(found, shaped)
    distinct = list(dict.fromkeys(own))
    names = [phi for phi in distinct if phi.degree is None and not any(phi.jump_sizes(1))][:1]
    default = bool(own) and all(isinstance(phi, Leaky) for phi in own)
    leaky: dict[str, Any] = {"label": "leaky_relu", "kind": "leaky", "table": relu, "own": default}
    rows: list[dict[str, Any]] = []
    for phi in dict.fromkeys([*names, *(activation(name) for name in SHAPED_OFFERED)]):
        try:
            table, constants = _shaped(phi, low, high)
        except KcalcError as error:
            rows.append({"label": phi.name, "kind": "none", "reason": str(error)})
            continue
        alone = [phi] == distinct
        rows.append(
            {
                "label": phi.name,
                "kind": "table",
                "table": _number(found, table),
                "constants": packed(constants),
                "own": alone,
            }
        )
    found.families = [leaky, *rows] if default or not names else [rows[0], leaky, *rows[1:]]


def _shaped(phi: Activation, low: float, high: float) -> Any:
    """Return the shaped table of an activation, up to the largest slope that it can represent.

    For steep activations, the table may end at a jump between two branches of solutions.
    """
    try:
        return shaped_table(phi, low, min(high, STEEP[0]))
    except KcalcError:
        return shaped_table(phi, low, min(high, STEEP[1]))


def _slopes(found: Explorer, shaped: Network) -> tuple[float, float]:
    """Return the range of psi - 1 that the page needs in tables.

    It extends from the value at the flattest extreme position of the sliders to the value that the
    original network needs at the largest zeta.
    """
    mu = maximal_slope(shaped)
    deepest = max((s["most"] / s["count"] for s in found.depths if "shaped" in s), default=1.0)
    low = (float(mu.inverse(found.zeta[0])) - 1) / (deepest * 1.2)
    return min(_power(low, math.floor), STEEP[1] / 4), _power(
        (float(mu.inverse(found.zeta[1])) - 1) * 4, math.ceil
    )


def _zetas(shaped: Network) -> tuple[float, float]:
    """Return the range of the zeta slider.

    It starts just above the slope that the network has if all local slopes are 1. This slope
    exceeds 1 in networks with products.
    """
    mu = maximal_slope(shaped)
    least = float(mu({str(mu.symbols[0]): 1.0})) if len(mu.symbols) == 1 else 1.0
    return ZETA if least < ZETA[0] - 0.01 else (1.02 * least, max(ZETA[1], 2 * least))


def _power(value: float, rounded: Any) -> float:
    return 2.0 ** rounded(math.log2(value))
