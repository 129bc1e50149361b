"""kcalc's activations as PyTorch functions.

Their values in double precision, and their slopes where a piece would overflow unused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy as sp
from exported import TYPED

import kcalc as kc

torch = pytest.importorskip("torch")
from kcalc.interchange.torch_model.activation import torch_function  # noqa: E402

x = sp.Symbol("x", real=True)
CHOICES: tuple[Any, ...] = (
    sp.Piecewise((0, (x > -1) & (x < 2)), (sp.sin(x), True)),
    sp.Piecewise((x, (x < -1) | (x > 2)), (x**2, True)),
    1 + sp.Piecewise((sp.exp(x), x <= 0), (1 + x, True)) / 3,
    sp.Piecewise((sp.exp(-x), sp.Ge(x, 0)), (1 - x, True)),
    sp.Max(sp.exp(x), -(x**2) - 1, sp.sin(x) - 7) + sp.Min(x**2, -sp.exp(-x)),
    x / 2 + sp.Piecewise((1, sp.Eq(x, 0)), (sp.sin(x) / x, True)) * sp.tanh(x),
    sp.Piecewise((sp.log(1 + x), sp.sin(x) + 3 < 0), (x, True)),
)


@pytest.mark.parametrize("expr", [*TYPED, *CHOICES], ids=str)
def test_values_and_slopes(expr: Any) -> None:
    phi = kc.activation(expr, name="typed")
    at = np.array([-300.0, -7.3, -2.1, -0.77, -1e-3, 1e-3, 0.31, 1.9, 2.9, 3.4, 6.2, 300.0])
    if "exp" in str(expr):
        at = at[1:-1]
    given = torch.tensor(at, requires_grad=True)
    values = torch_function(phi)(given)
    truth = [sp.N(expr.subs(x, sp.Float(t, 30)), 20) for t in at]
    assert values.detach().numpy() == pytest.approx(np.array(truth, float), rel=1e-13, abs=1e-13)
    (slopes,) = torch.autograd.grad(values.sum(), given)
    wanted = [sp.N(sp.diff(expr, x).subs(x, sp.Float(t, 30)).doit(), 20) for t in at]
    assert slopes.numpy() == pytest.approx(np.array(wanted, float), rel=1e-11, abs=1e-11)
