"""The parts of the page that are words, tables and formulas."""

from __future__ import annotations

from collections import Counter
from typing import Any

import sympy as sp

from ..calculi.slopes import polynomial_texts
from ..foundation.errors import glimpse
from ..plotting.svg import drawn_nodes, network_summary, network_svg
from .markup import (
    Html,
    calm,
    details,
    formula,
    heuristic_badge,
    number,
    paragraph,
    safe,
    section,
    table,
    tag,
)
from .network_facts import LONGEST, LONGEST_EXPORT, Facts
from .traces import verdict

MOST_DRAWN = 700
MOST_PARTS = 24
MOST_PIECES = 6
MOST_TEXT = 300  # characters of a layer
SENTENCES = {
    "drawing": "The layers in the order they compute, repeated blocks drawn once; a subnetwork is "
    "a part with one way in and one way out.",
    "slopes": "How much the network stretches small differences, as a function of the slope psi of "
    "one nonlinear layer.",
    "widths": "The maps hold for infinitely wide layers; this is how far a random network of "
    "finite width strays from them.",
    "methods": "Shaping changes constants of the activations (or weights), not the layers, so that "
    "signals survive the depth.",
    "constants": "The numbers to put into your code; each box holds a complete source file.",
    "assumptions": "What the figures take for granted, and how they were made.",
}


def drawing(facts: Facts) -> Html:
    """The network as SVG with its subnetworks."""
    network = facts.subject.network
    if drawn_nodes(network) > MOST_DRAWN:
        picture: Any = calm(f"The network is too large to draw: {network_summary(network)}.")
        return section("drawing", "The network", SENTENCES["drawing"], picture)
    buttons = [
        tag("button", sign, type="button", data_zoom=name, aria_label=label)
        for sign, name, label in (
            ("+", "in", "Zoom in"),
            ("\u2212", "out", "Zoom out"),
            ("Fit", "fit", "Fit the drawing to the frame"),
        )
    ]
    select = _subnetwork_select(facts)
    frame = tag(
        "div",
        Html(network_svg(network, interactive=True)),
        id="dag",
        class_="frame",
        tabindex="0",
        role="group",
        aria_label="Drawing of the network; arrow keys move it, plus and minus zoom, 0 fits it",
    )
    hint = paragraph(
        "Drag or use the arrow keys to move; ctrl and wheel, pinch, or + and \u2212 to zoom. "
        "Select a layer for its numbers.",
        kind="hint",
    )
    info = tag(
        "div", paragraph("No layer selected."), id="node-info", aria_live="polite", class_="card"
    )
    return section(
        "drawing",
        "The network",
        SENTENCES["drawing"],
        tag("div", *buttons, select, class_="bar"),
        frame,
        hint,
        info,
    )


def _subnetwork_select(facts: Facts) -> Any:
    if not facts.parts:
        return None
    options = [tag("option", "none", value="")]
    for i, part in enumerate(_largest(facts)):
        options.append(
            tag(
                "option",
                f"{part.entry} \u2192 {part.exit} ({len(part.layers)} "
                f"layer{'' if len(part.layers) == 1 else 's'})",
                value=str(i),
            )
        )
    return tag("label", "Subnetwork ", tag("select", *options, id="subnetwork"), class_="grow")


def _largest(facts: Facts) -> list[Any]:
    return sorted(facts.parts or (), key=lambda part: -len(part.layers))[:MOST_PARTS]


def drawing_data(facts: Facts) -> dict[str, Any]:
    """Per drawn node its layer, q, c and slope; per subnetwork its nodes."""
    network = facts.subject.network
    # in order: the page is the same in every run
    shown = dict.fromkeys(node for block in network.blocks() for node in block.pieces[0])
    rows = {}
    for node in shown:
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
    return {
        "nodes": rows,
        "parts": [[str(node) for node in part.layers if node in shown] for part in _largest(facts)],
    }


def slopes(facts: Facts) -> Html:
    """Slope polynomial and maximal slope function."""
    lead = SENTENCES["slopes"]
    if facts.mu is None or facts.polynomial is None:
        reason = facts.refused.get("polynomial") or facts.refused.get("maximal slope", "")
        return section("slopes", "Slopes", lead, calm(f"There is no slope polynomial: {reason}"))
    given = facts.polynomial if isinstance(facts.polynomial, dict) else {"": facts.polynomial}
    parts: list[Any] = [tag("h3", "Slope polynomial")]
    if facts.slope_note:
        parts.append(
            calm(
                f"{facts.slope_note} As it is there is none: {facts.refused.get('polynomial', '')}"
            )
        )
    for node, expression in given.items():
        name = f"p_{{\\text{{{_latex_name(node)}}}}}" if node != "" else "p"
        parts.append(
            tag(
                "div",
                formula(f"{name}(\\psi) = {_short_latex(expression)}"),
                class_="formula scroll",
                tabindex="0",
                role="group",
                aria_label="formula",
            )
        )
    parts.append(
        paragraph(
            "The C map of the whole network has this slope at c = 1 if every nonlinear layer has "
            "slope psi there (and q stays put)."
        )
    )
    parts.append(tag("h3", "Maximal slope function"))
    texts = polynomial_texts(facts.mu._factors, facts.mu._pruned[:MOST_PIECES], sp.latex)
    numbered = len(texts) > 1
    items = [
        tag("li", f"piece {i}: " if numbered else "", formula(text))
        for i, text in enumerate(texts, 1)
    ]
    more = len(facts.mu._pruned) - len(items)
    parts.append(
        paragraph(
            "The largest slope of any subnetwork is ",
            "this:" if len(items) == 1 else "the greatest of these:",
        )
    )
    parts.append(
        tag(
            "ul",
            *items,
            *([tag("li", f"and {more} more")] if more > 0 else []),
            class_="scroll",
            tabindex="0",
        )
    )
    if facts.mu.warning:
        parts.append(calm(facts.mu.warning))
    parts.append(tag("div", id="chart-slope", class_="chart"))
    return section("slopes", "Slopes", lead, *parts, badge=heuristic_badge(facts, facts.mu))


def _latex_name(node: Any) -> str:
    return "".join(c if c.isalnum() else " " for c in str(node))[:24]


def _short_latex(expression: Any) -> str:
    text = sp.latex(expression) if sp.count_ops(expression) < 400 else ""
    degree = "" if text else f"\\text{{a polynomial of {sp.count_ops(expression)} operations}}"
    return text or degree


def slope_data(facts: Facts) -> dict[str, Any] | None:
    """The maximal slope function and its first pieces, sampled."""
    import numpy as np

    if facts.mu is None or len(facts.mu.symbols) != 1:
        return None
    mu, target = facts.mu, _target(facts)
    least = float(mu({str(mu.symbols[0]): 1.0}))
    top = facts.attempt("slope plot", lambda: float(mu.inverse(max(10.0, 4 * least))))
    if top is None:
        return None
    at = float(mu.inverse(target)) if target > least else None
    psi = np.linspace(1.0, top, 41)
    names = polynomial_texts(facts.mu._factors, facts.mu._pruned[:MOST_PIECES])
    logs, _ = facts.mu._program([np.log(psi)], facts.mu._pruned[:MOST_PIECES])
    rows = [
        {"name": name, "y": [float(y) for y in np.exp(row)]}
        for name, row in zip(names, logs, strict=True)
    ]
    return {"psi": psi.tolist(), "pieces": rows, "at": at, "target": target}


def _target(facts: Facts) -> float:
    zeta = facts.shaping.options.get("zeta") if facts.shaping else None
    return float(zeta) if isinstance(zeta, int | float) else 1.5


def widths(facts: Facts) -> Html:
    """Finite width and scaling warnings."""
    parts: list[Any] = [tag("h3", "Fluctuations of q")]
    if facts.widths:
        labels = [row[0] for row in facts.widths]
        if len(labels) > 1:
            options = [
                tag("option", label, value=str(i), selected=i == min(2, len(labels) - 1))
                for i, label in enumerate(labels)
            ]
            parts.append(
                tag(
                    "label",
                    "Width of the layers that state none ",
                    tag("select", *options, id="width"),
                    class_="bar",
                )
            )
        parts.append(tag("p", id="width-words", aria_live="polite"))
        rows = [
            (
                w,
                number(a, 4),
                number(b, 4),
                "exact at every width" if exact else "leading order in 1/width",
            )
            for w, a, b, exact in facts.widths
        ]
        parts.append(
            table(
                ("width", "Var log q before", "after", "accuracy"),
                rows,
                f"Variance of log q at the output{_of_output(facts)} over random weights",
                (3,),
            )
        )
    else:
        parts.append(
            calm(
                f"No figures for finite width: "
                f"{facts.refused.get('fluctuations', 'none were asked for')}"
            )
        )
    parts.append(tag("h3", "Scaling of weights"))
    if facts.scaling is None:
        parts.append(
            calm(f"The scaling calculus does not apply: {facts.refused.get('scaling', '')}")
        )
    else:
        parts += _scaling(facts)
    return section("widths", "Finite width and scaling", SENTENCES["widths"], *parts)


def _scaling(facts: Facts) -> list[Any]:
    import math

    levels = [
        w.gamma_level.log10() for w in facts.scaling.weights.values() if not w.gamma_level.symbolic
    ]
    out: list[Any] = []
    if levels:
        spread = max(levels) - min(levels)
        word = "alike" if spread < math.log10(2) else "unlike"
        same = spread < math.log10(1 + 5e-4)
        factor = f"10^{spread:.1f}" if spread > 5 else f"{10**spread:.3g}"
        words = (
            f"Relative gradient sizes (gamma) of the weights are {word}: the largest is {factor} "
            f"times the smallest."
        )
        if same:
            words = "Relative gradient sizes (gamma) of the weights are all the same."
        out.append(paragraph(words, f" {facts.scaling_note}"))
    grouped: dict[str, list[str]] = {}
    for a in facts.scaling.violations:
        grouped.setdefault(a.text, []).append(str(a.node))
    items = [tag("li", f"{text} ({_where(nodes)})") for text, nodes in grouped.items()]
    if items:
        verb = "that do" if len(items) > 1 else "that does"
        out.append(
            details(
                f"{len(items)} assumption{'s' if len(items) > 1 else ''} of the scaling calculus "
                f"{verb} not hold here",
                tag("ul", *items),
            )
        )
    else:
        out.append(paragraph("No assumption of the scaling calculus is violated."))
    return out


def _where(nodes: list[str]) -> str:
    shown = ", ".join(nodes[:2])
    return shown if len(nodes) <= 2 else f"{shown} and {len(nodes) - 2} more"


def methods(facts: Facts) -> Html:
    """Before and after, and the results of other methods."""
    parts: list[Any] = []
    if len(facts.subject.network.outputs) > 1:
        parts.append(
            paragraph(
                f"Figures are those of the output{_of_output(facts)}; charts follow the main way "
                f"through the network.",
                kind="hint",
            )
        )
    if facts.before:
        parts.append(paragraph(tag("b", "Before: "), verdict(facts.before), "."))
    elif facts.tokens is None:
        parts.append(calm(f"Before: {facts.refused.get('before', '')}"))
    if facts.after and facts.main:
        rewrite = f" {facts.main.rewrite}" if facts.main.rewrite else ""
        parts.append(
            paragraph(
                tag("b", f"After {facts.main.method.upper()}{rewrite}: "), verdict(facts.after), "."
            )
        )
    if facts.main and facts.main.note:
        parts.append(calm(facts.main.note))
    if facts.main and not facts.after:
        parts.append(
            calm(
                f"{facts.main.method.upper()} refuses: "
                f"{facts.main.reason or facts.refused.get('after', '')}"
            )
        )
    places = (
        tag("div", id=f"chart-depth-{name}", class_="chart") for name in ("before", "after", "q")
    )
    parts.append(tag("div", *places, class_="pair"))
    reasons = {shaped.reason for shaped, _, _ in facts.others}
    if len(reasons) == 1 and "" not in reasons:
        parts.append(calm("Every other method refuses for the same reason"))
        return section(
            "methods",
            "Before and after shaping",
            SENTENCES["methods"],
            *parts,
            badge=heuristic_badge(facts, facts.shaping),
        )
    rows = []
    for shaped, slope, level in facts.others:
        if shaped.shaping is None:
            rows.append((shaped.method, "-", "-", f"refused: {shaped.reason}"))
        else:
            said = _told(shaped.shaping) + (f" ({shaped.rewrite})" if shaped.rewrite else "")
            rows.append(
                (
                    shaped.method,
                    number(slope, 4),
                    number(0.0 if level is not None and abs(level) < 1e-9 else level, 4),
                    said,
                )
            )
    left = (
        " (so long a network: the method of this page only)"
        if len(facts.subject.network) > LONGEST
        else ""
    )
    parts += [
        tag("h3", "Other methods"),
        table(
            ("method", "C'(1)", "C(0)", "what it sets"),
            rows,
            f"Slope at c = 1 and cosine of orthogonal "
            f"inputs{_of_output(facts).replace(' ', ' at ', 1)} after each method{left}",
            (3,),
        ),
    ]
    return section(
        "methods",
        "Before and after shaping",
        SENTENCES["methods"],
        *parts,
        badge=heuristic_badge(facts, facts.shaping),
    )


def _of_output(facts: Facts) -> str:
    """Which output figures are of, where there are several."""
    outputs = facts.subject.network.outputs
    return f" {outputs[-1]}" if len(outputs) > 1 else ""


def _told(shaping: Any) -> str:
    names = list(shaping.constants) if hasattr(shaping, "constants") else []
    said = "; ".join(f"{name}: {shaping.constants[name].describe()}" for name in names[:3])
    return said or "weights only"


def constants(facts: Facts) -> Html:
    """Constants and exports."""
    shaping = facts.shaping
    if shaping is None:
        return section(
            "constants",
            "Constants",
            SENTENCES["constants"],
            calm(f"There are none: {facts.main.reason if facts.main else ''}"),
        )
    columns = shaping.constants.columns()
    rows = [
        (name, *(number(getattr(shaping.constants[name], column), 12) for column in columns))
        for name in shaping.constants
    ]
    settings = ", ".join(f"{key} = {value}" for key, value in shaping.options.items())
    parts: list[Any] = [
        paragraph(
            f"Method {shaping.method.upper()}, {settings}."
            if settings
            else f"Method {shaping.method.upper()}."
        )
    ]
    if columns:
        parts.append(
            paragraph(
                "Each activation phi becomes gamma (phi(alpha x + beta) + delta); a negative "
                "slope makes phi the leaky ReLU of that slope."
            )
        )
        parts.append(
            table(("activation", *(c.replace("_", " ") for c in columns)), rows, "Constants")
        )
    parts += [calm(warning.text) for warning in shaping.warnings]
    for target, text in facts.exports.items():
        if len(text) > LONGEST_EXPORT:
            parts.append(
                calm(
                    f"The {target} export is {len(text) // 1000} kB long; write it with "
                    f"shaping.export({target!r}, path)."
                )
            )
            continue
        copy = tag(
            "button",
            "Copy",
            type="button",
            class_="copy",
            data_copy=f"export-{target}",
            aria_label=f"Copy the {target} source",
        )
        source = tag(
            "pre",
            tag("code", text, id=f"export-{target}"),
            tabindex="0",
            role="group",
            aria_label=f"{target} source",
        )
        parts.append(
            details(f"{target} ({text.count(chr(10)) + 1} lines)", copy, source, kind="source")
        )
    changes = Counter(change.split(": ", 1)[-1] for change in shaping.changes)
    items = [
        tag("li", f"{text} ({count} times)" if count > 1 else text)
        for text, count in changes.most_common(30)
    ]
    parts.append(
        details(f"{len(shaping.changes)} changes of the network", tag("ul", *items))
        if items
        else None
    )
    return section(
        "constants",
        "Constants",
        SENTENCES["constants"],
        *parts,
        badge=heuristic_badge(facts.shaping),
    )


def assumptions(facts: Facts, provenance: list[tuple[str, str]]) -> Html:
    """Assumptions node by node, and where the figures come from."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for a in facts.assumptions:
        grouped.setdefault((a.kind, a.text), []).append(str(a.node))
    parts: list[Any] = []
    for (kind, text), nodes in grouped.items():
        shown = f"{kind}: {text} ({nodes[0] if len(nodes) == 1 else f'{len(nodes)} nodes'})"
        parts.append(
            details(shown, paragraph(", ".join(nodes[:400])))
            if len(nodes) > 1
            else paragraph(shown)
        )
    if not parts:
        parts.append(
            calm(
                f"The kernel calculus refuses this network: {facts.refused.get('assumptions', '')}"
            )
        )
    reading = facts.subject.reading
    if reading is not None:
        parts.append(tag("h3", "How the model was read"))
        parts.append(paragraph(f"Framework {reading.framework}; {reading.fidelity}."))
        parts += [calm(remark) for remark in reading.remarks]
        notes = [(str(n.node), n.level, n.text) for n in reading.notes[:60]]
        if notes:
            parts.append(
                details(
                    f"{len(reading.notes)} notes",
                    table(("node", "fidelity", "note"), notes, "Notes of the reader", (1, 2)),
                )
            )
    if facts.residuals:
        rows = [(name, number(value, 3)) for name, value in facts.residuals.items()]
        parts += [
            tag("h3", "Residuals"),
            table(
                ("condition", "|value \u2212 target|"),
                rows,
                "How exactly the constants meet their conditions",
            ),
        ]
    parts.append(tag("h3", "Provenance"))
    parts.append(
        tag("dl", *(safe([tag("dt", key), tag("dd", value)]) for key, value in provenance))
    )
    return section("assumptions", "Assumptions and provenance", SENTENCES["assumptions"], *parts)
