"""Tangent kernels over tokens, which are exchangeable or given as an array."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ...fields import NUMPY
from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import truth
from ...network.network import Network
from ...network.tokens import Tokens, has_distinct_tokens, read_tokens
from ..ntk import TangentKernel, TangentReading, fan_ins
from .exchangeable import Exchangeable
from .kernels import TokenKernels, token_kernels
from .maps import OverTokens
from .sampling import Sampling
from .structure import inputs_over, over_tokens
from .values import token_covariance

Node = Hashable


class TokenTangentReading(OverTokens, TangentReading):
    """A network over tokens with the options of the tangent calculus."""

    def __init__(
        self,
        network: Network,
        fan_in: Mapping[Node, int] | None,
        assume: bool,
        tokens: Tokens,
    ) -> None:
        super().__init__(network, fan_in, assume)
        self.said = tokens

    def run_sequence(self, q: dict[Node, Any]) -> tuple[Exchangeable, dict[Node, Any]]:
        """Return the calculus of kernel maps and the state of every node for one token sequence."""
        kernel = over_tokens(
            lambda uniform: self.plain_kernel(NUMPY, uniform),
            self.plain_kernel,
            True,
            False,
        )
        return kernel, self.interpreted(kernel, inputs_over(self.said, kernel, q, q, None))

    def run(
        self,
        field: Any,
        gap: dict[Node, Any],
        q1: dict[Node, Any],
        q2: dict[Node, Any] | None,
        seeds: Mapping[Node, Any] | None = None,
    ) -> tuple[Exchangeable, dict[Node, Any]]:
        """Return the calculus and the state of every node; ``q2=None`` means uniform q."""
        if field is not NUMPY:
            self.require_closed()
        jets = {node: Jet((value, value * 0)) for node, value in gap.items()}
        kernel = over_tokens(
            lambda uniform: self.kernel(NUMPY, uniform, seeds),
            self.plain_kernel,
            q2 is None,
            True,
        )
        second = q1 if q2 is None else q2
        return kernel, self.interpreted(kernel, inputs_over(self.said, kernel, q1, second, jets))


def ntk(
    network: Network,
    parameterization: str,
    features: int | None,
    assume_independent: bool,
    *,
    tokens: Any = None,
    token_cosine: float | None = None,
    sampling: Sampling | None = None,
) -> TangentKernel | TokenKernels:
    """Compute :func:`kcalc.ntk` over tokens."""
    fan_in = None if parameterization == "ntk" else fan_ins(network, features)
    if has_distinct_tokens(tokens):
        if token_cosine is not None:
            raise KcalcError("an array of tokens already defines their cosines; omit token_cosine=")
        assume = truth(assume_independent, "assume_independent")
        return token_kernels(network, token_covariance(tokens, network), sampling, fan_in, assume)
    if sampling is not None:
        raise KcalcError(
            "sampling= applies only to an array of tokens, which are followed one by one; omit "
            "it for exchangeable tokens"
        )
    given = read_tokens(tokens, token_cosine)
    assert given is not None  # a cosine without tokens raises an error above
    return TangentKernel(TokenTangentReading(network, fan_in, assume_independent, given))
