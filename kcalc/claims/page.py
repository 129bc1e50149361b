"""The report as one HTML page: formulas as MathML, no scripts, no network, readable on a phone."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from ..foundation.mathml import formulas
from .claim import COPIES, PRINTED, Claim, Evidence, Verdict, counted
from .errata import errata
from .finding import Finding
from .registry import papers
from .report import printed_form

COLOURS = {
    Verdict.HOLDS: "#1a7f37",
    Verdict.CAVEAT: "#7d6608",
    Verdict.CORRECTED: "#b35900",
    Verdict.REFUTED: "#b35900",
    Verdict.NOT_DECIDABLE: "#57606a",
    Verdict.UNDECIDED: "#57606a",
    Verdict.CONTRADICTED: "#c00000",
}

STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #57606a; --back: #ffffff; --ink: #1f2328; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --line: #3d444d; --soft: #9198a1; --back: #0d1117; --ink: #e6edf3; --card: #151b23; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; background: var(--back); color: var(--ink); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line); }
.claim { border: 1px solid var(--line); border-radius: .4rem; padding: .6rem .8rem; margin: .6rem 0; }
.claim p { margin: .1rem 0; padding: .25rem 0; overflow-x: auto; overflow-y: hidden; }
.head { display: flex; flex-wrap: wrap; gap: .2rem .8rem; align-items: baseline; }
math { font-family: "Latin Modern Math", "STIX Two Math", "Cambria Math", "Noto Sans Math", math, serif; }
.head b { font-size: 1rem; } .place { color: var(--soft); font-size: .85rem; }
.verdict { margin-left: auto; font-size: .85rem; font-weight: 600; padding: 0 .5rem; border-radius: 1rem; border: 1px solid; }
.label { color: var(--soft); font-size: .85rem; }
details { font-size: .85rem; } summary { cursor: pointer; color: var(--soft); }
.data { overflow-wrap: anywhere; background: var(--card); color: var(--soft); padding: .2rem .4rem; border-radius: .3rem; }
@media (max-width: 30rem) {
  body { padding: .6rem; } .claim { padding: .5rem .6rem; } math { font-size: .9em; } nav ul { padding-left: 1.2rem; }
}
.wide { overflow-x: auto; }
nav a { color: inherit; } nav li { margin: .2rem 0; }
"""


def page(report: Any) -> str:
    """The report as the text of one HTML page."""
    found = _by_paper(report)
    sections = "".join(_section(name, title, findings) for name, title, findings in found)
    links = "".join(
        f'<li><a href="#{name}">{html.escape(title)}</a>: {counted(len(findings), "claim")}</li>'
        for name, title, findings in found
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1">'
        f"<title>What holds</title><style>{STYLE}</style></head><body><h1>What holds</h1>"
        f"<p>{html.escape(report.summary.splitlines()[0])}</p>{_counts(report)}<p "
        f'class="label">{html.escape(COPIES)}</p>'
        f'{_contradictions(report)}<nav><ul>{links}<li><a href="#errata">Errata of the '
        f"copies</a></li></ul></nav>"
        f"{sections}{_errata([name for name, _, _ in found])}</body></html>"
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
    found = [
        (p.name, p.title, [f for f in report.findings if f.claim.paper == p.name]) for p in papers()
    ]
    return [item for item in found if item[2]]


def _counts(report: Any) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(v)}</td><td>{n}</td></tr>"
        for v, n in sorted(report.counts.items(), key=lambda item: -item[1])
    )
    return f"<table>{rows}</table>"


def _contradictions(report: Any) -> str:
    lines = report.summary.splitlines()[1:]
    return "".join(
        f'<p style="color:{COLOURS[Verdict.CONTRADICTED]}">{html.escape(line)}</p>'
        for line in lines
    )


def _section(name: str, title: str, findings: list[Finding]) -> str:
    return f'<h2 id="{html.escape(name)}">{html.escape(title)}</h2>' + "".join(
        _card(finding) for finding in findings
    )


def _errata(names: list[str]) -> str:
    """The errata of these papers as HTML tables."""
    titles = {paper.name: paper.title for paper in papers()}
    head = "<tr><th>place</th><th>printed</th><th>meant</th><th>claim</th></tr>"
    parts = []
    for name in (paper for paper in names if errata(paper)):
        cells = (
            [*map(formulas, (e.place, e.printed, e.meant)), html.escape(e.claim or "")]
            for e in errata(name)
        )
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
        parts.append(
            f"<h3>{html.escape(titles[name])}</h3><div "
            f'class="wide"><table>{head}{rows}</table></div>'
        )
    return f'<h2 id="errata">Errata of the copies</h2>{"".join(parts)}'


def _card(finding: Finding) -> str:
    claim, colour = finding.claim, COLOURS[finding.verdict]
    parts = [
        f'<div class="head"><b>{html.escape(claim.id)}</b><span '
        f'class="place">{html.escape(claim.place)}</span>'
        f'<span class="verdict" style="color:{colour}">{html.escape(finding.verdict)}</span></div>',
        f"<p>{formulas(claim.statement)}</p>",
    ]
    lines = (
        ("Printed, which fails", claim.printed),
        ("Caveat", claim.caveat),
        ("Under", claim.hypotheses),
        ("Why not", claim.reason),
    )
    for label, text in lines:
        parts += [f'<p><span class="label">{label}:</span> {formulas(text)}</p>'] if text else []
    if finding.error:
        parts.append(f"<p>{html.escape(finding.error)}</p>")
    parts += (
        [
            "<details><summary>" + _told(finding) + "</summary>",
            *(_evidence(item, claim) for item in finding.evidence),
            "</details>",
        ]
        if finding.evidence
        else []
    )
    return f'<div class="claim" id="{html.escape(claim.id)}">{"".join(parts)}</div>'


def _told(finding: Finding) -> str:
    return html.escape(
        f"{counted(len(finding.evidence), 'finding')}: {finding.methods}, {finding.seconds:.2f} s"
    )


def _evidence(item: Evidence, claim: Claim) -> str:
    form = f"{printed_form(claim)}, " if item.about == PRINTED else ""
    said = {True: "holds", False: "fails", None: "undecided"}[item.holds]
    margin = "" if item.margin is None else f", margin {item.margin:.3g}"
    data = f'<p class="data">{html.escape(_listed(item.data))}</p>' if item.data else ""
    return f"<p>{form}{html.escape(item.method)}: {formulas(item.what)}: {said}{margin}</p>{data}"


def _listed(data: Mapping[str, Any]) -> str:
    """Data as text, numbers to four digits; the JSON report has all digits."""
    return "; ".join(f"{name.replace('_', ' ')}: {_value(value)}" for name, value in data.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{name}: {_value(inner)}" for name, inner in value.items()) + ")"
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
