"""Sums of several streams, ``X_i' = sum_j H_ij X_j + p_i F(sum_j h_j X_j)`` (hyper-connections).

The truth keeps every stream as a combination of the independent feature maps that new weights
emit: there a covariance is a sum of squared coefficients times covariances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from kcalc.network.layers import Affine, Input, Nonlinear, RMSNorm, Sum
from tests.wiring import wired

POINTS = np.arange(-9, 9, 0.08)  # the trapezoid rule converges exponentially
SHARES = np.exp(-(POINTS**2) / 2) / np.exp(-(POINTS**2) / 2).sum()


def tanh_moments(q1, q2, cov):
    """E tanh tanh and E tanh' tanh' by the trapezoid rule."""
    rest = math.sqrt(max(q2 - cov * cov / q1, 0))
    one = np.tanh(math.sqrt(q1) * POINTS)
    two = np.tanh(cov / math.sqrt(q1) * POINTS[:, None] + rest * POINTS)
    slopes = SHARES @ ((1 - one**2) * ((1 - two**2) @ SHARES))
    return float(SHARES @ (one * (two @ SHARES))), float(slopes)


def erf_moments(q1, q2, cov):
    """E erf erf and E erf' erf' [Williams 1997]."""
    size = (1 + 2 * q1) * (1 + 2 * q2)
    product = 2 / math.pi * math.asin(2 * cov / math.sqrt(size))
    return product, 4 / math.pi / math.sqrt(size - 4 * cov * cov)


def relu_moments(q1, q2, cov):
    """E relu relu and E relu' relu' [Cho and Saul 2009]."""
    norm = math.sqrt(q1 * q2)
    angle = 0.0 if cov / norm > 1 - 1e-14 else math.acos(cov / norm)
    product = norm * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi)
    return product, (math.pi - angle) / (2 * math.pi)


MOMENTS = {"relu": relu_moments, "tanh": tanh_moments, "erf": erf_moments}


@dataclass
class Truth:
    """The independent feature maps: their (q1, q2, covariance), and what each was made of."""

    act: str
    kernels: list = field(default_factory=list)
    below: list = field(default_factory=list)  # d covariance / d covariances of those before it
    inner: list = field(default_factory=list)  # weights inside a branch: (kernel, slope to the end)

    def moments(self, streams):
        squares = streams**2
        return tuple(squares @ np.array([k[i] for k in self.kernels]) for i in range(3))

    def branch(self, read, norm, scale, bias, end):
        """A branch norm, Affine, activation, Affine that reads a combination; its coefficients."""
        q1, q2, cov = self.moments(read)
        slope = 1.0
        if norm:
            slope = 1 / math.sqrt(q1 * q2)
            q1, q2, cov = 1.0, 1.0, cov * slope
        first = tuple(scale**2 * k + bias**2 for k in (q1, q2, cov))
        slope *= scale**2
        triples = ((first[0],) * 3, (first[1],) * 3, first)
        found = [MOMENTS[self.act](*k) for k in triples]
        sizes, rate = [k[0] for k in found], found[2][1]
        last = tuple(end**2 * k + bias**2 for k in sizes)
        return self.add(last, read**2 * slope * rate * end**2, (first[2], rate * end**2))

    def add(self, kernel, below, inner=None):
        self.below.append(np.array(below))
        self.kernels.append(kernel)
        self.inner.append(inner)
        return np.eye(len(self.kernels))[-1]

    def sensitivities(self, out):
        """d covariance of the combination ``out`` / d covariance of every feature map."""
        count = len(self.kernels)
        found = np.zeros(count)
        found[: len(out)] = out**2
        for m in reversed(range(count)):
            found[: len(self.below[m])] += found[m] * self.below[m]
        return found

    def tangent(self, out):
        """The tangent kernel: covariance of every weight layer times its sensitivity."""
        rates = self.sensitivities(out)
        total = sum(rate * kernel[2] for rate, kernel in zip(rates, self.kernels, strict=True))
        parts = zip(rates, self.inner, strict=True)
        return total + sum(rate * i[0] * i[1] for rate, i in parts if i is not None)


def streams(count, depth, seed, act="relu", norm=True, bias=0.3, q=(1.0, 1.0), c=0.5, sparse=False):
    """A network of several streams with a tap, and the truth about its output and its tap.

    Two inputs; streams are made from one or the other.
    """
    draw, truth, steps = np.random.default_rng(seed), Truth(act), []
    inputs = ("x", "y") if seed % 2 else ("x",)
    steps += [(name, Input()) for name in inputs]
    given = (*q, c * math.sqrt(q[0] * q[1]))
    rows = []
    for i in range(count):
        scale = float(draw.uniform(0.7, 1.3))
        steps.append((f"s0_{i}", Affine(sigma_w=scale, sigma_b=bias), inputs[i % len(inputs)]))
        rows.append(truth.add(tuple(scale**2 * k + bias**2 for k in given), []))
    tap = None
    for level in range(1, depth + 1):
        rows = [np.pad(row, (0, len(truth.kernels) - len(row))) for row in rows]
        mix, read, write = draw.normal(size=(count, count)), *draw.normal(size=(2, count))
        if sparse:
            mix[(draw.random(size=mix.shape) < 0.5) & ~np.eye(count, dtype=bool)] = 0
        mix = mix / np.abs(np.linalg.eigvals(mix)).max()
        before = " ".join(f"s{level - 1}_{j}" for j in range(count))
        scale, end = map(float, draw.uniform(0.8, 1.4, size=2))
        top = f"u{level}"
        steps.append((top, Sum(weights=tuple(map(float, read))), before))
        if norm:
            steps.append((f"n{level}", RMSNorm(), top))
            top = f"n{level}"
        steps += [
            (f"a{level}", Affine(sigma_w=scale, sigma_b=bias), top),
            (f"p{level}", Nonlinear(act)),
            (f"b{level}", Affine(sigma_w=end, sigma_b=bias)),
        ]
        new = truth.branch(np.array(read) @ rows, norm, scale, bias, end)
        rows = [np.pad(row, (0, 1)) for row in rows]
        old = np.array(rows)
        rows = [mix[i] @ old + write[i] * new for i in range(count)]
        for i in range(count):
            weights = (*map(float, mix[i]), float(write[i]))
            kept = [
                (w, n) for w, n in zip(weights, [*before.split(), f"b{level}"], strict=True) if w
            ]
            layer = Sum(weights=tuple(w for w, _ in kept))
            steps.append((f"s{level}_{i}", layer, " ".join(n for _, n in kept)))
        if level == max(depth // 2, 1):
            tap = (f"s{level}_0", rows[0])
    tapped, coefficients = tap
    final = tuple(map(float, draw.normal(size=count + 1)))
    reads = " ".join(f"s{depth}_{j}" for j in range(count)) + f" {tapped}"
    steps.append(("out", Sum(weights=final), reads))
    size = len(truth.kernels)
    out = np.array(final[:-1]) @ rows + final[-1] * np.pad(
        coefficients, (0, size - len(coefficients))
    )
    return wired(*steps, outputs=["out"]), truth, out
