"""The maximal subnetworks of a network, and the maxima over subnetworks used for shaping."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from ...foundation.errors import KcalcError
from ...foundation.guests import DRAWINGS
from ...foundation.plain_arguments import truth
from ...foundation.printing import Shown
from ...network.network import Network
from ...network.primitives import Post, owner
from .forward import SlopeBounds
from .regions import Subnetwork, network_regions
from .slope_maxima import maximal_slope

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Node = Hashable


class Subnetworks(tuple[Subnetwork, ...], Shown):
    """Subnetworks of a network in the order of their exits, as a tuple that can be drawn.

    Attributes
    ----------
    permissive
        Whether the reading is permissive; see :func:`subnetworks`.
    warning
        A warning if the strict reading hides depth, otherwise None.

    """

    network: Network
    permissive: bool
    most = 12

    def __new__(
        cls, items: Iterable[Subnetwork], network: Network, permissive: bool
    ) -> Subnetworks:
        made = super().__new__(cls, items)
        made.network, made.permissive = network, permissive
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Subnetworks, (tuple(self), self.network, self.permissive)

    def bounds(self, psi: float | None = None) -> SlopeBounds:
        """Compute strict mu, the forward and longest-path bounds at ``psi``, and any warning.

        Parameters
        ----------
        psi
            The slope C'(1) of every nonlinear layer, >= 1.

        Returns
        -------
        SlopeBounds
            mu, the forward bound and the longest-path bound.

        """
        return maximal_slope(self.network).bounds(psi)

    @property
    def warning(self) -> str | None:
        """A warning if taps, heads or additional inputs hide depth from the strict reading.

        The warning is None if no depth is hidden.
        """
        return None if self.permissive else maximal_slope(self.network).warning

    @property
    def nonlinear(self) -> Subnetworks:
        """The subnetworks with a nonlinear layer; all others have slope 1 and curvature 0."""
        nonlinear = {owner(node) for node, op, _ in self.network.operations if isinstance(op, Post)}
        kept = (s for s in self if not nonlinear.isdisjoint(s.layers))
        return Subnetworks(kept, self.network, self.permissive)

    def draw(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the network with the subnetworks as coloured regions.

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
        return DRAWINGS["Subnetworks"](self.network, ax=ax, **{"regions": self, **options})

    def __repr__(self) -> str:
        kind = "permissive" if self.permissive else "maximal"
        hidden = "; warning: depth is hidden" if self._below() else ""
        return (
            f"{len(self)} {kind} subnetwork{'s' * (len(self) != 1)} of {self.network!r}"[
                : 199 - len(hidden)
            ]
            + hidden
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data: entry, exit and layers of each subnetwork.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        pieces = [piece.to_dict() for piece in self]
        return {"permissive": self.permissive, "subnetworks": pieces, "warning": self.warning}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the network; the same as :meth:`draw`.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return self.draw(ax)

    def _frame(self) -> list[dict[str, Any]]:
        return [
            {"entry": str(piece.entry), "exit": str(piece.exit), "layers": len(piece.layers)}
            for piece in self
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        body = (tuple(map(str, row.values())) for row in self._frame())
        return [("entry", "exit", "layers"), *body]

    def __str__(self) -> str:
        return f"{self!r}\n{super().__str__()}"

    def _below(self) -> list[str]:
        try:
            return [f"warning: {self.warning}"] if self.warning else []
        except KcalcError:  # a layer without a slope: subnetworks still exist
            return []


def subnetworks(network: Network, permissive: bool = False) -> Subnetworks:
    """Find the maximal subnetworks, which do not compose with others into larger subnetworks.

    In the strict reading, every subnetwork lies in exactly one maximal subnetwork, as an interval
    between two cut points of the latter. Subnetworks without a nonlinear layer are also listed. In
    a network with several inputs, no subnetwork contains the layer where the inputs first meet.

    In the permissive reading, a subnetwork is any layer t together with all layers between it and a
    feature map that every path to t passes through. The maximal subnetworks, one for each t, begin
    at the earliest such map. The papers' formulas are strict [DKS eq. 20], [TAT App. B.5]; the
    maximum over permissive subnetworks is ``kc.maximal_slope(net).forward``. The cost is O((nodes +
    edges) log nodes); the attribute ``layers`` is computed on access.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    permissive
        Whether inner feature maps may have readers outside the subnetwork.

    Returns
    -------
    Subnetworks
        The subnetworks, with their slopes.

    Examples
    --------
    >>> import kcalc as kc
    >>> len(kc.subnetworks(kc.architectures.resnet_v2(50)))
    21

    """
    permissive = truth(permissive, "permissive")
    nodes, _, regions = network_regions(network)
    pairs = ((path[0], path[-1]) for path in regions.paths)
    if permissive:
        top: list[int] = []
        for node, above in enumerate(regions.idom):
            top.append(node if above == len(nodes) else top[above])
        pairs = ((first, node) for node, first in enumerate(top) if first != node)
    return Subnetworks(
        (Subnetwork(nodes[s], nodes[t], network) for s, t in pairs), network, permissive
    )
