"""The report as one HTML page: formulas as MathML, no scripts, no network, readable on a phone."""

from __future__ import annotations

import html
import json
import re
from functools import lru_cache
from typing import Any

from .claim import Verdict
from .finding import Finding
from .registry import papers

COLOURS = {
    Verdict.HOLDS: "#1a7f37", Verdict.CAVEAT: "#7d6608", Verdict.CORRECTED: "#b35900", Verdict.REFUTED: "#b35900",
    Verdict.NOT_DECIDABLE: "#57606a", Verdict.UNDECIDED: "#57606a", Verdict.CONTRADICTED: "#c00000",
}  # fmt: skip

STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #57606a; --back: #ffffff; --ink: #1f2328; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --line: #3d444d; --soft: #9198a1; --back: #0d1117; --ink: #e6edf3; --card: #151b23; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; background: var(--back); color: var(--ink); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line); }
.claim { border: 1px solid var(--line); border-radius: .4rem; padding: .6rem .8rem; margin: .6rem 0; }
.claim p { margin: .1rem 0; padding: .25rem 0; overflow-x: auto; overflow-y: hidden; }
.head { display: flex; flex-wrap: wrap; gap: .2rem .8rem; align-items: baseline; }
.head b { font-size: 1rem; } .place { color: var(--soft); font-size: .85rem; }
.verdict { margin-left: auto; font-size: .85rem; font-weight: 600; padding: 0 .5rem; border-radius: 1rem; border: 1px solid; }
.label { color: var(--soft); font-size: .85rem; }
details { font-size: .85rem; } summary { cursor: pointer; color: var(--soft); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card); padding: .4rem; border-radius: .3rem; }
"""


def page(report: Any) -> str:
    """The whole page."""
    sections = "".join(_section(name, title, found) for name, title, found in _by_paper(report))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>What holds</title><style>{STYLE}</style></head><body><h1>What holds</h1>"
        f"<p>{html.escape(report.summary.splitlines()[0])}</p>{_counts(report)}{sections}</body></html>"
    )


def findings_table(report: Any) -> str:
    """The findings as an HTML table."""
    head = "<tr><th>claim</th><th>statement</th><th>verdict</th><th>method</th></tr>"
    rows = "".join(
        f"<tr><td>{html.escape(f.claim.id)}</td><td>{formulas(f.claim.statement)}</td><td>{html.escape(f.verdict)}</td>"
        f"<td>{html.escape(f.methods)}</td></tr>"
        for f in report.findings
    )
    return f"<p>{html.escape(report.summary.splitlines()[0])}</p><table>{head}{rows}</table>"


def _by_paper(report: Any) -> list[tuple[str, str, list[Finding]]]:
    found = [(p.name, p.title, [f for f in report.findings if f.claim.paper == p.name]) for p in papers()]
    return [item for item in found if item[2]]


def _counts(report: Any) -> str:
    rows = "".join(f"<tr><td>{html.escape(v)}</td><td>{n}</td></tr>" for v, n in sorted(report.counts.items(), key=lambda item: -item[1]))
    return f"<table>{rows}</table>"


def _section(name: str, title: str, findings: list[Finding]) -> str:
    return f'<h2 id="{html.escape(name)}">{html.escape(title)}</h2>' + "".join(_card(finding) for finding in findings)


def _card(finding: Finding) -> str:
    claim, colour = finding.claim, COLOURS[finding.verdict]
    parts = [
        f'<div class="head"><b>{html.escape(claim.id)}</b><span class="place">{html.escape(claim.place)}</span>'
        f'<span class="verdict" style="color:{colour}">{html.escape(finding.verdict)}</span></div>',
        f"<p>{formulas(claim.statement)}</p>",
    ]
    lines = (("Holds instead", claim.corrected), ("Caveat", claim.caveat), ("Under", claim.hypotheses), ("Why not", claim.reason))
    for label, text in lines:
        parts += [f'<p><span class="label">{label}:</span> {formulas(text)}</p>'] if text else []
    if finding.error:
        parts.append(f"<p>{html.escape(finding.error)}</p>")
    parts += (
        ["<details><summary>" + _told(finding) + "</summary>", *map(_evidence, finding.evidence), "</details>"] if finding.evidence else []
    )
    return f'<div class="claim" id="{html.escape(claim.id)}">{"".join(parts)}</div>'


def _told(finding: Finding) -> str:
    count = len(finding.evidence)
    return html.escape(f"{count} finding{'' if count == 1 else 's'}: {finding.methods}, {finding.seconds:.2f} s")


def _evidence(item: Any) -> str:
    said = {True: "holds", False: "fails", None: "undecided"}[item.holds]
    margin = "" if item.margin is None else f", margin {item.margin:.3g}"
    data = f"<pre>{html.escape(json.dumps(dict(item.data), default=str))}</pre>" if item.data else ""
    return f"<p>{html.escape(item.about)} form, {html.escape(item.method)}: {formulas(item.what)}: {said}{margin}</p>{data}"


def formulas(text: str) -> str:
    """Text with $LaTeX$ in it as HTML with MathML."""
    pieces = re.split(r"\$(.+?)\$", text)
    return "".join(html.escape(piece) if i % 2 == 0 else _mathml(piece) for i, piece in enumerate(pieces))


@lru_cache(maxsize=4096)
def _mathml(latex: str) -> str:
    from latex2mathml.converter import convert

    try:
        return convert(latex)
    except Exception:  # whatever it cannot read is shown as it was written
        return f"<code>{html.escape(latex)}</code>"
