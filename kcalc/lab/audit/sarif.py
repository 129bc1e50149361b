"""Findings in SARIF 2.1.0, a format for analysis results that code hosts accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ... import __version__
from .findings import CRITERIA, Finding

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(findings: tuple[Finding, ...]) -> dict[str, Any]:
    """Return a SARIF log with one run.

    Paths below the working folder are artifact locations. Other places, such as files in packages,
    are given as logical names.
    """
    codes = dict.fromkeys([*CRITERIA, *(finding.code for finding in findings)])
    rules = [
        {
            "id": code,
            "shortDescription": {"text": CRITERIA[code].rule if code in CRITERIA else code},
        }
        for code in codes
    ]
    driver = {"name": "kcalc audit", "version": __version__, "rules": rules}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(f) for f in findings]}],
    }


def _result(finding: Finding) -> dict[str, Any]:
    where: dict[str, Any] = {
        "logicalLocations": [
            {"fullyQualifiedName": name, "kind": "member"} for name in finding.parameters[:20]
        ]
    }
    file, _, line = finding.place.rpartition(":")
    if file and line.isdigit() and not Path(file).is_file():
        where["logicalLocations"].insert(0, {"fullyQualifiedName": finding.place})
    elif file and line.isdigit():
        where["physicalLocation"] = {
            "artifactLocation": {"uri": file},
            "region": {"startLine": int(line)},
        }
    return {
        "ruleId": finding.code,
        "level": finding.severity,
        "message": {"text": f"{finding.message}; {finding.fix}"},
        "locations": [where],
    }
