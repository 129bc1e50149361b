"""A test of whether the sizes of a network's coordinates depend on its width.

The coordinates are the entries of layer outputs. Their sizes are measured at initialisation, for
several widths.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..calculi.widths import open_nodes
from ..fields.arguments import one_number
from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.extras import imported
from ..foundation.plain_arguments import is_key, items, whole
from ..foundation.printing import Shown, shown, spread
from ..network.compose import require_network
from ..network.layers import Affine, BatchNorm
from ..network.network import Network
from .initialisers import random_bits
from .lowering import roles, width_grows_with
from .model import Model, to_jax
from .parameterization import parameterization as named_parameterization

Node = Hashable
OPTIONS = ("image_shape", "weights", "dtype", "remat", "rolled", "trainable_norms")


@dataclass(frozen=True)
class CoordinateCheck(Shown):
    """Root-mean-square outputs of every Affine layer at each width, and the fitted powers of width.

    The check covers initialisation only; it does not test whether learning rates transfer.

    Attributes
    ----------
    widths
        The measured widths.
    rms
        {node: root mean squares, with shape (widths, draws)}.
    slopes
        {node: (power, standard error)}.
    expected
        {node: the power that the parameterization implies}. The power is None if a layer before the
        node already changes coordinate sizes with the width.

    """

    widths: tuple[int, ...]
    rms: dict[Node, np.ndarray]
    slopes: dict[Node, tuple[float, float]]
    expected: dict[Node, float | None]
    listed = ("passed",)

    def deviates(self, node: Node, errors: float = 4.0, slack: float = 0.02) -> bool:
        """Whether the measured power differs significantly from the expected one.

        The difference is significant if it exceeds ``slack`` plus ``errors`` standard errors.

        Parameters
        ----------
        node
            The label of a node.
        errors
            The number of standard errors.
        slack
            The deviation that finite width may cause.

        Returns
        -------
        bool
            True if the deviation is significant.

        """
        if not is_key(node, self.expected):
            raise unknown("Affine node", node, map(str, self.expected))
        wanted, (slope, error) = self.expected[node], self.slopes[node]
        errors, slack = one_number(errors, "errors"), one_number(slack, "slack")
        return wanted is not None and abs(slope - wanted) > errors * error + slack

    @property
    def passed(self) -> bool:
        """Whether no node deviates from its expected power."""
        return not any(self.deviates(node) for node in self.slopes)

    def _frame(self) -> dict[str, np.ndarray]:
        nodes = np.array([*map(str, self.rms)])[:, None, None]
        draws = np.arange(next(iter(self.rms.values())).shape[1])
        return spread(
            {
                "node": nodes,
                "width": np.array(self.widths)[:, None],
                "draw": draws,
                "rms": np.stack([*self.rms.values()]),
            }
        )

    def _rows(self) -> list[tuple[str, ...]]:
        sizes = {node: np.sqrt((values**2).mean(axis=1)) for node, values in self.rms.items()}
        head = (
            "node",
            "power of the width",
            "standard error",
            "expected",
            *(f"rms at width {w}" for w in self.widths),
        )
        body = (
            (str(n), f"{p:+.3f}", f"{e:.3f}", shown(self.expected[n]), *map(shown, sizes[n]))
            for n, (p, e) in self.slopes.items()
        )
        return [head, *body]

    def __repr__(self) -> str:
        return (
            f"CoordinateCheck({len(self.slopes)} nodes, widths {self.widths}, "
            f"{'passed' if self.passed else 'deviates'})"
        )


def coordinate_check(
    network: Network,
    x: Any,
    outputs: int,
    parameterization: Any = "mup",
    widths: Sequence[int] = (64, 128, 256, 512),
    draws: int = 8,
    key: Any = 0,
    **options: Any,
) -> CoordinateCheck:
    """Measure how the entries of layer outputs (coordinates) grow with width at initialisation.

    Parameters
    ----------
    network
        A network with unspecified hidden widths. At every width, its inputs have as many channels
        as ``x``, and its outputs have ``outputs`` channels.
    x
        Example inputs, (batch, ..., channels).
    outputs
        The number of channels of every output node.
    parameterization
        "standard", "ntk", "mup" or ``kcalc.backend.ABC(...)``.
    widths
        The widths to measure, at least two.
    draws
        The number of random networks per width, at least two.
    key
        A JAX random key or an integer.
    **options
        Options of :func:`kcalc.to_jax`.

    Returns
    -------
    CoordinateCheck
        The measured sizes by width, and the fitted power of each node.

    Raises
    ------
    KcalcError
        For fewer than two widths or draws, networks with fixed hidden widths or with BatchNorm, and
        coordinates that are 0 or not finite (because of the data or the weights).

    """
    jax = imported("jax")
    require_network(network)
    sizes_ = _widths(widths, draws, outputs)
    foreign = next((name for name in options if name not in OPTIONS), None)
    if foreign is not None:
        raise KcalcError(
            f"coordinate_check has no option {foreign}=; it accepts these options of kc.to_jax: "
            f"{', '.join(OPTIONS)}"
        )
    normed = network.nodes_of(BatchNorm)
    if normed:
        raise KcalcError(
            f"node {normed[0]!r} (BatchNorm) normalises its coordinates to size 1 at every width, "
            "so they cannot be checked; use net.without_normalization()"
        )
    chosen = named_parameterization(parameterization)
    loose = set(open_nodes(network)).intersection(network.nodes_of(Affine))
    if loose.issubset(network.outputs):
        raise KcalcError(
            "every hidden layer has a fixed width; build the network with features=None"
        )
    ends = {node: outputs for node in network.outputs if node in loose}
    found: dict[Node, list[np.ndarray]] = {node: [] for node in network.nodes_of(Affine)}
    bits = random_bits(key)
    for width in sizes_:
        model = to_jax(network, {None: width} | ends, parameterization=chosen, **options)
        _usable(model, x)

        def sizes(one: Any, model: Any = model) -> dict[int, Any]:
            trace = model.trace(model.init(one, x), x)
            return {i: (trace[node] ** 2).mean() ** 0.5 for i, node in enumerate(found)}

        with model.precision():
            # a batch of QR decompositions is slow
            every = jax.jit(lambda keys, sizes=sizes: jax.lax.map(sizes, keys))
            rows = every(jax.random.split(bits, draws))
        for i, node in enumerate(found):
            found[node].append(np.asarray(rows[i], float))
            _measured(node, width, found[node][-1])
    rms = {node: np.array(values) for node, values in found.items()}
    slopes = {node: _power(np.array(sizes_, float), values) for node, values in rms.items()}
    return CoordinateCheck(sizes_, rms, slopes, _expected(network, chosen))


def _widths(widths: Any, draws: Any, outputs: Any) -> tuple[int, ...]:
    """Return the widths as integers.

    Raises KcalcError for fewer than two widths or draws, and for values that are not integers.
    """
    given = items(widths, "widths")
    for name, value in (*(("a width", w) for w in given), ("draws", draws), ("outputs", outputs)):
        whole(value, name, 1)
    if len(set(given)) < 2 or draws < 2:
        raise KcalcError(
            "fitting a power of the width requires at least two widths and two draws, but "
            f"widths={glimpse(widths)} and draws={draws} were passed"
        )
    return tuple(int(w) for w in given)


def _usable(model: Model, x: Any) -> None:
    """Raise KcalcError if the example is zero everywhere or has values that are not finite."""
    with model.precision():
        arrays = {node: np.asarray(a, float) for node, a in model.inputs_of(x).items()}
    for node, values in arrays.items():
        if not np.isfinite(values).all() or not values.any():
            raise KcalcError(
                f"the input {node!r} is 0 everywhere or contains numbers that are not finite, so "
                "the size of the coordinates cannot be measured; pass another example"
            )


def _measured(node: Node, width: int, rms: np.ndarray) -> None:
    """Raise KcalcError if a root mean square of a node's output is 0 or not finite."""
    finite = np.isfinite(rms).all()
    if not finite or not (rms > 0).all():
        raise KcalcError(
            f"the coordinates of node {node!r} are {'0' if finite else 'not finite'} at width "
            f"{width}, so no power of the width can be fitted; use other inputs, nonzero "
            "weights, or a dtype of higher precision"
        )


def _power(widths: np.ndarray, rms: np.ndarray) -> tuple[float, float]:
    """Fit a power of the width to root mean squares by least squares.

    ``rms`` has shape (widths, draws). Returns the power and its standard error over draws.
    """
    each = np.polyfit(np.log(widths), np.log(rms), 1)[0]
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(each.size))


def _expected(network: Network, chosen: Any) -> dict[Node, float | None]:
    """Return {Affine: the power of the width that its output should follow, None if unknown}."""
    places = roles(network)
    flat: dict[Node, bool] = {}
    expected: dict[Node, float | None] = {}
    for node, _, parents in network.steps():
        flat[node] = all(flat[p] for p in parents)
        if node in places:
            growth = width_grows_with(chosen, places[node])
            expected[node] = growth if flat[node] else None
            flat[node] = flat[node] and growth == 0
    return expected
