"""``python -m benchmarks [--only NAME ...] [--quick] [--peers] [--output FILE]``.

See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path

from . import machine, peers
from .book import Options, Section, page, write

HERE = Path(__file__).resolve().parent
SECTIONS = (
    "start",
    "local_maps",
    "shaping",
    "subnetworks",
    "kernels",
    "norms",
    "compiled",
    "finite_width",
    "depth",
    "sizes",
    "attention",
)
PARTIAL = (
    "This is a partial run, with only some sections or with small sizes. The full run is `python "
    "-m benchmarks --peers`."
)


def say(text: str) -> None:
    """Print progress, which is not part of the book."""
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure everything and write benchmarks/RESULTS.md.",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SECTIONS,
        metavar="NAME",
        default=SECTIONS,
        help=f"sections to run, from {', '.join(SECTIONS)}",
    )
    parser.add_argument("--quick", action="store_true", help="use small sizes; takes one minute")
    parser.add_argument(
        "--peers",
        action="store_true",
        help="compare with deepmind/dks and neural-tangents, in separate environments",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=peers.cache(),
        help="folder for these environments; default %(default)s",
    )
    parser.add_argument(
        "--folder", help="folder for large temporary files (7 GB); by default the system's"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="default benchmarks/RESULTS.md; with --only or --quick, standard output",
    )
    return parser


def main() -> None:
    options = arguments().parse_args()
    before, start = machine.load(), time.perf_counter()
    environments = peers.interpreters(options.cache, say) if options.peers else {}
    chosen = Options(options.quick, environments, options.folder)
    complete = not options.quick and set(options.only) == set(SECTIONS)
    output = options.output or (HERE / "RESULTS.md" if complete else None)
    sections: list[Section] = []
    for name in (name for name in SECTIONS if name in options.only):
        sections.append(measured(name, chosen))
        heading = machine.heading(
            command_of(options), before, time.perf_counter() - start, peers.described(environments)
        )
        whole = complete and len(sections) == len(SECTIONS)
        text = page(
            sections,
            [*heading, *([] if whole else [PARTIAL])],
            judged=not options.quick,
            every=set(options.only) == set(SECTIONS),
        )
        # after every section, so that an interrupted run leaves its results
        if output is not None:
            write(text, output)
    if output is None:
        print(text)
    else:
        say(f"wrote {output}")
    sys.exit(0 if all(section.finished for section in sections) else 1)


def command_of(options: argparse.Namespace) -> str:
    """The command that repeats this run, without folders of this machine."""
    only = f" --only {' '.join(options.only)}" if set(options.only) != set(SECTIONS) else ""
    return (
        f"python -m "
        f"benchmarks{only}{' --quick' if options.quick else ''}"
        f"{' --peers' if options.peers else ''}"
    )


def measured(name: str, options: Options) -> Section:
    """The section that a module of benchmarks/sections returns.

    If the module fails, the section contains the error, so that the other sections are not lost.
    """
    start = time.perf_counter()
    try:
        found = importlib.import_module(f"benchmarks.sections.{name}").run(options)
    except Exception as error:
        traceback.print_exc()
        found = Section(
            name, f"**Did not finish**: {type(error).__name__}: {error}", [], finished=False
        )
    say(f"{name}: {time.perf_counter() - start:.0f} s")
    return found


if __name__ == "__main__":
    main()
