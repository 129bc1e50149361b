"""``kcalc verify``: the claims of the source papers, checked."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..claims.bench import BUDGETS
from ..claims.registry import PAPERS
from ..claims.verify import verify
from ..errors import KcalcError
from .command import Command, check_folder

EPILOG = """\
examples:
  kcalc verify --budget quick
  kcalc verify --claim DKS-thm13a --claim DKS-thm13b
  kcalc verify --paper tat --budget full --journal tat.jsonl --html tat.html

The exit status is 1 where a verdict contradicts the one that kcalc stands by, else 0.
"""


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--paper", choices=tuple(PAPERS), help="claims of one paper only")
    command.add_argument("--claim", action="append", metavar="ID", help="this claim (may be given several times)")
    command.add_argument("--budget", choices=BUDGETS, default="quick", help="how much to compute; default quick")
    command.add_argument("--seed", type=int, default=0, help="of the random numbers; default 0")
    command.add_argument("--processes", type=int, metavar="N", help="how many claims at once; default: one per processor")
    command.add_argument("--journal", metavar="FILE", help="keep what is finished there (.jsonl), and go on from it after an interruption")
    command.add_argument("--json", metavar="FILE", help="write everything as JSON")
    command.add_argument("--html", metavar="FILE", help="write a page with formulas, readable without network")


def _run(options: argparse.Namespace) -> int:
    for path in (options.json, options.html):
        if path:
            check_folder(path)
            if Path(path).is_dir():
                raise KcalcError(f"cannot write {path}: it is a folder")
    report = verify(options.claim, options.paper, options.budget, options.seed, options.processes, options.journal, progress=True)
    if options.json:
        Path(options.json).write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
    if options.html:
        Path(options.html).write_text(report.to_html(), encoding="utf-8")
    print(report)
    return 1 if report.contradictions else 0


COMMAND = Command(
    "verify", "check what the source papers state",
    "Check the statements of the source papers: exactly, by enclosures, numerically, by Monte Carlo, or by counterexample.",
    _options, _run, EPILOG,
)  # fmt: skip
