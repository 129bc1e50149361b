"""Sigmas computed from a fan that ignores groups, without an initialiser of torch.nn.init."""

from __future__ import annotations

import math

from .contractions import Contraction
from .laws import Law
from .subject import Subject

USUAL = (1 / 3, 1.0, 2.0, 25 / 9, 9 / 16, *(2 / (1 + slope**2) for slope in (0.01, 0.1, 0.2)))
"""Usual products of variance and fan: PyTorch's default and the gains of torch.nn.init.
"""

EXACT = 1e-5  # relative tolerance for computed sigmas
BY_HAND = ("normal", "uniform", "trunc_normal")


def ignored_groups(subject: Subject, name: str) -> tuple[str, float, float] | None:
    """Return (name of the fan, fan used, true fan) for a grouped weight, or None.

    The weight was drawn without an initialiser, and its variance is c / fan with a fan that counts
    all groups. Here c is a usual constant, or the constant that two other weights with different
    fans, drawn by the same line, have in common. The result is None if the true fan also explains
    the variance with a usual c.
    """
    law, groups = subject.laws[name], _groups(subject, name)
    if groups < 2 or law.place == "" or law.name not in BY_HAND or not law.sigma > 0:
        return None
    fans = _fans(subject.contracted[name])
    for mode, fan in fans.items():
        if _witnessed(subject, name, mode, fan * groups):
            return mode, float(fan * groups), float(fan)
    if any(_fits(law, fan, c) for fan in fans.values() for c in USUAL):
        return None
    for mode, fan in fans.items():
        if any(_fits(law, fan * groups, c) for c in USUAL):
            return mode, float(fan * groups), float(fan)
    return None


def _groups(subject: Subject, name: str) -> int:
    """Return the number of groups of a convolution, or of matrices in a stack."""
    used, parameter = subject.contracted[name], subject.parameters[name]
    if used.value.op == "convolution":
        return used.groups
    return len(parameter) if parameter.ndim == 3 else 1


def _fits(law: Law, fan: int, constant: float) -> bool:
    return abs(law.sigma * math.sqrt(fan / constant) - 1) < EXACT


def _witnessed(subject: Subject, name: str, mode: str, fan: int) -> bool:
    """Return whether the variance of a weight is c / ``fan``, with the c of other weights.

    At least two weights without groups, drawn by the same line with different fans, must share this
    c.
    """
    law = subject.laws[name]
    others: dict[int, Law] = {}
    for other, contraction in subject.contracted.items():
        known = subject.laws[other]
        if _groups(subject, other) == 1 and known.place == law.place and known.name == law.name:
            others[_fans(contraction)[mode]] = known
    constants = [known.sigma**2 * of for of, known in others.items()]
    if len(others) < 2 or max(constants) > (1 + EXACT) * min(constants):
        return False
    return constants[0] > 0 and _fits(law, fan, constants[0])


def _fans(contraction: Contraction) -> dict[str, int]:
    fan_in, fan_out = contraction.fan_in, contraction.fan_out
    return {"fan_in": fan_in, "fan_out": fan_out, "fan_sum": fan_in + fan_out}
