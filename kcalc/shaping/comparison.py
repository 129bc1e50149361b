"""Shapings side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..printing import html_table, text_table


@dataclass(frozen=True, repr=False)
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
        return f"Comparison({', '.join(s.method for s in self.shapings)})"

    def __str__(self) -> str:
        return text_table(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The shapings as plain data."""
        return {"shapings": [s.to_dict() for s in self.shapings]}

    def _repr_html_(self) -> str:
        return html_table(self.rows)


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
