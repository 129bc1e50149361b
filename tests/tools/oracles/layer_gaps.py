"""Gaps 1 - C behind layers of plain networks at unequal and nearly equal norms, in 50 digits.

    python tests/tools/oracles/layer_gaps.py > tests/oracles/layer_gaps.json

sigma_w = 1 and no biases. erf has a closed form; tanh and GELU are summed by the trapezoid rule on
a square grid; ELU and SELU are integrated over the angle of polar coordinates, in which the radial
integrals are closed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import mpmath as mp

CASES = (("1e-6", "0.7", "0.70000007"), ("1e-6", "0.7", "1.6"), ("1e-3", "1.2", "1.21"))
DEPTHS = (1, 3, 10)
STEPS, REACH = 8, 11  # grid points to 1, and the end of the grid
SELU = "1.6732632423543772848170429916717", "1.0507009873554804934193349852946"


def erf_moment(q1: Any, q2: Any, theta: Any) -> Any:
    """E erf(u) erf(v)."""
    k = mp.sqrt(q1 * q2) * mp.cos(theta)
    return 2 / mp.pi * mp.asin(2 * k / mp.sqrt((1 + 2 * q1) * (1 + 2 * q2)))


def on_grid(f: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """E f(u) f(v) by the trapezoid rule."""

    def moment(q1: Any, q2: Any, theta: Any) -> Any:
        points = [mp.mpf(k) / STEPS for k in range(-REACH * STEPS, REACH * STEPS + 1)]
        weights = [mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi) / STEPS for z in points]
        a, b, c, s = mp.sqrt(q1), mp.sqrt(q2), mp.cos(theta), mp.sin(theta)
        total = mp.mpf(0)
        for x, w in zip(points, weights, strict=True):
            if theta == 0:
                inner = f(b * x)
            else:
                inner = mp.fdot(
                    (v, f(b * (c * x + s * y))) for y, v in zip(points, weights, strict=True)
                )
            total += w * f(a * x) * inner
        return total

    return moment


def exponential(alpha_text: str, scale_text: str) -> Callable[[Any, Any, Any], Any]:
    """E f(u) f(v) of f = scale x for x > 0, scale alpha (e^x - 1) for x < 0."""

    def half(k: Any) -> Any:  # int exp(-r^2/2 - k r)
        return mp.sqrt(mp.pi / 2) * mp.exp(k * k / 2) * mp.erfc(k / mp.sqrt(2))

    def first(k: Any) -> Any:  # int r exp(-r^2/2 - k r)
        return 1 - k * half(k)

    def second(k: Any) -> Any:  # int r^2 exp(-r^2/2 - k r)
        return (1 + k * k) * half(k) - k

    def moment(q1: Any, q2: Any, theta: Any) -> Any:
        a, b, alpha, scale = mp.sqrt(q1), mp.sqrt(q2), mp.mpf(alpha_text), mp.mpf(scale_text)

        def alike(t: Any) -> Any:  # both positive, and both negative
            k, m = a * mp.sin(t), b * mp.sin(t + theta)
            return 2 * k * m + alpha**2 * (first(k + m) - first(k) - first(m) + 1)

        def apart(t: Any) -> Any:
            k, m = a * mp.sin(t), b * mp.sin(theta - t)
            return alpha * (k * (second(m) - second(0)) + m * (second(k) - second(0)))

        total = mp.quad(alike, mp.linspace(0, mp.pi - theta, 5))
        if theta:
            total += mp.quad(apart, [0, theta])
        return scale**2 * total / (2 * mp.pi)

    return moment


MOMENTS = {
    "erf": erf_moment,
    "tanh": on_grid(mp.tanh),
    "gelu": on_grid(lambda x: x * mp.ncdf(x)),
    "elu": exponential("1", "1"),
    "selu": exponential(*SELU),
}


def gaps(moment: Callable[[Any, Any, Any], Any], theta: Any, q1: Any, q2: Any) -> list[str]:
    """1 - C behind each of DEPTHS layers, 20 digits."""
    out = []
    for layer in range(1, max(DEPTHS) + 1):
        joint, q1, q2 = moment(q1, q2, theta), moment(q1, q1, mp.mpf(0)), moment(q2, q2, mp.mpf(0))
        gap = 1 - joint / mp.sqrt(q1 * q2)
        theta = 2 * mp.asin(mp.sqrt(gap / 2))
        if layer in DEPTHS:
            out.append(mp.nstr(gap, 20))
    return out


def main() -> None:
    """Print the gaps as JSON: {activation: [[theta, q1, q2, gap, gap, gap], ...]}."""
    found: dict[str, Any] = {}
    with mp.workdps(50):
        for name, moment in MOMENTS.items():
            found[name] = [
                [*case, *gaps(moment, *(mp.mpf(text) for text in case))] for case in CASES
            ]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
