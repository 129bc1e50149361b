"""INIT-MISSED: the function that draws all weights missed a weight in one block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .findings import Finding, criterion, named
from .laws import Law, differ
from .subject import Subject, families

FAR = 1.1  # a sigma within this ratio of the others is harmless
FEWEST = 2  # least number of agreeing members of a family in a finished model
NEAR = 0.9  # the largest of many uniform entries exceeds this fraction of the bound


@criterion(
    "INIT-MISSED",
    "warning",
    "among the weights with the same name, role and shape in all blocks, fewer than half keep the "
    "distribution that their layer drew (also in a later reset_parameters()), and one line of code "
    "redrew the others. Their sigma differs by at least 10 %. In a finished model, one weight "
    "has PyTorch's default uniform distribution, and at least two others share a different sigma",
)
def missed(subject: Subject) -> Iterator[Finding]:
    """Report weights that ``apply(init)`` missed."""
    found: list[str] = []
    for names in families(subject.contracted).values():
        alike: dict[Any, list[str]] = {}
        for name in names:
            parameter = subject.parameters[name]
            if parameter.ndim > 1 and parameter.requires_grad:
                key = (tuple(parameter.shape), frozenset(subject.roles.get(name, ())))
                alike.setdefault(key, []).append(name)
        for members in alike.values():
            found += _left(subject, members)
    if not found:
        return
    others = tuple(dict.fromkeys(
        n for form in families(found).values() for n in _peers(subject, form[0]) if n not in found
    ))  # fmt: skip
    yield Finding(
        "INIT-MISSED",
        "warning",
        tuple(found),
        f"{named(found)} {'keeps' if len(found) == 1 else 'keep'} the values that the layer drew "
        f"by default (sigma {subject.laws[found[0]].sigma:.3g}), but {named(others)} in the other "
        f"blocks were redrawn (sigma {subject.laws[others[0]].sigma:.3g})",
        "call the function that draws all weights only after every layer has been created, and "
        "check that it handles this layer's class and name",
        subject.place(found),
    )


def _peers(subject: Subject, name: str) -> tuple[str, ...]:
    return next(members for members in families(subject.contracted).values() if name in members)


def _left(subject: Subject, names: list[str]) -> list[str]:
    """Return the members of a family that the drawing function missed.

    The list is empty if this is unclear.
    """
    laws = {name: subject.laws[name] for name in names}
    if subject.again is None:
        return _left_by_size(subject, laws)
    first = [n for n, law in laws.items() if not law.replaced or _by_default(subject, n)]
    drawn = [law for name, law in laws.items() if name not in first]
    if not first or len(first) >= len(drawn) or len({(d.name, d.place) for d in drawn}) > 1:
        return []
    least, most = min(law.sigma for law in drawn), max(law.sigma for law in drawn)
    if not least > 0:
        return []
    return [
        n for n in first if not least / FAR <= laws[n].sigma <= most * FAR and laws[n].sigma > 0
    ]


def _left_by_size(subject: Subject, laws: dict[str, Law]) -> list[str]:
    """Return the only member of a family that looks like PyTorch's default.

    This is for finished models, whose construction was not recorded. The list is empty unless the
    other members agree on a different sigma.
    """
    odd = [name for name in laws if _by_default(subject, name)]
    others = [law for name, law in laws.items() if name not in odd]
    if len(odd) != 1 or len(others) < FEWEST:
        return []
    sigma = sum(law.sigma for law in others) / len(others)
    agree = sigma > 0 and not any(differ(law, sigma) for law in others)
    return odd if agree and differ(laws[odd[0]], sigma, FAR - 1) else []


def _by_default(subject: Subject, name: str) -> bool:
    """Return whether a weight looks like PyTorch's default: uniform, with bound fan_in^-1/2."""
    law, parameter = subject.laws[name], subject.parameters[name]
    bound = subject.contracted[name].fan_in ** -0.5
    largest = float(parameter.detach().abs().max())
    return NEAR * bound < largest <= bound * 1.0001 and not differ(law, bound / 3**0.5)
