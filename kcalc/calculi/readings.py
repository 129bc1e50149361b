"""Base class of results that keep a ``reading``: a network with the options of a calculus."""

from __future__ import annotations

from typing import Any

from ..maps.maps import Approximable, Assumption
from ..network.network import Network


class OfReading(Approximable):
    """A result with an attribute ``reading``, which has ``network`` and ``assumptions``."""

    reading: Any

    @property
    def network(self) -> Network:
        """The network."""
        return self.reading.network

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions, in the order of nodes."""
        return self.reading.assumptions
