"""Comparison of networks and activations.

A comparison shows the Q and C maps of every pair as a table and as a plot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..activations import Activation
from ..activations import activation as resolve
from ..fields.arguments import cosine_array, one_number, one_q
from ..foundation.errors import KcalcError
from ..foundation.guests import DRAWINGS
from ..foundation.plain_arguments import items, text
from ..foundation.printing import Shown, plain, shown
from ..maps.maps import Assumption, one_output
from ..network.layers import Nonlinear
from ..network.network import Network, require_network
from .global_maps import NetworkCMap, c_map, q_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Compared(NamedTuple):
    """One network with one activation.

    The fields are the q value and c value at its output, C'(1) and C''(1), and its C map.
    """

    network: str
    activation: str
    q: float
    c: float
    slope: float
    curvature: float
    c_map: NetworkCMap


@dataclass(frozen=True, repr=False)
class MapComparison(Shown):
    """A comparison of networks for given ``c`` and ``q`` values; see :func:`kcalc.compare`."""

    rows: tuple[Compared, ...]
    c: float
    q: float

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the maps, without repeats."""
        return tuple(dict.fromkeys(note for row in self.rows for note in row.c_map.assumptions))

    @property
    def labels(self) -> list[str]:
        """Labels for a legend: the parts of (network, activation) that differ between rows."""
        fields = [
            part
            for part in ("network", "activation")
            if len({getattr(row, part) for row in self.rows}) > 1
        ] or [
            "network",
            "activation",
        ]
        return [", ".join(getattr(row, part) for part in fields) for row in self.rows]

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the C maps, one line per pair; see :func:`kcalc.plotting.c_maps` for the options.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.
        **options
            Further options of the plot.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["MapComparison"](
            [row.c_map for row in self.rows],
            ax=ax,
            **{"labels": self.labels, "q": self.q, **options},
        )

    def _frame(self) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in row._asdict().items() if name != "c_map"}
            for row in self.rows
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        notes = {True: ", heuristic", False: ""}
        body = (
            (row.network + notes[row.c_map.heuristic], row.activation, *map(shown, row[2:6]))
            for row in self.rows
        )
        return [
            ("network", "activation", f"Q({self.q:g})", f"C({self.c:g})", "C'(1)", "C''(1)"),
            *body,
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the maps as plain data; infinite values become None.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "c": self.c,
            "q": self.q,
            "rows": plain(self._frame()),
            "assumptions": plain(self.assumptions),
        }

    def __repr__(self) -> str:
        return (
            f"MapComparison({len(self.rows)} pair{'s' * (len(self.rows) != 1)} of network and "
            f"activation)"
        )


def compare(
    networks: Any,
    activations: Any = None,
    c: float = 0.0,
    q: float = 1.0,
    assume_independent: bool = False,
) -> MapComparison:
    """Compare Q and C maps of networks, each with every activation.

    Parameters
    ----------
    networks
        A network, several networks, or {label: network}; each network has one output.
    activations
        An activation, a list of activations, or {label: activation}. They replace the activations
        of the networks. None leaves the networks unchanged.
    c, q
        The c and q values of the inputs.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.

    Returns
    -------
    MapComparison
        The comparison, which prints as a table.

    Raises
    ------
    KcalcError
        For invalid arguments, and in the same cases as for a C map.

    Examples
    --------
    >>> import kcalc as kc
    >>> nets = {name: kc.architectures.vanilla(10, name) for name in ("relu", "tanh")}
    >>> kc.compare(nets)
    MapComparison(2 pairs of network and activation)

    """
    cosine, size = one_number(cosine_array(c), "c"), one_q(q)
    given = _labelled(
        [networks] if isinstance(networks, Network) else networks, "networks", _network_name
    )
    chosen: list[tuple[str, Activation | None]] = [("", None)]
    if activations is not None:
        several = activations if isinstance(activations, Mapping | list | tuple) else [activations]
        chosen = [
            (label or phi.name, phi)
            for label, one in _labelled(several, "activations")
            for phi in (resolve(one),)
        ]
    rows = []
    for label, network in given:
        require_network(network)
        for name, phi in chosen:
            changed = (
                network
                if phi is None
                else network.written_out().map_layers(
                    lambda node, layer, phi=phi: Nonlinear(phi), Nonlinear
                )
            )
            local = name or ", ".join(dict.fromkeys(phi.name for phi in network.activations))
            rows.append(
                _compared(label, local or "none", changed, cosine, size, assume_independent)
            )
    return MapComparison(tuple(rows), cosine, size)


def _labelled(given: Any, what: str, name: Any = lambda one: "") -> Sequence[tuple[str, Any]]:
    pairs = (
        [(text(k, "a label"), one) for k, one in given.items()]
        if isinstance(given, Mapping)
        else [(name(o), o) for o in items(given, what)]
    )
    if not pairs:
        raise KcalcError(f"there are no {what} to compare; pass at least one")
    return pairs


def _network_name(network: Any) -> str:
    require_network(network)
    # names of architectures list their activations after a comma
    return network.name.partition(",")[0] or f"{len(network)} nodes"


def _compared(
    label: str, name: str, network: Network, c: float, q: float, assume_independent: bool
) -> Compared:
    cosines = c_map(network, assume_independent)
    one_output(cosines, "comparisons")
    first, second = (float(cosines.derivative(n)(1.0, q)) for n in (1, 2))
    return Compared(
        label,
        name,
        float(q_map(network, assume_independent)(q)),
        float(cosines(c, q)),
        first,
        second,
        cosines,
    )
