"""Output multipliers that give outputs a desired standard deviation on one batch.

The method is from [Scaling sec. 7, 10, App. H].
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..fields.arguments import positive_number
from ..foundation.errors import KcalcError
from ..foundation.printing import Shown, plain, shown
from ..network.combinators import output_scaled
from .model import Model, as_model
from .network_plan import Params

Node = Hashable


@dataclass(frozen=True, eq=False)
class OutputScale(Shown):
    """A model with a fixed multiplier after every output, and its parameters.

    Attributes
    ----------
    model
        The model with the multipliers.
    params
        The parameters of that model (the weights do not change).
    factors
        {output: multiplier}.
    before
        {output: standard deviation on the batch, without the multiplier}.

    """

    model: Model
    params: Params
    factors: dict[Node, float]
    before: dict[Node, float]

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            ("output", "standard deviation", "factor"),
            *((str(n), shown(self.before[n]), shown(k)) for n, k in self.factors.items()),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the factors, and the standard deviations without them, as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {"factors": plain(self.factors), "before": plain(self.before)}

    def __repr__(self) -> str:
        listed = ", ".join(f"{node}: {factor:.6g}" for node, factor in self.factors.items())
        return f"OutputScale({listed})"


def scale_output(model: Model, params: Params, x: Any, std: float = 0.05) -> OutputScale:
    """Scale the outputs to the standard deviation ``std`` on the batch ``x``.

    The standard deviation is taken over examples and channels. The factors are fixed, not trained.

    ``kc.shape(net, method="geometric", output_std=...)`` finds a factor without data, from E[y^2]
    instead of the variance.

    Parameters
    ----------
    model
        A :class:`kcalc.Model`, as :func:`kcalc.to_jax` returns it.
    params
        The parameters of the model, as ``model.init`` returns them.
    x
        A batch of inputs, (batch, ..., channels) or {input: array}.
    std
        The standard deviation to reach, > 0.

    Returns
    -------
    OutputScale
        The model with its output factors, and its parameters.

    Raises
    ------
    KcalcError
        For an invalid ``std``, networks with BatchNorm, and outputs that are constant or not
        finite.

    """
    as_model(model)
    std = positive_number(std, "std")
    if model.plan(x).states:
        raise KcalcError(
            "scale_output does not support BatchNorm, because it makes the outputs depend on the "
            "batch; use net.without_normalization()"
        )
    out = model.apply(params, x)
    outputs = model.network.outputs
    found = out if isinstance(out, dict) else {outputs[0]: out}
    before = {node: float(np.asarray(values, dtype=float).std()) for node, values in found.items()}
    for node, value in before.items():
        if not 0 < value < float("inf"):
            raise KcalcError(
                f"output {node!r} has standard deviation {value} on this batch; pass more "
                "examples or use nonzero weights"
            )
    factors = {node: std / value for node, value in before.items()}
    scaled = replace(model, network=output_scaled(model.network, factors), _plans={}, _compiled={})
    return OutputScale(scaled, scaled.stack(model.unstack(params, x), x), factors, before)
