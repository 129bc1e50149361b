"""Lock files: the distributions of a model's parameters, for finding changes in a later version."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...foundation.errors import KcalcError
from ...foundation.files import read_at_most
from ...foundation.plain_arguments import file_path
from .findings import CHANGED, Finding, part
from .laws import EXACT, Law
from .subject import parts
from .tables import ParameterRow

SCHEMA = "kcalc.audit-lock/1"


def lock_text(name: str, rows: Sequence[ParameterRow]) -> str:
    """Return the text of a lock file."""
    entries = {
        row.name: {
            "shape": list(row.shape),
            "law": row.law,
            "sigma": row.sigma,
            "error": row.error,
            "mean": row.mean,
        }
        for row in rows
    }
    return json.dumps({"schema": SCHEMA, "name": name, "parameters": entries}, indent=1) + "\n"


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    file = file_path(path)
    try:
        found = json.loads(read_at_most(file, "a lock file").decode("utf-8"))
        if found["schema"] != SCHEMA:
            raise ValueError
        entries: dict[str, Any] = found["parameters"]
        for entry in entries.values():
            numbers = entry["sigma"], entry["error"], entry.setdefault("mean")
            if not all(isinstance(n, int | float | None) for n in numbers):
                raise TypeError
            if not (isinstance(entry["shape"], list) and isinstance(entry["law"], str)):
                raise TypeError
    except KcalcError:
        raise
    except OSError as error:
        raise KcalcError(
            f"{path}: {error.strerror or error}; kcalc audit MODEL --lock FILE writes a lock file"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise KcalcError(
            f"{path} is not the lock file of an audit; create one with kcalc audit ... "
            f"--lock {path}"
        ) from None
    return entries


def changes(
    laws: Mapping[str, Law],
    shapes: Mapping[str, tuple[int, ...]],
    baseline: str | os.PathLike[str],
) -> tuple[Finding, ...]:
    """Return findings for added, removed and changed parameters (shape, law, sigma or mean).

    Sigmas and means count as changed if they differ by more than 1 % and by more than 4 standard
    errors.
    """
    before = _read(baseline)
    groups: dict[str, list[str]] = {}
    for name in before.keys() - laws.keys():
        groups.setdefault("was removed", []).append(name)
    for name, law in laws.items():
        text = _change(law, shapes[name], before.get(name))
        if text:
            groups.setdefault(text, []).append(name)
    found = []
    every = {*before, *laws}
    for text, names in groups.items():
        for form, members in parts(sorted(names), every).items():
            place = next((laws[n].place for n in members if n in laws and laws[n].place), "")
            found.append(
                Finding(
                    CHANGED,
                    "warning",
                    members,
                    f"{part(form, members)} {text}",
                    f"if this change is intended, write {baseline} again",
                    place,
                )
            )
    return tuple(found)


def _change(law: Law, shape: tuple[int, ...], entry: Any) -> str:
    """Describe how a parameter differs from its entry in the file, or return "" if it does not."""
    if entry is None:
        return "is new"
    if list(shape) != entry["shape"]:
        return f"has the shape {tuple(shape)} instead of {tuple(entry['shape'])}"
    recorded = "measured" not in (law.name, entry["law"])
    if recorded and law.name != entry["law"]:
        return f"is {law.name} instead of {entry['law']}"
    sigma, mean = entry["sigma"], entry["mean"]
    if sigma is None or not math.isfinite(law.sigma):
        return ""
    error = math.hypot(law.error, entry["error"] or 0.0)
    if abs(law.sigma - sigma) > max(EXACT * max(sigma, law.sigma), 4 * error):
        return f"has sigma {law.sigma:.4g} instead of {sigma:.4g}"
    error = math.hypot(law.sigma, sigma) / max(math.prod(shape), 1) ** 0.5
    if mean is None or not math.isfinite(law.mean):
        return ""
    if math.prod(shape) == 1 and not (_is_round(mean) or _is_round(law.mean)):
        return ""  # an entry drawn at random, whose law is unknown
    if abs(law.mean - mean) > max(EXACT * max(abs(mean), abs(law.mean)), 4 * error):
        return f"has the mean {law.mean:.4g} instead of {mean:.4g}"
    return ""


def _is_round(number: float) -> bool:
    """Return whether a number has at most three digits, as numbers written in code usually do."""
    return math.isclose(number, float(f"{number:.3g}"), rel_tol=1e-6)
