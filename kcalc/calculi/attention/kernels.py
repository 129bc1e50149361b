"""The NNGP and the tangent kernel between all tokens of given sequences.

``kc.ntk(network, tokens=array)`` returns them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.printing import Shown, marked, spread
from ...maps.maps import Approximable, Assumption
from ...network.compose import interpret
from ...network.network import Network
from ..tangent import Tangent
from .sampled import Sampled, token_kernel
from .sampling import Draws, Sampling, read_sampling, until_accurate, worst_of
from .values import assumptions_of

Node = Hashable
Array = np.ndarray
KERNELS = ("nngp", "ntk", "nngp_error", "ntk_error")


@dataclass(frozen=True)
class TokenKernels(Shown, Approximable):
    """Kernels of one output channel between the tokens of N sequences, at infinite width.

    All values are those at initialisation.

    Attributes
    ----------
    nngp, ntk
        Arrays (N, T, N, T), or (N, N) if the output has no tokens: the covariance of the outputs,
        and the tangent kernel in the requested parameterisation.
    nngp_error, ntk_error
        Their standard errors over the sampling chains, 0 if no attention was sampled.

    """

    nngp: Array
    ntk: Array
    nngp_error: Array
    ntk_error: Array
    assumptions: tuple[Assumption, ...]

    def _frame(self) -> dict[str, Array]:
        places = ("sequence", "token", "other sequence", "other token")
        names = places if self.nngp.ndim == 4 else places[::2]
        values = {name: getattr(self, name) for name in KERNELS}
        return spread(dict(zip(names, np.indices(self.nngp.shape), strict=True)) | values)

    def _rows(self) -> list[tuple[str, ...]]:
        """Return one table row per pair of sequences, with the mean kernels over equal tokens."""
        means = [
            part if part.ndim == 2 else np.einsum("sata->st", part) / part.shape[1]
            for part in (self.nngp, self.ntk)
        ]
        pairs = zip(*np.triu_indices(len(self.nngp)), strict=True)
        rows = ((f"{s}, {t}", *(f"{mean[s, t]:.6g}" for mean in means)) for s, t in pairs)
        return [("sequences", "NNGP at equal tokens", "NTK at equal tokens"), *rows]

    def __repr__(self) -> str:
        return f"TokenKernels({marked(f'{self.nngp.shape} entries', self)})"


def token_kernels(
    network: Network,
    covariance: tuple[Array, int],
    sampling: Sampling | None,
    fan_in: Mapping[Node, int] | None,
    assume: bool,
) -> TokenKernels:
    """Compute the kernels of N sequences whose inputs have the given covariance (N T, N T).

    Raises: KcalcError for several outputs, and in the same cases as for kernel maps and tangent
    kernels.
    """
    if len(network.outputs) != 1:
        raise KcalcError(
            f"kernels between tokens need one output, but the network has {len(network.outputs)} "
            "outputs"
        )
    asked = read_sampling(sampling)

    def run(draws: Draws) -> tuple[TokenKernels, float]:
        found = _round(network, covariance, (fan_in, assume, asked, sampling is None), draws)
        return found, max(_worst(found.nngp, found.nngp_error), _worst(found.ntk, found.ntk_error))

    found, missed = until_accurate(asked, run)
    return replace(found, assumptions=(*found.assumptions, *missed))


def _worst(kernel: Array, errors: Array) -> float:
    """The largest error of an entry, relative to the geometric mean of its two diagonal entries."""
    size = round(kernel.size**0.5)
    own = np.sqrt(np.abs(np.diagonal(kernel.reshape(size, size))))
    return worst_of(errors.reshape(size, size), np.outer(own, own))


def _round(
    network: Network,
    covariance: tuple[Array, int],
    options: tuple[Mapping[Node, int] | None, bool, Sampling, bool],
    draws: Draws,
) -> TokenKernels:
    """Compute the kernels from one round of draws.

    ``options``: the channels read by one tap in the standard parameterisation, whether addends are
    assumed independent, how attention is sampled, and whether exact rules may be used after a class
    token.
    """
    (table, sequences), (fan_in, assume, asked, exact) = covariance, options
    tangent = Tangent(token_kernel(assume), None, fan_in)
    kernel = Sampled(tangent, draws, sequences, exact=exact)
    start = {node: kernel.start(node, table) for node in network.inputs}
    with np.errstate(
        all="ignore"
    ):  # the rules raise a KcalcError that names the node of an overflow
        states = interpret(network, kernel, start)
    state = states[network.outputs[0]]
    shape = (sequences, sequences) if state.count is None else (sequences, state.count) * 2
    (nngp, nngp_error), (ntk, ntk_error) = (
        [part.reshape(shape) for part in draws.averaged(chains)]
        for chains in kernel.joint(state).coefficients
    )
    return TokenKernels(nngp, ntk, nngp_error, ntk_error, assumptions_of(network, kernel, asked))
