"""A network read by kernel maps or tangent kernels, over tokens where there are any."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from ..fields import NUMPY
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import truth
from ..maps.maps import Assumption
from ..network.compose import interpret
from ..network.network import Network
from .attention.structure import Tokens
from .field_maps import field_maps_of
from .kernel import Kernel, kernel_over

Node = Hashable


class TokenReading:
    """A network with the options of the kernel calculus.

    ``assume``: as ``assume_independent``; ``tokens``: None for networks without tokens.
    """

    def __init__(self, network: Network, assume: bool, tokens: Tokens | None = None) -> None:
        self.network, self.tokens = network, tokens
        self.assume = truth(assume, "assume_independent")

    def plain_kernel(
        self, field: Any = NUMPY, uniform: bool = True, follow_c: bool = True
    ) -> Kernel:
        """The calculus of kernel maps over a number system, at one token."""
        if field is NUMPY or field.name != "jax":
            local = field_maps_of(self.network, field)
            return kernel_over(field, uniform, follow_c, self.assume, local)
        from .learnable_tangent import TracedFieldMaps, traced_kernel

        return traced_kernel(TracedFieldMaps(uniform, False), follow_c, self.assume)

    def interpreted(self, kernel: Any, inputs: dict[Node, Any]) -> dict[Node, Any]:
        """The state of every node."""
        with np.errstate(all="ignore"):  # the rules raise KcalcError naming the node of an overflow
            return interpret(self.network, kernel, inputs)

    def refuse_tokens(self) -> None:
        """Refuse what kernels over tokens do not have."""
        if self.tokens is not None:
            raise KcalcError(
                "kernels over tokens are functions in double precision: they have no certified "
                "enclosures, formulas or matrices; kc.c_map and kc.token_map have the first two"
            )

    def noting(self, first: Assumption, notes: Iterable[Assumption]) -> tuple[Assumption, ...]:
        """The notes of one reading after the assumptions of every reading of the network."""
        tokens = () if self.tokens is None else self.tokens.assumptions(self.network)
        return (first, *tokens, *self.network.assumptions, *notes)
