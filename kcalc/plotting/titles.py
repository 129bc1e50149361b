"""The titles of plots.

A title is a short sentence that the drawn numbers support, or else the name of the quantity.

Bounds are rounded outward, so a sentence never claims more than the picture shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
ALIKE = 0.5  # least c worth a sentence
KEPT = 0.3  # largest change of c worth a sentence


def down(x: float, digits: int = 2) -> str:
    """Round a number towards -infinity to ``digits`` significant digits."""
    return _rounded(x, digits, math.floor)


def up(x: float, digits: int = 2) -> str:
    """Round a number towards +infinity."""
    return _rounded(x, digits, math.ceil)


def _rounded(x: float, digits: int, toward: Any) -> str:
    if x == 0 or not math.isfinite(x):
        return f"{x:g}"
    step = 10.0 ** (math.floor(math.log10(abs(x))) - digits + 1)
    near = round(x / step)
    whole = near if abs(x / step - near) < 1e-9 else toward(x / step)
    return f"{whole * step:.{max(digits, 1)}g}"


def span(values: Any, name: str = "") -> str:
    """Return "1.2" or "between 0.4 and 1.3", rounded outward."""
    low, high = float(np.min(values)), float(np.max(values))
    low = 0.0 if 0 < low < 1e-12 * high else low  # rounding
    about = name and f"{name} "
    if abs(high - low) <= 5e-3 * max(abs(low), abs(high)):
        return f"{about}{three_digits(0.5 * (low + high))}"
    return f"between {down(low)} and {up(high)}"


def three_digits(x: float) -> str:
    """Write a number with 3 significant digits, and as 0 below 1e-12."""
    return "0" if abs(x) < 1e-12 else f"{x:.3g}"


def _finite(curves: Sequence[Array]) -> bool:
    return bool(curves) and all(np.all(np.isfinite(curve)) for curve in curves)


def c_maps(c: Array, curves: Sequence[Array]) -> str:
    """Describe the effect of C maps on all pairs of inputs, or on orthogonal ones.

    ``curves`` are their values at ``c``.
    """
    if not _finite(curves):
        return "C maps" if len(curves) > 1 else "C map"
    least = min(float(y.min()) for y in curves)
    moved = max(float(np.abs(y - c).max()) for y in curves)
    every = "Every map" if len(curves) > 1 else "The map"
    if least > ALIKE:
        low = math.floor(100 * least - 0.02) / 100
        return f"{every} sends every pair of inputs to c\u00a0>\u00a0{low:g}"
    if moved < 1e-6:
        return f"{every} leaves all c values unchanged"
    if moved < KEPT:
        return (
            f"{'No map moves a' if len(curves) > 1 else 'The map moves no'} c value by more than "
            f"{up(1.0005 * moved)}"
        )
    level = [float(np.interp(0.0, c, y)) for y in curves]
    if len(level) == 1:
        return f"Orthogonal inputs come out with c = {three_digits(_tidy(level[0]))}"
    return f"Orthogonal inputs come out with c {_between(level)}"


def _tidy(x: float) -> float:
    return 0.0 if abs(x) < 5e-4 else x


def _between(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    if high - low < 5e-3:
        return f"= {three_digits(_tidy(0.5 * (low + high)))}"
    return f"from {three_digits(_tidy(low))} to {three_digits(_tidy(high))}"


def q_maps(q: Array, curves: Sequence[Array], at_one: Sequence[float]) -> str:
    """Describe the effect of Q maps on q values.

    It says whether they are preserved or multiplied, or where q = 1 goes (``at_one``; nan if that
    is not drawn).
    """
    if not _finite(curves):
        return "Q maps" if len(curves) > 1 else "Q map"
    every = "Every map" if len(curves) > 1 else "The map"
    ratios = [curve / q for curve in curves]
    if all(np.ptp(r) <= 1e-9 * np.abs(r).max() for r in ratios):
        factors = [float(r[0]) for r in ratios]
        if max(abs(f - 1) for f in factors) < 1e-9:
            return f"{every} preserves every q value"
        if len(factors) == 1:
            return f"The map multiplies every q value by {factors[0]:.3g}"
    if not np.all(np.isfinite(at_one)):
        return "Q maps" if len(curves) > 1 else "Q map"
    low, high = min(at_one), max(at_one)
    if high <= 1.005 * low:
        return f"q = 1 becomes {low:.3g}"
    return f"q = 1 goes to values from {down(low)} to {up(high)}"


def activations(x: Array, before: Mapping[str, Array], after: Mapping[str, Array]) -> str:
    """Say how far activations are from the identity on [-1, 1], before and after shaping."""
    near = np.abs(x) <= 1 + 1e-9

    def off(curves: Mapping[str, Array]) -> float:
        return max(float(np.abs(y[near] - x[near]).max()) for y in curves.values())

    if not all(np.all(np.isfinite(y[near])) for y in [*before.values(), *after.values()]):
        return "Activations"
    if not after:
        return (
            f"On [-1, 1] {_who(before)} {'is' if len(before) == 1 else 'are'} within "
            f"{up(off(before))} of the identity"
        )
    return (
        f"On [-1, 1] within {up(off(after))} of the identity after the transformation, "
        f"{up(off(before))} before"
    )


def _who(curves: Mapping[str, Array]) -> str:
    name = next(iter(curves))
    return (
        (name if 0 < len(name) <= 24 else "the activation")
        if len(curves) == 1
        else "the activations"
    )


def kernels(c: Array, curves: Sequence[Array]) -> str:
    """Describe the kernel of orthogonal inputs relative to that of equal ones."""
    if not _finite(curves) or any(curve[-1] <= 0 for curve in curves):
        return "Kernels of two inputs" if len(curves) > 1 else "Kernel of two inputs"
    shares = [float(np.interp(0.0, c, curve) / curve[-1]) for curve in curves]
    if max(map(abs, shares)) < 5e-4:
        return "Orthogonal inputs have kernel value 0"
    of = "that of equal ones" if len(curves) == 1 else "those of equal ones"
    if len(shares) == 1:
        return f"The kernel of orthogonal inputs is {three_digits(_tidy(shares[0]))} times {of}"
    return f"Kernels of orthogonal inputs: {_between(shares).removeprefix('= ')} times {of}"


def factor(values: Sequence[float], what: str) -> str:
    """Return "<what> differ by a factor of at most 12".

    Only ``what`` if the factor is not finite.
    """
    found = [v for v in values if v > 0 and math.isfinite(v)]
    if not found or len(found) < len(values):
        return what
    ratio = max(found) / min(found)
    return (
        f"{what} are all equal"
        if ratio < 1 + 1e-6
        else f"{what} differ by a factor of at most {up(ratio)}"
    )


def spectra(given: Sequence[Any]) -> str:
    """Describe condition numbers, or how many eigenvalues are above rounding."""
    conditions = [one.condition_number for one in given]
    if all(math.isfinite(value) for value in conditions):
        if len(given) == 1:
            return f"The largest eigenvalue is {three_digits(conditions[0])} times the smallest"
        return (
            f"The largest eigenvalues are {_between(conditions).removeprefix('= ')} times the "
            f"smallest"
        )
    if len(given) == 1:
        return f"{given[0].rank} of {given[0].eigenvalues.size} eigenvalues are above rounding"
    return "Eigenvalues of kernel matrices, solid if above rounding"


def regimes(given: Sequence[Any]) -> str:
    """Describe the ratios of the layers' kernels."""
    ratios = [v for one in given for v in one.alphas.values()]
    if not ratios or not np.all(np.isfinite(ratios)):
        return "Kernels of the layers"
    where = f"at c = {given[0].c:g}" if len({one.c for one in given}) == 1 else "of two inputs"
    if np.abs(ratios).max() < 1e-9:
        return f"Layers' kernels {where} vanish"
    return f"Layers' kernels {where} are {span(ratios)} times those of equal inputs"


def losses(curves: Sequence[Array]) -> str:
    """Say how far losses fall over the times drawn."""
    ends = [(float(y[0]), float(y[-1])) for y in curves if len(y)]
    if not ends or not all(math.isfinite(a) and math.isfinite(b) and a > 0 for a, b in ends):
        return "The loss over training"
    shares = [b / a for a, b in ends]
    what = "The loss ends" if len(shares) == 1 else "The losses end"
    return (
        f"{what} at {span(shares)} times {'its' if len(shares) == 1 else 'their'} first "
        f"value{'' if len(shares) == 1 else 's'}"
    )


def reaches(ends: Sequence[float], what: str, where: str) -> str:
    """Return "<what> is 0.3 <where>", or the range of several."""
    if not ends or not np.all(np.isfinite(ends)):
        return what
    return f"{what} is {span(ends)} {where}"


def bounded(values: Sequence[float], what: str) -> str:
    """Return "<what> lies between 0.1 and 2"."""
    found = [float(v) for v in np.ravel(values)]
    return (
        f"{what} {'is' if np.ptp(found) == 0 else 'lies'} {span(found)}"
        if found and np.all(np.isfinite(found))
        else what
    )


def within(distances: Sequence[float], what: str, of: str) -> str:
    """Return "<what> is within 0.01 of <of>"."""
    found = [float(v) for v in distances]
    return (
        f"{what} is within {up(max(found))} of {of}"
        if found and np.all(np.isfinite(found))
        else f"{what} and {of}"
    )


def powers(given: Sequence[tuple[str, Any]], what: str) -> str:
    """Describe the fitted power of the width for one curve; for several, the range."""
    fits = [power.exponent for _, power in given if power.exponent is not None]
    if len(fits) == 1:
        return f"{what} scales as width to the power {fits[0]:.2f}"
    return (
        f"{what} against the width"
        if not fits
        else f"{what} scales as width to powers from {min(fits):.2f} to {max(fits):.2f}"
    )


def accuracies(lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Say which run has the best accuracy at the end."""
    ends = {label: points[-1][1] for label, points in lines.items() if points}
    if not ends:
        return "Training"
    if "test examples" in ends:
        return f"{100 * ends['test examples']:.1f} % of the test examples are right at the end"
    best = max(ends.values())
    leaders = [label for label, end in ends.items() if end == best]
    if len(leaders) > 1 or len(ends) == 1:
        return (
            f"{100 * best:.1f} % correct at the end"
            if len(ends) == 1
            else f"At most {100 * best:.1f} % correct at the end"
        )
    return f"{leaders[0]} ends best, at {100 * best:.1f} % correct"
