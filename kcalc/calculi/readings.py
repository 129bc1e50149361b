"""What results that read a network say of their reading."""

from __future__ import annotations

from typing import Any

from ..maps.maps import Approximable, Assumption
from ..network.network import Network


class OfReading(Approximable):
    """A result with a ``reading`` that knows its network and its assumptions."""

    reading: Any

    @property
    def network(self) -> Network:
        """The network."""
        return self.reading.network

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What is taken for granted, node by node."""
        return self.reading.assumptions
