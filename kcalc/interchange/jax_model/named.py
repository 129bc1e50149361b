"""JAX functions with guards against overflow, as the plain functions they compute.

The guards may also be against undefined derivatives.

A name alone proves nothing: the user may have called anything ``elu``. The function of the jaxpr is
compared with the plain one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import sympy as sp

from ...foundation.process_state import lambdify

PROBES = np.array(
    [-30.0, -7.3, -3.1, -1.7, -1.0, -0.4, -1e-2, 0.0, 1e-2, 0.3, 1.0, 1.9, 3.3, 6.5, 30.0]
)
SECOND = (0.25, 1.0, 1.7)
SELU_SCALE = sp.Float("1.0507009873554804934193349852946", 32)
SELU_ALPHA = sp.Float("1.6732632423543772848170429916717", 32)


def _elu(x: Any, alpha: Any = 1) -> Any:
    return sp.Piecewise((x, x > 0), (alpha * (sp.exp(x) - 1), True))


PLAIN: dict[str, Callable[..., Any]] = {
    "logaddexp": lambda x, y: sp.log(sp.exp(x) + sp.exp(y)),
    "softplus": lambda x: sp.log(1 + sp.exp(x)),
    "elu": _elu,
    "selu": lambda x: SELU_SCALE * _elu(x, SELU_ALPHA),
    "celu": lambda x, alpha=1: sp.Piecewise((x, x > 0), (alpha * (sp.exp(x / alpha) - 1), True)),
    "mish": lambda x: x * sp.tanh(sp.log(1 + sp.exp(x))),
    "log_sigmoid": lambda x: -sp.log(1 + sp.exp(-x)),
    "sinc": lambda x: sp.sinc(sp.pi * x),
}


def named_function(name: str, inner: Any) -> Callable[..., Any] | None:
    """The plain function of that name, if the closed jaxpr computes it."""
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
    """Whether both functions give the same values at the probes.

    The second input, where there is one, is ``second``.
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
