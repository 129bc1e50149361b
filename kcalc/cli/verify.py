"""``kcalc verify``: the claims of the source papers, checked."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path

from ..claims.bench import BUDGETS
from ..claims.claim import COPIES
from ..claims.errata import errata
from ..claims.journal import check_file, printable
from ..claims.registry import PAPERS
from ..claims.report import errata_text
from ..claims.verify import verify
from ..foundation.errors import KcalcError
from ..foundation.files import write_whole
from .command import Command

INTERRUPTED = 130
EPILOG = """\
examples:
  kcalc verify --budget quick
  kcalc verify --claim DKS-thm13a --claim DKS-thm13b
  kcalc verify --errata --paper tat
  kcalc verify --paper tat --budget full --journal tat.jsonl --html tat.html

The exit status is 1 where a verdict contradicts the one that kcalc stands by, or where a claim that
can be decided is undecided, 2 for bad input, 130 after an interruption, else 0.
"""


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--paper",
        action="append",
        choices=tuple(PAPERS),
        help="claims of this paper only (may be given several times)",
    )
    command.add_argument(
        "--claim",
        action="append",
        metavar="ID",
        help="this claim, whole and with its evidence (may be given several times)",
    )
    command.add_argument(
        "--errata",
        action="store_true",
        help="list the slips of the copies in which the papers were read, and check nothing",
    )
    command.add_argument(
        "--budget", choices=BUDGETS, default="quick", help="how much to compute; default quick"
    )
    command.add_argument("--seed", type=int, default=0, help="of the random numbers; default 0")
    command.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="how many claims at once; default: one per processor",
    )
    command.add_argument(
        "--journal",
        "--resume",
        metavar="FILE",
        help="a file of finished claims (.jsonl), from which an interrupted run goes on",
    )
    command.add_argument(
        "--json",
        metavar="FILE",
        help="write everything as JSON; - for standard output, the table then to standard error",
    )
    command.add_argument(
        "--html",
        metavar="FILE",
        help="write a page with formulas, readable without network; - as for --json",
    )


def _run(options: argparse.Namespace) -> int:
    if options.errata:
        others = [
            name
            for name in ("claim", "journal", "json", "html")
            if getattr(options, name) is not None
        ]
        if others:
            raise KcalcError(
                f"--errata checks no claims, so that --{others[0]} has nothing to do; leave one "
                f"of the two out"
            )
        print(errata_text(errata(options.paper)))
        return 0
    _check_files({f"--{name}": getattr(options, name) for name in ("journal", "json", "html")})
    try:
        report = verify(
            options.claim,
            options.paper,
            options.budget,
            options.seed,
            options.processes,
            options.journal,
            progress=True,
        )
    except KeyboardInterrupt:
        kept = (
            f"finished claims are in {options.journal}: the same command goes on from there"
            if options.journal
            else ("nothing is kept; with --journal FILE the same command goes on where it was")
        )
        print(f"kcalc: interrupted; {kept}", file=sys.stderr)
        return INTERRUPTED
    print(
        report.details() if options.claim else report,
        file=sys.stderr if "-" in (options.json, options.html) else sys.stdout,
    )
    if options.json:
        _write(options.json, json.dumps(report.to_dict(), indent=1) + "\n")
    if options.html:
        _write(options.html, report.to_html())
    return 1 if report.contradictions else 0


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        return
    write_whole(path, text)


def _check_files(files: dict[str, str | None]) -> None:
    """Refuse files that cannot be written and options that name one file.

    The check comes before any work is done.
    """
    taken: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        if not path:
            raise KcalcError(f"{option} needs the name of a file")
        if path != "-":
            check_file(Path(path))
        elif option == "--journal":
            raise KcalcError("--journal needs a file that can be read again, not standard output")
        other = taken.setdefault("-" if path == "-" else str(Path(path).resolve()), option)
        if other != option:
            raise KcalcError(
                f"{other} and {option} name the same file, {printable(path)}; give each its own"
            )


COMMAND = Command(
    "verify",
    "check the statements of the source papers",
    "Check the statements of the source papers: exactly, by enclosures, numerically, by Monte "
    "Carlo, or by counterexample.\n" + textwrap.fill(COPIES, 86),
    _options,
    _run,
    EPILOG,
)
