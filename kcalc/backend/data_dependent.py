"""Initial weights rescaled on data, layer by layer.

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

    ``variance_before``, ``variance_after``: the mean square deviation of its outputs (also over
    channels); ``error``: the final error.
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
    """The result of an initialisation from data.

    Attributes
    ----------
    params
        The rescaled parameters.
    report
        A table with a row per Affine layer.

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
    """Apply layer-sequential unit variance.

    The outputs of every Affine get variance 1 over channels, locations and examples.

    From first to last layer, ``W -> W / std(output)`` until ``|variance - 1| <= tolerance`` or
    ``iterations`` are used up [Mishkin, Matas 2015]; one is enough if biases are 0.

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
        The new parameters, with a report by layer.

    Raises
    ------
    KcalcError
        For layers whose output is constant or not finite; the message names the node.

    """

    def adjust(
        node: Node, own: dict[str, Array], out: np.ndarray
    ) -> tuple[dict[str, Array], float, int]:
        variance = float(out.var())
        if not 0 < variance < float("inf"):
            raise KcalcError(
                f"node {node!r}: its output has variance {variance} on this batch; start from "
                f"weights that are not zero"
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

    From first to last layer, ``W_j -> W_j / std_j`` and ``b_j`` is shifted by the mean, per output
    channel j [Kraehenbuehl et al. 2016].

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
        The new parameters, with a report by layer.

    Raises
    ------
    KcalcError
        For layers without a bias; the message names the node.

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
                f"node {node!r} has no bias to shift its means; use bias=True (in the ntk "
                "parameterization also sigma_b > 0)"
            )
        channels = out.reshape(-1, out.shape[-1])
        mean, deviation = channels.mean(axis=0), channels.std(axis=0)
        alive = deviation > 1e-6 * np.maximum(1.0, np.abs(mean))
        if not np.isfinite(deviation).all() or not alive.any():
            raise KcalcError(
                f"node {node!r}: its outputs are constant or not finite on this batch; start from "
                f"weights that are not zero"
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
    """The array calculus, changing the weights of each Affine before its output is passed on."""

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
                    f"the input {node!r} contains numbers that are not finite (nan or inf); "
                    "remove those examples"
                )
        own = model.unstack(params, x)
        plan = model.plan(x)
        if state is not None:
            plan.check(state, "state")
        states = {} if state is None else plan.by_node(state, "state")
        if plan.states and any(entry.stacked for entry in plan.states):
            raise KcalcError(
                "rescaling on data needs BatchNorm's state node by node; make the model with "
                "rolled=False"
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
