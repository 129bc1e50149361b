"""Shapings side by side."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """Shapings as the columns of a table: their settings, constants, and the measured value and residual of every condition."""

    shapings: tuple[Any, ...]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """A head, then a row per setting, constant and condition; "-" where a shaping has none."""
        return [("", *(s.method for s in self.shapings)), *self._options(), *self._constants(), *self._conditions()]

    def _options(self) -> Iterator[tuple[str, ...]]:
        for name in dict.fromkeys(name for s in self.shapings for name in s.options):
            yield name, *(_shown(s.options.get(name)) for s in self.shapings)

    def _constants(self) -> Iterator[tuple[str, ...]]:
        for activation in dict.fromkeys(name for s in self.shapings for name in s.constants):
            for column in dict.fromkeys(column for s in self.shapings for column in s.constants.columns()):
                values = [getattr(s.constants[activation], column) if activation in s.constants else None for s in self.shapings]
                if any(value is not None for value in values):
                    yield f"{activation} {column}", *map(_shown, values)

    def _conditions(self) -> Iterator[tuple[str, ...]]:
        for name in dict.fromkeys(name for s in self.shapings for name in s.values):
            yield name, *(_shown(s.values.get(name)) for s in self.shapings)
            yield f"residual of {name}", *(f"{s.residuals[name]:.1e}" if name in s.residuals else "-" for s in self.shapings)

    def __repr__(self) -> str:
        rows = self.rows
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        )

    def _repr_html_(self) -> str:
        head, *body = self.rows
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        lines = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
        return f"<table><tr>{cells}</tr>{lines}</table>"


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
