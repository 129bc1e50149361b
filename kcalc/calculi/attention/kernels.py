"""The NNGP and the tangent kernel between all tokens of given sequences.

They are the result of ``kc.ntk(network, tokens=array)``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.printing import marked, plain
from ...maps.maps import Approximable, Assumption
from ...network.compose import interpret
from ...network.network import Network
from ..tangent import Tangent
from .sampled import Sampled, Sampling, token_kernel
from .values import assumptions_of

Node = Hashable
Array = np.ndarray


@dataclass(frozen=True)
class TokenKernels(Approximable):
    """Kernels of one output channel between the tokens of N sequences, at initialisation and infinite width.

    ``nngp``, ``ntk``: arrays (N, T, N, T), or (N, N) where the output has no tokens: the covariance
    of the outputs, and the tangent kernel in the parameterisation that was asked for.
    ``nngp_error``, ``ntk_error``: their standard errors over the chains of sampling, 0 where no
    attention was sampled.
    """

    nngp: Array
    ntk: Array
    nngp_error: Array
    ntk_error: Array
    assumptions: tuple[Assumption, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        names = ("nngp", "ntk", "nngp_error", "ntk_error", "assumptions")
        return plain({name: getattr(self, name) for name in names})

    def __repr__(self) -> str:
        return f"TokenKernels({marked(f'{self.nngp.shape} entries', self)})"


def token_kernels(
    network: Network,
    covariance: tuple[Array, int],
    sampling: Sampling,
    fan_in: Mapping[Node, int] | None,
    assume: bool,
) -> TokenKernels:
    """The kernels for inputs of a covariance (N T, N T) of N sequences.

    Raises: KcalcError for several outputs, and as kernel maps and tangent kernels do.
    """
    if len(network.outputs) != 1:
        raise KcalcError(
            f"kernels between tokens are those of one output, and the network has "
            f"{len(network.outputs)}"
        )
    table, sequences = covariance
    kernel = Sampled(Tangent(token_kernel(assume), None, fan_in), sampling, sequences)
    start = {node: kernel.start(node, table) for node in network.inputs}
    with np.errstate(all="ignore"):  # the rules raise KcalcError naming the node of an overflow
        states = interpret(network, kernel, start)
    state = states[network.outputs[0]]
    nngp, ntk = (
        _averaged(part, sequences, state.count) for part in kernel.joint(state).coefficients
    )
    return TokenKernels(nngp[0], ntk[0], nngp[1], ntk[1], assumptions_of(network, kernel))


def _averaged(chains: Array, sequences: int, count: int | None) -> tuple[Array, Array]:
    """The mean over chains and its standard error."""
    shape = (sequences, sequences) if count is None else (sequences, count) * 2
    error = chains.std(axis=0, ddof=1) / len(chains) ** 0.5 if len(chains) > 1 else 0 * chains[0]
    return chains.mean(axis=0).reshape(shape), error.reshape(shape)
