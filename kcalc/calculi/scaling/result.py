"""The result of the scaling calculus: tensors, weights, biases, scalars and violations."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy as sp

from ...foundation import printing
from ...foundation.errors import KcalcError
from ...foundation.guests import DRAWINGS
from ...foundation.printing import Rows, Shown
from ...foundation.process_state import cached_property
from ...maps.maps import Assumption, sole
from ...network.network import Network
from .levels import FloatValues, Level, one_value, quotient

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Node = Hashable
Number = float  # a SymPy expression if the network has symbols


@dataclass(frozen=True, eq=False)
class TensorScaling:
    """A feature map with ``channels`` channels; ``locations`` is None if it has no locations.

    ``ratio``: for a layer with one input, zeta of its output over zeta of its input, otherwise
    None. ``splits``: for a Sum, the share of each addend in zeta, otherwise None.
    """

    node: Node
    channels: Number
    locations: tuple[int, ...] | None
    forward_level: Level
    backward_level: Level
    scaling_level: Level
    ratio: Number | None = None
    splits: tuple[Number, ...] | None = None

    @cached_property
    def forward(self) -> Number:
        """f = E[x^2], the mean over channels and locations, not centred.

        Raises: KcalcError beyond double precision.
        """
        return one_value(self.forward_level, f"the second moment at node {self.node!r}")

    @cached_property
    def backward(self) -> Number:
        """b = E[(d loss/d x)^2], the mean over channels and locations.

        Raises: KcalcError beyond double precision.
        """
        return one_value(self.backward_level, f"the backward second moment at node {self.node!r}")

    @cached_property
    def scaling(self) -> Number:
        """The activation scaling zeta = n sum_p f(p) b(p) over n channels and locations p.

        Raises: KcalcError beyond double precision. [Scaling eq. 1, per location]
        """
        return one_value(self.scaling_level, f"the activation scaling at node {self.node!r}")

    def _mapped(self, level: Level, what: str) -> Any:
        values = level.plain(f"{what} at node {self.node!r}")
        return (
            values
            if level.symbolic or self.locations is None
            else np.reshape(values, self.locations)
        )

    @property
    def forward_map(self) -> Number | np.ndarray:
        """f per location, of shape ``locations``."""
        return self._mapped(self.forward_level, "the second moment")

    @property
    def backward_map(self) -> Number | np.ndarray:
        """b per location, of shape ``locations``."""
        return self._mapped(self.backward_level, "the backward second moment")

    @property
    def log10(self) -> tuple[float, float]:
        """The decimal logarithms of f and b, even beyond double precision."""
        return self.forward_level.log10(), self.backward_level.log10()

    def to_dict(self) -> dict[str, Any]:
        """All values as plain data, with logarithms if they are beyond double precision."""
        names = ("forward", "backward", "scaling")
        if self.forward_level.symbolic:
            values: dict[str, Any] = {name: str(getattr(self, name)) for name in names}
        else:
            values = {f"log10_{name}": getattr(self, f"{name}_level").log10() for name in names}
        splits = None if self.splits is None else [plain(s) for s in self.splits]
        return {
            "channels": plain(self.channels),
            "locations": self.locations,
            **values,
            "ratio": plain(self.ratio),
            "splits": splits,
        }

    def __repr__(self) -> str:
        return f"TensorScaling({self.node!r}, {self.channels} channels, locations {self.locations})"


@dataclass(frozen=True, eq=False)
class WeightScaling:
    """The scaling of the weights of an Affine.

    The layer maps ``inputs`` channels to ``outputs`` channels, ``taps`` is k^2, and ``variance`` is
    E[W^2].
    """

    node: Node
    inputs: Number
    outputs: Number
    taps: int
    groups: int
    variance: Number
    gamma_level: Level
    extrinsic_level: Level
    ratio_level: Level | None
    reference_level: Level | None = None

    @cached_property
    def gamma(self) -> Number:
        """zeta / (n m k^2 E[W^2]^2 / groups), with zeta for the gradient through this layer only.

        gamma predicts nu = E[gW^2]/E[W^2], where gW is the gradient of W, if cotangents of
        different locations are uncorrelated. The name follows the paper; the gamma of shaped
        activations (:attr:`Constants.gamma`) is an output scale.

        Raises: KcalcError beyond double precision.
        """
        return one_value(self.gamma_level, f"gamma at node {self.node!r}")

    @cached_property
    def extrinsic(self) -> Number:
        """n k^2 sum_p f(x)^2 b(y)/f(y) over output locations p, with the input x and the output y.

        This value equals gamma if biases start at 0. [Scaling sec. 4, corrected]
        """
        return one_value(self.extrinsic_level, f"gamma at node {self.node!r}")

    @cached_property
    def ratio(self) -> Number | None:
        """nu = E[gW^2]/E[W^2] with the correlations of cotangents between locations.

        Mean pooling causes such correlations. The ratio is None if these correlations were not
        followed.
        """
        return (
            None
            if self.ratio_level is None
            else one_value(self.ratio_level, f"nu at node {self.node!r}")
        )

    @cached_property
    def relative(self) -> Number:
        """gamma divided by the network's reference, :attr:`Scaling.reference`."""
        return (
            1 if self.reference_level is None else quotient(self.gamma_level, self.reference_level)
        )

    @cached_property
    def correction(self) -> Number:
        """The factor for E[W^2] that gives gamma its reference value, sqrt(relative).

        A compensating fixed multiplier of the weights keeps the function unchanged.
        """
        relative: Any = self.relative
        root: Any = sp.sqrt if isinstance(relative, sp.Basic) else math.sqrt
        return root(relative)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, with the logarithm of gamma if it is a number."""
        names = ("inputs", "outputs", "taps", "groups", "variance", "relative", "correction")
        found = {name: plain(getattr(self, name)) for name in names}
        if self.gamma_level.symbolic:
            return found | {"gamma": str(self.gamma), "extrinsic": str(self.extrinsic)}
        ratio = None if self.ratio_level is None else self.ratio_level.log10()
        return found | {
            "log10_gamma": self.gamma_level.log10(),
            "log10_extrinsic": self.extrinsic_level.log10(),
            "log10_ratio": ratio,
        }

    def __repr__(self) -> str:
        return f"WeightScaling({self.node!r}, {self.inputs} -> {self.outputs}, {self.taps} taps)"


@dataclass(frozen=True, eq=False, repr=False)
class Scaling(Shown):
    """The scaling calculus of a network at initialisation [Scaling].

    Attributes
    ----------
    tensors
        {node: f, b, zeta}.
    weights
        {Affine: gamma}.
    biases
        {Affine with a bias: gamma_b = sum_p b / f}, where f is the moment before the bias is added.
    scalars
        {Scale: zeta / u^4}, which is the nu that its factor u would have if it were learned.
    correlations
        {Pool: correlation within its windows}.
    violations
        Violated assumptions and their consequences.

    """

    network: Network
    tensors: Mapping[Node, TensorScaling]
    weights: Mapping[Node, WeightScaling]
    biases: FloatValues
    scalars: FloatValues
    correlations: Mapping[Node, Number]
    reference_level: Level
    violations: tuple[Assumption, ...]
    notes: tuple[Assumption, ...]
    most = 30

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """All assumptions in the order of nodes, including the violated assumptions."""
        return (*self.network.assumptions, *self.notes, *self.violations)

    @property
    def symbolic(self) -> bool:
        """Whether values are SymPy expressions."""
        return self.reference_level.symbolic

    @property
    def reference(self) -> Number:
        """The target of corrections: the geometric mean of gamma; with symbols, the first gamma."""
        return one_value(self.reference_level, "the mean gamma")

    @property
    def output_moment(self) -> Number:
        """E[y^2] at the output, or {output: value} for several outputs.

        Raises: KcalcError beyond double precision.
        """
        return sole({node: self.tensors[node].forward for node in self.network.outputs})

    @property
    def spread(self) -> Number:
        """The ratio of the largest to the smallest gamma, which is 1 in a preconditioned network.

        Raises: KcalcError for networks with symbols.
        """
        if self.symbolic:
            raise KcalcError(
                "the spread of gamma needs a network without symbols; substitute numbers with "
                "net.subs, or compare .weights[node].gamma"
            )
        values = [weight.relative for weight in self.weights.values()]
        return max(values) / min(values) if values else 1.0

    def ordered(self) -> list[tuple[Node, WeightScaling]]:
        """List (node, weight) by decreasing gamma; with symbols, in the order of the network.

        Returns
        -------
        list[tuple[Node, WeightScaling]]
            Pairs of a node and the scaling of its weights.

        """
        rows = list(self.weights.items())
        return rows if self.symbolic else sorted(rows, key=lambda row: -row[1].relative)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw gamma of all weights over the network.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["Scaling"]({"": self}, ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "weights": printing.plain(self.weights),
            "biases": _logarithms(self.biases, self.symbolic),
            "scalars": _logarithms(self.scalars, self.symbolic),
            "correlations": {str(node): plain(value) for node, value in self.correlations.items()},
            "tensors": printing.plain(self.tensors),
            "reference": str(self.reference)
            if self.symbolic
            else {"log10": self.reference_level.log10()},
            "violations": [{"node": str(a.node), "text": a.text} for a in self.violations],
            "assumptions": printing.plain(self.assumptions),
        }

    def _frame(self) -> list[dict[str, Any]]:
        return [{"node": str(node)} | weight.to_dict() for node, weight in self.ordered()]

    def _rows(self) -> Rows:
        from .tables import rows

        return rows(self)

    def _below(self) -> list[str]:
        from .tables import MOST, violation_lines

        found = violation_lines(self)[:MOST]
        return ["", "violated assumptions:", *found] if found else []

    def __repr__(self) -> str:
        count = f"{len(self.weights)} weight{'s' * (len(self.weights) != 1)}"
        spread = (
            ""
            if self.symbolic or not self.weights
            else f", gamma within a factor {self.spread:.4g}"
        )
        return (
            f"Scaling({count}{spread}, {len(self.violations)} "
            f"violation{'s' * (len(self.violations) != 1)})"
        )


def _logarithms(values: FloatValues, symbolic: bool) -> dict[str, Any]:
    return {
        str(node): str(values[node]) if symbolic else {"log10": values.log10(node)}
        for node in values
    }


def plain(value: Any) -> Any:
    """Convert a value for JSON: expressions become text, and infinite or nan values become None."""
    if value is None:
        return None
    if isinstance(value, sp.Integer):
        return int(value)
    if isinstance(value, sp.Basic):
        return str(value)
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None
