"""Measurements of the peers, run by :mod:`benchmarks.child` in their environments. This module must
not import kcalc.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .child import peak

FEATURES = 256
SIGMA = {"relu": math.sqrt(2), "erf": 1.5, "tanh": 1.5}
POINTS = 25  # degree of neural-tangents' Gauss-Hermite rule in its documentation
NAMES = {"gelu": "gelu_exact"}  # in dks, gelu is the tanh approximation
ORDER = (("input_scale", 1), ("input_shift", 0), ("output_scale", 1), ("output_shift", 0))


def data(rows: int) -> np.ndarray:
    """Rows with FEATURES entries and |x|^2 / d = 1."""
    x = np.random.default_rng(0).standard_normal((rows, FEATURES))
    return x * (math.sqrt(FEATURES) / np.linalg.norm(x, axis=1, keepdims=True))


def job(
    *others: Callable[[], Any], first: Callable[[], Any], later: Callable[[], Any], repeats: int
) -> dict[str, Any]:
    """Seconds and added memory of the first call, and medians of later calls, alternating with
    ``others``.
    """
    before, start = peak(), time.perf_counter()
    first()
    found: dict[str, Any] = {"first": time.perf_counter() - start, "memory": peak() - before}
    for work in others:
        work()
    times: list[list[tuple[float, float]]] = [[] for _ in range(1 + len(others))]
    for _ in range(repeats):
        for spent, work in zip(times, (later, *others), strict=True):
            start, cpu = time.perf_counter(), time.process_time()
            work()
            spent.append((time.perf_counter() - start, time.process_time() - cpu))
    steady, *rest = (np.median(spent, axis=0).tolist() for spent in times)
    return found | {"steady": steady[0], "cpu": steady[1], "others": rest}


def neural_tangents(activation: str, depth: int, rows: int, repeats: int) -> dict[str, float]:
    """NNGP and NTK of a plain network together, in float64."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from neural_tangents import stax  # pyright: ignore[reportMissingImports]

    x, w = jnp.asarray(data(rows)), SIGMA[activation]
    phi = {"relu": stax.Relu, "erf": stax.Erf}.get(activation) or (
        lambda: stax.ElementwiseNumerical(jnp.tanh, POINTS, lambda v: 1 - jnp.tanh(v) ** 2)
    )
    layer = stax.serial(stax.Dense(FEATURES, w), phi())
    *_, kernel_fn = stax.serial(stax.repeat(layer, depth), stax.Dense(1, w))
    run = jax.jit(lambda x: kernel_fn(x, None, ("nngp", "ntk")))

    def matrices() -> None:
        jax.block_until_ready(tuple(run(x)))

    return job(first=matrices, later=matrices, repeats=repeats)


# -- dks -------------------------------------------------------------------------------------------


def dks(names: list[str], depth: int, zeta: float, repeats: int) -> dict[str, Any]:
    """{activation: CPU seconds and constants, or the error} for DKS on a plain network, after a
    warm-up.
    """
    from dks.base import activation_transform as peer  # type: ignore[import-not-found]

    def slope(psi: float) -> float:
        return psi**depth

    def ask(name: str) -> Any:
        return peer.get_transformed_activations(
            [name], method="DKS", dks_params={"c_slope_1_target": zeta}, max_slope_func=slope
        )

    ask("tanh")
    found: dict[str, Any] = {}
    for name in names:
        theirs = NAMES.get(name, name)
        try:
            times = []
            for _ in range(repeats):
                start = time.process_time()
                ask(theirs)
                times.append(time.process_time() - start)
            found[name] = {
                "cpu": float(np.median(times)),
                "constants": _dks_constants(theirs, zeta, slope),
            }
        except ValueError as error:
            found[name] = {"error": str(error)}
    return found


def dks_resnet(name: str, zeta: float, power: dict[str, Any]) -> dict[str, float]:
    """Constants if the maximal slope is ``(r psi^a + 1 - r)^m (r psi^b + 1 - r)^n psi^k``."""
    r, factors, alone = power["share"], power["factors"], power["alone"]

    def slope(psi: float) -> float:
        value = psi**alone
        for degree, count in factors:
            value *= (r * psi**degree + 1 - r) ** count
        return value

    return _dks_constants(name, zeta, slope)


def dks_tailored(name: str, depth: int, tau: float) -> dict[str, float]:
    """Constants for TAT's curvature condition."""
    from dks.base import activation_transform as peer  # type: ignore[import-not-found]

    found = peer._get_activations_params(
        [name], "TAT", {}, {"c_curve_target": tau}, None, lambda curvature: depth * curvature, None
    )[name]
    return _plain(found)


def _dks_constants(name: str, zeta: float, slope: Callable[[float], float]) -> dict[str, float]:
    from dks.base import activation_transform as peer  # type: ignore[import-not-found]

    return _plain(
        peer._get_activations_params(
            [name], "DKS", {"c_slope_1_target": zeta}, {}, slope, None, None
        )[name]
    )


def _plain(found: dict[str, Any]) -> dict[str, float]:
    kept = {key: float(found.get(key, default)) for key, default in ORDER}
    return kept | (
        {"negative_slope": float(found["negative_slope"])} if "negative_slope" in found else {}
    )
