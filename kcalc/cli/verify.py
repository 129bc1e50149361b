"""``kcalc verify``: the claims of the source papers, checked."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from ..claims.bench import BUDGETS
from ..claims.registry import PAPERS
from ..claims.verify import verify
from ..errors import KcalcError
from .command import Command, check_folder

INTERRUPTED = 130
EPILOG = """\
examples:
  kcalc verify --budget quick
  kcalc verify --claim DKS-thm13a --claim DKS-thm13b
  kcalc verify --paper tat --budget full --journal tat.jsonl --html tat.html

The exit status is 1 where a verdict contradicts the one that kcalc stands by, 2 for bad input, 130 after an interruption, else 0.
"""


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--paper", choices=tuple(PAPERS), help="claims of one paper only")
    command.add_argument("--claim", action="append", metavar="ID", help="this claim (may be given several times)")
    command.add_argument("--budget", choices=BUDGETS, default="quick", help="how much to compute; default quick")
    command.add_argument("--seed", type=int, default=0, help="of the random numbers; default 0")
    command.add_argument("--processes", type=int, metavar="N", help="how many claims at once; default: one per processor")
    command.add_argument(
        "--journal", "--resume", metavar="FILE", help="keep what is finished there (.jsonl), and go on from it after an interruption"
    )
    command.add_argument("--json", metavar="FILE", help="write everything as JSON")
    command.add_argument("--html", metavar="FILE", help="write a page with formulas, readable without network")


def _run(options: argparse.Namespace) -> int:
    _check_files({f"--{name}": getattr(options, name) for name in ("journal", "json", "html")})
    try:
        report = verify(options.claim, options.paper, options.budget, options.seed, options.processes, options.journal, progress=True)
    except KeyboardInterrupt:
        kept = f"what is finished is in {options.journal}: the same command goes on from there" if options.journal else (
            "nothing is kept; with --journal FILE the same command goes on where it was")  # fmt: skip
        print(f"kcalc: interrupted; {kept}", file=sys.stderr)
        return INTERRUPTED
    if options.json:
        Path(options.json).write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
    if options.html:
        Path(options.html).write_text(report.to_html(), encoding="utf-8")
    print(report)
    return 1 if report.contradictions else 0


def _check_files(files: dict[str, str | None]) -> None:
    """Refuse, before any work is done, files that cannot be written and options that name one file."""
    taken: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        if not path:
            raise KcalcError(f"{option} needs the name of a file")
        check_folder(path)
        if Path(path).is_dir():
            raise KcalcError(f"cannot write {path}: it is a folder")
        if not os.access(path if Path(path).exists() else Path(path).parent, os.W_OK):
            raise KcalcError(f"cannot write {path}: no permission")
        other = taken.setdefault(Path(path).resolve(), option)
        if other != option:
            raise KcalcError(f"{other} and {option} name the same file, {path}; give each its own")


COMMAND = Command(
    "verify", "check what the source papers state",
    "Check the statements of the source papers: exactly, by enclosures, numerically, by Monte Carlo, or by counterexample.",
    _options, _run, EPILOG,
)  # fmt: skip
