"""The page itself: parts put into the template with its styles, scripts and data."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import time
from base64 import b64encode
from importlib import metadata
from importlib.resources import files
from typing import Any

from ..network.layers import Nonlinear
from ..version import __version__
from . import sections
from .kernels import SPHERE, meaning
from .markup import (
    Html,
    calm,
    embedded,
    heuristic_badge,
    number,
    paragraph,
    safe,
    sampled_badge,
    section,
    tag,
)
from .network_facts import Facts
from .over_tokens import tokens_section
from .over_tokens import verdict as over_tokens
from .traces import verdict

SCRIPTS = ("program.js", "charts.js", "maps.js", "drawing.js", "figures.js", "page.js")
MAPS = (
    "Q and C say how the size q of a signal and the cosine c of two inputs change on the way; "
    "move the sliders to change the network."
)
KERNEL = (
    "The neural tangent kernel says which functions gradient descent learns quickly; its "
    "eigenvalues are the rates."
)


def rendered(facts: Facts, command: str) -> str:
    """The whole page as text."""
    script = "\n".join(asset(name) for name in SCRIPTS)
    style = asset("page.css")
    data = {
        "explorer": facts.explorer.to_json() if facts.explorer else None,
        "drawing": sections.drawing_data(facts),
        "slopes": sections.slope_data(facts),
        "kernels": [k and k.to_json() for k in facts.kernels],
        "sphere": SPHERE,
        "tokens": facts.tokens and facts.tokens.to_json(),
        "depths": [t and t.to_json() for t in (facts.before, facts.after)],
        "widths": [list(row) for row in facts.widths],
        "outputs": [str(node) for node in facts.subject.network.outputs],
        "method": facts.main.method if facts.main else None,
        "setting": _setting(facts),
    }
    body = [
        sections.drawing(facts),
        tokens_section(facts),
        maps(facts),
        sections.slopes(facts),
        kernels(facts),
        sections.methods(facts),
        sections.widths(facts),
        sections.constants(facts),
        sections.assumptions(facts, provenance(facts, command)),
    ]
    values = {
        "TITLE": safe(facts.subject.name),
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src "
        f"'{fingerprint(script)}'",
        "STYLE": style,
        "HEADER": header(facts),
        "CONTENTS": contents(facts),
        "BODY": "\n".join(part for part in body if part),
        "DATA": embedded(data),
        "SCRIPT": script,
    }
    # text, NAME, text, NAME, ..., so that nothing that is put in is looked through again
    pieces = asset("page.html").split("@@")
    return "".join(values[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def asset(name: str) -> str:
    """A file of the page."""
    return files("kcalc.report").joinpath("assets", name).read_text(encoding="utf-8")


def fingerprint(script: str) -> str:
    """The hash by which the page allows its own script, and no other."""
    return "sha256-" + b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _setting(facts: Facts) -> dict[str, Any]:
    shaping = facts.shaping
    options = shaping.options if shaping else {}
    return {
        key: options[key] for key in ("zeta", "eta") if isinstance(options.get(key), int | float)
    }


def contents(facts: Facts) -> Html:
    """Links to the parts."""
    names = (
        ("drawing", "Network"),
        ("tokens", "Tokens"),
        ("maps", "Maps"),
        ("slopes", "Slopes"),
        ("kernels", "Tangent kernel"),
        ("methods", "Before and after"),
        ("widths", "Finite width"),
        ("constants", "Constants"),
        ("assumptions", "Assumptions"),
    )
    there = [
        pair
        for pair in names
        if pair[0] != "tokens" or facts.tokens is not None or "tokens" in facts.refused
    ]
    return safe([tag("a", title, href=f"#{name}") for name, title in there])


def header(facts: Facts) -> Html:
    """Name, description, key figures, and the verdict."""
    network = facts.subject.network
    edges = sum(len(parents) for _, _, parents in network.steps())
    figures = [
        ("nonlinear layers", len(network.nodes_of(Nonlinear))),
        ("nodes", len(network)),
        ("edges", edges),
        ("inputs", len(network.inputs)),
        ("outputs", len(network.outputs)),
    ]
    if facts.mu is not None:
        figures.insert(1, ("layers deep", facts.mu.depth))
    cells = [tag("div", tag("dt", label), tag("dd", str(value))) for label, value in figures]
    rows: list[Any] = []
    if facts.before is not None:
        rows.append(paragraph(tag("b", "As it is: "), verdict(facts.before), "."))
    elif facts.tokens is None:
        rows.append(
            calm(f"The kernel calculus does not apply as it is: {facts.refused.get('before', '')}")
        )
    if facts.tokens is not None:
        rows.append(
            paragraph(
                tag("b", "Over tokens: "), over_tokens(facts.tokens), ". ", facts.tokens.about
            )
        )
    if facts.after is not None and facts.main is not None:
        rewrite = f", {facts.main.rewrite}" if facts.main.rewrite else ""
        rows.append(
            paragraph(
                tag("b", f"After shaping ({facts.main.method.upper()}{rewrite}): "),
                verdict(facts.after),
                ".",
            )
        )
        if facts.main.note:
            rows.append(calm(facts.main.note))
    if len(network.outputs) > 1 and facts.before is not None:
        rows.append(
            paragraph(f"These are figures of the output {network.outputs[-1]}.", kind="hint")
        )
    if facts.after is None and facts.main is not None:
        rows.append(
            calm(f"It cannot be shaped: {facts.main.reason or facts.refused.get('after', '')}")
        )
    name = tag("h1", facts.subject.name)
    badge = [heuristic_badge(facts, facts.shaping), sampled_badge(facts)]
    about = paragraph(facts.subject.title, ".", kind="lead")
    return safe(
        [
            name,
            badge,
            about,
            tag("dl", *cells, class_="figures"),
            tag("div", *rows, class_="verdict"),
        ]
    )


def maps(facts: Facts) -> Html:
    """The place of the sliders; they are made in the page."""
    found = facts.explorer
    reasons = [tag("li", reason) for reason in (found.reasons if found else [])]
    for choice in [*(found.choices if found else []), *(found.families if found else [])]:
        if choice.get("reason"):
            reasons.append(tag("li", f"{choice['label']} is not offered: {choice['reason']}"))
    if facts.main is not None and facts.main.shaping is None:
        reasons.append(tag("li", f"zeta and eta do not slide: {facts.main.reason}"))
    why = (
        tag(
            "details",
            tag("summary", f"What does not slide here, and why ({len(reasons)})"),
            tag("ul", *reasons),
        )
        if reasons
        else None
    )
    if found is None or (found.program is None and found.shaped is None):
        tokens, over = facts.tokens, ""
        if tokens is not None and not tokens.sampled:
            over = " The maps for the tokens of this page are drawn under \u201cOver tokens\u201d."
        words = calm(f"This network has no sliders: its maps cannot be computed in the page.{over}")
        return section("maps", "Q and C maps", MAPS, words, why, badge=heuristic_badge(facts))
    places = [
        tag("div", id="controls", class_="controls"),
        tag("p", id="maps-note", class_="calm", aria_live="polite"),
        tag(
            "div",
            tag("div", id="chart-c", class_="chart"),
            tag("div", id="chart-q", class_="chart"),
            class_="pair",
        ),
        tag("div", id="readout", aria_live="polite"),
    ]
    checked = (
        f"Local maps come from tables that differ from direct evaluation by "
        f"{number(found.error, 2)} at most where that was checked."
    )
    return section(
        "maps",
        "Q and C maps",
        MAPS,
        *places,
        why,
        paragraph(checked, kind="hint"),
        badge=heuristic_badge(facts),
    )


def kernels(facts: Facts) -> Html:
    """Kernel functions and eigenvalues."""
    before, after = facts.kernels
    parts: list[Any] = []
    for name, found, what in (
        ("Before shaping", before, "kernel before"),
        ("After shaping", after, "kernel after"),
    ):
        if found is None and what in facts.refused:
            parts.append(calm(f"{name} there is no kernel: {facts.refused[what]}"))
    words = meaning(before, after)
    if words:
        parts.append(paragraph(words))
    if before is not None and before.limit:
        parts.append(paragraph(f"With ever more such layers {before.limit}.", kind="hint"))
    if before or after:
        parts.append(
            tag(
                "div",
                tag("div", id="chart-ntk", class_="chart"),
                tag("div", id="chart-spectrum", class_="chart"),
                class_="pair",
            )
        )
    return section("kernels", "Tangent kernel", KERNEL, *parts, badge=heuristic_badge(facts))


def provenance(facts: Facts, command: str) -> list[tuple[str, str]]:
    """Versions, date, and how to make the page again."""
    rows = [("made with", f"kcalc {__version__}, Python {platform.python_version()}")]
    rows.append(
        (
            "libraries",
            ", ".join(f"{name} {_version(name)}" for name in ("numpy", "scipy", "sympy", "jax")),
        )
    )
    rows.append(("date", f"{_now():%Y-%m-%d %H:%M} UTC"))
    rows.append(("made by", command))
    return rows


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _now() -> datetime.datetime:
    """The present time in UTC, or the time given by SOURCE_DATE_EPOCH.

    Reproducible builds, which must be identical to the letter, set the clock by SOURCE_DATE_EPOCH.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    known = float(epoch) if epoch.isdecimal() and len(epoch) < 12 else time.time()
    return datetime.datetime.fromtimestamp(known, datetime.UTC)
