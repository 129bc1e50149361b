"""The regime of a tangent kernel at large depth: collapsing, exploding, edge or data-dependent.

This module predicts and measures regimes. [DKS secs. 24.4-24.6, App. H]

Let all layers have the same slope ``chi = C'(1)``. As the depth D grows, the kernel matrix tends to
a degenerate matrix. It is constant for chi < 1. It is ``D q (I + alpha_bar (E - I))`` for chi = 1,
where E is the matrix of ones. For chi > 1 it is a multiple of the identity, apart from the last
layers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..fields.arguments import one_cosine, one_q
from ..foundation.errors import KcalcError
from ..foundation.guests import DRAWINGS
from ..foundation.plain_arguments import whole
from ..foundation.printing import Shown, shown
from ..maps.maps import Assumption
from ..network.combinators import chain
from ..network.layers import Affine
from ..network.network import Network
from ..network.primitives import Fresh, Mask, Post, Reshape, Source
from .global_maps import c_map, node_values, q_values
from .homogeneity import is_odd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .ntk import TangentKernel


Node = Hashable
Array = np.ndarray
# global slopes above this, or below its reciprocal, are too extreme for layers to undo
STEEP = 10.0
ALIKE = 0.98  # orthogonal inputs with larger c values at the output are no longer distinguishable
SETTLED = 1e-3  # smaller relative changes of q over the second half of the layers are ignored
EDGE = 1e-7  # a layer is at the edge if |C'(1) - 1| is at most this
CENTRED = 1e-8  # c values up to this count as 0
ROUNDING = 1e-13  # accuracy of the c values of deep networks
PASSING = (Source, Reshape, Mask)


@dataclass(frozen=True, eq=False)
class Limit(Shown):
    """The limit of the kernel matrix of distinct inputs for a chain of identical layers.

    Its entries are ``diagonal`` and ``off_diagonal``; ``alpha_bar`` is off_diagonal / diagonal, and
    ``alphas`` are the same ratios for each layer's part of the kernel. ``slope`` = C'(1) and
    ``fixed_point`` = c* describe a single layer.
    """

    formula: str
    diagonal: float
    off_diagonal: float
    alphas: Array
    slope: float
    fixed_point: float
    listed = ("alpha_bar",)

    @property
    def alpha_bar(self) -> float:
        """off_diagonal / diagonal."""
        return self.off_diagonal / self.diagonal

    def matrix(self, n: int) -> Array:
        """Return the limiting matrix for n different inputs."""
        n = whole(n, "n, the number of inputs,", 1)
        return self.diagonal * np.eye(n) + self.off_diagonal * (1 - np.eye(n))

    def __repr__(self) -> str:
        return f"Limit({self.formula}, alpha_bar {self.alpha_bar:.4g})"


@dataclass(frozen=True)
class GramBound(Shown):
    """Distance of per-layer kernels from the inputs' Gram matrix if all layers preserve c = 0.

    ``|Theta_i / q - c| <= 3 (zeta - 1)`` for the part Theta_i of layer i. ``deviation`` is the
    largest measured left-hand side, at the layer ``layer`` and the c value ``c``; ``zeta`` =
    C_f'(1); ``printed`` is the bound 11 (zeta - 1) of [DKS Thm 27], and ``tight`` is the bound 3
    (zeta - 1), with the best constant.
    """

    deviation: float
    zeta: float
    layer: Node
    c: float
    listed = ("printed", "tight")

    @property
    def printed(self) -> float:
        """11 (zeta - 1)."""
        return 11 * (self.zeta - 1)

    @property
    def tight(self) -> float:
        """3 (zeta - 1)."""
        return 3 * (self.zeta - 1)


@dataclass(frozen=True, eq=False)
class Regime(Shown):
    """The regime of a network's tangent kernel at its depth; see :func:`regime`.

    Attributes
    ----------
    kind
        "collapsing", "exploding", "edge" or "data-dependent", determined by ``slope`` and
        ``level``.
    slope
        C_f'(1) of the whole network.
    level
        C_f(0) of the whole network.
    diagonal
        K(1).
    off_diagonal
        K(c).
    alpha_bar
        K(c) / K(1).
    alphas
        {Affine node: Theta_i(c) / Theta_i(1)}.
    limit
        The predicted limit as depth grows, or None.
    bound
        The distance to the Gram matrix, or None.
    notes
        The reasons why ``limit`` or ``bound`` is None.
    accuracy
        The absolute rounding error of ``alpha_bar``; smaller values are printed as 0.

    """

    kind: str
    slope: float
    level: float
    c: float
    q: float
    diagonal: float
    off_diagonal: float
    alphas: dict[Node, float]
    limit: Limit | Any
    bound: GramBound | Any
    notes: tuple[str, ...]
    accuracy: float = 0.0
    assumptions: tuple[Assumption, ...] = ()
    listed = ("alpha_bar",)

    @property
    def alpha_bar(self) -> float:
        """The measured K(c) / K(1)."""
        return self.off_diagonal / self.diagonal

    @property
    def predicted_alpha_bar(self) -> float | None:
        """The alpha_bar of the predicted limit, or None."""
        return None if self.limit is None else self.limit.alpha_bar

    def plot(self, ax: Axes | None = None, **line: Any) -> Axes:
        """Draw the measured and predicted ratios of the layers.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.
        **line
            Further options of the line, passed to matplotlib.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["Regime"]({self.kind: self}, ax=ax, **line)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("regime", self.kind),
            ("slope C_f'(1)", shown(self.slope)),
            ("level C_f(0)", shown(_above(self.level, ROUNDING))),
            (f"K(1) at q = {self.q:g}", shown(self.diagonal)),
            (f"K({self.c:g})", shown(self.off_diagonal)),
            ("alpha_bar measured", shown(_above(self.alpha_bar, self.accuracy))),
            ("alpha_bar predicted", shown(self.predicted_alpha_bar)),
        ]
        return [("", "value"), *rows, *(("note", note) for note in self.notes)]

    def __repr__(self) -> str:
        predicted = (
            "" if self.limit is None else f", predicted as depth grows {self.limit.alpha_bar:.4g}"
        )
        level, ratio = _above(self.level, ROUNDING), _above(self.alpha_bar, self.accuracy)
        return (
            f"Regime({self.kind}: C_f'(1) {self.slope:.4g}, C_f(0) {level:.4g}, alpha_bar "
            f"{ratio:.4g}{predicted})"
        )


def _above(value: float, accuracy: float) -> float:
    """Return the value, or 0 if it is below the rounding error ``accuracy``."""
    return value if abs(value) > accuracy else 0.0


def regime(kernel: TangentKernel, c: float = 0.0, q: float = 1.0) -> Regime:
    """Classify the regime of a tangent kernel, for inputs with the same q value.

    Ratios are measured between inputs with c value ``c``.

    - "exploding": C_f'(1) > 10; the kernel of different inputs is small compared with K(1).
    - "collapsing": C_f'(1) < 1/10; the kernel is nearly the same for all pairs of inputs.
    - "edge": neither of these, but C_f(0) > .98; orthogonal inputs have nearly equal outputs, and K
      tends to D q (I + alpha_bar (E - I)).
    - "data-dependent": all other cases; at this depth the kernel still depends on the inputs.

    ``kind`` is measured at the given depth, for any network with one input and one output.
    ``limit`` is predicted for chains of layers with the same C map; ``bound`` exists for chains in
    which every layer preserves c = 0, as under DKS. Raises: KcalcError for several inputs or
    outputs, and c or q outside their domains.
    """
    network = kernel.network
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        raise KcalcError(
            f"a regime needs one input and one output, but the network has {len(network.inputs)} "
            f"inputs and {len(network.outputs)} outputs"
        )
    level, cosine = one_q(q), one_cosine(c)
    if abs(cosine) == 1:
        raise KcalcError(
            f"c = {cosine:g} is the c value of identical or opposite inputs; use -1 < c < 1"
        )
    maps = c_map(network)
    slope = float(maps.derivative(1)(1.0, level))
    orthogonal = 0.0 if is_odd(network) else float(maps(0.0, level))
    if not math.isfinite(slope):
        raise KcalcError("the slope of the network's C map at 1 is infinite, so it has no regime")
    off, diagonal = (float(part) for part in kernel(np.array([cosine, 1.0]), level))
    parts = kernel.by_layer(np.array([cosine, 1.0]), level)
    counted = {node: part for node, part in parts.items() if part[1] != 0}  # trained
    alphas = {node: float(part[0] / part[1]) for node, part in counted.items()}
    if kernel.parameterization == "ntk":
        limit, why = predicted_limit(network, level)
        bound, why_not = gram_bound(network, slope, level)
        notes = (*why, *why_not)
    else:
        limit = None
        bound = None
        notes = (
            "no limit and no bound on the distance to the Gram matrix: only the NTK "
            "parameterisation has them",
        )
    assumptions = kernel.assumptions
    accuracy = (
        16
        * np.finfo(float).eps
        * len(alphas)
        * q_values(network, level)[network.outputs[0]]
        / diagonal
    )
    return Regime(
        kind(slope, orthogonal),
        slope,
        orthogonal,
        cosine,
        level,
        diagonal,
        off,
        alphas,
        limit,
        bound,
        notes,
        accuracy,
        assumptions,
    )


def kind(slope: float, level: float) -> str:
    """Return the regime given C_f'(1) and C_f(0)."""
    if slope > STEEP:
        return "exploding"
    if slope < 1 / STEEP:
        return "collapsing"
    return "edge" if level > ALIKE else "data-dependent"


# -- predictions -----------------------------------------------------------------------------------


def path_layers(network: Network) -> tuple[list[tuple[Node, Fresh]], list[Post]] | None:
    """Return the weights and the activations of a plain chain: weights, activation, ..., weights.

    The result is None if the network is not a plain chain.
    """
    affine: list[tuple[Node, Fresh]] = []
    nonlinear: list[Post] = []
    for node, op, reads in network.operations:
        if len(reads) > 1:
            return None
        if op is None or (isinstance(op, PASSING) and not getattr(op, "drops", False)):
            continue
        if isinstance(op, Fresh) and len(affine) == len(nonlinear):
            affine.append((node, op))
        elif isinstance(op, Post) and len(affine) == len(nonlinear) + 1:
            nonlinear.append(op)
        else:
            return None
    branches = [parents[0] for _, _, parents in network.steps() if parents]
    return (
        (affine, nonlinear)
        if len(set(branches)) == len(branches) and len(affine) == len(nonlinear) + 1
        else None
    )


def predicted_limit(network: Network, q: float) -> tuple[Limit | None, tuple[str, ...]]:
    """Return (limit as depth grows, reasons why there is none) [DKS sec. 24.5, App. H.2]."""
    found = path_layers(network)
    if found is None or not found[1]:
        return None, (
            "no limit is predicted: the network is not a chain Affine, activation, ..., Affine",
        )
    affine, nonlinear = found
    if any(op.trained is not True for _, op in affine):
        return None, ("no limit is predicted: some weights of the chain are not trained",)
    scales = {(op.sigma_w, op.sigma_b, op.standardised) for _, op in affine}
    if len(scales) > 1 or len(set(nonlinear)) > 1:
        return None, ("no limit is predicted: the layers of the chain are not identical",)
    sizes = q_values(network, q)
    inner, last, end = (sizes[affine[i][0]] for i in (len(affine) // 2, -2, -1))
    homogeneous = nonlinear[0].activation.degree is not None and affine[0][1].sigma_b == 0
    if not homogeneous and abs(last / inner - 1) > SETTLED:
        return None, (
            f"no limit is predicted: q still changes from layer to layer ({inner:.4g} halfway, "
            f"{last:.4g} at the end)",
        )
    layer = chain(Affine(), nonlinear[0].origin, affine[-1][1].origin)
    limit, why = layer_limit(c_map(layer), last, end, len(affine), is_odd(layer))
    if (
        limit is not None
        and limit.slope > 1 + EDGE
        and not homogeneous
        and abs(last / sizes[affine[0][0]] - 1) > SETTLED
    ):
        why = (
            "the predicted diagonal assumes that q is constant after the first layer; here the "
            "first layers change q by a factor",
        )
    return limit, why


def layer_limit(
    layer: Any, at: float, q: float, depth: int, odd: bool = False
) -> tuple[Limit | None, tuple[str, ...]]:
    """Return (limit for ``depth`` weight layers, reasons), from the C map of one layer.

    ``at`` is the q value of the C map, and ``q`` is the q value of the output. The limit is None if
    no limit exists.

    ``odd``: the layer is an odd function, so c = 0 is a fixed point exactly.
    """
    slope = float(layer.derivative(1)(1.0, at))
    gap = float(layer.gap_at_angle(math.pi / 2, at))
    bend = float(layer.derivative(2)(1.0, at))
    if bend == 0 or (slope >= 1 - EDGE and abs(gap - 1) < 1e-13 and abs(slope - 1) < 1e-13):
        return None, (
            "no limit is predicted: the layers' C map is the identity up to rounding errors; K = "
            "D q c",
        )
    before = np.arange(depth - 1, -1, -1)  # layers after the i-th
    if abs(slope - 1) <= EDGE:
        power, alpha, what = (
            (2, 1 / 3, "C''(1) finite")
            if math.isfinite(bend)
            else (3, 1 / 4, "C' with a square root at 1")
        )
        alphas = ((depth - before) / depth) ** power
        return Limit(
            f"edge, {what}: D q (I + (E - I)/{power + 1})",
            depth * q,
            alpha * depth * q,
            alphas,
            slope,
            1.0,
        ), ()
    if slope < 1:
        total = q / (1 - slope)
        return Limit("collapsing: q E / (1 - C'(1))", total, total, np.ones(depth), slope, 1.0), ()
    stable = min(
        (p for p in layer.fixed_points(at) if p.value >= -1e-12), key=lambda p: abs(p.slope)
    )
    star = 0.0 if odd and abs(stable.value) < CENTRED else stable.value
    with np.errstate(over="ignore", under="ignore"):
        diagonal = q * float(np.sum(slope ** before.astype(float)))
        alphas = star * (stable.slope / slope) ** before
    off = q * star / (1 - stable.slope)
    formula = "exploding: q (C'(1)^D - 1)/(C'(1) - 1) I + q c*/(1 - C'(c*)) (E - I)"
    return Limit(formula, diagonal, off, alphas, slope, star), ()


def gram_bound(
    network: Network, zeta: float, q: float, points: int = 81
) -> tuple[GramBound | None, tuple[str, ...]]:
    """Return (bound, ()) with the largest |Theta_i(c) / q - c|, or (None, reasons).

    The maximum is over layers and c. Reasons are given if the theorem does not apply. On a chain,
    ``Theta_i / q = c_i C_h'(c_i)``, where c_i is the c value at the output of layer i and h is the
    part of the network after it. [DKS Thm 27, corrected]
    """
    found = path_layers(network)
    if found is None:
        return None, (
            "no bound on the distance to the Gram matrix: the network is not a chain Affine, "
            "activation, ..., Affine",
        )
    if any(op.trained is not True for _, op in found[0]):
        return None, (
            "no bound on the distance to the Gram matrix: some weights of the chain are not "
            "trained",
        )
    c = np.cos(np.linspace(np.pi, 0, points))
    values: Any = node_values(network, np.append(c, 0.0), q)
    worst = max(values, key=lambda node: abs(np.broadcast_to(values[node][2], len(c) + 1)[-1]))
    drift = float(values[worst][2][-1])
    if abs(drift) > CENTRED:
        return None, (
            f"no bound on the distance to the Gram matrix: c = 0 becomes {drift:.3g} at {worst}; "
            "under DKS every layer preserves it",
        )
    after = np.ones_like(c)
    best = GramBound(-1.0, zeta, None, 0.0)
    for node, op, reads in reversed(network.operations):
        if isinstance(op, Fresh):
            apart = np.abs(values[node][2][:-1] * after - c)
            place = int(np.argmax(apart))
            if apart[place] > best.deviation:
                best = GramBound(float(apart[place]), zeta, node, float(c[place]))
        elif isinstance(op, Post):
            level, _, cosine = values[reads[0]]
            after = after * op.activation.c_map.derivative(1)(
                cosine[:-1], float(np.ravel(level)[0])
            )
    return best, ()
