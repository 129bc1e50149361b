"""Show results as text tables, HTML tables and plain data.

The text is for terminals, the HTML for notebooks, and the plain data for JSON files.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .extras import imported

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = Sequence[Sequence[str]]
CAPTION = 60  # characters of a repr shown below its table
MOST = 60  # largest number of rows; longer tables show the first and last rows
PAGE_STYLE = (
    "body{font-family:system-ui,sans-serif;max-width:75rem;margin:1rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .6rem;text-align:right}"
)

HEURISTIC = ", heuristic"


def marked(text: str, result: Any) -> str:
    """Append ", heuristic" to a repr, legend or axis label if the result is heuristic."""
    return f"{text}{HEURISTIC}" if text and getattr(result, "heuristic", False) else text


def cut(rows: Rows, most: int = MOST) -> list[Sequence[str]]:
    """Drop the middle rows of a table with more than ``most`` rows below its header.

    A row in their place shows how many rows are omitted.
    """
    head, *body = rows
    if len(body) <= most:
        return [head, *body]
    first = most // 2
    left_out = (f"... {len(body) - most} more ...", *[""] * (len(head) - 1))
    return [head, *body[:first], left_out, *body[len(body) - (most - first) :]]


def filled_columns(rows: Rows) -> Rows:
    """Drop the columns that are empty below the header."""
    kept = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    return [[row[i] for i in kept] for row in rows]


def text_table(rows: Rows, most: int = MOST) -> str:
    """Format rows as columns: the first column left-aligned, the others right-aligned.

    The first row is the header.
    """
    shown = cut(rows, most)
    widths = [max(len(row[i]) for row in shown) for i in range(len(shown[0]))]
    lines = (
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in shown
    )
    return "\n".join(line.rstrip() for line in lines)


def html_table(rows: Rows, caption: str = "", most: int = MOST) -> str:
    """Format rows as an HTML table with escaped cells."""
    head, *body = cut(rows, most)
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(map(_cell, row, range(len(row))))}</tr>" for row in body)
    above = (
        f"<caption style='caption-side:bottom;text-align:left'>{escape(caption)}</caption>"
        if caption
        else ""
    )
    return f"<table>{above}<thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def html_page(title: str, body: str) -> str:
    """Return a complete HTML page. The title is escaped, and the body is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{PAGE_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _cell(text: str, column: int) -> str:
    left = "" if column else " style='text-align:left'"
    return f"<td{left}>{escape(text)}</td>"


def shown(value: Any, digits: int = 6) -> str:
    """Format a table value: floats with ``digits`` digits, booleans as yes or no, None as "-"."""
    if value is None:
        return "-"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{value:.{digits}g}"
    if isinstance(value, np.ndarray):
        return (
            f"array of shape {value.shape}"
            if value.size > 8
            else ", ".join(shown(v, digits) for v in value.ravel())
        )
    if isinstance(value, tuple | list):
        return (
            ", ".join(shown(v, digits) for v in value)
            if len(value) <= 8
            else f"{len(value)} values"
        )
    text = str(value) if "\n" not in str(value) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def plain(value: Any) -> Any:
    """Convert a value to JSON types: dictionaries with text keys, lists, text, finite numbers.

    NaN and infinite numbers become None.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and not hasattr(value, "expr")
    ):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple | Set):
        return [plain(item) for item in value]
    if hasattr(value, "__array__") and not hasattr(value, "free_symbols"):
        return plain(np.asarray(value).tolist())
    return getattr(value, "name", None) or str(value) if hasattr(value, "c_map") else str(value)


class Tabled:
    """Base class of results that are tables of values.

    Subclasses define ``_frame``: one dictionary per row, or {name: column}.
    """

    def _frame(self) -> Iterable[Mapping[str, Any]] | Mapping[str, Any]:
        raise NotImplementedError

    def to_dataframe(self) -> DataFrame:
        """Return the values with all digits, as a pandas DataFrame.

        Raises KcalcError if pandas is not installed.
        """
        pandas = imported("pandas")
        values = self._frame()
        return pandas.DataFrame(dict(values) if isinstance(values, Mapping) else list(values))


def spread(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Broadcast columns against each other and flatten them, one row per entry."""
    return dict(
        zip(
            columns,
            (a.ravel() for a in np.broadcast_arrays(*map(np.asarray, columns.values()))),
            strict=True,
        )
    )


class Shown(Tabled):
    """Base class of small results.

    The fields of a dataclass, and the properties named in ``listed``, make up its table and its
    plain data. Fields named in ``hidden`` are not in the table. A subclass with another table
    overrides ``_rows``, which returns the header and all rows, and ``_below``, the lines below
    them. At most ``most`` rows are shown.
    """

    most: ClassVar[int] = MOST

    listed: ClassVar[tuple[str, ...]] = ()
    hidden: ClassVar[tuple[str, ...]] = ("assumptions",)

    def _names(self) -> list[str]:
        return [*(f.name for f in dataclasses.fields(self) if f.repr), *self.listed]  # pyright: ignore[reportArgumentType]

    def _rows(self) -> Rows:
        names = [name for name in self._names() if name not in self.hidden]
        return [
            ("", "value"),
            *((name.replace("_", " "), shown(getattr(self, name))) for name in names),
        ]

    def _frame(self) -> Iterable[Mapping[str, Any]] | Mapping[str, Any]:
        if not dataclasses.is_dataclass(self):
            return [self.to_dict()]
        return [{name: getattr(self, name) for name in self._names() if name not in self.hidden}]

    def to_dict(self) -> dict[str, Any]:
        """Return all values as plain data; infinite values become None."""
        return {name: plain(getattr(self, name)) for name in self._names()}

    def _below(self) -> Sequence[str]:
        return ()

    def __str__(self) -> str:
        return "\n".join([text_table(self._rows(), self.most), *self._below()])

    def _repr_html_(self) -> str:
        line = repr(self)
        table = html_table(
            self._rows(),
            line if len(line) <= CAPTION else marked(type(self).__name__, self),
            self.most,
        )
        return table + "".join(f"<p>{escape(text)}</p>" for text in self._below())


class Printed(Tabled):
    """Base class of results whose text form is already a table.

    A notebook shows the same text in a fixed-width font.
    """

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def latex_text(text: Any) -> str:
    """Escape the special characters of a name for LaTeX text."""
    signs = {"\\": r"\backslash ", "^": r"\^{}", "~": r"\sim "} | {
        sign: rf"\{sign}" for sign in "_%&#{}$"
    }
    return "".join(signs.get(sign, sign) for sign in str(text))
