"""Moments of s^2 from the power series of psi in t = 1 / z; slopes may be unbounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .dyson import Equation

Array = Any


def moments(equation: Equation, count: int) -> Array:
    """Return E s^2, ..., E s^(2 count), order by order in t.

    The coefficient of each order solves a linear system with the matrix of the equation at t = 0.
    """
    n, scale = equation.count, equation.scale
    start = equation.origin.x.real
    coefficients = [start * scale]
    jacobian = equation.residual(start, 0.0)[1].real
    found = [equation.coefficient(coefficients, 0)[-1]]
    for order in range(1, count):
        trial = [*coefficients, np.zeros(equation.size)]
        states = [equation.coefficient(trial, k) for k in range(order + 1)]
        error = _error(equation, trial, states, order)
        move = -np.linalg.solve(jacobian, error / scale) * scale if n else np.zeros(0)
        coefficients.append(move)
        found.append(equation.coefficient(coefficients, order)[-1])
    return np.array(found)


def _error(equation: Equation, x: list[Array], g: list[Array], order: int) -> Array:
    """Return the coefficient of t^order in the residual of the equation."""
    n, s, c, kappa = equation.count, equation.variance, equation.ratio, equation.kappa
    b, a = [row[:n] for row in x], [row[n:] for row in x]
    gamma, eta = [row[:n] for row in g], [row[n:-1] for row in g]
    first = b[order] - s * eta[order]
    second = a[order] - c * s * gamma[order]
    for i in range(order):
        for j in range(order - i):
            k = order - 1 - i - j
            first = first + kappa / c * eta[i] * a[j] * b[k]
            second = second + kappa * gamma[i] * b[j] * a[k]
    return np.concatenate([first, second])
