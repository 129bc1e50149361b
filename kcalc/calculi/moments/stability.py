"""The width for a given variance, and a comparison of relu with concatenated relu."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...fields.arguments import one_number
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import whole
from ...foundation.printing import Shown
from ...maps.maps import Assumption
from ..widths import open_nodes


def width_for(
    again: Callable[..., Any], options: Mapping[str, Any], variance: Any, most: int
) -> int:
    """The smallest ``features=`` with Var |y|^2 / (E |y|^2)^2 <= variance at the output.

    ``again(network, features, ...)`` computes the moments. See
    :meth:`kcalc.calculi.moments.Moments.width_for`.
    """
    goal, most = one_number(variance, "variance"), whole(most, "most", 1)
    if goal <= 0:
        raise KcalcError(f"variance must be > 0, got {goal}")
    rest = dict(options)
    network, features = rest.pop("given"), rest.pop("features")
    named = dict(features) if isinstance(features, Mapping) else {None: features}
    open_ = [node for node in open_nodes(network) if node not in named]
    if named.get(None) is None or not open_:
        raise KcalcError(
            "all widths are fixed by the layers (or passed for each node); leave some of them "
            "open so that kcalc can find the smallest features=N"
        )

    def relative(width: int) -> float:
        value = again(network, features={**named, None: width}, jacobian=False, **rest).out.relative
        if not isinstance(value, float):
            raise KcalcError(
                "the network has symbols; substitute numbers with net.subs before searching for "
                "a width"
            )
        return value

    high = 1
    while relative(high) > goal:
        if high >= most:
            raise KcalcError(
                f"even with {most} channels, the relative variance is {relative(most):.6g} > "
                f"{goal:.6g}; use fewer layers"
            )
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if relative(middle) <= goal else (middle, high)
    return high


@dataclass(frozen=True)
class Budget(Shown):
    """ReLU layers with ``width`` channels, and concatenated ReLU layers with as many weights.

    y = W1 relu(x) - W2 relu(-x) has two matrices, so ``crelu_width`` = width / sqrt 2. A rate is
    the change in log E|y|^4 per layer when the mean is preserved.

    Attributes
    ----------
    width
        The number of channels of the ReLU layers.
    depth
        The number of layers.
    relu_rate
        log(1 + 5/n).
    crelu_rate
        log(1 + 2 sqrt 2/n), the rate of a linear network.

    """

    width: float
    depth: int
    listed = ("crelu_width", "relu_rate", "crelu_rate", "relu_variance", "crelu_variance")

    @property
    def crelu_width(self) -> float:
        """n / sqrt 2."""
        return self.width / math.sqrt(2)

    @property
    def relu_rate(self) -> float:
        """log(1 + 5/n)."""
        return math.log1p(5 / self.width)

    @property
    def crelu_rate(self) -> float:
        """log(1 + 2 sqrt 2/n)."""
        return math.log1p(2 / self.crelu_width)

    @property
    def relu_variance(self) -> float:
        """Var |y|^2 / (E |y|^2)^2 after ``depth`` relu layers."""
        return math.expm1(self.depth * self.relu_rate)

    @property
    def crelu_variance(self) -> float:
        """Var |y|^2 / (E |y|^2)^2 after ``depth`` layers of concatenated relu."""
        return math.expm1(self.depth * self.crelu_rate)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the rates."""
        text = (
            "relu layers of the same width, fresh Gaussian weights with the variance that "
            "preserves E |y|^2, no biases"
        )
        return (Assumption("network", text, "convention"),)

    def __str__(self) -> str:
        return (
            f"{self.depth} layers of {self.width:g} relu channels: relative variance "
            f"{self.relu_variance:.6g}; {self.crelu_width:.6g} concatenated relu channels, with "
            f"the same number of weights: {self.crelu_variance:.6g}"
        )


def crelu_budget(width: Any, depth: int = 1) -> Budget:
    """Compare relu with concatenated relu at the same number of weights.

    Both use the variance that preserves E |y|^2.

    To first order in 1/n, the rates per layer are 5/n for relu and 2 sqrt 2/n for concatenated
    relu. [Per-layer gradient, sec. 5]

    Parameters
    ----------
    width
        The number of channels of the ReLU layers.
    depth
        The number of layers.

    Returns
    -------
    Budget
        The widths and relative variances of both networks.

    Raises
    ------
    KcalcError
        For a width that is not positive and a depth that is not an integer >= 1.

    """
    n = one_number(width, "width")
    if n <= 0:
        raise KcalcError(f"width must be > 0, got {n}")
    return Budget(n, whole(depth, "depth", 1))
