"""Kernel matrices of rows with unequal norms, each in a separate process."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from .timing import spent

FEW = 62  # rows whose 1953 pairs are compared with the recursion, if it is quick


def rows(what: str, count: int) -> np.ndarray:
    """``count`` rows: raw digits, digits minus their mean, or Gaussian rows with norms that vary by
    a factor of ``what``.
    """
    if what.isdigit():
        random = np.random.default_rng(1)
        found = random.standard_normal((count, 256))
        return found * np.exp(random.uniform(0, np.log(float(what)), (count, 1)))
    images = load_digits().data[:count]
    if what == "digits":
        return images
    centred = images - images.mean(axis=0)
    return centred / np.sqrt(np.mean(centred**2))


def network(kc: Any, activation: str, depth: int) -> Any:
    """A plain network; "dks tanh" and "tat relu" are shaped."""
    method, _, name = activation.rpartition(" ")
    plain = kc.architectures.vanilla(depth, name)
    return kc.shape(plain, name, method=method).network if method else plain


def timed(
    what: str, count: int, activation: str, depth: int, before: str | None = None
) -> dict[str, float]:
    """CPU seconds of NNGP and NTK together: cold, warm, and warm with all rows of one norm.

    ``before`` is a checkout of older code to measure.
    """
    if before is not None:
        sys.path.insert(0, before)
    import kcalc as kc

    x = rows(what, count)
    kernel = kc.ntk(network(kc, activation, depth))
    cold = spent(lambda: kernel.matrices(x)).cpu
    equal = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True))
    kernel.matrices(equal)
    found = {"cold": cold}
    for name, data in (("warm", x), ("equal", equal)):
        found[name] = float(
            np.median([spent(lambda d=data: kernel.matrices(d)).cpu for _ in "abc"])
        )
    return found


def compared(
    what: str, count: int, activation: str, depth: int, few: int = FEW
) -> dict[str, float]:
    """The largest difference from the recursion for each pair, and the recursion's CPU seconds per
    pair.
    """
    import kcalc as kc

    x = rows(what, count)
    kernel = kc.ntk(network(kc, activation, depth))
    some = np.random.default_rng(2).choice(count, min(count, few), replace=False)
    truth: list[Any] = []
    took = spent(lambda: truth.append(kernel.matrices(x[some], method="pairs"))).cpu
    worst = 0.0
    for whole, exact in zip(kernel.matrices(x), truth[0], strict=True):
        size = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
        off = np.abs(whole[np.ix_(some, some)] - exact) / np.maximum(np.abs(exact), size / 100)
        worst = max(worst, float(off.max()))
    return {"difference": worst, "pair": took / (len(some) * (len(some) + 1) / 2)}
