"""What every shaping method shares: its target, the constants it found, the network it made, and how to look at them."""

from __future__ import annotations

import html
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..activations import Activation
from ..calculi.global_maps import c_map, q_map
from ..errors import FreshnessError, KcalcError, unknown
from ..layers import Affine, BatchNorm, Layer, Nonlinear, Product, Scale, Sum
from ..maps import Assumption
from ..network import Network, is_normalised, sum_weights
from .measure import local_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Node = Hashable
SCHEMA = "kcalc.shaping/1"


@dataclass(frozen=True)
class Constants:
    """``phi_hat(x) = output_scale * (phi(input_scale x + input_shift) + output_shift)``; unset constants are None."""

    activation: Activation
    input_scale: float | None = None
    input_shift: float | None = None
    output_scale: float | None = None
    output_shift: float | None = None
    negative_slope: float | None = None

    @property
    def alpha(self) -> float | None:
        """The input scale."""
        return self.input_scale

    @property
    def beta(self) -> float | None:
        """The input shift."""
        return self.input_shift

    @property
    def gamma(self) -> float | None:
        """The output scale."""
        return self.output_scale

    @property
    def delta(self) -> float | None:
        """The output shift, added before the output scale."""
        return self.output_shift

    @cached_property
    def transformed(self) -> Activation:
        """The transformed activation."""
        given = (self.input_scale, self.input_shift, self.output_scale, self.output_shift)
        return self.activation.transformed(*(d if v is None else v for v, d in zip(given, (1, 0, 1, 0), strict=True)))

    def to_dict(self) -> dict[str, Any]:
        """The constants as plain data."""
        names = ("input_scale", "input_shift", "output_scale", "output_shift", "negative_slope")
        return {"activation": self.activation.name} | {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ConstantsTable(Mapping[Any, Constants]):
    """Constants by node, or by activation name where all nodes of that name share them."""

    by_node: dict[Node, Constants]

    @cached_property
    def _by_name(self) -> dict[str, list[Constants]]:
        table: dict[str, list[Constants]] = {}
        for constants in self.by_node.values():
            known = table.setdefault(constants.activation.name, [])
            if constants not in known:
                known.append(constants)
        return table

    def __getitem__(self, key: Any) -> Constants:
        if key in self.by_node:
            return self.by_node[key]
        found = self._by_name.get(key, [])
        if len(found) > 1:
            raise KcalcError(f"activation {key!r} has several sets of constants; ask by node")
        if not found:
            raise unknown("node or activation", key, [*self._by_name, *map(str, self.by_node)])
        return found[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(name for name, found in self._by_name.items() if len(found) == 1)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return key in self.by_node or key in self._by_name

    def __repr__(self) -> str:
        return f"ConstantsTable({', '.join(f'{name}: {len(found)}' for name, found in self._by_name.items())})"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("activation", "alpha", "beta", "gamma", "delta"))
        rows = (
            "".join(f"<td>{'-' if v is None else f'{v:.10g}'}</td>" for v in (k.alpha, k.beta, k.gamma, k.delta))
            for found in self._by_name.values()
            for k in found
        )
        names = (html.escape(name) for name, found in self._by_name.items() for _ in found)
        body = "".join(f"<tr><td>{name}</td>{row}</tr>" for name, row in zip(names, rows, strict=True))
        return f"<table><tr>{head}</tr>{body}</table>"


@dataclass(frozen=True)
class Shaping:
    """A shaped network: sigma_w = 1, sigma_b = 0, normalised sums, transformed activations.

    ``targets`` are the local conditions {condition: value}; ``changes`` lists every edit in words; ``all_solutions``
    lists per activation name the other solutions found on the way; ``warnings`` say where the targets do not bind.
    """

    method: str
    options: dict[str, Any]
    original: Network
    network: Network
    constants: ConstantsTable
    targets: dict[str, float]
    global_targets: dict[str, float]
    changes: tuple[str, ...]
    all_solutions: dict[str, tuple[Constants, ...]] = field(default_factory=dict)
    warnings: tuple[Assumption, ...] = ()

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the kernel calculus takes for granted on the shaped network, node by node."""
        return (*c_map(self.network).assumptions, *self.warnings)

    @cached_property
    def _measured(self) -> dict[str, Any]:
        """{condition: measured value}, the worst over activations, local ones in 30 digits."""
        out: dict[str, Any] = {}
        for name in self.constants:
            measured = local_values(self.constants[name].transformed)
            for condition, target in self.targets.items():
                value = measured[condition]
                if condition not in out or abs(value - target) > abs(out[condition] - target):
                    out[condition] = value
        return out | self._global_values()

    @property
    def values(self) -> dict[str, float]:
        """{condition: measured value}: the worst over activations by quadrature in 30 digits, global maps by fold."""
        return {condition: float(value) for condition, value in self._measured.items()}

    def _global_values(self) -> dict[str, float]:
        if len(self.network.outputs) != 1:
            return {}
        measured: dict[str, Callable[[], float]] = {
            "Q_f(1)": lambda: float(q_map(self.network)(1.0)),
            "C_f'(1)": lambda: float(c_map(self.network).derivative(1)(1.0)),
        }
        return {name: measured[name]() for name in self.global_targets}

    @cached_property
    def residuals(self) -> dict[str, float]:
        """{condition: |value - target|}, measured apart from the solver: other quadrature, 30 digits; global maps by fold."""
        targets = self.targets | self.global_targets
        return {condition: abs(float(value - targets[condition])) for condition, value in self._measured.items()}

    def plot(self, axes: Sequence[Axes] | None = None) -> Any:
        """Activations before and after, and the global C map before and after; see :func:`kcalc.plotting.shaping_figure`."""
        from .. import plotting

        pairs = {name: (self.constants[name].activation, self.constants[name].transformed) for name in self.constants}
        return plotting.shaping_figure(pairs, *self._c_maps(), axes=axes)

    def _c_maps(self) -> tuple[Any, Any]:
        """The C map before, where the kernel calculus applies to the network as it was, and after."""
        after = c_map(self.network)
        try:
            before = c_map(replace_activations(self.original, self._plain()))
        except KcalcError:
            before = None
        return before, after

    def _plain(self) -> dict[Node, Activation]:
        return {node: constants.activation for node, constants in self.constants.by_node.items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, with a versioned schema."""
        return {
            "schema": SCHEMA,
            "method": self.method,
            "options": self.options,
            "constants": {name: self.constants[name].to_dict() for name in self.constants},
            "nodes": {str(node): constants.activation.name for node, constants in self.constants.by_node.items()},
            "conditions": self.targets | self.global_targets,
            "values": self.values,
            "residuals": self.residuals,
            "changes": list(self.changes),
        }

    def __repr__(self) -> str:
        names = ", ".join(self.constants)
        return f"Shaping({self.method}, {names}, {len(self.network)} nodes)"


def replace_activations(network: Network, activations: Mapping[Node, Activation]) -> Network:
    """The network with other activations at the given nodes."""
    return network.map_layers(lambda node, layer: Nonlinear(activations[node]) if node in activations else layer)


def prepared(network: Network, activation: Any = None) -> tuple[Network, tuple[str, ...]]:
    """The network as shaping wants it (sigma_w = 1, sigma_b = 0, no Scale) and the edits that made it so.

    Raises: KcalcError for BatchNorm, products, unnormalised sums or a network without activations, naming the remedy.
    """
    changes: list[str] = []
    for node, layer, parents in network.steps():
        if isinstance(layer, BatchNorm):
            raise KcalcError(f"node {node!r} is a BatchNorm, which no kernel method can shape; drop it with net.without_normalization()")
        if isinstance(layer, Product):
            raise KcalcError(f"node {node!r} is a Product, for which shaping has no rule; cut the network there")
        if isinstance(layer, Sum) and not is_normalised(sum_weights(layer, len(parents))):
            raise KcalcError(f"the Sum at node {node!r} is not normalised (its squared weights must add up to 1); use net.normalised()")
    nodes = network.nodes_of(Nonlinear)
    if not nodes:
        raise KcalcError("the network has no nonlinear layer, so there is nothing to shape")

    def plain(node: Node, layer: Layer) -> Layer:
        if isinstance(layer, Affine) and (layer.sigma_w != 1 or layer.sigma_b != 0):
            changes.append(f"{node}: sigma_w {layer.sigma_w} -> 1, sigma_b {layer.sigma_b} -> 0")
            return replace(layer, sigma_w=1, sigma_b=0)
        if isinstance(layer, Nonlinear) and activation is not None and Nonlinear(activation) != layer:
            changes.append(f"{node}: activation {layer.activation.name} -> {Nonlinear(activation).activation.name}")
            return Nonlinear(activation)
        return layer

    out = network.map_layers(plain)
    scales = out.nodes_of(Scale)
    changes.extend(f"{node}: scalar multiplication removed" for node in scales)
    return (out.without(scales) if scales else out), tuple(changes)


def check_fresh(network: Network) -> None:
    """Refuse networks on which local conditions do not add up: every activation must see a fresh Gaussian, addends be independent.

    Raises: FreshnessError naming the node, also where the kernel calculus handles it exactly by fusing or cross terms.
    """
    for assumption in c_map(network).assumptions:
        if assumption.kind == "exact":
            raise FreshnessError(
                f"node {assumption.node!r} cannot be shaped by local conditions: {assumption.text}; "
                "end all addends of a Sum but one in their own Affine, and put an Affine between activations"
            )
