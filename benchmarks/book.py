"""The benchmark book: sections with tables and figures, their targets, and the file they are
written to.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from .demands import DEMANDS, Demand

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Options of a section: whether to use small sizes, the peers' interpreters by name, and the
    folder for large files.
    """

    quick: bool = False
    peers: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None

    def size(self, quick: T, full: T) -> T:
        """Return the size for this kind of run."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Table:
    """A table with a caption; cells are text."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [
            self.caption,
            "",
            _row(self.columns),
            _row("---" for _ in self.columns),
            *map(_row, self.rows),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Figure:
    """A figure with a target.

    ``shown`` is the text to print if the number alone is not enough.
    """

    value: float
    shown: str


@dataclass(frozen=True)
class Section:
    """The results of one module of benchmarks/sections."""

    title: str
    intro: str
    tables: Sequence[Table]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: Sequence[str] = ()
    finished: bool = True

    def markdown(self) -> str:
        parts = [
            f"## {self.title}",
            self.intro,
            *(table.markdown() for table in self.tables),
            *self.notes,
        ]
        return "\n\n".join(parts)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# -- numbers as text -------------------------------------------------------------------------------


def seconds(value: float) -> str:
    """A time with three digits and a unit."""
    if math.isnan(value):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{digits(value / scale)} {unit}"
    return f"{digits(value / 1e-6)} us"


def digits(value: float) -> str:
    """Three significant digits, with powers of ten only if necessary."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    if value == 0 or not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def times(value: float) -> str:
    """A ratio."""
    return f"{digits(value)} x"


# -- the page --------------------------------------------------------------------------------------


def demanded(figures: Mapping[str, Figure], judged: bool = True, every: bool = True) -> Table:
    """The targets, the measurements and, unless ``judged=False`` (small sizes), whether each target
    is met. With ``every=False`` only targets of the given sections are listed.
    """
    return Table(
        "Targets and measurements. If a result misses its target for a known reason, the table "
        "gives the reason.",
        ("what", "demanded", "measured", "verdict"),
        [
            _row_of(demand, figures.get(demand.key), judged)
            for demand in DEMANDS
            if every or demand.key in figures
        ],
    )


def _row_of(demand: Demand, figure: Figure | None, judged: bool) -> tuple[str, ...]:
    if figure is None:
        missing = "not measured: needs --peers" if demand.peer else "not measured in this run"
        return demand.what, demand.text, "-", missing
    if not judged:
        return demand.what, demand.text, figure.shown, "not judged: small sizes"
    verdict = (
        "met" if demand.met(figure.value) else f"**short**{': ' if demand.why else ''}{demand.why}"
    )
    return demand.what, demand.text, figure.shown, verdict


def page(
    sections: Sequence[Section], heading: Sequence[str], judged: bool = True, every: bool = True
) -> str:
    """The whole page: machine, targets and sections (all sections, or some if ``every=False``)."""
    figures = {key: figure for section in sections for key, figure in section.figures.items()}
    unknown = set(figures) - {demand.key for demand in DEMANDS}
    if unknown:
        raise KeyError(f"figures that nothing was demanded of: {', '.join(sorted(unknown))}")
    table = demanded(figures, judged, every)
    parts = ["# Results", *heading]
    parts += ["## What was demanded", table.markdown()] if table.rows else []
    parts += [section.markdown() for section in sections]
    return "\n\n".join(parts) + "\n"


def write(text: str, path: Path) -> None:
    """Write a file atomically."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
