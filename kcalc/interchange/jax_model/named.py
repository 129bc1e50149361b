"""Recognise JAX functions with guards, and replace them with the plain functions they compute.

The guards prevent overflow, and some also prevent undefined derivatives.

Users may give any function a name such as ``elu``. The name is therefore not enough: the jaxpr's
values are compared with the values of the plain function.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import sympy as sp

from ...foundation.process_state import lambdify
from ..elementary import ONE, TWO, celu, elu

PROBES = np.array(
    [-30.0, -7.3, -3.1, -1.7, -1.0, -0.4, -1e-2, 0.0, 1e-2, 0.3, 1.0, 1.9, 3.3, 6.5, 30.0]
)
SECOND = (0.25, 1.0, 1.7)
PLAIN: dict[str, Callable[..., Any]] = {
    **{name: ONE[name] for name in ("log_sigmoid", "mish", "selu", "softplus")},
    "logaddexp": TWO["logaddexp"],
    "elu": elu,
    "celu": celu,
    "sinc": lambda x: sp.sinc(sp.pi * x),
}


def named_function(name: str, inner: Any) -> Callable[..., Any] | None:
    """Return the plain function ``name`` if the closed jaxpr computes it, else None."""
    plain, inputs = PLAIN.get(name), inner.jaxpr.invars
    if plain is None or len(inner.jaxpr.outvars) != 1 or len(inputs) not in (1, 2) or inner.consts:
        return None
    try:
        return (
            plain
            if all(
                _agree(plain, inner, second)
                for second in (SECOND if len(inputs) == 2 else SECOND[:1])
            )
            else None
        )
    except (TypeError, ValueError, ArithmeticError, NotImplementedError, RuntimeError):
        return None


def _agree(plain: Callable[..., Any], inner: Any, second: float) -> bool:
    """Whether both functions have the same values at PROBES.

    ``second``: the value of the second input, if there is one.
    """
    from jax.core import eval_jaxpr

    shapes = [v.aval.shape for v in inner.jaxpr.invars]
    symbols = sp.symbols("x y", real=True)[: len(shapes)]
    reference = lambdify(symbols, plain(*symbols), "mpmath")
    size = max(prod(shapes[0]), 1)
    for start in range(0, len(PROBES), size):
        points = PROBES[start : start + size]
        arrays = [np.resize(points, shapes[0]), *(np.full(shape, second) for shape in shapes[1:])]
        given = [a.astype(v.aval.dtype) for a, v in zip(arrays, inner.jaxpr.invars, strict=True)]
        found = np.asarray(
            eval_jaxpr(inner.jaxpr, inner.consts, *given)[0], dtype=np.float64
        ).ravel()[: len(points)]
        wanted = [
            float(reference(float(p), second) if len(shapes) == 2 else reference(float(p)))
            for p in points
        ]
        if not np.allclose(found, wanted, rtol=2e-5, atol=2e-6):
            return False
    return True
