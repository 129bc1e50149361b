"""All solutions for one activation, as a tuple that prints as a table with mirror images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..foundation.printing import Tabled, html_table, text_table
from ..foundation.process_state import cached_property
from .constants import COLUMNS as ALL
from .constants import Constants

SAME = 1e-6
COLUMNS = ("alpha", "beta", "gamma", "delta")


class Solutions(tuple[Constants, ...], Tabled):
    """Sets of constants in order of |beta|, positive before negative.

    ``mirror_of[j] = i`` marks j as the mirror image of i < j.
    """

    @cached_property
    def mirror_of(self) -> dict[int, int]:
        """Return {index of a solution: index of the earlier solution that it mirrors}."""
        return {j: i for i, j in mirrors(self)}

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return a header, and one row per solution with a column for each constant that is set."""
        columns = [name for name in ALL if any(getattr(k, name) is not None for k in self)]
        body = [
            (
                str(i),
                *("-" if (v := getattr(k, name)) is None else f"{v:.10g}" for name in columns),
                str(self.mirror_of.get(i, "")),
            )
            for i, k in enumerate(self)
        ]
        return [("", *columns, "mirror of"), *body]

    def __repr__(self) -> str:
        name = self[0].activation.name if self else "no activation"
        return (
            f"Solutions({name}, {len(self)} sets of constants, {len(self.mirror_of)} of them "
            f"mirror images)"
        )

    def _frame(self) -> list[dict[str, Any]]:
        return [
            {name: getattr(k, name) for name in ALL} | {"mirror_of": self.mirror_of.get(i)}
            for i, k in enumerate(self)
        ]

    def __str__(self) -> str:
        return text_table(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return all sets of constants and their mirror images as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        return {
            "solutions": [k.to_dict() for k in self],
            "mirror_of": {str(j): i for j, i in self.mirror_of.items()},
        }

    def _repr_html_(self) -> str:
        return html_table(self.rows, repr(self))


def mirrors(found: Sequence[Constants]) -> tuple[tuple[int, int], ...]:
    """Return pairs (i, j) of solutions that are mirror images of each other.

    Solution j is solution i under x -> -x or phi -> -phi, with beta of opposite sign. Such pairs
    occur for odd and even activations.
    """
    pairs = []
    for i, one in enumerate(found):
        for j in range(i + 1, len(found)):
            two = found[j]
            numbers = [
                (abs(getattr(one, name) or 0.0), abs(getattr(two, name) or 0.0)) for name in COLUMNS
            ]
            if (one.beta or 0.0) * (two.beta or 0.0) < 0 and all(
                abs(a - b) <= SAME * (1 + a) for a, b in numbers
            ):
                pairs.append((i, j))
    return tuple(pairs)
