"""Reading PyTorch: elementwise functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc.interchange.read import read  # noqa: E402
from kcalc.network.layers import (  # noqa: E402
    Affine,
    Nonlinear,
)


class Fn(nn.Module):
    """A layer, then a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.layer(x))


# -- elementwise operators -------------------------------------------------------------------------

BY_NAME = {
    F: """
        relu silu mish gelu selu softsign relu6 hardswish hardsigmoid logsigmoid tanhshrink
        softshrink hardshrink
    """,
    torch: "tanh sigmoid abs expm1 sin cos sinh cosh asinh atan erf erfc square sign",
    torch.special: "ndtr",
}
FUNCTIONS: dict[str, Any] = {
    **{name: getattr(room, name) for room, names in BY_NAME.items() for name in names.split()},
    "elu": lambda x: F.elu(x, 1.3),
    "celu": lambda x: F.celu(x, 0.7),
    "leaky": lambda x: F.leaky_relu(x, 0.2),
    "softplus": lambda x: F.softplus(x, 2),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.3),
    "log1p": lambda x: torch.log1p(x * x),
    "reciprocal": lambda x: (1 + x**2).reciprocal(),
    "rsub": lambda x: torch.tanh(1 - x),
    "clamp": lambda x: x.clamp(-1, 0.5),
    "clamp_min": lambda x: x.clamp(min=-1),
    "mask": lambda x: x * (x > 0),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "logaddexp": lambda x: torch.logaddexp(x, -x),
    "logit": lambda x: torch.logit(torch.sigmoid(x)) ** 2,
    "exp2": lambda x: torch.exp2(0.3 * x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise_functions_are_those_of_torch(name: str) -> None:
    """The activation read computes what the function computes."""
    function = FUNCTIONS[name]
    steps = read(Fn(function), (2, 6), sigmas=False).network.steps()
    _, *found = (layer for _, layer, _ in steps)
    assert [type(layer) for layer in found] == [Affine, Nonlinear], found
    x = np.linspace(-4, 4, 402)
    slope = function if name != "rrelu" else lambda t: F.leaky_relu(t, 0.2)
    want = slope(torch.tensor(x, dtype=torch.float32).clone()).double().numpy()
    assert np.abs(found[1].activation(x) - want).max() < 2e-5 * max(1, np.abs(want).max())
