"""Results as text and HTML tables and as plain data.

They are used in terminals, notebooks and JSON files.
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
MOST = 60  # maximal rows of a table; longer ones show the first and the last rows


HEURISTIC = ", heuristic"


def marked(text: str, result: Any) -> str:
    """A text of ``repr``, a legend or an axis, and that the result is heuristic if it is."""
    return f"{text}{HEURISTIC}" if text and getattr(result, "heuristic", False) else text


def cut(rows: Rows, most: int = MOST) -> list[Sequence[str]]:
    """A header and its rows, without the middle ones if there are more than ``most``.

    A row between the first and last ones then says how many are omitted.
    """
    head, *body = rows
    if len(body) <= most:
        return [head, *body]
    first = most // 2
    left_out = (f"... {len(body) - most} more ...", *[""] * (len(head) - 1))
    return [head, *body[:first], left_out, *body[len(body) - (most - first) :]]


def filled_columns(rows: Rows) -> Rows:
    """The rows without columns that are empty below the header."""
    kept = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    return [[row[i] for i in kept] for row in rows]


def text_table(rows: Rows, most: int = MOST) -> str:
    """Aligned columns, the first left-aligned and the others right-aligned.

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
    """The same as an HTML table; cells are escaped."""
    head, *body = cut(rows, most)
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(map(_cell, row, range(len(row))))}</tr>" for row in body)
    above = (
        f"<caption style='caption-side:bottom;text-align:left'>{escape(caption)}</caption>"
        if caption
        else ""
    )
    return f"<table>{above}<thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(text: str, column: int) -> str:
    left = "" if column else " style='text-align:left'"
    return f"<td{left}>{escape(text)}</td>"


def shown(value: Any, digits: int = 6) -> str:
    """A value in a table: a number with ``digits``, yes or no, a name; "-" for None."""
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
    """A value in JSON form: dictionaries with text keys, lists, text, finite numbers.

    Numbers that are not finite become None.
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
    """Base of results that are tables of values.

    Classes define ``_frame``: a dictionary per row, or {name: column}.
    """

    def _frame(self) -> Iterable[Mapping[str, Any]] | Mapping[str, Any]:
        raise NotImplementedError

    def to_dataframe(self) -> DataFrame:
        """The values with all digits, as a pandas DataFrame.

        Raises: KcalcError if pandas is not installed.
        """
        pandas = imported("pandas")
        values = self._frame()
        return pandas.DataFrame(dict(values) if isinstance(values, Mapping) else list(values))


def spread(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Columns of arrays that broadcast together, a row per entry."""
    return dict(
        zip(
            columns,
            (a.ravel() for a in np.broadcast_arrays(*map(np.asarray, columns.values()))),
            strict=True,
        )
    )


class Shown(Tabled):
    """Base of small results.

    a dataclass whose fields, and the properties named in ``listed``, make a table and plain data.

    Fields named in ``hidden`` are not in the table. Classes with another table override ``_rows``,
    the header and all rows (``most`` are shown), and ``_below``, the lines below them.
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
        """All values as plain data; infinite values become None."""
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
    """Base of results whose text is already a table.

    a notebook shows the same, in fixed width.
    """

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def latex_text(text: Any) -> str:
    """A name inside LaTeX text, with special characters escaped."""
    signs = {"\\": r"\backslash ", "^": r"\^{}", "~": r"\sim "} | {
        sign: rf"\{sign}" for sign in "_%&#{}$"
    }
    return "".join(signs.get(sign, sign) for sign in str(text))
