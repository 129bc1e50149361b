"""A table that compares shapings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..foundation.printing import Tabled, html_table, text_table

RESIDUAL = "residual of "


@dataclass(frozen=True, repr=False)
class Comparison(Tabled):
    """A table with one column per shaping.

    It shows settings, constants, and the measured value and residual of every condition.
    """

    shapings: tuple[Any, ...]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return a header and one row per setting, constant and condition; "-" means no entry."""
        cells = (
            (
                name,
                *(
                    _shown(value, ".1e" if name.startswith(RESIDUAL) else ".10g")
                    for value in values
                ),
            )
            for name, *values in self._all()
        )
        return [("", *(s.method for s in self.shapings)), *cells]

    def _frame(self) -> list[dict[str, Any]]:
        found = list(self._all())
        return [
            {"method": s.method} | {name: values[i] for name, *values in found}
            for i, s in enumerate(self.shapings)
        ]

    def _all(self) -> Iterator[tuple[Any, ...]]:
        """Yield rows (name, one value per shaping) for settings, constants and conditions.

        Missing values are None.
        """
        for name in dict.fromkeys(name for s in self.shapings for name in s.options):
            yield name, *(s.options.get(name) for s in self.shapings)
        for activation in dict.fromkeys(name for s in self.shapings for name in s.constants):
            for column in dict.fromkeys(
                column for s in self.shapings for column in s.constants.columns()
            ):
                values = [
                    getattr(s.constants[activation], column) if activation in s.constants else None
                    for s in self.shapings
                ]
                if any(value is not None for value in values):
                    yield f"{activation} {column}", *values
        for name in dict.fromkeys(name for s in self.shapings for name in s.values):
            yield name, *(s.values.get(name) for s in self.shapings)
            yield RESIDUAL + name, *(s.residuals.get(name) for s in self.shapings)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(s.method for s in self.shapings)})"

    def __str__(self) -> str:
        return text_table(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the shapings as plain data."""
        return {"shapings": [s.to_dict() for s in self.shapings]}

    def _repr_html_(self) -> str:
        return html_table(self.rows)


def _shown(value: object, form: str) -> str:
    return "-" if value is None else format(value, form) if isinstance(value, float) else str(value)
