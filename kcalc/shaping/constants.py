"""The constants that a shaping method finds for activations, and a table of them.

The table lists constants by node or by activation name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from ..activations import Activation
from ..activations.rectifiers import leaky_relu
from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.keyed import Keyed
from ..foundation.plain_arguments import is_key
from ..foundation.printing import Tabled, html_table, text_table
from ..foundation.process_state import cached_property
from ..network.layers import Nonlinear
from ..network.network import Network

Node = Hashable
COLUMNS = ("alpha", "beta", "gamma", "delta", "negative_slope", "sigma_w", "sigma_b")


@dataclass(frozen=True, repr=False)
class Constants(Tabled):
    """``phi_hat(x) = output_scale * (phi(input_scale x + input_shift) + output_shift)``.

    Constants that a method does not set are None.

    If ``negative_slope`` is set, phi is the leaky ReLU with that slope. If ``sigma_w`` and
    ``sigma_b`` are set, they belong to the Affine layers that read the activation, and the
    activation is unchanged.
    """

    activation: Activation
    input_scale: float | None = None
    input_shift: float | None = None
    output_scale: float | None = None
    output_shift: float | None = None
    negative_slope: float | None = None
    sigma_w: float | None = None
    sigma_b: float | None = None

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
        """The output scale, called gamma in [DKS sec. 18.1].

        The gamma of weights is a different quantity; see :attr:`WeightScaling.gamma`.
        """
        return self.output_scale

    @property
    def delta(self) -> float | None:
        """The output shift, which is added before the output scale is applied."""
        return self.output_shift

    @cached_property
    def transformed(self) -> Activation:
        """The activation after the transformation by the constants."""
        given = (self.input_scale, self.input_shift, self.output_scale, self.output_shift)
        phi = self.activation if self.negative_slope is None else leaky_relu(self.negative_slope)
        return phi.transformed(
            *(d if v is None else v for v, d in zip(given, (1, 0, 1, 0), strict=True))
        )

    def describe(self) -> str:
        """Describe the transformed activation in one line.

        Returns
        -------
        str
            A formula in x.

        """
        if self.sigma_w is not None:
            return f"sigma_w {self.sigma_w:.6g}, sigma_b {self.sigma_b or 0:.6g}"
        inside = "x" if self.input_scale is None else f"{self.input_scale:.6g}*x"
        inside += "" if self.input_shift is None else f" {self.input_shift:+.6g}"
        name = (
            self.activation.name
            if self.negative_slope is None
            else f"leaky_relu[{self.negative_slope:.6g}]"
        )
        if all(c.isalnum() or c in "_[]." for c in name):
            text = f"{name}({inside})"
        elif inside == "x":
            text = name
        else:
            text = f"({name} at {inside})"
        text += "" if self.output_shift is None else f" {self.output_shift:+.6g}"
        return text if self.output_scale is None else f"{self.output_scale:.6g}*({text})"

    def __repr__(self) -> str:
        given = ", ".join(
            f"{name}={value:.10g}" for name in COLUMNS if (value := getattr(self, name)) is not None
        )
        return f"Constants({self.activation.name}{', ' if given else ''}{given})"

    def __str__(self) -> str:
        return text_table(self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows(), self.describe())

    def _frame(self) -> list[dict[str, Any]]:
        return [self.to_dict()]

    def _rows(self) -> list[tuple[str, str]]:
        given = (
            (name, f"{value:.10g}")
            for name in COLUMNS
            if (value := getattr(self, name)) is not None
        )
        return [("activation", self.activation.name), *given]

    def to_dict(self) -> dict[str, Any]:
        """Return the constants as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        names = ("input_scale", "input_shift", "output_scale", "output_shift", "negative_slope")
        weights = {} if self.sigma_w is None else {"sigma_w": self.sigma_w, "sigma_b": self.sigma_b}
        return (
            {"activation": self.activation.name}
            | {name: getattr(self, name) for name in names}
            | weights
        )


@dataclass(frozen=True)
class ConstantsTable(Keyed[Constants], Tabled):
    """Constants by node, or by activation name if all nodes of that name share them."""

    by_node: dict[Node, Constants]

    @cached_property
    def distinct(self) -> tuple[Constants, ...]:
        """Return the distinct sets of constants, in the order of the nodes."""
        return tuple(dict.fromkeys(self.by_node.values()))

    @property
    def activations(self) -> dict[Node, Activation]:
        """Return {node: its activation with these constants}."""
        return {node: k.transformed for node, k in self.by_node.items()}

    @property
    def edits(self) -> list[str]:
        """Describe the change at every node."""
        texts = {k: f"{k.activation.name} -> {k.describe()}" for k in self.distinct}
        return [f"{node}: {texts[k]}" for node, k in self.by_node.items()]

    @cached_property
    def _by_name(self) -> dict[str, list[Constants]]:
        table: dict[str, list[Constants]] = {}
        for constants in self.distinct:
            table.setdefault(constants.activation.name, []).append(constants)
        return table

    def __getitem__(self, key: Any) -> Constants:
        if is_key(key, self.by_node):
            return self.by_node[key]
        found = self._by_name[key] if is_key(key, self._by_name) else []
        if len(found) > 1:
            raise KcalcError(
                f"activation {glimpse(key)} has several sets of constants; use a node as the key"
            )
        if not found:
            raise unknown("node or activation", key, [*self._by_name, *map(str, self.by_node)])
        return found[0]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over activation names; if a name has several sets, use its nodes instead."""
        for name, found in self._by_name.items():
            if len(found) == 1:
                yield name
            else:
                yield from (node for node, k in self.by_node.items() if k.activation.name == name)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return is_key(key, self.by_node) or is_key(key, self._by_name)

    def columns(self) -> tuple[str, ...]:
        """Return the names of the constants that are set, in the order of the table."""
        return tuple(
            name for name in COLUMNS if any(getattr(k, name) is not None for k in self.distinct)
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return a header, and one row per activation and set of constants."""
        columns = self.columns()
        known = [(name, k) for name, found in self._by_name.items() for k in found]
        cells = (
            (
                name,
                *("-" if (v := getattr(k, column)) is None else f"{v:.10g}" for column in columns),
            )
            for name, k in known
        )
        return [("activation", *columns), *cells]

    def to_dict(self) -> dict[str, Any]:
        """Return {node: constants} as plain data."""
        return {str(node): constants.to_dict() for node, constants in self.by_node.items()}

    def _frame(self) -> list[dict[str, Any]]:
        return [
            {"node": str(node)} | constants.to_dict() for node, constants in self.by_node.items()
        ]

    def __str__(self) -> str:
        return text_table(self.rows)

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}: {len(found)}" for name, found in self._by_name.items())
        return f"ConstantsTable({listed})"

    def _repr_html_(self) -> str:
        return html_table(self.rows)


def constants_of(network: Network, rule: Callable[[Activation], Constants]) -> ConstantsTable:
    """Return the constants of all activations; the rule is called once per activation."""
    phis = {node: network.layer(node).activation for node in network.nodes_of(Nonlinear)}
    solved = {phi: rule(phi) for phi in dict.fromkeys(phis.values())}
    return ConstantsTable({node: solved[phi] for node, phi in phis.items()})
