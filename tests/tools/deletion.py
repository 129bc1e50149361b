"""The spine without a guest: ``python tests/tools/deletion.py plotting`` copies and deletes.

In a copy of the project without the guest's files, kcalc is imported and asked what needs no guest
(:data:`CORE`); what needs this guest raises one line that names it; and the tests of the spine
pass. ``tests/guests.json`` says for every guest:

``code``: its files. ``tests``: the test files that are its own. ``asks``: a call that needs it.
``needed_by``: tests of the spine, or cases of them, that ask for it all the same, and are skipped
where it is missing; ``--update`` adds tests that fail with the line that names the guest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path("tests") / "guests.json"
SPINE = ("foundation", "fields", "gaussian", "activations", "maps", "network", "calculi")
"""Rooms of tests; files in them that no guest claims test the spine."""
COPIED = ("kcalc", "tests", "docs", "pyproject.toml")

CORE = """
import kcalc as kc
net = kc.architectures.rescaled_resnet(3, shortcut_weight=0.8)
assert abs(kc.c_map(net)(0.3) - kc.node_values(net, c=0.3)[net.outputs[0]].c) < 1e-12
assert kc.q_map(net)(1.0) > 0 and kc.c_map(net).derivative(1)(1.0) > 0
theta = kc.ntk(net)
assert abs(theta(0.3) - sum(theta.by_layer(0.3).values())) < 1e-9 and theta.nngp(1.0) > 0
assert kc.gradients(net).growth >= 1 and kc.compare([net, net])
assert kc.slope_polynomial(net) is not None and kc.maximal_slope(net)(1.1) > 1
assert len(kc.subnetworks(net)) > 0 and repr(net) and kc.activation("gelu").c_map(0.5) > 0
assert net._repr_html_() is None or "svg" in net._repr_html_()
"""
SHAPED = """
shaped = kc.shape(kc.architectures.vanilla(4), "tanh", zeta=1.5)
assert max(shaped.residuals.values()) < 1e-9
"""
REFUSED = """
from kcalc.foundation.guests import MissingGuest
for name in kc.__all__:
    try:
        getattr(kc, name)
    except MissingGuest as error:
        assert any(path in str(error) for path in {gone}), (name, error)
try:
    {asks}
except MissingGuest as error:
    assert "\\n" not in str(error), error
    print("MISSING", error)
else:
    raise SystemExit("nothing was refused")
"""


@cache
def guests(root: Path = ROOT) -> dict[str, dict[str, Any]]:
    """The table of guests."""
    return json.loads((root / TABLE).read_text(encoding="utf-8"))


def files(guest: str, root: Path = ROOT) -> list[Path]:
    """The files and folders of a guest that are there."""
    return [path for pattern in guests()[guest]["code"] for path in sorted(root.glob(pattern))]


def missing(root: Path = ROOT) -> list[str]:
    """The guests of which no file is there."""
    return [guest for guest in guests() if not files(guest, root)]


def needing(root: Path = ROOT) -> dict[str, str]:
    """{test file, or file::test: the missing guest that it needs}."""
    return {
        test: guest
        for guest in missing(root)
        for test in (*guests()[guest]["tests"], *guests()[guest]["needed_by"])
    }


def spine_tests(root: Path = ROOT) -> Iterator[str]:
    """The test files of the spine."""
    claimed = {
        path for guest in guests().values() for test in guest["tests"] for path in root.glob(test)
    }
    for room in SPINE:
        for path in sorted((root / "tests" / room).glob("test_*.py")):
            if not {path, path.parent} & claimed:
                yield str(path.relative_to(root))


def copied(folder: Path) -> Path:
    """A copy of the project in a new folder."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


@contextmanager
def without(guest: str, copy: Path) -> Iterator[None]:
    """Put a guest's files beside a copy of the project for a while."""
    with tempfile.TemporaryDirectory(dir=copy) as aside:
        moved = [(path, Path(aside) / str(i)) for i, path in enumerate(files(guest, copy))]
        for path, place in moved:
            path.rename(place)
        yield
        for path, place in moved:
            place.rename(path)


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a copy of the project."""
    variables = os.environ | {"PYTHONPATH": str(copy), "COLUMNS": "400"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=copy, env=variables, capture_output=True, text=True, check=False
    )


def check_core(guest: str, copy: Path) -> str:
    """Ask for what needs no guest, and for what needs this one; its refusal.

    Raises: AssertionError with what Python says.
    """
    shaped = "" if guest == "shaping" else SHAPED
    gone = [path.removesuffix(".py").partition("*")[0] for path in guests()[guest]["code"]]
    asks = REFUSED.format(asks=guests()[guest]["asks"], gone=gone)
    found = run(copy, "-c", CORE + shaped + asks)
    assert found.returncode == 0, found.stdout + found.stderr
    said = found.stdout.partition("MISSING ")[2].strip()
    assert any(path in said for path in gone), said
    return said


CONTINUE = "--continue-on-collection-errors"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py)(?:::(\w+(?:::\w+)*))?.*?(?: - (.*))?$", re.M)


def check_spine(guest: str, copy: Path, chosen: list[str]) -> tuple[str, dict[str, str]]:
    """(last line of pytest, {test of the spine that fails: why})."""
    options = ("-q", "-rfE", "--no-header", "-p", "no:cacheprovider", "--tb=no", CONTINUE)
    found = run(copy, "-m", "pytest", *options, *(chosen or spine_tests(copy)))
    failed = {
        f"{file}::{test}" if test else file: why for file, test, why in FAILED.findall(found.stdout)
    }
    last = found.stdout.strip().rpartition("\n")[2]
    if found.returncode not in (0, 1):  # killed, or nothing collected: no test has told anything
        failed["pytest"] = f"exit status {found.returncode}: {found.stderr[-300:]}"
    return last, failed


def update(guest: str, failed: dict[str, str]) -> None:
    """Write the tests that need a guest. Raises: SystemExit for others that fail."""
    named = ("MissingGuest: this needs kcalc/", "No module named 'kcalc.", "cannot import name")
    others = {test: why for test, why in failed.items() if not any(n in why for n in named)}
    if others:
        raise SystemExit(
            "\n".join(["these fail in another way:", *map(" - ".join, others.items())])
        )
    table = guests()
    table[guest]["needed_by"] = sorted({*table[guest]["needed_by"], *failed})
    text = json.dumps(table, indent=1, ensure_ascii=False)
    (ROOT / TABLE).write_text(text + "\n", encoding="utf-8")


def delete(guest: str, copy: Path, tests: list[str], core: bool, updated: bool) -> bool:
    """Print what holds without a guest; whether all of it does."""
    with without(guest, copy):
        print(f"{guest}: {check_core(guest, copy)}")
        if core:
            return True
        last, failed = check_spine(guest, copy, tests)
    print(last, *(f"{test} - {why}" for test, why in failed.items()), sep="\n")
    if updated:
        update(guest, failed)
    return updated or not failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("guest", nargs="?", choices=[*guests(), "all"], default="all")
    parser.add_argument("tests", nargs="*", help="tests to run; by default those of the spine")
    parser.add_argument("--core", action="store_true", help="run no tests")
    parser.add_argument("--update", action="store_true", help="write the tests that need the guest")
    given = parser.parse_args()
    chosen = [*guests()] if given.guest == "all" else [given.guest]
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        hold = [delete(guest, copy, given.tests, given.core, given.update) for guest in chosen]
    raise SystemExit(not all(hold))


if __name__ == "__main__":
    main()
