"""Base class for the results of all shaping methods.

It stores targets, constants and the network, and provides plots and tables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from ..activations import Activation
from ..calculi.global_maps import c_map, end_values
from ..calculi.subnetworks import maximal, maximal_curvature, maximal_slope
from ..fields.arguments import Array
from ..foundation.errors import KcalcError, Remedy
from ..foundation.guests import DRAWINGS, MODELS, SHAPING
from ..foundation.printing import html_table, marked, plain
from ..foundation.process_state import cached_property
from ..maps.maps import Approximable, Assumption
from ..network import layers as L
from ..network.network import Network, is_normalised, sum_weights
from .constants import ConstantsTable
from .mixing import AT_TOKENS, refuse_mixing, unmixed
from .norms import true_q
from .of_models import OfModel
from .records import OPTION, assuming
from .solutions import Solutions
from .thirty_digits import local_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .comparison import Comparison
    from .conditions import EquationPair

Node = Hashable
SCHEMA = "kcalc.shaping/1"
LARGEST_ZETA = 100.0  # largest zeta that errors of other methods suggest
FOR_PRODUCTS = (  # DKS with a zeta that the slopes allow, or with independent factors
    Remedy("dks"),
    Remedy("dks", {"zeta": ...}),
    Remedy("dks", {OPTION: True}),
    Remedy("dks", {OPTION: True, "zeta": ...}),
    Remedy("normalisation"),
)


@dataclass(frozen=True)
class Shaping(Approximable, OfModel):
    """A shaped network: transformed activations, normalised sums, sigma_w = 1 and sigma_b = 0.

    Methods that set weights deviate from this, as their documentation describes.

    Attributes
    ----------
    targets
        The local conditions, {condition: value}.
    changes
        A description of every edit.
    systems
        The equations that were solved, by activation name.
    warnings
        Notes on places where the targets have no effect.
    tokens
        The cosines between tokens used to shape a network that mixes them.
    independent
        Whether ``assume_independent=True`` was used.
    left_alone
        {node: reason} for unchanged activations at outputs of the model.

    """

    method: str
    options: dict[str, Any]
    original: Network
    network: Network
    constants: ConstantsTable
    targets: dict[str, float]
    global_targets: dict[str, float]
    changes: tuple[str, ...]
    systems: dict[str, tuple[EquationPair, ...]] = field(default_factory=dict, repr=False)
    warnings: tuple[Assumption, ...] = ()
    tokens: Any = field(default=None, repr=False)
    independent: bool = field(default=False, kw_only=True)
    reading: Any = field(default=None, repr=False, compare=False, kw_only=True)
    left_alone: Mapping[Node, str] = field(
        default_factory=dict, repr=False, compare=False, kw_only=True
    )

    @cached_property
    def all_solutions(self) -> dict[str, Solutions]:
        """Return {activation name: every set of constants found}, computed on first access.

        The sets are in order of |beta|, positive before negative.

        The default is the solution on the branch that starts nearest to beta = 0. Each tuple prints
        as a table that marks mirror images; ``.mirror_of`` returns them as indices.
        """
        from .choose_branch import solve_all

        known = {name: self.systems[name] for name in self.constants if name in self.systems}
        return {
            name: solve_all(known[name]) if name in known else Solutions((self.constants[name],))
            for name in self.constants
        }

    @property
    def to_train(self) -> tuple[Network, tuple[Node, ...]]:
        """Return the network to train, and its Affine nodes with mirrored initial weights.

        By default, this is the shaped network, and there are no such nodes.
        """
        return self.network, ()

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Return the assumptions of the kernel calculus on the shaped network, per node."""
        if self.tokens is not None:
            return (*self.tokens.assumptions(self.network), *self.tokens.notes, *self.warnings)
        return (*c_map(self.network, self.independent).assumptions, *self.warnings)

    @property
    def scales(self) -> list[tuple[str, str]]:
        """Return (name, value) pairs, as text, for constants that do not belong to activations."""
        return []

    @property
    def token_cosines(self) -> dict[Node, Array]:
        """Return {node: (T, T) cosines between its tokens} for a network shaped with ``tokens=``.

        Raises: KcalcError for other networks.
        """
        if self.tokens is None:
            raise KcalcError(
                "cosines between tokens are available only for networks shaped with tokens="
            )
        return self.tokens.cosines_in(self.network)

    @cached_property
    def _measured(self) -> dict[str, Any]:
        """Return {condition: measured value}, with the worst value over all activations."""
        with assuming(self.independent):
            return self._values_measured()

    def _values_measured(self) -> dict[str, Any]:
        found = [local_values(k.transformed) for k in self.constants.distinct]
        return farthest(found, self.targets) | self._global_values()

    @property
    def values(self) -> dict[str, float]:
        """Return {condition: measured value}.

        Local values use 30 digits; values of global maps are computed on the network.
        """
        return {condition: float(value) for condition, value in self._measured.items()}

    def _global_values(self) -> dict[str, float]:
        if len(self.network.outputs) != 1 and self.tokens is None:
            return {}
        alone, tokens = unmixed(self.network), self.tokens
        measured: dict[str, Callable[[], float]] = {
            "Q_f(1)": lambda: self._ends[0],
            "C_f'(1)": lambda: self._ends[1],
            "max C_f(0)": lambda: float(maximal(alone, self._r(), true_q(alone))(0.0)),
            "max C_f''(1)": lambda: maximal_curvature(alone).multiplier * self._worst("C''(1)"),
        }
        if tokens is not None:
            measured[AT_TOKENS] = lambda: tokens.farthest(self.network)
        return {name: measured[name]() for name in self.global_targets}

    @cached_property
    def _ends(self) -> tuple[float, float]:
        """Return (Q_f(1), C_f'(1)) of the shaped network."""
        return end_values(unmixed(self.network), self.independent)

    def _r(self) -> dict[Node, Callable[[Any], Any]]:
        """Return {nonlinear node: its local C map}."""
        return {
            node: constants.transformed.c_map for node, constants in self.constants.by_node.items()
        }

    def _worst(self, condition: str) -> float:
        return max(float(local_values(k.transformed)[condition]) for k in self.constants.distinct)

    @cached_property
    def residuals(self) -> dict[str, float]:
        """Return {condition: |value - target|}, measured independently of the solver.

        Local values use a different quadrature with 30 digits; global maps are computed on the
        network.
        """
        targets = self.targets | self.global_targets
        return {
            condition: abs(float(value - targets[condition]))
            for condition, value in self._measured.items()
            if condition in targets
        }

    def plot(self, ax: Sequence[Axes] | None = None) -> Figure:
        """Plot activations, the global C map and c by depth, before and after shaping.

        "Before" is the original network with the same activations, if the kernel calculus covers
        it. A network shaped with ``tokens=`` has no C map; its figure shows the cosines between
        tokens at the input and at the (first) output instead.

        Parameters
        ----------
        ax
            The panels to draw on, as many as the figure has; None creates a new figure.

        Returns
        -------
        Figure
            The Matplotlib figure; its panels are in ``.axes``.

        """
        pairs = {
            name: (self.constants[name].activation, self.constants[name].transformed)
            for name in self.constants
        }
        if self.tokens is not None:
            return DRAWINGS["Shaping.tokens"](
                pairs, self.tokens.cosines, self.token_cosines[self.network.outputs[0]], ax
            )
        depth_trace = SHAPING["depth trace"]
        traces = {"before": self._before(depth_trace), "after": depth_trace(self.network)}
        given = {label: trace for label, trace in traces.items() if trace is not None}
        return DRAWINGS["Shaping"](
            pairs, self._before(_drawable), c_map(self.network, self.independent), given, ax=ax
        )

    def _before(self, quantity: Callable[[Network], Any]) -> Any:
        """Compute a quantity of the original network.

        Return None if the kernel calculus does not apply to it or overflows.
        """
        try:
            return quantity(replace_activations(self.original, self._plain()))
        except KcalcError:
            return None

    def _plain(self) -> dict[Node, Activation]:
        return {node: constants.activation for node, constants in self.constants.by_node.items()}

    def compare(self, other: Shaping) -> Comparison:
        """Compare this shaping with another one.

        The comparison lists constants, values and residuals, as text, as HTML or in ``rows``.

        Parameters
        ----------
        other
            Another shaping of the same network.

        Returns
        -------
        Comparison
            The comparison, which prints as a table.

        """
        from .comparison import Comparison

        if not isinstance(other, Shaping):
            raise KcalcError(
                f"a shaping can be compared only with another shaping, got {type(other).__name__}"
            )
        return Comparison((self, other))

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain data with a versioned schema; infinite values become None.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        return {
            "schema": SCHEMA,
            "method": self.method,
            "options": self.options | ({OPTION: True} if self.independent else {}),
            "constants": {name: self.constants[name].to_dict() for name in self.constants},
            "nodes": {
                str(node): constants.activation.name
                for node, constants in self.constants.by_node.items()
            },
            "conditions": self.targets | self.global_targets,
            "values": plain(self.values),
            "residuals": self.residuals,
            "changes": list(self.changes),
            "notes": [warning.text for warning in self.warnings],
        }

    def export(self, target: str, path: str | os.PathLike[str] | None = None) -> str:
        """Export the shaping as code or data for another framework, usable without kcalc.

        If ``path`` is passed, the result is also written to it.

        Parameters
        ----------
        target
            "torch", "jax", "flax", "keras" or "numpy": a Python module with the transformed
            activations (17 significant digits), the weighted sums, weight initialisers, input
            normalisation, and tables that map nodes to them. "onnx": a model whose functions are
            the activations and sums (the text is a listing, the file is binary). "json": the
            document ``kcalc.shaping/1``, including the network. "latex": tables.
        path
            The file to write; None writes no file.

        Returns
        -------
        str
            The code, JSON or LaTeX text.

        Raises
        ------
        KcalcError
            If the target is unknown, an activation is a callable, the folder is missing, or the
            target cannot express the shaping.

        """
        return MODELS["export"](self, target, path)

    def __str__(self) -> str:
        aims = self.targets | self.global_targets
        lines = [repr(self), "", *str(self.constants).splitlines(), ""]
        lines += [f"{name}: {value}" for name, value in self.scales]
        lines += [
            f"{name} = {value:.10g}"
            + (f"  (residual {self.residuals[name]:.1e})" if name in aims else "")
            for name, value in self.values.items()
        ]
        return "\n".join([*lines, *self._below()])

    def _below(self) -> list[str]:
        notes = (f"note: {a.text}" for a in self.warnings if a.kind != "heuristic")
        return [*self._heuristic_lines(), *notes]

    def _repr_html_(self) -> str:
        aims = self.targets | self.global_targets
        rows = [
            (name, f"{value:.10g}", f"{self.residuals[name]:.1e}" if name in aims else "")
            for name, value in self.values.items()
        ]
        notes = "".join(f"<p>{escape(line)}</p>" for line in self._below())
        measured = html_table([("measured on the network", "value", "residual"), *rows])
        found = html_table(self.constants.rows)
        found += html_table([("constant", "value"), *self.scales]) if self.scales else ""
        return f"<p>{escape(repr(self))}</p>{found}{measured}{notes}"

    def __repr__(self) -> str:
        names = ", ".join(self.constants)
        return f"Shaping({marked(f'{self.method}, {names}, {len(self.network)} nodes', self)})"


def _drawable(network: Network) -> Any:
    """Return the C map.

    Raises: KcalcError if it has no values.
    """
    found = c_map(network)
    found([-0.5, 0.5])
    return found


def farthest(found: Iterable[Mapping[str, Any]], targets: Mapping[str, float]) -> dict[str, Any]:
    """Return {condition: the value farthest from its target} over several activations."""
    known = list(found)
    return {
        condition: max((values[condition] for values in known), key=lambda v: abs(v - target))
        for condition, target in targets.items()
    }


def replace_activations(network: Network, activations: Mapping[Node, Activation]) -> Network:
    """Replace the activations at the given nodes."""
    layers = {phi: L.Nonlinear(phi) for phi in dict.fromkeys(activations.values())}
    return network.map_layers(
        lambda node, layer: layers[activations[node]] if node in activations else layer
    )


def prepared(
    network: Network,
    activation: Any = None,
    products: bool = False,
    tokens: Any = None,
    keeping: Container[Node] = (),
) -> tuple[Network, tuple[str, ...]]:
    """Bring a network into the form that shaping needs: sigma_w = 1, sigma_b = 0 and no Scale.

    Also return a list of the edits that this required.

    ``products`` states whether the method has a rule for a Product. ``tokens`` contains the cosines
    between tokens, if they were passed to the method. ``keeping`` lists nodes that keep their
    activations.

    Raises: KcalcError with a remedy, for BatchNorm, other products, token mixing without
    ``tokens``, unnormalised sums, or a network without activations.
    """
    changes: list[str] = []
    if tokens is None:
        refuse_mixing(network)
    normalised: set[tuple[int, int]] = set()
    for node, layer, parents in network.steps():
        if isinstance(layer, L.BatchNorm):
            raise KcalcError(
                f"node {node!r} is a BatchNorm, which no kernel method can shape; drop it with "
                f"net.without_normalization()"
            )
        if isinstance(layer, L.Dropout) and layer.active and layer.rate != 0:
            raise KcalcError(
                f"node {node!r} is an active Dropout, so C(1) < 1 after it, but shaping assumes "
                "C(1) = 1 to set slopes; set active=False in this Dropout before shaping"
            )
        if isinstance(layer, L.Product) and not products:
            refusal = KcalcError(f"node {node!r} is a Product, for which this method has no rule")
            raise refusal.advising(FOR_PRODUCTS, "cut the network there").at(node)
        if isinstance(layer, L.Sum) and (id(layer), len(parents)) not in normalised:
            if is_normalised(sum_weights(layer, len(parents))):
                normalised.add((id(layer), len(parents)))
                continue
            raise KcalcError(
                f"the Sum at node {node!r} is not normalised (its squared weights must add up to "
                f"1); use net.normalised()"
            )
    nodes = network.nodes_of(L.Nonlinear)
    if not nodes:
        raise KcalcError("the network has no nonlinear layer, so there is nothing to shape")

    chosen = None if activation is None else L.Nonlinear(activation)

    def plain(node: Node, layer: L.Layer) -> L.Layer:
        if isinstance(layer, L.Affine) and (layer.sigma_w != 1 or layer.sigma_b != 0):
            changes.append(f"{node}: sigma_w {layer.sigma_w} -> 1, sigma_b {layer.sigma_b} -> 0")
            layer = replace(layer, sigma_w=1, sigma_b=0)
        if isinstance(layer, L.Embedding) and layer.sigma != 1:
            changes.append(f"{node}: sigma {layer.sigma} -> 1")
            layer = replace(layer, sigma=1)
        if isinstance(layer, L.Affine) and layer.standardised:
            changes.append(f"{node}: weights no longer standardised")
            layer = replace(layer, standardised=False)
        if isinstance(layer, L.Nonlinear) and chosen not in (None, layer) and node not in keeping:
            changes.append(
                f"{node}: activation {layer.activation.name} -> {chosen.activation.name}"
            )
            return chosen
        return layer

    lasting = [note for note in network.notes if not note.of_weights]  # shaping redraws the weights
    out = network.map_layers(plain, L.Affine, L.Embedding, L.Nonlinear).with_notes(lasting)
    scales = out.nodes_of(L.Scale)
    changes.extend(f"{node}: scalar multiplication removed" for node in scales)
    return (out.without(scales) if scales else out), tuple(changes)


def least_zeta(network: Network, activation: Any) -> float:
    """Return the slope that products force on some subnetwork, regardless of the activations.

    Return infinity if this slope is unknown.
    """
    try:
        plain, _ = prepared(unmixed(network), activation, products=True)
        return float(maximal_slope(plain)(1.0))
    except KcalcError:
        return math.inf
