"""Data-dependent initialisation, which rescales initial weights layer by layer.

The methods are LSUV and within-layer initialisation [DKS sec. 26.2].
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from ..calculi.arrays import Arrays
from ..fields.arguments import positive_number
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import whole
from ..foundation.printing import Shown, plain, shown
from ..network.compose import fold
from ..network.layers import Affine, Layer
from .model import Model, as_model
from .network_plan import Params

Node = Hashable
Array = Any


@dataclass(frozen=True)
class Adjusted:
    """The result of data-dependent initialisation for one layer.

    ``variance_before`` and ``variance_after`` are variances of the layer's outputs over examples,
    locations and channels. ``error`` is the remaining deviation from the targets.
    """

    node: Node
    variance_before: float
    variance_after: float
    error: float
    iterations: int
    converged: bool
    dead: int = 0


@dataclass(frozen=True)
class DataDependent(Shown):
    """The result of data-dependent initialisation.

    Attributes
    ----------
    params
        The rescaled parameters.
    report
        A table with one row per Affine layer.

    """

    params: Params
    report: tuple[Adjusted, ...]

    @property
    def converged(self) -> bool:
        """Whether every layer met the tolerance."""
        return all(row.converged for row in self.report)

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("node", "before", "after", "error", "iterations", "converged", "constant channels")
        return [head, *(tuple(map(shown, astuple(row))) for row in self.report)]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, without the parameters.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {"converged": self.converged, "report": plain(self.report)}

    def __repr__(self) -> str:
        return (
            f"DataDependent({len(self.report)} layers, "
            f"{'converged' if self.converged else 'not converged'})"
        )


def lsuv(
    model: Model,
    params: Params,
    x: Any,
    tolerance: float = 1e-3,
    iterations: int = 10,
    state: Any = None,
) -> DataDependent:
    """Apply layer-sequential unit variance (LSUV).

    The outputs of every Affine get variance 1 over channels, locations and examples.

    From the first to the last layer, ``W -> W / std(output)`` is repeated until
    ``|variance - 1| <= tolerance``, or at most ``iterations`` times [Mishkin, Matas 2015]. One step
    is enough if biases are 0.

    Parameters
    ----------
    model
        A :class:`kcalc.Model`, as :func:`kcalc.to_jax` returns it.
    params
        The parameters of the model, as ``model.init`` returns them.
    x
        A batch of inputs, (batch, ..., channels).
    tolerance
        The largest accepted error.
    iterations
        The largest number of steps per layer.
    state
        The state of BatchNorm layers, as ``model.init_state`` returns it.

    Returns
    -------
    DataDependent
        The new parameters, with a layer-by-layer report.

    Raises
    ------
    KcalcError
        If the output of a layer is constant or not finite; the message names the node.

    """

    def adjust(
        node: Node, own: dict[str, Array], out: np.ndarray
    ) -> tuple[dict[str, Array], float, int]:
        variance = float(out.var())
        if not 0 < variance < float("inf"):
            raise KcalcError(
                f"the output of node {node!r} has variance {variance} on this batch; start from "
                "nonzero weights"
            )
        return (
            own | {"weight": np.asarray(own["weight"], float) * variance**-0.5},
            abs(variance - 1),
            0,
        )

    return _calibrated(model, params, x, adjust, tolerance, iterations, state)


def wli(
    model: Model,
    params: Params,
    x: Any,
    tolerance: float = 1e-3,
    iterations: int = 10,
    state: Any = None,
) -> DataDependent:
    """Apply within-layer initialisation.

    Every channel of every Affine gets mean 0 and variance 1 over locations and examples.

    From the first to the last layer, each output channel j gets ``W_j -> W_j / std_j`` and
    ``b_j -> (b_j - mean_j) / std_j`` [Kraehenbuehl et al. 2016].

    Parameters
    ----------
    model
        A :class:`kcalc.Model`, as :func:`kcalc.to_jax` returns it.
    params
        The parameters of the model, as ``model.init`` returns them.
    x
        A batch of inputs, (batch, ..., channels).
    tolerance
        The largest accepted error.
    iterations
        The largest number of steps per layer.
    state
        The state of BatchNorm layers, as ``model.init_state`` returns it.

    Returns
    -------
    DataDependent
        The new parameters, with a layer-by-layer report.

    Raises
    ------
    KcalcError
        If a layer has no bias; the message names the node.

    """
    scales = {
        node: lowered.numbers[3]
        for node, lowered in as_model(model).plan(x).nodes.items()
        if "bias" in lowered.tensors
    }

    def adjust(
        node: Node, own: dict[str, Array], out: np.ndarray
    ) -> tuple[dict[str, Array], float, int]:
        if node not in scales:
            raise KcalcError(
                f"node {node!r} has no bias, so the means of its outputs cannot be shifted; use "
                "bias=True (and sigma_b > 0 in the ntk parameterization)"
            )
        channels = out.reshape(-1, out.shape[-1])
        mean, deviation = channels.mean(axis=0), channels.std(axis=0)
        alive = deviation > 1e-6 * np.maximum(1.0, np.abs(mean))
        if not np.isfinite(deviation).all() or not alive.any():
            raise KcalcError(
                f"the outputs of node {node!r} are constant or not finite on this batch; start "
                "from nonzero weights"
            )
        scale = 1 / np.where(alive, deviation, 1)
        shift = np.where(alive, mean, 0) / scales[node]
        error = np.max(np.where(alive, np.maximum(np.abs(mean), np.abs(deviation**2 - 1)), 0))
        new = {
            "weight": np.asarray(own["weight"], float) * scale,
            "bias": (np.asarray(own["bias"], float) - shift) * scale,
        }
        return new, float(error), int((~alive).sum())

    return _calibrated(model, params, x, adjust, tolerance, iterations, state)


Adjust = Callable[[Node, dict[str, Array], np.ndarray], tuple[dict[str, Array], float, int]]


@dataclass
class _Calibration(Arrays):
    """The array calculus that adjusts the weights of each Affine before passing its output on."""

    adjust: Adjust = field(kw_only=True)
    tolerance: float = field(kw_only=True)
    iterations: int = field(kw_only=True)
    report: list[Adjusted] = field(default_factory=list)

    def rule(self, layer: Layer, node: Node, inputs: Sequence[Array]) -> Array:
        out = super().rule(layer, node, inputs)
        if not isinstance(layer, Affine):
            return out
        if layer.standardised:
            raise KcalcError(
                f"node {node!r} has standardised weights, whose scale has no effect; use "
                "standardised=False"
            )
        params: Any = self.params
        before, used = float(np.asarray(out, float).var()), 0
        while True:
            seen = np.asarray(out, float)
            new, error, dead = self.adjust(node, dict(params[node]), seen)
            if error <= self.tolerance or used == self.iterations:
                break
            params[node] = {leaf: values.astype(out.dtype) for leaf, values in new.items()}
            out, used = super().rule(layer, node, inputs), used + 1
        after, converged = float(seen.var()), error <= self.tolerance
        self.report.append(Adjusted(node, before, after, error, used, converged, dead))
        return out


def _calibrated(
    model: Model,
    params: Params,
    x: Any,
    adjust: Adjust,
    tolerance: float,
    iterations: int,
    state: Any,
) -> DataDependent:
    as_model(model)
    tolerance = positive_number(tolerance, "tolerance")
    iterations = whole(iterations, "iterations", 1)
    with model.measuring():
        inputs = model.inputs_of(x)
        for node, array in inputs.items():
            if array.ndim < 2 or array.shape[0] < 2:
                raise KcalcError(
                    f"the input {node!r} must be a batch of at least two examples, got shape "
                    f"{tuple(array.shape)}"
                )
            if not np.isfinite(np.asarray(array, float)).all():
                raise KcalcError(
                    f"the input {node!r} contains nan or inf; remove the examples that contain them"
                )
        own = model.unstack(params, x)
        plan = model.plan(x)
        if state is not None:
            plan.check(state, "state")
        states = {} if state is None else plan.by_node(state, "state")
        if plan.states and any(entry.stacked for entry in plan.states):
            raise KcalcError(
                "data-dependent initialisation needs a separate state for every BatchNorm; build "
                "the model with rolled=False"
            )
        if plan.states and state is None:
            states = plan.by_node(plan.fresh_state(model.dtype), "state")
        calibration = _Calibration(
            plan.nodes,
            dict(own),
            states,
            train=bool(plan.states),
            adjust=adjust,
            tolerance=tolerance,
            iterations=iterations,
        )
        fold(model.network, calibration, inputs)
        return DataDependent(plan.stacked(calibration.params), tuple(calibration.report))
