"""``kcalc verify``: check the claims of the source papers."""

from __future__ import annotations

import sys
import textwrap
from json import dumps
from pathlib import Path
from typing import Annotated

from .. import claims
from ..foundation.errors import KcalcError, glimpse
from ..foundation.extras import imported
from .command import Option, write
from .models import is_python, python_object
from .text import check_files

INTERRUPTED = 130


def run(
    own: Annotated[
        str | None,
        Option(
            "your own papers: a paper made with kc.claims.paper, or a list of such papers, in a "
            "Python module",
            "own",
            nargs="?",
            metavar="module:papers",
        ),
    ] = None,
    paper: Annotated[
        tuple[str, ...] | None,
        Option("check only the claims of this paper (repeatable)", choices=tuple(claims.PAPERS)),
    ] = None,
    claim: Annotated[
        tuple[str, ...] | None,
        Option(
            "check only this claim, and print it in full with its evidence (repeatable)",
            metavar="ID",
        ),
    ] = None,
    slips: Annotated[
        bool,
        Option(
            "list misprints in our copies of the papers, without checking anything",
            "--errata",
        ),
    ] = False,
    budget: Annotated[
        str, Option("how much to compute; default quick", choices=claims.BUDGETS)
    ] = "quick",
    seed: Annotated[int, Option("seed of the random numbers; default 0")] = 0,
    processes: Annotated[
        int | None,
        Option("number of claims checked in parallel; default: one per processor", metavar="N"),
    ] = None,
    journal: Annotated[
        str | None,
        Option(
            "a file of finished claims (.jsonl), from which an interrupted run resumes",
            "--journal",
            "--resume",
            metavar="FILE",
        ),
    ] = None,
    json: Annotated[
        str | None,
        Option(
            "write all results as JSON; with -, the table goes to standard error",
            metavar="FILE",
        ),
    ] = None,
    html: Annotated[
        str | None,
        Option(
            "write a self-contained HTML page; with -, the table goes to standard error",
            metavar="FILE",
        ),
    ] = None,
) -> int:
    files = {"--journal": journal, "--json": json, "--html": html}
    if slips:
        given = {"module:papers": own, "--claim": claim, **files}
        others = [name for name, value in given.items() if value is not None]
        if others:
            raise KcalcError(
                f"--errata does not check claims, so {others[0]} has no effect; pass only one of "
                "the two"
            )
        print(claims.errata_text(claims.errata(paper)))
        return 0
    _check_files(files)
    if html:
        imported("jinja2")  # before anything is computed
        imported("latex2mathml.converter")
    try:
        asked = paper if own is None else (*(paper or ()), *_own_papers(own))
        report = claims.verify(
            claim, asked, budget, seed, processes, journal, progress=sys.stderr.isatty()
        )
    except KeyboardInterrupt:
        kept = (
            f"finished claims are in {journal}; run the same command to resume"
            if journal
            else "no results were saved"
            if own
            else (
                "no results were saved; with --journal FILE, the same command continues where it "
                "stopped"
            )
        )
        print(f"kcalc: interrupted; {kept}", file=sys.stderr)
        return INTERRUPTED
    print(report.details() if claim else report, file=sys.stderr if "-" in (json, html) else None)
    if json:
        write(json, dumps(report.to_dict(), indent=1) + "\n")
    if html:
        write(html, report.to_html())
    return 1 if report.contradictions else 0


run.__doc__ = f"""Check the statements of the source papers, or of your own papers.

A check is exact, certified, numerical, statistical (Monte Carlo) or a counterexample.

{textwrap.fill(claims.COPIES, 86)}

Examples:
  kcalc verify --budget quick
  kcalc verify --claim DKS-thm13a --claim DKS-thm13b
  kcalc verify --errata --paper tat
  kcalc verify --paper tat --budget full --journal tat.jsonl --html tat.html
  kcalc verify mypaper:PAPER

The exit status is 1 if a verdict contradicts the recorded one or a decidable claim stays undecided,
2 for bad input, 130 after an interruption, and 0 otherwise.
"""


def _own_papers(text: str) -> tuple[claims.Paper, ...]:
    """Return the papers that ``module:papers`` names. Raises: KcalcError if there are none."""
    if not is_python(text):
        raise KcalcError(
            f"{glimpse(text)} does not have the form module:papers, such as mypaper:PAPER; to "
            f"select a built-in paper, use --paper {next(iter(claims.PAPERS))}"
        )
    found = python_object(text)
    given = found if isinstance(found, list | tuple) else (found,)
    if not given or not all(isinstance(one, claims.Paper) for one in given):
        raise KcalcError(
            f"{text} is {glimpse(found)}, not a paper or a list of papers; make one with "
            f"kc.claims.paper(name, title)"
        )
    return tuple(given)


def _check_files(files: dict[str, str | None]) -> None:
    """Check that the files can be written, and that no two options name the same file."""
    if files["--journal"] == "-":
        raise KcalcError("--journal needs a file, because standard output cannot be read again")
    check_files(files, lambda path: claims.check_file(Path(path)))
