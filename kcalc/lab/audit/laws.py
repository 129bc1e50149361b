"""The distribution (law) of a parameter's initial values, recorded in a run or estimated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

MOST = 2**19  # entries used for moments; larger tensors are subsampled with a constant stride
EXACT = 0.01  # relative tolerance for recorded standard deviations


@dataclass(frozen=True)
class Law:
    """The distribution of a parameter's initial values, and where it was drawn.

    ``name`` is the initialiser: "normal", "trunc_normal", "uniform", "kaiming_uniform", "constant",
    "computed", "uninitialised", "measured" and so on. ``sigma`` is the standard deviation of an
    entry, ``error`` its standard error (0 if the law was recorded), and ``mean`` the mean. ``cut``
    is the distance of the truncation from the mean, in standard deviations of the untruncated
    distribution. ``fan`` is (mode, fan) for an initialiser that uses a fan. ``place`` is
    "file:line" of the call, and ``made`` is the same for an allocation without initial values.
    ``replaced`` lists the laws that were overwritten.
    """

    name: str
    sigma: float = math.nan
    error: float = 0.0
    mean: float = 0.0
    cut: float | None = None
    fan: tuple[str, float] | None = None
    place: str = ""
    replaced: tuple[Law, ...] = ()
    made: str = ""

    def __str__(self) -> str:
        return self.name if self.place == "" else f"{self.name} at {self.place}"

    @property
    def size(self) -> str:
        """Describe the standard deviation, or the value of a constant."""
        if self.name == "constant":
            return f"the value {self.mean:.4g}"
        return f"sigma {self.sigma:.4g}"

    @property
    def partly_written(self) -> bool:
        """Whether a parameter whose run was recorded has entries that nothing wrote (NaN)."""
        return self.place != "" and math.isnan(self.sigma) and math.isnan(self.mean)

    def scaled(self, factor: float, place: str) -> Law:
        """Return the distribution of the parameter multiplied by ``factor``, with the new place."""
        sigma, mean = self.sigma * abs(factor), self.mean * factor
        return replace(self, sigma=sigma, mean=mean, place=place, fan=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the law as plain data."""
        return {
            "name": self.name,
            "sigma": self.sigma if math.isfinite(self.sigma) else None,
            "error": self.error if math.isfinite(self.error) else None,
            "mean": self.mean if math.isfinite(self.mean) else None,
            "place": self.place,
            "replaced": [str(law) for law in self.replaced],
        }


def truncated_moments(std: float, low: float, high: float) -> tuple[float, float]:
    """Return the mean and standard deviation of a centred normal on [``low``, ``high``].

    With a = low / std, b = high / std and Z = Phi(b) - Phi(a):
    mean = std (phi(a) - phi(b)) / Z,
    variance = std^2 (1 + (a phi(a) - b phi(b)) / Z - ((phi(a) - phi(b)) / Z)^2).
    """
    if std <= 0 or low >= high:
        return 0.0, 0.0
    a, b = max(low / std, -40.0), min(high / std, 40.0)
    density = [math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in (a, b)]
    mass = (math.erf(b / math.sqrt(2)) - math.erf(a / math.sqrt(2))) / 2
    if mass <= 0:
        return math.nan, math.nan
    shift = (density[0] - density[1]) / mass
    spread = 1 + (a * density[0] - b * density[1]) / mass - shift**2
    return std * shift, std * math.sqrt(max(spread, 0.0))


def estimated(tensor: Any) -> Law:
    """Estimate the distribution of a tensor from its entries, with a standard error for sigma.

    The standard error of a standard deviation s from n entries of kurtosis k is s sqrt((k - 1) / (4
    n)).
    """
    flat = tensor.detach().flatten()
    if flat.numel() == 0:
        return Law("empty")
    if not bool(flat.isfinite().all()):
        return Law("not finite")
    values = flat[:: 1 + flat.numel() // MOST].double()
    count = values.numel()
    mean = float(values.mean())
    if bool((flat == flat[0]).all()):
        return Law("constant", 0.0, 0.0, float(values[0]))
    centred = values - mean
    variance = float(centred.square().mean())
    kurtosis = float(centred.pow(4).mean()) / variance**2
    sigma = math.sqrt(variance)
    return Law("measured", sigma, sigma * math.sqrt(max(kurtosis - 1, 0.1) / (4 * count)), mean)


def differ(one: Law, sigma: float, relative: float = EXACT, errors: float = 4.0) -> bool:
    """Return whether a law's sigma differs from ``sigma`` by more than both tolerances."""
    allowed = max(relative * sigma, errors * one.error)
    return not abs(one.sigma - sigma) <= allowed


def alike(one: float, other: float, error: float = 0.0) -> bool:
    """Return whether two standard deviations agree within 1 % or four standard errors."""
    return abs(one - other) <= max(EXACT * other, 4 * error)
