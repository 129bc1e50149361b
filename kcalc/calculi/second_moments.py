"""Second moments of feature maps for two inputs, and second moments of their sums.

For nearly equal inputs the gap 1 - c is a small difference of large numbers. Here the gap of a sum
is computed as a sum of small terms, so it keeps its digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from ..fields import NUMPY
from ..fields.jax_field import is_jax
from ..fields.jets import Jet

Number = Any


@dataclass(frozen=True)
class Moments:
    """Second moments of one channel for two inputs.

    The fields are the q values, ``gap = 1 - c`` and the channel means. A feature map that is 0 but
    has derivatives has no cosine; ``part`` is then its contribution to second moments, and
    otherwise None.
    """

    q1: Number
    q2: Number
    gap: Number
    mean1: Number = 0
    mean2: Number = 0
    part: Part | None = None

    @property
    def fixed(self) -> Moments:
        """The same moments, with the derivatives of jets in the gap set to 0."""
        part = None if self.part is None else self.part.fixed
        return replace(self, gap=fixed(self.gap), part=part)


@dataclass(frozen=True)
class Part:
    """A contribution to ``E f1^2``, ``E f2^2`` and ``E f1 f2``.

    The contribution to ``E f1 f2`` is ``joint - deficit``, and the deficit is 0 at ``c = 1``.

    ``ratio``: ``joint / first`` if ``joint^2 = first second``; None if that is false or unknown.
    """

    first: Number
    second: Number
    joint: Number
    deficit: Number = 0
    ratio: Number | None = None

    def scaled(self, s1: Number, s2: Number, s12: Number) -> Part:
        """Multiply the three moments of the contribution by s1, s2 and s12."""
        return Part(s1 * self.first, s2 * self.second, s12 * self.joint, s12 * self.deficit)

    def times(self, weight: Number) -> Part:
        """Multiply the contribution by a scalar, which leaves the ratio unchanged."""
        first, second, joint = weight * self.first, weight * self.second, weight * self.joint
        return Part(first, second, joint, weight * self.deficit, self.ratio)

    @property
    def fixed(self) -> Part:
        """The same contribution, with the derivatives of jets set to 0."""
        first, second, joint, deficit = map(
            fixed, (self.first, self.second, self.joint, self.deficit)
        )
        return Part(first, second, joint, deficit, self.ratio)

    @classmethod
    def of_means(cls, mean1: Number, mean2: Number, sign: int = 1) -> Part:
        """Return ``sign`` times ``(mean1^2, mean2^2, mean1 mean2)``."""
        ratio = (
            None
            if is_zero(mean1) or any(isinstance(m, Jet) or is_jax(m) for m in (mean1, mean2))
            else mean2 / mean1
        )
        return cls(sign * mean1 * mean1, sign * mean2 * mean2, sign * mean1 * mean2, ratio=ratio)


def fixed(value: Number) -> Number:
    """Return a number unchanged, or a jet with its derivatives set to 0."""
    if not isinstance(value, Jet):
        return value
    return Jet((value.value, *(0 * value.value for _ in value.coefficients[1:])))


def is_zero(value: Number) -> bool:
    """True if a number is exactly zero everywhere."""
    if isinstance(value, float):  # the usual case in deep networks
        return bool(value == 0)
    if isinstance(value, Jet):
        return all(is_zero(a) for a in value.coefficients)
    if is_jax(value):  # a traced value is unknown, so it does not count as zero
        return False
    result = value == 0
    return bool(result.all()) if hasattr(result, "all") else bool(result)


def agree(a: Number, b: Number) -> bool:
    """True if two numbers are the same everywhere."""
    return a is b or is_zero(a - b)


class SecondMoments:
    """Second moments of feature maps and their sums for two inputs, over one number system.

    ``uniform``: both inputs have the same q everywhere, so both use the first input's values.
    """

    def __init__(self, field: Any, uniform: bool) -> None:
        self.field = field
        self.uniform = uniform

    def root(self, value: Number) -> Number:
        """The square root of a number or jet."""
        return value.sqrt(self.field.sqrt) if isinstance(value, Jet) else self.field.sqrt(value)

    def geometric(self, a: Number, b: Number) -> Number:
        """Return ``sqrt(a b)``, exactly ``a`` if both are equal."""
        if a is b:
            return a
        if isinstance(a, Jet) or isinstance(b, Jet):
            return self.root(a * b)
        if self.field is NUMPY:
            with np.errstate(all="ignore"):
                product = np.asarray(a * b)
            whole = (product > 1e-290) & (product < 1e290)  # the other products under- or overflow
            return np.where(
                a == b,
                a,
                np.where(whole, np.sqrt(np.where(whole, product, 1.0)), np.sqrt(a) * np.sqrt(b)),
            )[()]
        if is_jax(a) or is_jax(b):
            return self.root(a * b)
        return a if a == b else self.root(a * b)

    def own(self, m: Moments) -> Part:
        """The second moments of a single feature map as a :class:`Part`."""
        if m.part is not None:
            return m.part
        joint = self.geometric(m.q1, m.q2)
        known = (
            not self.uniform
            and (self.field is NUMPY or is_jax(m.q1))
            and not isinstance(m.q1, Jet)
            and not isinstance(m.q2, Jet)
        )
        if not known:
            return Part(m.q1, m.q2, joint, m.gap * joint)
        with np.errstate(invalid="ignore"):  # 0 / 0 if a location is 0, as at padding
            return Part(m.q1, m.q2, joint, m.gap * joint, joint / m.q1)

    def mix(self, parts: Iterable[Part]) -> tuple[Number, Number, Number]:
        """Return (q1, q2, gap) of a sum of parts.

        The gap keeps its digits if q1 = q2, or if all ratios are known.
        """
        parts = list(parts)
        q1 = q2 = joint = deficit = 0
        for part in parts:
            q1 = q1 + part.first
            q2 = q2 + part.second
            joint = joint + part.joint
            deficit = deficit + part.deficit
        if self.uniform:
            return q1, q1, deficit / q1
        norm = self.geometric(q1, q2)
        return q1, q2, (self._excess(parts, norm, joint) + deficit) / norm

    def _excess(self, parts: Sequence[Part], norm: Number, joint: Number) -> Number:
        """The excess ``norm - joint``, by Lagrange's identity.

        ``sum a_i sum a_i r_i^2 - (sum a_i r_i)^2 = sum_{i<j} a_i a_j (r_i - r_j)^2``.
        """
        known = [(part.first, part.ratio) for part in parts if part.ratio is not None]
        if len(known) < len(parts):
            return norm - joint
        squares: Number = 0
        for (first, r), (second, s) in combinations(known, 2):
            squares = squares + first * second * (r - s) ** 2
        if self.field is not NUMPY:
            return squares / (norm + joint)
        with np.errstate(all="ignore"):  # a ratio is 0 / 0 if a location is 0
            exact = squares / (norm + joint)
        sound = np.isfinite(exact) & (np.asarray(joint) > 0)
        return exact if sound.all() else np.where(sound, exact, norm - joint)[()]
