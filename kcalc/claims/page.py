"""The report as a single HTML page that works offline and on phones.

The page contains no scripts, and its formulas are MathML.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..foundation.templates import asset, template
from .claim import COPIES, PRINTED, Verdict, counted, printed_form
from .errata import errata
from .registry import PAPERS, papers

COLOURS = {
    Verdict.HOLDS: "#1a7f37",
    Verdict.CAVEAT: "#7d6608",
    Verdict.CORRECTED: "#b35900",
    Verdict.REFUTED: "#b35900",
    Verdict.NOT_DECIDABLE: "#57606a",
    Verdict.UNDECIDED: "#57606a",
    Verdict.CONTRADICTED: "#c00000",
}


def page(report: Any) -> str:
    """Return the report as the text of an HTML page."""
    ours = any(finding.claim.paper in PAPERS for finding in report.findings)
    by_paper = (
        (p, [f for f in report.findings if f.claim.paper == p.name])
        for p in (*papers(), *report.own)
    )
    return template(asset("kcalc.claims", "page.html")).render(
        found=[item for item in by_paper if item[1]],
        summary=report.summary.splitlines(),
        counts=sorted(report.counts.items(), key=lambda item: -item[1]),
        colours=COLOURS,
        contradicted=COLOURS[Verdict.CONTRADICTED],
        copies=COPIES if ours else "",
        printed=PRINTED,
        errata=errata,
        counted=counted,
        printed_form=printed_form,
        told=_value,
    )


def findings_table(report: Any) -> str:
    """Return the findings as an HTML table."""
    summary = report.summary.splitlines()
    made = template(asset("kcalc.claims", "table.html"))
    return made.render(summary=summary, findings=report.findings)


def _value(value: Any) -> str:
    """Format data as text, with four digits for numbers. The JSON report has all digits."""
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{name}: {_value(inner)}" for name, inner in value.items()) + ")"
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
