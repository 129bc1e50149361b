"""Singular values of Jacobians inside a network.

One function tracks them over the first training steps, another compares weight variances.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backend import to_jax
from ..backend.initialisers import random_bits
from ..fields.arguments import raw_array, real_array
from ..foundation.errors import KcalcError, glimpse
from ..foundation.extras import imported
from ..foundation.guests import DRAWINGS
from ..foundation.plain_arguments import whole
from ..foundation.printing import Shown, plain, spread
from ..network.compose import require_network
from ..network.layers import Affine
from ..network.network import Network
from .jacobians import layer_jacobians
from .probes import Probes, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Node = Hashable
Array = Any


@dataclass(frozen=True, eq=False)
class _Spectra(Shown):
    """Singular values of d ``end`` / d ``start``."""

    start: Node
    end: Node

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"start": str(self.start), "end": str(self.end)}


@dataclass(frozen=True, eq=False)
class TrainingSpectra(_Spectra):
    """Singular values of d ``end`` / d ``start`` for one example.

    ``values`` (steps + 1, k) are the singular values in descending order, before each step and
    after the last one. ``losses`` (steps + 1,) is the mean cross-entropy on the batch.
    """

    learning_rate: float
    values: np.ndarray
    losses: np.ndarray

    @property
    def mean(self) -> float:
        """The mean singular value over all steps."""
        return float(self.values.mean())

    @property
    def smallest(self) -> float:
        """The smallest singular value, averaged over the steps."""
        return float(self.values[:, -1].mean())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot a histogram of the singular values of all steps [MacDonald et al. 2023, Fig. 2]."""
        return DRAWINGS["TrainingSpectra"]({f"d {self.end} / d {self.start}": self.values}, ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        own = {"learning_rate": self.learning_rate, "singular_values": self.values.tolist()}
        return super().to_dict() | own | {"losses": self.losses.tolist()}

    def _frame(self) -> dict[str, np.ndarray]:
        steps, count = self.values.shape
        columns = {
            "step": np.arange(steps)[:, None],
            "loss": self.losses[:, None],
            "rank": np.arange(count) + 1,
        }
        return spread(columns | {"singular_value": self.values})

    def _rows(self) -> list[tuple[str, ...]]:
        rows = zip(self.losses, self.values, strict=True)
        head = ("step", "loss", "smallest", "median", "mean", "largest")
        return [head, *((str(i), f"{loss:.4g}", *_cells(s)) for i, (loss, s) in enumerate(rows))]

    def __repr__(self) -> str:
        return (
            f"TrainingSpectra({len(self.losses) - 1} steps, d {self.end!r} / d {self.start!r}, "
            f"mean singular value {self.mean:.4g})"
        )


@dataclass(frozen=True, eq=False)
class VarianceSpectra(_Spectra):
    """Singular values of d ``end`` / d ``start`` at initialisation, for several weight scales.

    ``values[factor]`` (draws, k) are the singular values with every sigma_w multiplied by
    ``factor``.
    """

    values: dict[float, np.ndarray]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot a histogram for each factor."""
        return DRAWINGS["VarianceSpectra"](
            {rf"{factor:g} $\sigma_w$": s for factor, s in self.values.items()}, ax=ax
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return super().to_dict() | {"singular_values": plain(self.values)}

    def _frame(self) -> list[dict[str, Any]]:
        return [
            {"factor": factor, "draw": draw, "rank": place + 1, "singular_value": value}
            for factor, values in self.values.items()
            for (draw, place), value in np.ndenumerate(values)
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("factor", "smallest", "median", "mean", "largest")
        return [head, *((f"{factor:.4g}", *_cells(s)) for factor, s in self.values.items())]

    def __repr__(self) -> str:
        return f"VarianceSpectra({len(self.values)} variances, d {self.end!r} / d {self.start!r})"


def training_spectra(
    network: Network,
    X: Any,
    labels: Any,
    start: Node = None,
    end: Node = None,
    steps: int = 10,
    learning_rate: float = 0.1,
    key: Any = 0,
    features: Any = None,
    weights: Any = "uniform",
    example: int = 0,
) -> TrainingSpectra:
    """Train by gradient descent and track the singular values of a Jacobian at every step.

    Training is full-batch gradient descent on the mean cross-entropy. The Jacobian is d ``end`` / d
    ``start``.

    ``X`` (N, ..., channels) and ``labels`` (N,) are the batch. ``start`` and ``end`` are nodes. By
    default, they are the first Affine and the last node before the readout that every path crosses.
    ``example`` is the index of the example at which the Jacobian is computed. BatchNorm uses the
    statistics of the batch, with all other examples held fixed. ``weights`` is the initial
    distribution of weights, as in :func:`kcalc.to_jax`. Raises: KcalcError if an argument is
    invalid or the loss becomes infinite or nan. [MacDonald et al. 2023, sec. 6.2]
    """
    jax = imported("jax")
    require_network(network)
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        raise KcalcError(
            f"training needs one input and one output, but the network has {len(network.inputs)} "
            f"inputs and {len(network.outputs)} outputs"
        )
    inputs, classes = _batch(X, labels)
    model = to_jax(network, features, weights=weights, rolled=False)
    first, last = _ends(network, start, end)
    plan = model.plan(inputs)
    if not 0 <= example < len(inputs):
        raise KcalcError(f"example must lie in 0..{len(inputs) - 1}, got {example}")
    steps = whole(steps, "steps")
    with model.measuring():
        x, y = model.inputs_of(inputs)[network.inputs[0]], jax.numpy.asarray(classes)
        run = _Run(Probes(model, plan, located=True), x, y, first, last, example)
        params = plan.draw(random_bits(key), model._dtype)
        jacobian, descend = jax.jit(run.jacobian), jax.jit(jax.value_and_grad(run.loss))
        values, losses = [], []
        for step in range(steps + 1):
            values.append(np.linalg.svd(_finite(jacobian(params), step), compute_uv=False))
            loss, gradient = descend(params)
            losses.append(float(_finite(loss, step)))
            params = jax.tree.map(lambda p, g: p - learning_rate * g, params, gradient)
    return TrainingSpectra(first, last, float(learning_rate), np.array(values), np.array(losses))


def _cells(values: np.ndarray) -> tuple[str, ...]:
    """Format the smallest, median, mean and largest singular value, averaged over draws."""
    found = values[..., -1].mean(), np.median(values), values.mean(), values[..., 0].mean()
    return tuple(f"{value:.4g}" for value in found)


def _finite(values: Array, step: int) -> np.ndarray:
    found = np.asarray(values, float)
    if not np.isfinite(found).all():
        raise KcalcError(f"training diverged at step {step}; use a smaller learning_rate")
    return found


def _batch(X: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    inputs, classes = real_array(X, "X"), raw_array(labels, "labels")
    if (
        classes.dtype.kind not in "iu"
        or classes.shape != inputs.shape[:1]
        or not len(classes)
        or classes.min() < 0
    ):
        raise KcalcError(
            f"labels must be {len(inputs) if inputs.ndim else 0} integers >= 0, got an array "
            f"of shape {classes.shape} and dtype {classes.dtype}"
        )
    return inputs, classes


def _ends(network: Network, start: Node, end: Node) -> tuple[Node, Node]:
    order = list(network)
    for node in (start, end):
        if node is not None:
            network.layer(node)
    first = network.nodes_of(Affine)[0] if start is None and network.nodes_of(Affine) else start
    affine = network.nodes_of(Affine)
    cuts = [node for node in network.cut_nodes() if node not in affine]
    last = (cuts[-1] if cuts else network.outputs[0]) if end is None else end
    if first is None or order.index(first) >= order.index(last):
        raise KcalcError(
            f"start {first!r} must come before end {last!r} in the network; choose other nodes"
        )
    return first, last


@dataclass(frozen=True, eq=False)
class _Run:
    """A model with a batch, in which the feature map of one example can be shifted at ``start``."""

    probes: Probes
    inputs: Array
    labels: Array
    start: Node
    end: Node
    example: int

    def states(self, params: Any, shift: Array | None = None) -> dict[Node, Array]:
        """Compute all feature maps, with the batch statistics of this batch."""
        plan, shifts = self.probes.plan, self.probes.zeros()
        if shift is not None:
            shifts[self.probes.rows.index((self.start,))] = shift
        state = plan.by_node(plan.fresh_state(self.inputs.dtype), "state")
        options = {"state": state, "train": True, "key": random_bits(0), "keep": True}
        return self.probes.run(params, {plan.network.inputs[0]: self.inputs}, shifts, **options)

    def loss(self, params: Any) -> Array:
        """Compute the mean cross-entropy."""
        import jax
        import jax.numpy as jnp

        logits = self.states(params)[self.probes.plan.network.outputs[0]]
        flat = jax.nn.log_softmax(logits.reshape(len(self.labels), -1))
        return -jnp.take_along_axis(flat, self.labels[:, None], axis=1).mean()

    def jacobian(self, params: Any) -> Array:
        """Compute d end / d start of the example, shape (entries of end, entries of start)."""
        import jax.numpy as jnp

        axes = self.probes.shapes[self.probes.rows.index((self.start,))].axes

        def moved(vector: Array) -> Array:
            shift = jnp.zeros((len(self.inputs), *axes), vector.dtype)
            shift = shift.at[self.example].set(vector.reshape(axes))
            return self.states(params, shift)[self.end][self.example].ravel()

        return columns(moved, jnp.zeros(int(np.prod(axes)), self.inputs.dtype))


def variance_spectra(
    network: Network,
    factors: Sequence[float] = (0.5, 1.0, 2.0),
    start: Node = None,
    end: Node = None,
    draws: int = 4,
    key: Any = 0,
    q: float = 1.0,
    features: Any = None,
    weights: Any = "gaussian",
) -> VarianceSpectra:
    """Compute the singular values of d ``end`` / d ``start`` at several initial weight scales.

    Every sigma_w is multiplied by each of ``factors`` in turn.

    ``start`` defaults to the first input and ``end`` to the first output. As in
    :func:`kcalc.verification.layer_jacobians`, the Jacobian for images is the derivative of one
    position with respect to a common shift of all positions. Raises: KcalcError if a factor is not
    positive, or if :func:`kcalc.verification.layer_jacobians` raises an error.
    """
    require_network(network)
    numbers = real_array(np.atleast_1d(np.asarray(factors)), "factors")
    if not len(numbers) or np.any(numbers <= 0):
        raise KcalcError(f"factors must be positive numbers, got {glimpse(factors)}")
    first = network.inputs[0] if start is None else start
    last = network.outputs[0] if end is None else end
    found: dict[float, np.ndarray] = {}
    for factor in map(float, numbers):
        scaled = network.map_layers(
            lambda _, layer, f=factor: replace(layer, sigma_w=f * layer.sigma_w), Affine
        )
        model = to_jax(scaled, features, weights=weights)
        found[factor] = layer_jacobians(model, [last], first, key, draws, q).values[last]
    return VarianceSpectra(first, last, found)
