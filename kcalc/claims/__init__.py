"""Statements of the source papers as claims with checks, which :func:`verify` runs and reports."""

from .bench import Bench
from .claim import Claim, Evidence, Method, Paper, Verdict
from .errata import Erratum, errata
from .registry import all, get, papers
from .report import Report
from .verify import check, verify

__all__ = [
    "Bench",
    "Claim",
    "Erratum",
    "Evidence",
    "Method",
    "Paper",
    "Report",
    "Verdict",
    "all",
    "check",
    "errata",
    "get",
    "papers",
    "verify",
]


def __dir__() -> list[str]:
    return __all__
