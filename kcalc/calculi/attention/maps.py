"""Maps and values of networks over tokens, for ``tokens=`` and ``sampling=``."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...fields import NUMPY, SYMPY
from ...fields.arguments import one_number, q_pair
from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import truth
from ...maps.composition import Composition
from ...maps.maps import INFINITE_WIDTH, Assumption
from ...network.network import Network
from ...network.tokens import Tokens, has_distinct_tokens, read_tokens
from ..global_maps import MapReading, NetworkCMap, NetworkQMap, NodeValues, RulePass
from ..kernel import Kernel, KernelReading
from .class_token_maps import PointReader, has_class_token
from .formulas import token_formula, token_notes
from .sampling import Sampling, read_sampling
from .structure import given_tokens, inputs_over, one_by_one, one_sequence, over_tokens
from .token_table import TokenTable, tabulate_tokens
from .values import SampledValues, sampled_values

Node = Hashable


class OverTokens(KernelReading):
    """Base class for readings of a network over the exchangeable tokens that ``said`` describes."""

    said: Tokens

    def require_closed(self) -> None:
        """Reject operations that kernels over tokens do not support."""
        raise KcalcError(
            "kernels over tokens are computed in double precision and have no certified "
            "enclosures, formulas or matrices; use kc.c_map or kc.token_map for enclosures and "
            "formulas"
        )


class TokenMapReading(OverTokens, MapReading):
    """A network over tokens with the options of the kernel calculus."""

    def __init__(self, network: Network, assume_independent: bool, tokens: Tokens) -> None:
        self.said = tokens
        super().__init__(network, assume_independent)

    def fresh_pass(self, q1: dict[Node, Any], q2: dict[Node, Any] | None) -> RulePass:
        """Return only the assumptions, because attention records no map."""
        kernel, _ = self.run(NUMPY, q1, q2, None)
        return RulePass(tuple(kernel.notes.values()), {}, None)

    def run(
        self,
        field: Any,
        q1: dict[Node, Any],
        q2: dict[Node, Any] | None,
        gap: dict[Node, Any] | None,
    ) -> tuple[Any, dict[Node, Any]]:
        """Return the calculus and the state of every node."""
        second = q1 if q2 is None else q2
        if self._has_class_token(field):
            reader = PointReader(self.network, self.said, self.assume)
            with np.errstate(all="ignore"):
                return reader, reader.read(q1, second, gap)
        kernel = self._over_tokens(field, q2 is None, gap is not None)
        return kernel, self.interpreted(kernel, inputs_over(self.said, kernel, q1, second, gap))

    def run_sequence(
        self, q: dict[Node, Any], gap: dict[Node, Any], field: Any = NUMPY
    ) -> tuple[Any, dict[Node, Any]]:
        """Return the calculus and the states for one sequence, whose tokens have the given gaps."""
        if self._has_class_token(field):
            reader = PointReader(self.network, self.said, self.assume)
            with np.errstate(all="ignore"):
                return reader, reader.sequence(q, gap)
        kernel = self._over_tokens(field, True, False)
        return kernel, self.interpreted(kernel, one_sequence(self.said, kernel, q, gap))

    def gaps(
        self, gap: dict[Node, Jet], q1: dict[Node, Any], q2: dict[Node, Any] | None, field: Any
    ) -> dict[Node, Jet]:
        """Return 1 - C for each output, computed in the number system ``field``."""
        return self.at_outputs(self.run(field, q1, q2, gap), 2)

    def value(self, kernel: Any, state: Any) -> TokenValue:
        """The values of a node."""
        cosines = kernel.token_cosines(state)
        return TokenValue(
            *super().value(kernel, state), *(np.asarray(cosine)[()] for cosine in cosines)
        )

    def formula(self, q1: Any, q2: Any, letter: str) -> Composition | dict[Node, Composition]:
        """The map with the given letter as a named composition."""
        self._has_class_token(SYMPY)
        return token_formula(self.network, q1, q2, letter, self.assume, self.said)

    def symbolic_notes(self) -> tuple[Assumption, ...]:
        """The assumptions of the calculus if the network has symbols."""
        return token_notes(self.network, self.assume, self.said)

    def _has_class_token(self, field: Any) -> bool:
        """Return whether the network has a class token, so that tokens are followed separately.

        Raises: KcalcError if it has one and ``field`` is not NumPy.
        """
        if not has_class_token(self.network, self.said):
            return False
        if field is not NUMPY:
            raise KcalcError(
                "maps of networks with a class token are computed only in double precision: they "
                "have no certified enclosures, formulas or JAX functions"
            )
        return True

    def _over_tokens(self, field: Any, uniform: bool, paired: bool) -> Any:
        def over(uniform: bool = True) -> Kernel:
            return self.plain_kernel(field, uniform)

        return over_tokens(over, over, uniform, paired)


class TokenCMap(NetworkCMap):
    """The global C map of a network over tokens."""

    scan = 61  # attention takes milliseconds per value


class TokenMap(TokenCMap):
    """The map of the cosine between two tokens of one sequence.

    For its interface see :class:`kcalc.maps.maps.CMap`.
    """

    letter = "R"
    _reading: TokenMapReading

    @property
    def least(self) -> float:
        """``-1 / (T - 1)``, the smallest possible common cosine of T tokens."""
        return -1 / max(self._reading.said.count - 1, 1)

    def gaps(
        self, gap: dict[Node, Any], q1: dict[Node, Any], q2: dict[Node, Any] | None, order: int
    ) -> dict[Node, Jet]:
        if any(
            np.any(np.asarray(value, dtype=float) > 1 - self.least + 1e-12)
            for value in gap.values()
        ):
            raise KcalcError(
                f"the cosine of any two of {self._reading.said.count} tokens is at least "
                f"{self.least:.6g} = -1 / (tokens - 1)"
            )
        return super().gaps(gap, q1, q2, order)

    def _out(
        self, gap: dict[Node, Jet], q1: dict[Node, Any], q2: dict[Node, Any] | None, field: Any
    ) -> dict[Node, Jet]:
        return self._reading.at_outputs(self._reading.run_sequence(q1, gap, field), 2)

    def table(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, q1: Any = None, q2: Any = None, tolerance: float = 1e-10, *, q: Any = None
    ) -> TokenTable:
        """Tabulate R at fixed q as a :class:`TokenTable`, within ``tolerance``.

        The table uses about fifty values of the map and has an error bound. Raises: KcalcError for
        several outputs, for q values that are not single numbers, and for maps that are too rough,
        for example after activations that jump.
        """
        function = self._gap_function(q1, q2, q)
        return tabulate_tokens(function, self.least, one_number(tolerance, "tolerance"), self.name)


class TokenValue(NamedTuple):
    """The values at one node over tokens.

    At equal positions of two inputs, the values are defined as in
    :class:`kcalc.calculi.global_maps.NodeValue`.

    ``token_cosine1``, ``token_cosine2``: the cosine of two tokens, for the first and for the second
    input.
    """

    q1: Any
    q2: Any
    c: Any
    token_cosine1: Any
    token_cosine2: Any


def alike_reading(network: Network, assume_independent: bool, over: Mapping[str, Any]) -> Any:
    """Return the reading for the exchangeable tokens that the options ``over`` specify."""
    tokens = read_tokens(over.get("tokens"), over.get("token_cosine"))
    assert tokens is not None  # a cosine without tokens raises an error above
    return TokenMapReading(network, assume_independent, tokens)


def c_map(network: Network, assume_independent: bool, **over: Any) -> TokenCMap:
    """:func:`kcalc.c_map` over tokens."""
    return TokenCMap(alike_reading(network, assume_independent, over))


def q_map(network: Network, assume_independent: bool, **over: Any) -> NetworkQMap:
    """:func:`kcalc.q_map` over tokens."""
    return NetworkQMap(alike_reading(network, assume_independent, over))


def q_values(network: Network, q: Any, assume_independent: bool, **over: Any) -> dict[Node, float]:
    """:func:`kcalc.q_values` over tokens."""
    return alike_reading(network, assume_independent, over).q_values(q)


def token_map(
    network: Network, tokens: int | None = None, assume_independent: bool = False
) -> TokenMap:
    """The map ``R(rho)`` of the cosine between two tokens of one sequence.

    The network must have attention.

    The tokens of a sequence are exchangeable: all have the same q value, and any two have cosine
    rho. Attention pulls tokens together. If 1 is the only fixed point of the map, deep networks
    make all tokens of a sequence equal (rank collapse).

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    tokens
        The number of tokens.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.

    Returns
    -------
    TokenMap
        A callable with ``derivative``, ``fixed_points`` and ``plot``.

    Raises
    ------
    KcalcError
        In the same cases as :func:`c_map`.

    References
    ----------
    [Dong et al. 2021]

    """
    given = read_tokens(tokens, None)
    if given is None:
        raise KcalcError("token_map needs tokens=, the number of tokens in a sequence")
    return TokenMap(TokenMapReading(network, assume_independent, given))


def node_values(
    network: Network,
    c: Any,
    q1: Any,
    q2: Any,
    assume_independent: bool,
    *,
    q: Any,
    tokens: Any = None,
    token_cosine: float | None = None,
    sampling: Sampling | None = None,
) -> NodeValues | SampledValues:
    """:func:`kcalc.node_values` over tokens."""
    read_sampling(sampling)
    if one_by_one(network, tokens, sampling):
        said = any(level is not None for level in (q1, q2, q))
        levels = q_pair(q1, q2, q) if said else (None, None)
        assume = truth(assume_independent, "assume_independent")
        return each_token(network, c, levels, (tokens, token_cosine), (assume, sampling))
    over = {"tokens": tokens, "token_cosine": token_cosine}
    reading = alike_reading(network, assume_independent, over)
    return reading.node_values(c, *q_pair(q1, q2, q))


def each_token(
    network: Network,
    c: Any,
    levels: tuple[Any, Any],
    given: tuple[Any, float | None],
    options: tuple[bool, Sampling | None],
    profile: bool = False,
) -> SampledValues:
    """:func:`node_values` for tokens that are followed one by one.

    ``levels``: two q values, None if the tokens define them; ``given``: the tokens and their
    cosine; ``options``: whether addends are assumed independent, and the sampling. ``profile``:
    include the scores of attention, but no covariances.
    """
    tokens, token_cosine = given
    if has_distinct_tokens(tokens) and c is not None:
        raise KcalcError("an array of tokens already defines their cosines; omit c=")
    cosine = 0.0 if c is None else c
    covariance = given_tokens(network, tokens, token_cosine, levels, cosine)
    return sampled_values(network, dict.fromkeys(network.inputs, covariance), *options, profile)


def sequence_states(
    network: Network, tokens: Tokens
) -> tuple[Kernel, dict[Node, Any], tuple[Assumption, ...]]:
    """The calculus, states and assumptions for two tokens of one sequence with q = 1."""
    if has_class_token(network, tokens):
        raise KcalcError(
            "maps between the tokens of a sequence need exchangeable tokens, but the network has "
            "a class token; use the mean of all tokens for the readout instead"
        )
    reading = TokenMapReading(network, False, tokens)
    one = dict.fromkeys(network.inputs, np.asarray(1.0))
    kernel, states = reading.run_sequence(
        one, dict.fromkeys(network.inputs, Jet((np.asarray(1.0 - tokens.cosine),)))
    )
    return kernel.plain["one"], states, reading.noting(INFINITE_WIDTH, kernel.notes.values())
