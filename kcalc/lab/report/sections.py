"""Texts and tables for the sections of the page that combine several facts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import sympy as sp

from ... import layers as L
from ...calculi import polynomial_texts
from ...foundation.errors import glimpse
from ...foundation.extras import imported
from ...foundation.guests import DRAWINGS
from .markup import number
from .network_facts import LONGEST, Facts

Node = Hashable
MOST_DRAWN = 700
MOST_PARTS = 24
MOST_PIECES = 6
MOST_TEXT = 300  # maximum number of characters for a layer
LONGEST_EXPORT = 300_000


def shown(facts: Facts) -> dict[str, Any]:
    """Return the texts and the table rows for the template, by name."""
    markup = imported("markupsafe").Markup

    network, shaping = facts.subject.network, facts.shaping
    summary, drawing = DRAWINGS["NetworkReport"](network, MOST_DRAWN)
    reading = facts.subject.reading
    constants: Any = shaping.constants if shaping else {}
    return {
        "figures": _figures(facts),
        "unshaped": _unshaped(facts),
        "summary": summary,
        "drawing": None if drawing is None else markup(drawing),
        "parts": drawn_parts(facts),
        "reasons": _reasons(facts),
        **_slope_formulas(facts),
        "compared": [_compared(*row) for row in facts.others],
        "longest": LONGEST,
        "width_rows": [
            (
                w,
                number(a, 4),
                number(b, 4),
                "exact at every width" if exact else "leading order in 1/width",
            )
            for w, a, b, exact in facts.widths
        ],
        "scaling_words": _scaling_words(facts.scaling),
        "violations": _by(facts.scaling.violations if facts.scaling else (), "text"),
        "constants": [
            (
                name,
                *(number(getattr(constants[name], column), 12) for column in constants.columns()),
            )
            for name in constants
        ],
        "longest_export": LONGEST_EXPORT,
        "changes": Counter(
            change.split(": ", 1)[-1] for change in (shaping.changes if shaping else ())
        ).most_common(30),
        "assumptions": _by(facts.assumptions, "kind", "text"),
        "notes": [(n.node, n.level, n.text) for n in (reading.notes[:60] if reading else ())],
        "residuals": [(name, number(value, 3)) for name, value in facts.residuals.items()],
    }


def _by(found: Iterable[Any], *names: str) -> dict[Any, list[str]]:
    """Group assumptions by attributes: return {attributes: nodes} in order of appearance."""
    out: dict[Any, list[str]] = {}
    for a in found:
        key = tuple(getattr(a, name) for name in names)
        out.setdefault(key if len(names) > 1 else key[0], []).append(str(a.node))
    return out


def _figures(facts: Facts) -> list[tuple[str, int]]:
    network = facts.subject.network
    depth = [] if facts.mu is None else [("layers deep", facts.mu.depth)]
    return [
        ("nonlinear layers", len(network.nodes_of(L.Nonlinear))),
        *depth,
        ("nodes", len(network)),
        ("edges", sum(len(parents) for _, _, parents in network.steps())),
        ("inputs", len(network.inputs)),
        ("outputs", len(network.outputs)),
    ]


def _unshaped(facts: Facts) -> str:
    """Explain why the page shows no results after shaping."""
    if facts.after is not None or facts.main is None:
        return ""
    method, reason = facts.main.method.upper(), facts.main.reason
    attending = facts.subject.network.nodes_of(L.Attend)
    if attending and reason and facts.main.method != "edge":
        return (
            f"This report shapes the network with {method}, which does not support attention, but "
            f"node {attending[0]!r} attends over tokens. Use the method 'edge' instead, with "
            "kc.report(network, path, method='edge') or kcalc report --method edge"
        )
    if reason:
        return f"{method} cannot shape this network: {reason}"
    return f"The network shaped by {method} has no kernel maps: {facts.refused.get('after', '')}"


# -- the drawing -----------------------------------------------------------------------------------


def drawn_parts(facts: Facts) -> list[tuple[str, list[str]]]:
    """Return (label, drawn nodes) for each of the largest subnetworks.

    Nodes in repeated blocks are drawn in the first repetition. Subnetworks with the same drawing
    share one entry.
    """
    drawn = {
        node: piece[0]
        for block in facts.subject.network.blocks()
        for piece in zip(*block.pieces, strict=True)
        for node in piece
    }
    alike: dict[tuple[tuple[Node, ...], int], list[Any]] = {}
    found: Sequence[Any] = facts.parts or ()
    for part in sorted(found, key=lambda part: -len(part.layers)):
        nodes = tuple(dict.fromkeys(drawn[node] for node in part.layers))
        alike.setdefault((nodes, len(part.layers)), []).append(part)
    out = []
    for (nodes, size), (first, *others) in list(alike.items())[:MOST_PARTS]:
        more = f", and {len(others)} like it" if others else ""
        layers = f"{size} layer{'' if size == 1 else 's'}"
        out.append((f"{first.entry} \u2192 {first.exit} ({layers}{more})", list(map(str, nodes))))
    return out


def drawing_data(facts: Facts, parts: Iterable[tuple[str, list[str]]]) -> dict[str, Any]:
    """Return layer, q, c and slope for each drawn node, and the nodes of each subnetwork."""
    network = facts.subject.network
    rows = {}
    for node in (node for block in network.blocks() for node in block.pieces[0]):
        row: dict[str, Any] = {"layer": glimpse(network.layer(node), MOST_TEXT)}
        if facts.tokens is not None and node in facts.tokens.levels:
            row["q"], row["c"], row["tokens"] = facts.tokens.levels[node]
        elif facts.before and node in facts.before.nodes:
            row["q"], row["c"] = facts.before.nodes[node]
        if node in facts.slopes:
            row["slope"] = facts.slopes[node]
        if network.features[node] is not None:
            row["channels"] = str(network.features[node])
        rows[str(node)] = row
    return {"nodes": rows, "parts": [nodes for _, nodes in parts]}


def _reasons(facts: Facts) -> list[str]:
    """Explain which sliders are missing, and why."""
    found = facts.explorer
    if found is None:
        return []
    offers = [offer for offer in [*found.choices, *found.families] if offer.get("reason")]
    out = [*found.reasons, *(f"{o['label']} is not offered: {o['reason']}" for o in offers)]
    if facts.main is not None and facts.main.shaping is None:
        out.append(f"zeta and eta have no sliders: {_unshaped(facts)}")
    return out


# -- slopes ----------------------------------------------------------------------------------------


def _slope_formulas(facts: Facts) -> dict[str, Any]:
    """Return the slope polynomials and the pieces of the maximal slope function as LaTeX."""
    if facts.mu is None or facts.polynomial is None:
        return {}
    given = facts.polynomial if isinstance(facts.polynomial, dict) else {None: facts.polynomial}
    polynomials = []
    for node, expression in given.items():
        called = "".join(c if c.isalnum() else " " for c in str(node))[:24]
        name = "p" if node is None else f"p_{{\\text{{{called}}}}}"
        count = sp.count_ops(expression)
        long = f"\\text{{a polynomial of {count} operations}}"
        polynomials.append(f"{name}(\\psi) = {sp.latex(expression) if count < 400 else long}")
    first = facts.mu._pruned[:MOST_PIECES]
    return {
        "polynomials": polynomials,
        "pieces": polynomial_texts(facts.mu._factors, first, sp.latex),
        "more_pieces": len(facts.mu._pruned) - len(first),
    }


def slope_data(facts: Facts) -> dict[str, Any] | None:
    """Return samples of the maximal slope function and of its first pieces."""
    mu = facts.mu
    if mu is None or len(mu.symbols) != 1:
        return None
    zeta = facts.shaping.options.get("zeta") if facts.shaping else None
    target = float(zeta) if isinstance(zeta, int | float) else 1.5
    least = float(mu({str(mu.symbols[0]): 1.0}))
    top = facts.attempt("slope plot", lambda: float(mu.inverse(max(10.0, 4 * least))))
    if top is None:
        return None
    psi = np.linspace(1.0, top, 41)
    first = mu._pruned[:MOST_PIECES]
    logs, _ = mu._program([np.log(psi)], first)
    names = polynomial_texts(mu._factors, first)
    return {
        "psi": psi.tolist(),
        "pieces": [
            {"name": name, "y": np.exp(row).tolist()} for name, row in zip(names, logs, strict=True)
        ],
        "at": float(mu.inverse(target)) if target > least else None,
        "target": target,
    }


# -- shaping and scaling ---------------------------------------------------------------------------


def _compared(shaped: Any, slope: float | None, level: float | None) -> tuple[str, ...]:
    """Return a row of the table that compares methods."""
    if shaped.shaping is None:
        return shaped.method, "-", "-", f"refused: {shaped.reason}"
    constants = getattr(shaped.shaping, "constants", {})
    said = "; ".join(f"{name}: {constants[name].describe()}" for name in list(constants)[:3])
    near = 0.0 if level is not None and abs(level) < 1e-9 else level
    rewrite = f" ({shaped.rewrite})" if shaped.rewrite else ""
    return shaped.method, number(slope, 4), number(near, 4), (said or "weights only") + rewrite


def _scaling_words(scaling: Any) -> str:
    """Describe the spread of the relative gradient sizes of the weights."""
    weights = scaling.weights.values() if scaling is not None else ()
    levels = [w.gamma_level.log10() for w in weights if not w.gamma_level.symbolic]
    if not levels:
        return ""
    spread = max(levels) - min(levels)
    if spread < math.log10(1 + 5e-4):
        return "Relative gradient sizes (gamma) of the weights are all equal."
    factor = f"10^{spread:.1f}" if spread > 5 else f"{10**spread:.3g}"
    return (
        "Relative gradient sizes (gamma) of the weights are "
        f"{'similar' if spread < math.log10(2) else 'different'}: the largest is {factor} times "
        "the smallest."
    )
