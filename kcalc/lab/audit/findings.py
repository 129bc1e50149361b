"""Findings, and the table of criteria that produce them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...foundation.errors import KcalcError, glimpse
from .subject import Subject, families

SEVERITIES = ("note", "warning", "error")
CHANGED = "LOCK-CHANGED"
"""The code for differences from a lock file. No criterion produces it."""


@dataclass(frozen=True)
class Finding:
    """A fault in a model's initialisation.

    Attributes
    ----------
    code
        The code of the criterion.
    severity
        "error", "warning" or "note".
    parameters
        The names of the affected parameters.
    message
        A description of the fault.
    fix
        The remedy.
    place
        The file and line where the parameters were last written, such as "model.py:12", or "" if
        unknown.

    """

    code: str
    severity: str
    parameters: tuple[str, ...]
    message: str
    fix: str
    place: str = ""

    def __str__(self) -> str:
        where = f" [{self.place}]" if self.place else ""
        return f"{self.severity} {self.code}: {self.message}{where}; {self.fix}"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "code": self.code,
            "severity": self.severity,
            "parameters": list(self.parameters),
            "message": self.message,
            "fix": self.fix,
            "place": self.place,
        }


@dataclass(frozen=True)
class Criterion:
    """A criterion: its code, its severity and rule in words, and the function that applies it."""

    code: str
    severity: str
    rule: str
    apply: Callable[[Subject], Iterator[Finding]]
    standard: bool = True


CRITERIA: dict[str, Criterion] = {}


def criterion(code: str, severity: str, rule: str, standard: bool = True) -> Callable[..., Any]:
    """Register a function as the criterion with this code.

    ``severity`` is the text shown in the table. ``standard`` is False for criteria that are applied
    only on request.
    """

    def enter(function: Callable[[Subject], Iterator[Finding]]) -> Any:
        CRITERIA[code] = Criterion(code, severity, rule, function, standard)
        return function

    return enter


def findings_of(subject: Subject, also: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    """Apply all criteria and return the findings, the worst first.

    ``also`` contains codes of criteria that are off by default.
    """
    found = [
        finding
        for entry in CRITERIA.values()
        if entry.standard or entry.code in also
        for finding in entry.apply(subject)
    ]
    return tuple(sorted(found, key=lambda f: -SEVERITIES.index(f.severity)))


def known_codes(codes: Any, what: str) -> tuple[str, ...]:
    """Return codes as a tuple.

    Raises: KcalcError for a code that is not in the table.
    """
    known = [*CRITERIA, CHANGED]
    if not isinstance(codes, str | list | tuple | set | frozenset):
        raise KcalcError(f"{what} must contain codes of findings, got {glimpse(codes)}")
    given = (codes,) if isinstance(codes, str) else tuple(codes)
    for code in given:
        if not isinstance(code, str) or code not in known:
            near = difflib.get_close_matches(str(code).upper(), known, n=1)
            raise KcalcError(
                f"{what} contains the unknown code {glimpse(code)}; the "
                f"{'nearest is' if near else 'codes are'} {', '.join(near or known)}"
            )
    return given


def named(names: tuple[str, ...] | list[str], most: int = 3) -> str:
    """Name parameters in a message: list the first families, and say how many others there are."""
    texts = forms(names)
    more = sum(len(members) for members in list(families(names).values())[most:])
    return ", ".join(texts[:most]) + (f" and {more} more" if more else "")


def forms(names: tuple[str, ...] | list[str]) -> list[str]:
    """Return one text per family: its pattern and size, or the name of its only member."""
    found = families(names).items()
    return [f"{form} ({len(n)})" if len(n) > 1 else next(iter(n)) for form, n in found]


def part(form: str, names: tuple[str, ...]) -> str:
    """Describe a part of a model: a parameter by name, or modules with their number."""
    return names[0] if len(names) == 1 else f"{form} ({len(names)} parameters)"
