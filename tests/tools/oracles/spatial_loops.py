"""Kernels of convolutional networks on small images by plain loops over locations, in mpmath at 60
digits.

Layers are plain data as in spatial_peer.py. Nothing is shared with kcalc: covariances are kept as
they are, in dictionaries over pairs of locations, for (x, x), (y, y) and (x, y); the tangent kernel
beside the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from mpmath import mp, mpf

mp.dps = 60
Place = tuple[int, int]
Table = dict[tuple[Place, Place], Any]
SIDES = ("xx", "yy", "xy")


def inputs(x: Any, y: Any) -> dict[str, Table]:
    """Input covariances of two images given as nested lists (height, width, channels) of floats or
    mpf.
    """
    sides = {"x": x, "y": y}

    def table(a: Any, b: Any) -> Table:
        places = list(product(range(len(a)), range(len(a[0]))))
        return {
            (p, r): sum(mpf(u) * mpf(v) for u, v in zip(a[p[0]][p[1]], b[r[0]][r[1]], strict=True))
            / len(a[0][0])
            for p in places
            for r in places
        }

    out = {side: table(sides[side[0]], sides[side[1]]) for side in SIDES}
    out["tangent"] = {key: mpf(0) for key in out["xy"]}
    return out


def size(table: Table) -> Place:
    """(height, width)."""
    return max(p[0] for p, _ in table) + 1, max(p[1] for p, _ in table) + 1


def reads(n: int, kernel: int, stride: int, padding: Any) -> list[list[int | None]]:
    """For every output place on an axis, the input places read; None for zero padding."""
    if padding in ("same", "circular"):
        count = -(-n // stride)
        low = max((count - 1) * stride + kernel - n, 0) // 2
    else:
        low = 0 if padding == "valid" else padding
        count = (n + 2 * low - kernel) // stride + 1
    out: list[list[int | None]] = []
    for o in range(count):
        row: list[int | None] = []
        for t in range(kernel):
            i = o * stride + t - low
            row.append(i % n if padding == "circular" else i if 0 <= i < n else None)
        out.append(row)
    return out


def convolved(table: Table, layer: Sequence[Any]) -> Table:
    """sigma_w^2 / taps * the sum over taps, without bias."""
    _, kernel, stride, padding, sigma_w, _ = layer
    height, width = size(table)
    rows = reads(height, kernel[0], stride[0], padding)
    columns = reads(width, kernel[1], stride[1], padding)
    places = list(product(range(len(rows)), range(len(columns))))
    out: Table = {}
    for p, r in product(places, places):
        total = mpf(0)
        for i, j in product(range(kernel[0]), range(kernel[1])):
            first, second = (rows[p[0]][i], columns[p[1]][j]), (rows[r[0]][i], columns[r[1]][j])
            if None not in first and None not in second:
                total += table[first, second]  # type: ignore[index]
        out[p, r] = mpf(sigma_w) ** 2 * total / (kernel[0] * kernel[1])
    return out


def pooled(table: Table, window: Any, stride: Any) -> Table:
    """Means over both windows."""
    height, width = size(table)
    window = window or (height, width)
    stride = stride or window
    rows = reads(height, window[0], stride[0], "valid")
    columns = reads(width, window[1], stride[1], "valid")
    places = list(product(range(len(rows)), range(len(columns))))
    spots = {p: list(product(rows[p[0]], columns[p[1]])) for p in places}
    return {
        (p, r): sum(table[a, b] for a in spots[p] for b in spots[r])
        / (len(spots[p]) * len(spots[r]))  # type: ignore[index]
        for p in places
        for r in places
    }


def relu(a: Any, b: Any, k: Any) -> tuple[Any, Any]:
    """(E phi phi, E phi' phi') for variances a, b and covariance k."""
    norm = mp.sqrt(a * b)
    if norm == 0:
        return mpf(0), mpf(0)
    angle = mp.acos(max(min(k / norm, mpf(1)), mpf(-1)))
    return norm * (mp.sin(angle) + (mp.pi - angle) * mp.cos(angle)) / (2 * mp.pi), (
        mp.pi - angle
    ) / (2 * mp.pi)


def erf(a: Any, b: Any, k: Any) -> tuple[Any, Any]:
    """The same of erf."""
    whole = (1 + 2 * a) * (1 + 2 * b)
    return 2 / mp.pi * mp.asin(2 * k / mp.sqrt(whole)), 4 / mp.pi / mp.sqrt(whole - 4 * k * k)


def activated(
    state: dict[str, Table], phi: Callable[[Any, Any, Any], tuple[Any, Any]]
) -> dict[str, Table]:
    """Every covariance through an activation."""
    out: dict[str, Table] = {side: {} for side in (*SIDES, "tangent")}
    for side in SIDES:
        first, second = state[side[0] * 2], state[side[1] * 2]
        for (p, r), k in state[side].items():
            value, slope = phi(first[p, p], second[r, r], k)
            out[side][p, r] = value
            if side == "xy":
                out["tangent"][p, r] = slope * state["tangent"][p, r]
    return out


def stepped(state: dict[str, Table], layer: Sequence[Any]) -> dict[str, Table]:
    """One layer further."""
    kind, *rest = layer
    if kind in ("relu", "erf"):
        return activated(state, {"relu": relu, "erf": erf}[kind])
    if kind == "mean":
        return {side: pooled(table, *rest) for side, table in state.items()}
    if kind == "flatten":
        zero = (0, 0)
        out = {}
        for side, table in state.items():
            places = {p for p, _ in table}
            out[side] = {(zero, zero): sum(table[p, p] for p in places) / len(places)}
        return out
    linear = ["conv", (1, 1), (1, 1), "same", *rest] if kind == "dense" else layer
    out = {side: convolved(table, linear) for side, table in state.items()}
    for side in SIDES:
        out[side] = {key: value + mpf(linear[5]) ** 2 for key, value in out[side].items()}
    out["tangent"] = {key: value + out["xy"][key] for key, value in out["tangent"].items()}
    return out


def kernels(layers: Sequence[Sequence[Any]], x: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """(K(x, x), K(y, y), K(x, y), tangent kernel) of a network whose output is one place."""
    state = inputs(x, y)
    for layer in layers:
        state = stepped(state, layer)
    zero = (0, 0)
    return tuple(state[side][zero, zero] for side in (*SIDES, "tangent"))  # type: ignore[return-value]
