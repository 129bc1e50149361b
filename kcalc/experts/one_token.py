"""Moments of the router weights of one token.

Given the (k + 1)-th largest logit t, the k selected logits are independent Gaussians above t, and
the E - k - 1 others are independent Gaussians below t. The sum Z of scores appears in denominators;
its powers become integrals of exp(-x Z), which is a product over experts:
1 / Z^m = integral of x^(m - 1) exp(-x Z) / (m - 1)! over x > 0.
"""

from __future__ import annotations

from math import factorial

import numpy as np
from scipy.special import log_ndtr

from .nodes import REACH, laplace, log_density, panels, thresholds
from .scores import Score

Array = np.ndarray
THRESHOLDS = 6  # number of panels for the threshold
WIDTH = 0.6  # width of the logit panels, in standard deviations
STEP = 0.25  # step in the logarithm of the Laplace variable
FLOOR = -12.0  # threshold if every expert is selected


def squares_and_slopes(
    experts: int, selected: int, sigma: float, score: Score
) -> tuple[float, float]:
    """Return S_2 = E sum_i w_i^2 and R_2 = E sum_ij (d w_i / d l_j)^2."""
    if selected == experts:
        at, weights = np.array([FLOOR]), np.ones(1)
    else:
        at, weights = thresholds(experts, selected, 1 / THRESHOLDS)
        weights = weights * np.exp(log_density(experts, selected, at))
    found = np.array([_OneThreshold(experts, selected, sigma, score, t).both() for t in at])
    second, router = weights @ found
    alone = selected == 1 and score.total == "selected"  # the weight is 1 in this case
    return float(second), 0.0 if alone else float(router)


def swaps(experts: int, selected: int, sigma: float, score: Score) -> float:
    """Return -d W / d theta at theta = 0, for two tokens whose logits have cosine cos(theta).

    The k-th and (k + 1)-th largest logits change places with probability ``f theta / sqrt(pi)``,
    where f is the density of ties. A weight w then moves to another expert, and ``S_2 - W``, which
    is half of ``E sum_i (w_i - w_i')^2``, grows by ``w^2``. All other changes are of second order.
    """
    if selected == experts:
        return 0.0
    at, weights = thresholds(experts, selected, 1 / THRESHOLDS)
    # density of ties over density of thresholds: one of the k selected logits is also at t
    above = selected * np.exp(-(at**2) / 2 - log_ndtr(-at)) / np.sqrt(2 * np.pi)
    weights = weights * np.exp(log_density(experts, selected, at)) * above
    squares = [_OneThreshold(experts, selected, sigma, score, t).square_at_tie() for t in at]
    return float(weights @ squares) / np.sqrt(np.pi)


class _OneThreshold:
    """Expectations conditional on the largest unselected logit, ``sigma * t``."""

    def __init__(self, experts: int, selected: int, sigma: float, score: Score, t: float) -> None:
        self.k, self.below, self.score = selected, max(experts - selected - 1, 0), score
        self.last = experts > selected
        self.sigma, self.t = sigma, t
        self.above = self._law(t, REACH + max(t, 0))
        largest = score.value(np.array([sigma * (REACH + max(t, 0))]))[0]
        smallest = score.value(np.array([sigma * t]))[0]
        if score.total is None:
            self.x, self.weights = np.zeros(1), np.ones(1)
        else:
            count = experts if score.total == "all" else selected
            self.x, self.weights = laplace(selected * smallest, count * largest, STEP)

    def _law(self, low: float, high: float) -> tuple[Array, Array, Array]:
        """Return (scores, their slopes, probabilities) at quadrature nodes between two bounds."""
        z, dz = panels(low, high, WIDTH)
        log_mass = log_ndtr(-low) if high > REACH - 1e-9 else log_ndtr(high)
        p = dz * np.exp(-(z**2) / 2 - log_mass) / np.sqrt(2 * np.pi)
        logits = self.sigma * z
        return self.score.value(logits), self.score.slope(logits), p

    def both(self) -> tuple[float, float]:
        """Return S_2 and R_2."""
        s, slope, p = self.above
        if self.score.total is None:
            return self.k * float(p @ s**2), self.k * float(p @ slope**2)
        decay = np.exp(-np.outer(self.x, s)) * p
        moments = {m: decay @ s**m for m in range(5)}
        rest = self._rest()
        one = self.k * moments[0] ** (self.k - 1) * rest
        second = self._integral(2, one * moments[2])
        if self.score.total == "all":
            return second, self._slopes_over_all(moments, decay, rest)
        two = self.k * (self.k - 1) * moments[0] ** max(self.k - 2, 0) * rest
        steep = {m: decay @ (slope**2 * s**m) for m in range(3)}
        router = (
            self._integral(2, one * steep[0])
            - 2 * self._integral(3, one * steep[1])
            + self._integral(4, one * steep[2] + two * steep[0] * moments[2])
        )
        return second, router

    def square_at_tie(self) -> float:
        """Return E w^2 for a selected expert whose logit is also at the threshold."""
        edge = self._edge()
        if self.score.total is None:
            return edge**2
        s, _, p = self.above
        others = (np.exp(-np.outer(self.x, s)) @ p) ** (self.k - 1)
        return edge**2 * self._integral(2, np.exp(-self.x * edge) * others * self._rest())

    def _slopes_over_all(self, moments: dict[int, Array], decay: Array, rest: Array) -> float:
        """Return R_2 for softmax over all experts.

        R_2 is E sum_i p_i^2 (1 - 2 p_i + sum_j p_j^2), with i over the selected experts and j over
        all.
        """
        one = self.k * moments[0] ** (self.k - 1) * rest
        two = self.k * (self.k - 1) * moments[0] ** max(self.k - 2, 0) * rest
        others = np.zeros_like(self.x)
        if self.last:
            s, _, p = self._low()
            faded = np.exp(-np.outer(self.x, s)) * p
            others = self._edge() ** 2 + self.below * (faded @ s**2) / faded.sum(1)
        return (
            self._integral(2, one * moments[2])
            - 2 * self._integral(3, one * moments[3])
            + self._integral(4, one * (moments[4] + moments[2] * others) + two * moments[2] ** 2)
        )

    def _edge(self) -> float:
        return float(self.score.value(np.array([self.sigma * self.t]))[0])

    def _low(self) -> tuple[Array, Array, Array]:
        return self._law(-REACH + min(self.t, 0), self.t)

    def _rest(self) -> Array:
        """Return E exp(-x s) for the sum s of unselected scores; 1 if weights do not use them."""
        if self.score.total != "all" or not self.last:
            return np.ones_like(self.x)
        s, _, p = self._low()
        faded = np.exp(-np.outer(self.x, s)) @ p
        return np.exp(-self.x * self._edge()) * faded**self.below

    def _integral(self, power: int, values: Array) -> float:
        """Return the expectation of values / Z^power."""
        return float(self.weights @ (values * self.x ** (power - 1))) / factorial(power - 1)
