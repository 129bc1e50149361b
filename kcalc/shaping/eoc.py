"""The edge of chaos, on which perturbations neither grow nor shrink.

The edge is the set of weight and bias variances with chi_1 = 1 at a fixed point q*.

A layer is Affine(sigma_w, sigma_b), then phi: q* = sigma_w^2 E phi(sqrt q* z)^2 + sigma_b^2 and
chi_1 = sigma_w^2 E phi'(sqrt q* z)^2. Given q*, the condition chi_1 = 1 determines sigma_w, and the
fixed point determines sigma_b. The edge is therefore a curve with q* as its parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from ..activations import Activation
from ..activations import activation as resolve
from ..fields.arguments import as_number
from ..foundation.errors import KcalcError, Remedy, UnreachableTarget
from ..foundation.process_state import cached_property
from ..foundation.rootfinding import least_between, zero_between
from ..gaussian.expectations.quadrature import Array
from ..maps.maps import Assumption
from ..network import layers as L
from ..network.network import Network, concat_channels, sum_weights
from .base import Shaping, farthest, prepared
from .choose_branch import check_shapeable
from .constants import Constants, constants_of
from .hypotheses import check_fresh
from .methods import shaping_method
from .moments import converged_moments
from .needs import fresh, known_tokens, no_products, plain_network
from .records import MethodCall, Record

# search for q* up to USUAL_Q first, and up to LARGEST_Q only if none is found: residuals take
# seconds at such large q
LEAST_Q = 1e-6
USUAL_Q = 1e3
LARGEST_Q = 2e4
PER_DECADE = 9.3  # points of the search per decade of q
LARGEST_SIGMA = 1e6
ROUNDING = 1e-13
DKS = Remedy("dks")
AT_ONE = Remedy("eoc", {"q": 1.0, "sigma_b": None, "sigma_w": None}, "choose only q=1")
UNBIASED = Remedy("eoc", {"sigma_b": 0.0, "sigma_w": None, "q": None}, "choose only sigma_b=0")
KEPT = 1e-9  # relative tolerance of q around q*
DEFAULT_Q = 1.0
FROM_INPUT = (-1.0, -1.0)  # marks sigmas that follow from q*


@dataclass(frozen=True)
class Edge:
    """A point on the edge of chaos of one activation."""

    activation: Activation
    q: float
    sigma_w: float
    sigma_b: float

    @property
    def attractive(self) -> bool | None:
        """Whether q* is attracting: |sigma_w^2 Q'(q*)| < 1.

        The value is None if this quantity is 1 up to rounding.
        """
        slope = self.sigma_w**2 * float(self.activation.q_slope(self.q))
        return None if abs(abs(slope) - 1) < 1e-12 else abs(slope) < 1


def edge(
    activation: Any,
    q: float | None = None,
    sigma_b: float | None = None,
    sigma_w: float | None = None,
) -> Edge:
    """Return the point on the edge of chaos with the given q*, sigma_b or sigma_w.

    Pass exactly one of the three. If several points have this value, the point with the smallest q*
    is returned.

    For activations of degree one (relu), the edge is the single point (sigma_w, 0) for every q*,
    and the default is q* = 1. Domain: q in [1e-6, 2e4], sigma_b >= 0, sigma_w > 0.

    Raises: KcalcError for invalid input; UnreachableTarget that names the possible range.
    """
    phi = resolve(activation)
    check_shapeable(phi)
    given = {
        name: _number(value, name)
        for name, value in (("q", q), ("sigma_b", sigma_b), ("sigma_w", sigma_w))
        if value is not None
    }
    if len(given) != 1:
        raise KcalcError(
            "pass exactly one of sigma_b, sigma_w and q to choose the point on the edge of chaos"
        )
    (name, value), *_ = given.items()
    if name == "q":
        return _at(phi, value)
    if phi.degree == 1:
        return _homogeneous(phi, name, value)
    return _at(phi, _parameter(phi, name, value))


def _number(value: Any, name: str) -> float:
    number = as_number(value, name)
    if getattr(number, "free_symbols", None) or number < 0 or (number == 0 and name != "sigma_b"):
        raise KcalcError(
            f"{name} must be a number {'>= 0' if name == 'sigma_b' else '> 0'}, got {value}"
        )
    if number > LARGEST_SIGMA:
        raise KcalcError(
            f"{name} = {value} exceeds {LARGEST_SIGMA:g}, the limit of the search for an edge of "
            "chaos"
        )
    return float(number)


def variances(phi: Activation, q: float) -> tuple[float, float]:
    """Return (sigma_w^2, sigma_b^2) of the edge at q*.

    sigma_b^2 is computed without cancellation. It is negative if the edge has no point at q*.
    """
    m = converged_moments(phi, math.log(q) / 2, 0.0)
    if not m.gradient > 0:
        raise KcalcError(f"the gradient of {phi.name} vanishes at q = {q:g}")
    share = (m.excess - m.mean**2) / m.gradient
    return q / m.gradient, q * (share if abs(share) > ROUNDING else 0.0)


def _at(phi: Activation, q: float) -> Edge:
    if not LEAST_Q <= q <= LARGEST_Q:
        raise KcalcError(f"q* must lie in [{LEAST_Q:g}, {LARGEST_Q:g}], got {q:g}")
    weight, bias = variances(phi, q)
    if bias < 0:
        raise UnreachableTarget(
            f"the edge of chaos of {phi.name} has no point with q* = {q:g}: sigma_b^2 would be "
            f"{bias:.6g}"
        )
    return Edge(phi, q, math.sqrt(weight), math.sqrt(bias))


def _homogeneous(phi: Activation, name: str, value: float) -> Edge:
    point = _at(phi, 1.0)
    if abs(getattr(point, name) - value) > 1e-12 * (1 + value):
        raise UnreachableTarget(
            f"the edge of chaos of {phi.name} is the single point sigma_w = {point.sigma_w:.10g}, "
            f"sigma_b = {point.sigma_b:g}; {name} = {value:g} is not on it"
        )
    return point


def _parameter(phi: Activation, name: str, value: float) -> float:
    """Return the smallest q* at which the edge has the given sigma."""
    which = 0 if name == "sigma_w" else 1

    def miss(log_q: float) -> float:
        return variances(phi, math.exp(log_q))[which] - value**2

    grid, found = np.empty(0), np.empty((2, 0))
    for least, most in ((LEAST_Q, USUAL_Q), (USUAL_Q, LARGEST_Q)):
        more, rows = _reachable(phi, least, most)
        grid, found = np.concatenate([grid, more]), np.concatenate([found, rows], axis=1)
        values = found[which] - value**2
        for i in np.nonzero(values[:-1] * values[1:] <= 0)[0]:
            root = zero_between(miss, grid[i], grid[i + 1], 1e-15, rtol=1e-14)
            if variances(phi, math.exp(root))[1] >= 0:
                return math.exp(root)
    _refuse(phi, name, value, grid, found)


def _refuse(phi: Activation, name: str, value: float, grid: Array, found: Array) -> NoReturn:
    """Raise UnreachableTarget, and name the nearest sigma on the edge and the end of the search."""
    kept = found[1] >= 0
    looked = (
        f"for q* <= {math.exp(grid[-1]):.3g}, where the search ends" if grid.size else "at any q*"
    )
    if not kept.any():
        raise UnreachableTarget(
            f"{phi.name} has no edge of chaos: chi_1 = 1 needs sigma_b^2 < 0 {looked}"
        )
    which = 0 if name == "sigma_w" else 1
    near, exact = _nearest(phi, which, value, grid[kept], found[which][kept])
    limit = (
        "; sigma_b tends to 0 only as q* -> 0"
        if name == "sigma_b" and value == 0 and near < 1e-3
        else f" {looked}; the nearest is {'' if exact else 'about '}{near:.6g}"
    )
    raise UnreachableTarget(
        f"the edge of chaos of {phi.name} has no point with {name} = {value:g}{limit}"
    )


def _nearest(
    phi: Activation, which: int, value: float, grid: Array, squares: Array
) -> tuple[float, bool]:
    """Return (sigma on the edge nearest to a value, whether it is an extremum).

    The second value is False if the point is an end of the curve.
    """
    i = int(np.abs(np.sqrt(squares) - value).argmin())
    if not 0 < i < len(grid) - 1:
        return math.sqrt(float(squares[i])), False
    sign = 1.0 if squares[i] > value**2 else -1.0
    _, least = least_between(
        lambda s: sign * variances(phi, math.exp(float(s)))[which], grid[i - 1], grid[i + 1]
    )
    return math.sqrt(abs(least)), True


def _reachable(phi: Activation, least: float, most: float) -> tuple[Array, Array]:
    """Return (log q*, [sigma_w^2, sigma_b^2]) along the edge, where moments are finite."""
    grid, rows = [], []
    for log_q in np.linspace(
        math.log(least), math.log(most), round(PER_DECADE * math.log10(most / least))
    ):
        try:
            rows.append(variances(phi, math.exp(log_q)))
        except (KcalcError, OverflowError):
            continue
        grid.append(float(log_q))
    return np.array(grid), np.array(rows).reshape(-1, 2).T


def edge_curve(activation: Any, count: int = 101) -> list[Edge]:
    """Return points on the edge of chaos with increasing q*, from 1e-6 to 1e3."""
    phi = resolve(activation)
    check_shapeable(phi)
    points = []
    for log_q in np.linspace(math.log(LEAST_Q), math.log(USUAL_Q), count):
        try:
            points.append(_at(phi, math.exp(log_q)))
        except (KcalcError, OverflowError):
            continue
    return points


# -- a network at the edge -------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class EdgeShaping(Shaping):
    """A network at the edge of chaos.

    Its Affine layers have their own sigma_w and sigma_b (not 1 and 0), and its activations are
    unchanged.
    """

    edges: tuple[Edge, ...] = ()

    @cached_property
    def _measured(self) -> dict[str, Any]:
        """Compute chi_1 and q* from local quantities, and the global values.

        The local quantities use a different quadrature; the values are the worst over all
        activations. Global maps are computed on the network.
        """
        return farthest(map(_conditions, self.edges), self.targets) | self._global_values()


def _conditions(point: Edge) -> dict[str, float]:
    """Return chi_1 and q* from the Q map of a layer at a point on the edge."""
    phi, q, weight = point.activation, point.q, point.sigma_w**2
    square = float(phi.second_moment(q))
    slope = float(np.asarray(phi.c_map.derivative(1)(1.0, q))) * square / q
    return {"chi_1": weight * slope, "q*": weight * square + point.sigma_b**2}


def edges_exist(call: MethodCall) -> None:
    """Require a point on the edge for every activation, all with the same q*.

    Raises: KcalcError if there are no such points.
    """
    plain = plain_network(call)
    q, sigma_b, sigma_w = (call.targets.get(name) for name in ("q", "sigma_b", "sigma_w"))
    q = DEFAULT_Q if q is sigma_b is sigma_w is None else q
    points = _points(plain.activations, q, sigma_b, sigma_w)
    level = next(iter(points.values())).q
    layers, *_ = _affines(plain, points, level)
    _check_level(plain.map_layers(lambda node, layer: layers[node], L.Affine), points, level)


@shaping_method(
    "eoc",
    Record(
        "The edge of chaos: sets the scales of weights and biases, without changing the "
        "activations, for one of three targets.",
        {
            "sigma_b": "standard deviation of the biases, >= 0",
            "sigma_w": "standard deviation of the weights times sqrt(fan_in), > 0",
            "q": "mean square of the pre-activations; default 1",
        },
        compared=True,
        needs=(known_tokens, no_products, fresh, edges_exist),
    ),
)
def eoc(
    network: Network,
    activation: Any = None,
    sigma_b: float | None = None,
    sigma_w: float | None = None,
    q: float | None = None,
    *,
    assume_independent: bool = False,
) -> EdgeShaping:
    """Put a network on the edge of chaos: chi_1 = 1 at the fixed point q*, for inputs with q = 1.

    Unlike DKS and TAT, this sets sigma_w and sigma_b of the Affine layers and leaves the
    activations unchanged.

    ``sigma_b``, ``sigma_w`` or ``q`` chooses the point on the edge. The default is sigma_b = 0 for
    activations of degree one, otherwise q* = 1. Different activations must share q*, so for them
    only ``q`` is accepted. An Affine after an activation gets the sigma_w and sigma_b of that
    activation. The first Affine after an input gets sigma_w^2 = q* - sigma_b^2. All other Affine
    layers get (1, 0), which preserves q. ``changes`` lists every change. An output that ends in an
    activation does not have q = q*; an assumption says so.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        The activation that replaces every activation; None keeps the existing activations.
    sigma_b
        The sigma_b to use; pass at most one of ``sigma_b``, ``sigma_w`` and ``q``.
    sigma_w
        The sigma_w to use.
    q
        The fixed point q*.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.

    Returns
    -------
    EdgeShaping
        The new sigma_w and sigma_b, and the shaped network.

    Raises
    ------
    KcalcError
        If an argument is invalid.
    UnreachableTarget
        If the edge has no such point.
    FreshnessError
        If the kernel calculus does not apply to the network.

    Examples
    --------
    >>> import kcalc as kc
    >>> s = kc.shaping.eoc(kc.architectures.vanilla(50, "tanh"), sigma_b=0.1)
    >>> round(s.constants["tanh"].sigma_w, 4)
    1.1934

    """
    plain, changes = prepared(network, activation)
    q = DEFAULT_Q if q is sigma_b is sigma_w is None else q
    points = _points(plain.activations, q, sigma_b, sigma_w)
    level = next(iter(points.values())).q
    least = min(level - point.sigma_b**2 for point in points.values())
    layers, edits, mixed = _affines(plain, points, level)
    check_fresh(plain)
    shaped = plain.map_layers(lambda node, layer: layers[node], L.Affine)
    others = _check_level(shaped, points, level)
    table = constants_of(
        plain, lambda phi: Constants(phi, sigma_w=points[phi].sigma_w, sigma_b=points[phi].sigma_b)
    )
    notes = (
        [Assumption("network", f"each input has q = 1, and pre-activations have q* = {level:.10g}")]
        if least > 0
        else []
    )
    for phi, point in points.items():
        if point.attractive is False:
            notes.append(
                Assumption(
                    "network",
                    f"q* = {point.q:.6g} is a repelling fixed point for {phi.name}: deviations "
                    "due to rounding and finite width grow",
                )
            )
    notes += [
        Assumption(node, f"this output does not end in an Affine, so its q is not q* = {level:.6g}")
        for node in others
    ]
    if mixed:
        text = (
            "this layer reads a Concat whose parts are of different kinds: sigma_w preserves q*, "
            "but the slopes from the parts are not exactly 1 (number of such layers: "
            f"{len(mixed)})"
        )
        notes.append(Assumption(mixed[0], text, "heuristic"))
    chosen = {
        name: float(value)
        for name, value in (("q", q), ("sigma_b", sigma_b), ("sigma_w", sigma_w))
        if value is not None
    }
    return EdgeShaping(
        "eoc",
        chosen,
        network,
        shaped,
        table,
        {"chi_1": 1.0, "q*": level},
        {} if others else {"Q_f(1)": level},
        (*changes, *edits),
        warnings=tuple(notes),
        edges=tuple(points.values()),
    )


def _points(
    kinds: Sequence[Activation], q: float | None, sigma_b: float | None, sigma_w: float | None
) -> dict[Activation, Edge]:
    """Return the point of every activation.

    Raises: KcalcError if they do not share q*.
    """
    if q is None and len(kinds) > 1:
        raise KcalcError(
            f"all {len(kinds)} activations must share one q*; pass q instead of sigma_b or sigma_w"
        )
    return {phi: edge(phi, q, sigma_b, sigma_w) for phi in kinds}


def _affines(
    network: Network, points: dict[Activation, Edge], level: float
) -> tuple[dict[Any, L.Affine], list[str], list[Any]]:
    """Return the Affine layers at the edge, a list of edits, and nodes with mixed inputs.

    A node has mixed inputs if it reads a Concat of parts of several kinds.

    Raises: KcalcError if the input of an Affine has no definite q*.
    """
    first = next(iter(points.values()))
    layers: dict[Any, Any] = {}
    channels, mixed = concat_channels(network), []
    edits: list[str] = []
    for node in network.nodes_of(L.Affine):
        layer = network.layer(node)
        read = _read(network, network.parents(node)[0], channels)
        kinds = {_kind(network, source, points) for source, _ in read}
        if len(kinds) == 1:
            sigmas = kinds.pop()
        elif all(
            isinstance(network.layer(source), L.Input | L.Nonlinear | L.Affine | L.Sum)
            for source, _ in read
        ):  # mixed inputs: keep q, add no bias
            mean = sum(share * _q(network, source, points, level) for source, share in read)
            sigmas = math.sqrt(level / mean), 0.0
            mixed.append(node)
        else:
            sigmas = None
        if sigmas is None:
            others = (network.layer(s) for s, _ in read)
            other = next(
                other
                for other in others
                if not isinstance(other, L.Input | L.Nonlinear | L.Affine | L.Sum)
            )
            remedy = (
                "drop it with net.without_normalization()"
                if isinstance(other, L.Normalisation)
                else "cut the network there"
            )
            refusal = KcalcError(
                f"node {node!r} reads the output of {type(other).__name__}, whose q is not "
                "determined by the edge of chaos"
            )
            raise refusal.advising(remedy, DKS).at(node)
        if sigmas == FROM_INPUT:
            sigmas = math.sqrt(level - first.sigma_b**2), first.sigma_b
        layers[node] = replace(layer, sigma_w=sigmas[0], sigma_b=sigmas[1] if layer.bias else 0)
        if sigmas[1] and not layer.bias:
            raise KcalcError(
                f"node {node!r} has no bias, but the edge of chaos needs sigma_b = {sigmas[1]:.6g}"
            ).advising("add a bias to this layer", UNBIASED)
        if sigmas != (1.0, 0.0):
            edits.append(f"{node}: sigma_w 1 -> {sigmas[0]:.10g}, sigma_b 0 -> {sigmas[1]:.10g}")
    return layers, edits, mixed


def _check_level(shaped: Network, points: dict[Activation, Edge], level: float) -> tuple[Any, ...]:
    """Reject a network in which the input of an activation does not have q*.

    The check goes layer by layer from exact values, so errors do not grow at a repelling q*.
    Returns the outputs with a different q.

    Raises: a KcalcError that names the activation and the layer that sets its q.
    """
    q: dict[Any, float] = {}
    source: dict[Any, Any] = {}  # layers that set the q of a node's output
    channels = concat_channels(shaped)
    for node, layer, parents in shaped.steps():
        read = q[parents[0]] if parents else 1.0
        source[node] = source[parents[0]] if layer.passes else node
        if isinstance(layer, L.Nonlinear):
            if abs(read / level - 1) > KEPT:
                setter = source[parents[0]]
                normed = isinstance(shaped.layer(setter), L.Normalisation)
                remedy = (
                    "drop it with net.without_normalization()"
                    if normed
                    else "end every addend of a Sum in its own Affine"
                )
                other = AT_ONE if normed and level != 1 else ""
                refusal = KcalcError(
                    f"activation {node!r} sees q = {read:.6g}, set by the "
                    f"{type(shaped.layer(setter)).__name__} at node {setter!r}, instead of q* = "
                    f"{level:.6g}, so chi_1 = 1 would not hold there"
                )
                raise refusal.advising(other, remedy, DKS).at(node)
            q[node] = _q(shaped, node, points, level)
        elif isinstance(layer, L.Affine):
            q[node] = float(layer.sigma_w) ** 2 * read + float(layer.sigma_b) ** 2
        elif isinstance(layer, L.Sum):
            q[node] = math.fsum(
                float(w) ** 2 * q[p]
                for w, p in zip(sum_weights(layer, len(parents)), parents, strict=True)
            )
        elif isinstance(layer, L.Concat):
            total = float(sum(channels[node]))
            q[node] = math.fsum(
                float(k) / total * q[p] for k, p in zip(channels[node], parents, strict=True)
            )
        else:
            q[node] = 1.0 if isinstance(layer, L.Normalisation) else read
    return tuple(node for node in shaped.outputs if abs(q[node] / level - 1) > KEPT)


def _read(network: Network, node: Any, channels: dict[Any, Any]) -> list[tuple[Any, float]]:
    """Return (layer that sets q, fraction of the channels) of a node's output.

    The search passes through Pool and similar layers, and through the parts of a Concat.
    """
    layer = network.layer(node)
    if layer.passes:
        return _read(network, network.parents(node)[0], channels)
    if not isinstance(layer, L.Concat):
        return [(node, 1.0)]
    total = float(sum(channels[node]))
    parts = zip(network.parents(node), channels[node], strict=True)
    return [
        (source, share * float(k) / total)
        for parent, k in parts
        for source, share in _read(network, parent, channels)
    ]


def _kind(
    network: Network, node: Any, points: dict[Activation, Edge]
) -> tuple[float, float] | None:
    """Return (sigma_w, sigma_b) of an Affine that reads the node.

    Return FROM_INPUT for inputs, and None for layers with unknown q.
    """
    layer = network.layer(node)
    if isinstance(layer, L.Nonlinear):
        return points[layer.activation].sigma_w, points[layer.activation].sigma_b
    return (
        FROM_INPUT
        if isinstance(layer, L.Input)
        else (1.0, 0.0)
        if isinstance(layer, L.Affine | L.Sum)
        else None
    )


def _q(network: Network, node: Any, points: dict[Activation, Edge], level: float) -> float:
    """Return the q value of an input, an activation or a pre-activation at the edge."""
    layer = network.layer(node)
    if isinstance(layer, L.Nonlinear):
        point = points[layer.activation]
        return (level - point.sigma_b**2) / point.sigma_w**2
    return 1.0 if isinstance(layer, L.Input) else level
