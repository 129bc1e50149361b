"""Sigmas that follow from a fan which ignores groups, though no initialiser was given the fan."""

from __future__ import annotations

import math

from .contractions import Contraction
from .laws import Law
from .subject import Subject

USUAL = {"PyTorch's": 1 / 3, "LeCun's": 1.0, "He's": 2.0}
"""Variances of usual laws, times their fan."""

EXACT = 1e-3  # relative: of sigmas that are computed
BY_HAND = ("normal", "uniform", "trunc_normal")


def ignored_groups(subject: Subject, name: str) -> tuple[str, float, float] | None:
    """(the fan's name, the fan that was used, the true one) of a grouped weight drawn by hand.

    The variance c / fan is that of a fan which counts all groups, and c is a usual one or that of
    two other weights drawn by the same line, of different fans. None where the true fan fits
    too, with any usual c.
    """
    law, groups = subject.laws[name], _groups(subject, name)
    if groups < 2 or law.place == "" or law.name not in BY_HAND or not law.sigma > 0:
        return None
    used = subject.contracted[name]
    fans = {"fan_in": used.fan_in, "fan_out": used.fan_out}
    for mode, fan in fans.items():
        if _witnessed(subject, name, mode, fan * groups):
            return mode, float(fan * groups), float(fan)
    if any(_fits(law, fan, c) for fan in fans.values() for c in USUAL.values()):
        return None
    for mode, fan in fans.items():
        if any(_fits(law, fan * groups, c) for c in USUAL.values()):
            return mode, float(fan * groups), float(fan)
    return None


def _groups(subject: Subject, name: str) -> int:
    """The groups of a convolution, or the matrices of a stack."""
    used, parameter = subject.contracted[name], subject.parameters[name]
    if used.value.op == "convolution":
        return used.groups
    return len(parameter) if parameter.ndim == 3 else 1


def _fits(law: Law, fan: int, constant: float) -> bool:
    return abs(law.sigma * math.sqrt(fan / constant) - 1) < EXACT


def _witnessed(subject: Subject, name: str, mode: str, fan: int) -> bool:
    """Whether the line that drew a weight drew others by their fans, and this one by ``fan``."""
    law = subject.laws[name]
    others: dict[int, Law] = {}
    for other, contraction in subject.contracted.items():
        known = subject.laws[other]
        if _groups(subject, other) == 1 and known.place == law.place and known.name == law.name:
            others[_fan(contraction, mode)] = known
    constants = [known.sigma**2 * of for of, known in others.items()]
    if len(others) < 2 or max(constants) > (1 + EXACT) * min(constants):
        return False
    return constants[0] > 0 and _fits(law, fan, constants[0])


def _fan(contraction: Contraction, mode: str) -> int:
    return contraction.fan_in if mode == "fan_in" else contraction.fan_out
