"""The benchmark book: it runs at small sizes and says something about every demand.

No time is asserted.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from command_words import words

import benchmarks.__main__
from benchmarks import child
from benchmarks.book import Figure, Section, Table, digits, page, seconds, write
from benchmarks.demands import DEMANDS
from benchmarks.growth import Measured, Work, foreseen
from benchmarks.timing import alternated, exponent

ROOT = Path(__file__).resolve().parents[1]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def tables_of(text: str) -> list[list[list[str]]]:
    """The rows of every table, heads first."""
    tables = re.findall(r"(?:^\|.*\n?)+", text, re.M)
    return [[cells(line) for line in table.splitlines()] for table in tables]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the three processes that it starts to measure in, one is started.

    What the others do happens here.
    """
    path = tmp_path_factory.mktemp("book") / "found.md"
    started = child.run

    def run(function: str, **job: Any) -> Any:
        if function.endswith(":dense"):
            return started(function, **job)
        return resolve_name(function)(**job)

    command = words(f"benchmarks --quick --only subnetworks finite_width --output {path}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        patch.setattr(child, "run", run)
        with pytest.raises(SystemExit) as ended:
            benchmarks.__main__.main()
    assert ended.value.code == 0
    assert list(path.parent.iterdir()) == [path]
    return path.read_text(encoding="utf-8")


def test_tables_are_complete(book: str) -> None:
    found = tables_of(book)
    # demands; two families and a dense network; three families and single questions
    assert len(found) == 1 + 3 + 4
    for table in found:
        assert len({len(row) for row in table}) == 1 and len(table) > 2
        assert not any(cell in ("", "nan", "None") for row in table[2:] for cell in row[:2])


def test_the_machine_stands_at_the_top(book: str) -> None:
    assert str(ROOT) not in book
    for word in ("CPUs", "load average", "Python", "numpy", "kcalc", "a partial run"):
        assert word in book[: book.index("## What was demanded")]


def test_exponents_are_slopes_of_logarithms() -> None:
    assert exponent([10, 100, 1000], [2e-3 * n**1.5 for n in (10, 100, 1000)]) == pytest.approx(1.5)
    assert math.isnan(exponent([10], [1.0]))
    steep = Measured(Work("w", len, why="N^2 entries"), {10.0: 1.0, 100.0: 100.0, 1000.0: 1e4})
    assert (steep.fitted, steep.last) == pytest.approx((2, 2))
    assert steep.remark == "steep: N^2 entries"
    assert "not explained" in Measured(Work("w", len), steep.found).remark
    assert Measured(Work("w", len), {10.0: 1.0, 100.0: 11.0, 1000.0: 120.0}).remark == ""


def test_a_size_is_foreseen_from_the_last_two() -> None:
    assert foreseen({}, 1e5) == 0 and foreseen({100.0: 1.0}, 1000.0) == pytest.approx(10)
    assert foreseen({10.0: 1.0, 100.0: 100.0}, 1000.0) == pytest.approx(1e4)
    assert foreseen({10.0: 1.0, 100.0: 1.0}, 1000.0) == pytest.approx(10)


def test_rounds_alternate_and_reverse() -> None:
    order: list[str] = []
    alternated({name: lambda name=name: order.append(name) for name in "ab"}, 3)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"


def test_numbers_as_text() -> None:
    times = list(map(seconds, (2.5, 0.0123, 4.2e-6, math.nan)))
    assert times == ["2.50 s", "12.3 ms", "4.20 us", "-"]
    assert [digits(v) for v in (0.0, 1234.5, 0.5, 1e-9)] == ["0", "1234", "0.500", "1e-09"]


def test_verdicts_follow_from_the_figures() -> None:
    what = {demand.key: demand.what for demand in DEMANDS}
    figures = {"import": Figure(0.7, "700 ms"), "unrolled": Figure(30, "30 x")}
    every = tables_of(page([Section("s", "", [], figures)], []))[0]
    assert [row[0] for row in every[2:]] == [demand.what for demand in DEMANDS]
    rows = {row[0]: row for row in every}
    assert rows[what["import"]][3].startswith("**short**")
    assert rows[what["unrolled"]][3] == "met"
    assert rows[what["dks_ratio"]][3] == "not measured: needs --peers"
    some = tables_of(page([Section("s", "", [], figures)], [], every=False))[0]
    told = {row[0] for row in some}
    assert told >= {what["import"], what["unrolled"]} and what["dks_ratio"] not in told
    with pytest.raises(KeyError, match="never"):
        page([Section("s", "", [], {"never": Figure(1, "1")})], [])


def test_bars_in_cells_do_not_break_a_table() -> None:
    assert Table("t", ("a",), [("|y|",)]).markdown().endswith("| \\|y\\| |")


def test_a_book_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "book.md"
    write("first", path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write("second", path)
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]
