"""Geometric initialisation: every weight has the same scaling [Scaling sec. 6-8, 11].

Fixed multipliers preserve the scale of the function.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ..calculi.scaling import Scaling, WeightScaling, scaling
from ..calculi.scaling.activation_moments import half
from ..calculi.scaling.calculus import with_images
from ..calculi.scaling.levels import Level, quotient
from ..calculi.widths import with_widths
from ..fields.arguments import positive_number
from ..foundation.errors import KcalcError
from ..foundation.guests import DRAWINGS
from ..foundation.plain_arguments import choice, truth
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network.combinators import output_scaled, unused_name
from ..network.layers import Affine, Input, Nonlinear, Scale
from ..network.network import Network, Step, require_numbers
from ..shaping.base import Shaping, prepared
from ..shaping.constants import Constants, constants_of
from ..shaping.methods import shaping_method
from ..shaping.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Node = Hashable
SPREADS = {"gamma": "max gamma / min gamma", "nu": "max nu / min nu"}


@dataclass(frozen=True, repr=False)
class GeometricShaping(Shaping):
    """A network with geometric initialisation.

    To draw independent weights for all taps, use ``kc.to_jax(shaping, weights="gaussian")``.

    Attributes
    ----------
    scaling
        The scaling calculus of the shaped network.
    before
        The scaling calculus of the original network.

    """

    given: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def scaling(self) -> Scaling:
        """Scaling calculus of the shaped network."""
        return scaling(self.network, **self.given)

    @cached_property
    def before(self) -> Scaling:
        """Scaling calculus of the original network, with the same widths."""
        return scaling(self.original, **self.given, features=_missing(self.original, self.network))

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Assumptions of the scaling calculus, including assumptions that are violated."""
        return (*self.scaling.assumptions, *self.warnings)

    @cached_property
    def _measured(self) -> dict[str, Any]:
        """Ratios of the largest to the smallest value of gamma, nu and the bias scaling, and E y^2.

        Gamma is in its extrinsic form, which uses second moments of feature maps and gradients
        instead of the variances of the weights.
        """
        found = self.scaling
        gammas = [weight.extrinsic for weight in found.weights.values()]
        values = {SPREADS["gamma"]: max(gammas) / min(gammas)}
        ratios = [weight.ratio for weight in found.weights.values()]
        if None not in ratios:
            values[SPREADS["nu"]] = max(ratios) / min(ratios)  # type: ignore[type-var]
        biases = list(found.biases.values())
        if biases:
            values["max gamma_b / min gamma_b"] = max(biases) / min(biases)
        outputs = self.network.outputs
        if len(outputs) == 1:
            values["E y^2"] = found.tensors[outputs[0]].forward
        return values

    def plot(self, ax: Axes | None = None) -> Figure:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Plot gamma for all weights before and after shaping, in one panel.

        Parameters
        ----------
        ax
            The Matplotlib Axes to draw on; None creates new axes.

        Returns
        -------
        Figure
            A Matplotlib figure.

        """
        drawn = DRAWINGS["GeometricShaping"]
        return drawn({"before": self.before, "geometric": self.scaling}, ax=ax).figure

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        return super().to_dict() | {
            "weights": {
                str(node): weight.to_dict() for node, weight in self.scaling.weights.items()
            }
        }

    def __str__(self) -> str:
        return "\n".join(
            [
                repr(self),
                "",
                str(self.scaling),
                "",
                *(f"{name} = {value:.10g}" for name, value in self.values.items()),
            ]
        )

    def __repr__(self) -> str:
        name = next(iter(self.global_targets))
        return (
            f"GeometricShaping({len(self.scaling.weights)} weights, {name} = "
            f"{self.values[name]:.6g})"
        )


@shaping_method(
    "geometric",
    Record(
        "Weight variances follow the geometric mean of fan-in and fan-out, so all weights learn at "
        "the same relative rate. Multipliers preserve the size of feature maps. This needs known "
        "widths (features).",
        {
            "features": "width of layers and inputs that do not specify one",
            "image_shape": "image size of inputs that do not specify one",
            "typical": "kernel side that needs no multiplier; default: the most frequent one",
            "input_moment": "mean square of the inputs; default 1",
            "input_scaling": "whether to multiply the inputs; default yes",
            "output_std": "root mean square of the output, reached by a multiplier",
            "balance": "quantity made equal for all weights: gamma (default), or nu (mean pooling)",
        },
    ),
)
def geometric(
    network: Network,
    activation: Any = None,
    features: Any = None,
    image_shape: Any = None,
    typical: Any = None,
    input_moment: Any = 1,
    input_scaling: bool = True,
    output_std: Any = None,
    balance: Literal["gamma", "nu"] = "gamma",
) -> GeometricShaping:
    """Initialise with E[W^2] = c / (k sqrt(n m)), where c = 2/k_typ for relu.

    With these weights, gamma = zeta/c^2 is the same for all layers [Scaling eq. 3, sec. 6.2].

    k is the kernel side of a layer; n and m are its channel counts. If k differs from k_typ, a
    multiplier sqrt(k_typ/k) precedes the layer, so the second moments f of consecutive
    pre-activations satisfy f -> sqrt(n/m) f. If zeta differs from its value at the first Affine (in
    residual branches, after pooling), c is multiplied by sqrt(zeta_here/zeta) and the multiplier by
    the inverse square root. Sums keep their weights.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        The activation: a registered name, an :class:`kcalc.Activation` or a SymPy expression.
    features, image_shape
        As for ``kc.scaling``.
    typical
        The kernel side k_typ; by default the most frequent one.
    input_moment
        The mean square of the inputs.
    input_scaling
        Whether to multiply inputs with mean square ``input_moment`` so that E[x_0^2] = 1/(k_0 sqrt
        n_0). The first weights and their biases then have the same scaling [sec. 8.1].
    output_std
        The root mean square of the output, which a multiplier sets according to the scaling
        calculus [sec. 7]. None adds no multiplier.
    balance
        The quantity to balance: "gamma", or "nu", the ratio E[gW^2]/E[W^2]. Only nu includes the
        correlations from mean pooling, so the two differ after it.

    Returns
    -------
    GeometricShaping
        The shaped network, with its scaling before and after.

    Raises
    ------
    KcalcError
        If the network cannot be shaped, an activation is not positively homogeneous, or widths or
        image sizes are missing. Also raises the errors of :func:`kcalc.scaling`.

    """
    choice(balance, "balance of geometric initialisation", ("gamma", "nu"))
    input_scaling = truth(input_scaling, "input_scaling")
    plain, changes = prepared(network, activation)
    base = with_images(with_widths(plain, features), image_shape)
    require_numbers(base)
    given = {"input_moment": input_moment}
    extents = scaling(base, **given).weights
    if not extents:
        raise KcalcError("the network has no Affine layer, so there are no weights to initialise")
    plan = _Plan(
        base,
        extents,
        _gain(base),
        _typical(extents, typical),
        positive_number(input_moment, "input_moment") if input_scaling else None,
    )
    ones = dict.fromkeys(extents, 1.0)
    found = scaling(plan.network(ones), **given).weights
    levels = {node: _balanced(node, weight, balance) for node, weight in found.items()}
    first = next(iter(levels.values()))
    branch = {node: math.sqrt(quotient(level, first)) for node, level in levels.items()}
    shaped = plan.network({node: 1.0 if abs(c - 1) < 1e-12 else c for node, c in branch.items()})
    edits = plan.changes
    targets = {SPREADS[balance]: 1.0}
    if output_std is not None:
        std = positive_number(output_std, "output_std")
        shaped, more = _with_output(shaped, std, given)
        edits = (*edits, *more)
        targets = targets | ({"E y^2": std**2} if len(shaped.outputs) == 1 else {})
    options = {
        "typical": plan.typical,
        "c": plan.constant,
        "input_scaling": input_scaling,
        "output_std": output_std,
        "balance": balance,
    }
    return GeometricShaping(
        "geometric",
        options,
        network,
        shaped,
        constants_of(plain, Constants),
        {},
        targets,
        (*changes, *edits),
        given=given,
    )


def _missing(original: Network, shaped: Network) -> dict[Node, Any]:
    """Return widths that are missing in the original network, taken from the shaped network."""
    free = [
        n
        for n in (*original.nodes_of(Affine), *original.nodes_of(Input))
        if original.layer(n).features is None
    ]
    return {node: shaped.layer(node).features for node in free}


def _balanced(node: Node, weight: WeightScaling, balance: str) -> Level:
    """Return gamma or nu. Raises: KcalcError if nu is unknown."""
    if balance == "gamma":
        return weight.gamma_level
    if weight.ratio_level is None:
        raise KcalcError(
            f"node {node!r}: nu was not computed, because the image has too many locations; use "
            "balance='gamma' or smaller images"
        )
    return weight.ratio_level


def _gain(network: Network) -> float:
    """Return 2/(1 + a^2) for the first activation.

    Raises: KcalcError for activations that are not positively homogeneous of degree 1.
    """
    for node in network.nodes_of(Nonlinear):
        phi = network.layer(node).activation
        if half(phi) is None:
            raise KcalcError(
                f"node {node!r}: geometric initialisation needs activations with phi(a x) = a "
                f"phi(x) for a > 0 (relu, leaky_relu), but {phi.name} does not have this "
                "property"
            )
    return 1 / float(half(network.layer(network.nodes_of(Nonlinear)[0]).activation) or 1)


def _typical(extents: dict[Node, WeightScaling] | Any, typical: Any) -> float:
    if typical is not None:
        return positive_number(typical, "typical")
    sides = Counter(round(math.sqrt(weight.taps), 12) for weight in extents.values())
    most = max(sides.values())
    return min(side for side, count in sides.items() if count == most)


@dataclass
class _Plan:
    """Compute the variance and the multiplier of every Affine, given the factors of c."""

    base: Network
    extents: Any
    gain: float
    typical: float
    input_moment: float | None
    changes: tuple[str, ...] = ()

    @property
    def constant(self) -> float:
        """The constant c."""
        return self.gain / self.typical

    def network(self, branch: dict[Node, float]) -> Network:
        """Build the network with c times ``branch`` at every Affine.

        Multipliers other than 1 become Scale layers before the Affine.
        """
        steps: list[Step] = []
        edits: list[str] = []
        affine = {*self.base.nodes_of(Affine)}
        for node, layer, parents in self.base.steps():
            if node not in affine:
                steps.append((node, layer, parents))
                continue
            weight = self.extents[node]
            side, fan = math.sqrt(weight.taps), weight.inputs / weight.groups
            variance = (
                self.constant
                * branch[node]
                * math.sqrt(weight.groups / (weight.inputs * weight.outputs))
                / side
            )
            sigma = math.sqrt(variance * fan * weight.taps)
            factor = self._factor(node, parents[0], weight, branch[node])
            edits.append(f"{node}: sigma_w 1 -> {sigma:.10g} (E W^2 = {variance:.6g})")
            if abs(factor - 1) > 1e-12:
                name = unused_name(self.base, f"{node}: scale")
                steps.append((name, Scale(factor), parents))
                edits.append(f"{node}: its input is multiplied by {factor:.10g}")
                parents = (name,)
            steps.append((node, replace(layer, sigma_w=sigma), parents))
        self.changes = tuple(edits)
        return Network.from_steps(steps, self.base.outputs).with_notes(self.base.notes)

    def _factor(self, node: Node, parent: Node, weight: WeightScaling, branch: float) -> float:
        """Return the multiplier before an Affine that makes second moments f change to sqrt(n/m) f.

        The moments f are those of consecutive pre-activations. For layers that read an input, the
        multiplier brings its mean square to 1/(k sqrt n).
        """
        side = math.sqrt(weight.taps)
        kept = self._kept(parent)
        if kept is None:
            if self.input_moment is not None:
                return (side * math.sqrt(weight.inputs / weight.groups) * self.input_moment) ** -0.5
            kept = 1 / self.gain
        return math.sqrt(math.sqrt(weight.groups) / (side * self.constant * branch * kept))

    def _kept(self, node: Node) -> float | None:
        """Return the factor by which the activation before a layer changes second moments.

        The result is None if the layer reads an input.
        """
        while self.base.layer(node).passes:
            (node,) = self.base.parents(node)
        if node in self.base.inputs:
            return None
        return (
            float(half(self.base.layer(node).activation) or 1)
            if node in self.base.nodes_of(Nonlinear)
            else 1.0
        )


def _with_output(
    network: Network, std: float, given: dict[str, Any]
) -> tuple[Network, tuple[str, ...]]:
    """Add a multiplier after every output to give it the root mean square ``std``."""
    found = scaling(network, **given).tensors
    factors = {node: std / math.sqrt(found[node].forward) for node in network.outputs}
    edits = (f"{node}: the output is multiplied by {f:.10g}" for node, f in factors.items())
    return output_scaled(network, factors), tuple(edits)
