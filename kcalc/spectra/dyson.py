"""The operator-valued Dyson equation of the input-output Jacobian, and its solution.

With w^2 = t = 1 / z, the determinant of the pencil [[w P_out, B^T], [B, w P_in]] of the tangent
program B is proportional to det(1 - t J^T J). A group of coordinates has a random local Jacobian T
(sinks by sources). The weights around the group assign values a to its sinks and b to its sources:

    gamma = E diag [(1 - t K b)^-1 K],  K = T^T a T,      eta = E diag [T b (1 - t K b)^-1 T^T].

Weights of variance s = sigma_w^2 and ratio c = n_out / n_in set b at their outputs and add to a at
their inputs:

    b (1 + kappa t eta a / c) = s eta,        a (1 + kappa t gamma b) = c s gamma,

Here kappa = 0 for Gaussian weights and kappa = min(1, c) for orthogonal weights. f = b / (s eta) =
a / (c s gamma) solves kappa s t gamma eta f^2 + f = 1. The input has b = 1, the output has a = 1,
and psi(t) = t gamma_input = E t s^2 / (1 - t s^2) over input channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from .groups import Grouped

Array = Any
STEPS = 12  # largest number of Newton steps
CLOSE, ROUNDED = 1e-12, 1e-8  # largest relative last step; looser once steps stop shrinking
SHORTEST = 1e-9  # shortest step, as a fraction of the path


@dataclass(frozen=True)
class Slopes:
    """The distribution of a group's local Jacobian: ``values`` (n, sinks, sources), probabilities.

    ``flat`` marks the values that occur with positive probability; the others are quadrature nodes.
    """

    values: Array
    shares: Array
    flat: Array


@dataclass(frozen=True)
class Solution:
    """A solution ``x`` at ``t``, and ``tangent``, dx / dt."""

    t: complex
    x: Array
    tangent: Array
    psi: complex


class _Bucket:
    """Stacked groups that have the same number of sinks and the same number of sources.

    ``values`` contains their local Jacobians, padded to equal length with probabilities of 0.
    """

    def __init__(self, slopes: Sequence[Slopes]) -> None:
        most = max(law.shares.size for law in slopes)
        _, self.sinks, self.sources = slopes[0].values.shape
        self.values = np.zeros((len(slopes), most, self.sinks, self.sources))
        self.shares = np.zeros((len(slopes), most))
        for k, law in enumerate(slopes):
            self.values[k, : law.shares.size] = law.values
            self.shares[k, : law.shares.size] = law.shares
        self.transposed = np.swapaxes(self.values, 2, 3)

    def evaluated(self, a: Array, b: Array, t: Any) -> tuple[Array, Array, Array, Array, Array]:
        """Return the means of gamma, eta and the squared blocks of the resolvent."""
        gamma, cross, eta = self._blocks(a, b, t)
        p = self.shares
        first = np.einsum("gn,gnii->gi", p, gamma)
        second = np.einsum("gn,gnii->gi", p, eta)
        squares = [np.einsum("gn,gnij->gij", p, part * part) for part in (gamma, cross, eta)]
        return first, second, *squares

    def _blocks(self, a: Array, b: Array, t: Any) -> tuple[Array, Array, Array]:
        """Return (Gamma, X, Eta) at all slopes: (K^-1 - t b)^-1, (1 - t K b)^-1 T^T, T B T^T."""
        if self.sources == self.sinks == 1:
            d = self.values[:, :, 0, 0]
            square = d * d
            one = 1 / (1 - t * square * (a[:, :1] * b[:, :1]))
            shape = (*d.shape, 1, 1)
            return (
                (square * a[:, :1] * one).reshape(shape),
                (d * one).reshape(shape),
                (square * b[:, :1] * one).reshape(shape),
            )
        if self.sinks < self.sources:
            eta, cross, gamma = _resolved(self.transposed, b, a, t)
            return gamma, np.swapaxes(cross, 2, 3), eta
        return _resolved(self.values, a, b, t)


def _resolved(slopes: Array, a: Array, b: Array, t: Any) -> tuple[Array, Array, Array]:
    across = np.swapaxes(slopes, 2, 3)
    middle = across @ (a[:, None, :, None] * slopes)
    size = middle.shape[-1]
    try:
        inverse = np.linalg.inv(np.eye(size) - t * middle * b[:, None, None, :])
    except np.linalg.LinAlgError:
        inverse = np.full(middle.shape, np.nan)
    cross = inverse @ across
    return inverse @ middle, cross, slopes @ (b[:, None, :, None] * cross)


def check_mean(mean: float) -> float:
    """Return E s^2; raise a KcalcError if it is 0 or beyond double precision."""
    if not 0 < mean < np.inf:
        what = "0" if mean == 0 else "beyond double precision"
        raise KcalcError(
            f"the mean square of the Jacobian is {what} at this q; rescale sigma_w or the depth"
        )
    return mean


class Equation:
    """The Dyson equation of a network.

    Every weight has two unknowns: b at its output, and its contribution to a at its input.
    """

    def __init__(self, network: Grouped, laws: Sequence[Slopes]) -> None:
        weights = network.weights
        self.count = count = len(weights)
        self.size = 2 * count
        number = {edge.node: k for k, edge in enumerate(weights)}
        readers: dict[Any, list[int]] = {}
        for k, edge in enumerate(weights):
            readers.setdefault(edge.reads, []).append(k)
        self.variance = np.array([edge.variance for edge in weights])
        self.ratio = np.array([edge.ratio for edge in weights])
        self.kappa = np.array([min(1.0, edge.ratio) * edge.orthogonal for edge in weights])
        shapes: dict[tuple[int, ...], list[int]] = {}
        for k, law in enumerate(laws):
            shapes.setdefault(law.values.shape[1:], []).append(k)
        self.buckets: list[tuple[_Bucket, Any]] = []
        rows = self.size + 1  # gamma and eta of every weight, gamma of the input
        for members in shapes.values():
            bucket = _Bucket([laws[k] for k in members])
            sites = bucket.sources + bucket.sinks
            fixed = np.zeros((len(members), sites))
            put = np.zeros((len(members), sites, self.size))
            take = np.zeros((len(members), rows, sites))
            for place, k in enumerate(members):
                group = network.groups[k]
                for j, node in enumerate(group.sources):
                    share = float(group.width / network.width[node])
                    if node in number:
                        put[place, j, number[node]] = 1
                        take[place, number[node], j] += share
                    else:
                        fixed[place, j] = 1
                        take[place, -1, j] += share
                for i, (node, _) in enumerate(group.sinks):
                    share = float(group.width / network.width[node])
                    site = bucket.sources + i
                    fixed[place, site] = node == network.end
                    for edge in readers.get(node, ()):
                        put[place, site, count + edge] = 1
                        take[place, count + edge, site] += share
            self.buckets.append((bucket, (fixed, put, take)))
        self.scale = np.ones(self.size)
        start = self._start()
        self.scale = np.where(start > 0, start, 1.0)
        self._first = start / self.scale
        mean = float(self.green(self._first, 0.0)[0][-1].real)
        self.mean = check_mean(mean if np.all(np.isfinite(start)) else np.inf)

    def _start(self) -> Array:
        """Return the solution at t = 0, where the equation is triangular."""
        x = np.zeros(self.size)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(self.size + 2):
                g = self.coefficient([x], 0)
                new = np.concatenate(
                    [
                        self.variance * g[self.count : -1],
                        self.ratio * self.variance * g[: self.count],
                    ]
                )
                if np.array_equal(new, x):
                    break
                x = new
        return x

    def coefficient(self, x: list[Array], order: int) -> Array:
        """Return the coefficient of t^order of :meth:`green`, from the coefficients of x."""
        out = np.zeros(self.size + 1)
        for bucket, (fixed, put, take) in self.buckets:
            sites = [put @ row + (fixed if k == 0 else 0.0) for k, row in enumerate(x[: order + 1])]
            b = [row[:, None, : bucket.sources, None] for row in sites]
            a = [row[:, None, bucket.sources :, None] for row in sites]
            values, across = bucket.values, bucket.transposed
            middle = [across @ (row * values) for row in a]  # K
            inverse: list[Array] = []  # (1 - t K b)^-1
            eye = np.broadcast_to(np.eye(bucket.sources), middle[0].shape)
            for k in range(order + 1):
                term = eye * (k == 0)
                for i in range(k):
                    for j in range(k - i):
                        term = term + middle[i] @ (b[j] * inverse[k - 1 - i - j])
                inverse.append(term)
            gamma = sum(inverse[k] @ middle[order - k] for k in range(order + 1))
            inner = sum(b[k] * inverse[order - k] for k in range(order + 1))
            first = np.einsum("gn,gnii->gi", bucket.shares, gamma)
            second = np.einsum("gn,gnij,gnij->gi", bucket.shares, values @ inner, values)
            out += np.einsum("gri,gi->r", take, np.concatenate([first, second], axis=1))
        return out

    def green(self, y: Array, t: Any) -> tuple[Array, Array, Array]:
        """Return gamma and eta of all weights, gamma of the input, and derivatives in y and t."""
        x = y * self.scale
        found = np.zeros(self.size + 1, dtype=complex)
        jacobian = np.zeros((self.size + 1, self.size), dtype=complex)
        change = np.zeros(self.size + 1, dtype=complex)
        for bucket, (fixed, put, take) in self.buckets:
            sites = fixed + put @ x
            b, a = sites[:, : bucket.sources], sites[:, bucket.sources :]
            first, second, gamma2, cross2, eta2 = bucket.evaluated(a, b, t)
            values = np.concatenate([first, second], axis=1)
            # rows gamma, eta; columns b, a
            local = np.concatenate(
                [
                    np.concatenate([t * gamma2, cross2], axis=2),
                    np.concatenate([np.swapaxes(cross2, 1, 2), t * eta2], axis=2),
                ],
                axis=1,
            )
            slope = np.concatenate(
                [np.einsum("gij,gj->gi", gamma2, b), np.einsum("gij,gj->gi", eta2, a)], axis=1
            )
            found += np.einsum("gri,gi->r", take, values)
            change += np.einsum("gri,gi->r", take, slope)
            jacobian += np.tensordot(take, local @ put, axes=([0, 2], [0, 1]))
        return found, jacobian * self.scale, change

    def residual(self, y: Array, t: Any) -> tuple[Array, Array, Array, Any]:
        """Return the relative residual and psi, each followed by its derivatives in y and t."""
        with np.errstate(all="ignore"):
            return self._residual(y, t)

    def _residual(self, y: Array, t: Any) -> tuple[Array, Array, Array, Any]:
        g, slope, change = self.green(y, t)
        n, s, c, kappa = self.count, self.variance, self.ratio, self.kappa
        x = y * self.scale
        b, a, gamma, eta = x[:n], x[n:], g[:n], g[n:-1]
        ours = kappa / c
        error = np.concatenate(
            [
                b * (1 + ours * t * eta * a) - s * eta,
                a * (1 + kappa * t * gamma * b) - c * s * gamma,
            ]
        )
        by_eta, by_gamma = ours * t * a * b - s, kappa * t * a * b - c * s
        jacobian = np.concatenate([by_eta[:, None] * slope[n:-1], by_gamma[:, None] * slope[:n]])
        own = np.arange(n)
        jacobian[own, own] += (1 + ours * t * eta * a) * self.scale[:n]
        jacobian[own, own + n] += ours * t * eta * b * self.scale[n:]
        jacobian[own + n, own + n] += (1 + kappa * t * gamma * b) * self.scale[n:]
        jacobian[own + n, own] += kappa * t * gamma * a * self.scale[:n]
        moved = np.concatenate(
            [
                by_eta * change[n:-1] + ours * eta * a * b,
                by_gamma * change[:n] + kappa * gamma * a * b,
            ]
        )
        psi = (t * g[-1], t * slope[-1], g[-1] + t * change[-1])
        scale = self.scale
        return error / scale, jacobian / scale[:, None], moved / scale, psi

    # -- solutions ---------------------------------------------------------------------------------

    @property
    def origin(self) -> Solution:
        """The solution at t = 0."""
        return self._finished(self._first + 0j, 0.0)

    def _finished(self, y: Array, t: Any) -> Solution:
        _, jacobian, moved, (psi, _, _) = self.residual(y, t)
        try:
            tangent = -np.linalg.solve(jacobian, moved)
        except np.linalg.LinAlgError:  # t is at an edge
            tangent = np.zeros_like(y)
        return Solution(t, y, tangent, psi)

    def solved(self, y: Array, t: Any, steps: int = STEPS) -> Solution | None:
        """Solve by Newton's method, starting from ``y``; return None if it does not converge."""
        last = np.inf
        with np.errstate(all="ignore"):
            for _ in range(steps):
                error, jacobian, _, _ = self.residual(y, t)
                try:
                    move = np.linalg.solve(jacobian, error)
                except np.linalg.LinAlgError:
                    return None
                y = y - move
                if not np.all(np.isfinite(y)):
                    return None
                size = np.abs(move).max(initial=0) / (1 + np.abs(y).max(initial=0))
                if size <= CLOSE or last / 2 < size < ROUNDED:
                    return self._finished(y, t)
                last = size
        return None

    def path(self, start: Solution, t: Any) -> Solution:
        """Continue a solution along the straight line to ``t``, with adaptive steps.

        Raises: KcalcError if a step becomes too short.
        """
        here, origin, done, step = start, start.t, 0.0, 1.0
        while done < 1:
            share = min(1.0, done + step)
            there = origin + share * (t - origin)
            guess = here.x + here.tangent * (there - here.t)
            found = self.solved(guess, there, 6)
            if found is None or not self.physical(found) or _far(found.x, guess, here.x):
                step /= 2
                if step < SHORTEST:
                    raise KcalcError(
                        f"the spectrum is not resolved near s^2 = {abs(1 / there):.6g}; choose a "
                        "point farther from the edge"
                    )
                continue
            here, done, step = found, share, step * 2
        return here

    def physical(self, found: Solution) -> bool:
        """Whether b and a lie in the half-plane of t, as Stieltjes transforms of measures do."""
        least = np.min(np.sign(np.imag(found.t)) * found.x.imag, initial=0.0)
        return bool(least >= -1e-9 * (1 + np.abs(found.x).max(initial=0)))


def _far(found: Array, guess: Array, before: Array) -> bool:
    """Whether Newton's method moved away from the prediction by more than the step itself."""
    off = np.abs(found - guess).max(initial=0)
    return bool(off > 0.3 * (np.abs(before).max(initial=0) + 0.01))
