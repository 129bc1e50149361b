"""Gains (weight scales that preserve q values), compared with the gains of other libraries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import sympy as sp

from ..fields import NUMPY, SYMPY
from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import truth
from . import activation as resolve

__all__ = ["SHIPPED", "Shipped", "comparison", "gain"]


@overload
def gain(
    activation: Any, q: float | np.floating | np.integer = 1, centred: bool = False
) -> float: ...
@overload
def gain(activation: Any, q: sp.Expr, centred: bool = False) -> sp.Expr | float: ...
def gain(activation: Any, q: Any = 1, centred: bool = False) -> float | sp.Expr:
    """Return the weight scale ``sigma_w = sqrt(q / Q(q))`` that preserves q after an activation.

    If the preactivations have mean square q, so do the outputs of ``Affine(sigma_w=gain)`` after
    the activation. If weights sum to zero over their inputs (weight standardisation), the mean
    square of the outputs depends only on the variance of phi; in this case, use ``centred=True``.

    Parameters
    ----------
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    q
        The q value to preserve, > 0: a number or a SymPy expression.
    centred
        Whether to use the variance of phi, ``sqrt(q / Var phi)``.

    Returns
    -------
    float | sp.Expr
        A float, or a SymPy expression for a symbolic q.

    Raises
    ------
    KcalcError
        For q <= 0, if the second moment of the activation diverges, and, with ``centred``, if the
        activation is constant.

    References
    ----------
    [He et al. 2015 for ReLU]

    Examples
    --------
    >>> import kcalc as kc
    >>> round(kc.gain("relu"), 6)
    1.414214

    """
    phi = resolve(activation)
    symbolic = isinstance(q, sp.Basic) and bool(q.free_symbols)
    field = SYMPY if symbolic else NUMPY
    value = field.number(q)
    if not symbolic and isinstance(value, np.ndarray) and value.ndim:
        raise KcalcError(f"the q value of a gain must be a single number, got {glimpse(q)}")
    if not symbolic and not value > 0:
        raise KcalcError(f"q is a mean square and must be > 0, got {q}")
    passed = phi.second_moment(value, field)
    if truth(centred, "centred"):
        passed = passed - phi.mean(value, field) ** 2
        if not symbolic and not passed > 0:
            raise KcalcError(f"activation {phi.name!r} is constant, so it has no centred gain")
    if not symbolic and not passed > 0:
        raise KcalcError(
            f"E phi^2 of activation {phi.name!r} underflows at q = {q}, so the activation has no "
            "gain there"
        )
    result = field.sqrt(value / passed)
    return sp.simplify(result) if symbolic else float(result)


@dataclass(frozen=True)
class Shipped:
    """The gain of an activation in another library.

    ``centred`` is True if the gain is for weights that sum to zero over their inputs.
    """

    library: str
    name: str
    activation: Any
    value: float
    centred: bool = False

    @property
    def exact(self) -> float:
        """The gain that preserves q = 1."""
        return gain(self.activation, centred=self.centred)

    @property
    def error(self) -> float:
        """The relative error, (shipped - exact)/exact."""
        return self.value / self.exact - 1

    def q_after(self, layers: int) -> float:
        """Return the q value after ``layers`` layers: the activation, then weights with this gain.

        The q value of the input is 1.
        """
        phi, q = resolve(self.activation), 1.0
        for _ in range(layers):
            q = self.value**2 * (
                float(phi.second_moment(q)) - (float(phi.mean(q)) ** 2 if self.centred else 0.0)
            )
        return q


_TORCH, _TIMM = "torch", "timm"

SHIPPED: tuple[Shipped, ...] = (
    Shipped(_TORCH, "linear", "identity", 1.0),
    Shipped(_TORCH, "sigmoid", "sigmoid", 1.0),
    Shipped(_TORCH, "tanh", "tanh", 5 / 3),
    Shipped(_TORCH, "relu", "relu", math.sqrt(2)),
    Shipped(_TORCH, "leaky_relu", "leaky_relu", math.sqrt(2 / (1 + 0.01**2))),
    Shipped(_TORCH, "selu", "selu", 0.75),
    Shipped(_TIMM, "celu", "celu", 1.270926833152771, True),
    Shipped(_TIMM, "elu", "elu", 1.2716004848480225, True),
    Shipped(_TIMM, "gelu", "gelu", 1.7015043497085571, True),
    Shipped(_TIMM, "leaky_relu", "leaky_relu", 1.70590341091156, True),
    Shipped(
        _TIMM, "log_sigmoid", "softplus", 1.9193484783172607, True
    ),  # log_sigmoid(x) = -softplus(-x) has the variance of softplus
    Shipped(_TIMM, "relu", "relu", 1.7139588594436646, True),
    Shipped(_TIMM, "relu6", "relu6", 1.7131484746932983, True),
    Shipped(_TIMM, "selu", "selu", 1.0008515119552612, True),
    Shipped(_TIMM, "sigmoid", "sigmoid", 4.803835391998291, True),
    Shipped(_TIMM, "silu", "swish", 1.7881293296813965, True),
    Shipped(_TIMM, "softsign", "softsign", 2.338853120803833, True),
    Shipped(_TIMM, "softplus", "softplus", 1.9203323125839233, True),
    Shipped(_TIMM, "tanh", "tanh", 1.5939117670059204, True),
)
"""The gains of torch 2 and timm 1.

Two gains of timm are left out: identity (gain 1) and log_softmax (not elementwise).
"""


def comparison(layers: int = 100) -> str:
    """Return a Markdown table of the shipped gains and the exact gains."""
    rows = [
        "| library | activation | keeps | shipped | exact | relative error | "
        f"q after {layers} layers |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in SHIPPED:
        after, kept = row.q_after(layers), "E φ² − (E φ)²" if row.centred else "E φ²"
        error = "0" if abs(row.error) < 1e-15 else f"{row.error:+.1e}"
        rows.append(
            f"| {row.library} | {row.name} | {kept} | {row.value:.13g} | {row.exact:.13g} | "
            f"{error} | {after:.4g} |"
        )
    return "\n".join(rows)


def __dir__() -> list[str]:
    return __all__
