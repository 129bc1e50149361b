"""Claims: statements of the source papers with checks, which :func:`verify` runs and reports."""

from .bench import BUDGETS, Bench
from .claim import COPIES, Claim, Evidence, Method, Paper, Verdict
from .errata import Erratum, errata
from .journal import check_file
from .registry import PAPERS, all, get, paper, papers
from .report import Report, errata_text
from .verify import check, verify

__all__ = [
    "BUDGETS",
    "COPIES",
    "PAPERS",
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
    "check_file",
    "errata",
    "errata_text",
    "get",
    "paper",
    "papers",
    "verify",
]


def __dir__() -> list[str]:
    return __all__
