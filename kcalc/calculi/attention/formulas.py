"""Symbolic kernel maps over tokens: the names of token relations and overlaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import sympy as sp

from ...fields import SYMPY
from ...foundation import symbols
from ...foundation.formulas import exact
from ...maps.maps import Assumption
from ...network.network import Network
from ...network.tokens import Tokens
from ..channels import Channels
from ..kernel import Kernel, kernel_over
from ..symbolic import (
    Letters,
    NamedMaps,
    Namer,
    SymbolicReading,
    read_symbols,
    symbolic_inputs,
)
from .exchangeable import Exchangeable, Relation, TokenState
from .named import NamedOverlaps
from .structure import inputs_over, one_sequence, over_tokens

RHO = sp.Symbol("rho", real=True)  # the cosine of two tokens of one input
RELATIONS: dict[str, Letters] = {
    Relation.FIRST_INPUT: ("q", "q", "rho"),
    Relation.SECOND_INPUT: ("p", "p", "r"),
    Relation.SAME_TOKEN: ("q", "p", "c"),
    Relation.OTHER_TOKEN: ("q", "p", "d"),
}


class NamedTokenMaps(NamedMaps):
    """Local maps of activations and overlaps of softmax rows, kept as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.overlaps = NamedOverlaps(self.functions)


class TokenNamer(Namer):
    """Name the values of every relation between two tokens; equal values share a symbol."""

    long = 8  # the inputs of attention enter it many times

    def __init__(
        self, network: Network, kernel: Exchangeable, maps: NamedMaps, taken: Iterable[sp.Symbol]
    ) -> None:
        super().__init__(network, kernel, maps, taken)
        self.known: dict[Any, sp.Symbol] = {}

    def parts(self, state: TokenState) -> dict[Letters, Channels]:
        """The states of the relations, keyed by the letters of their values."""
        return {RELATIONS[name]: part for name, part in state.relations.items()}

    def joined(self, state: TokenState, made: dict[Letters, Channels]) -> TokenState:
        """Rebuild a state from the states of its relations."""
        return replace(state, relations={name: made[RELATIONS[name]] for name in state.relations})

    def symbol(self, letter: str, expr: sp.Expr, **assumptions: bool) -> sp.Symbol:
        """Return the symbol for a value, and create it if the value has none yet."""
        if expr not in self.known:
            self.known[expr] = super().symbol(letter, expr, **assumptions)
        return self.known[expr]


def token_formula(
    network: Network, q1: Any, q2: Any, letter: str, assume_independent: bool, tokens: Tokens
) -> Any:
    """Return the C map (``letter`` "C"), Q map ("Q") or token map ("R") as a composition."""
    return _read(network, q1, q2, letter, assume_independent, tokens).composed(letter)


def token_notes(
    network: Network, assume_independent: bool, tokens: Tokens
) -> tuple[Assumption, ...]:
    """Return the assumptions of the kernel calculus for a network with symbols in its layers."""
    return _read(network, 1, None, "C", assume_independent, tokens).notes


def _read(
    network: Network, q1: Any, q2: Any, letter: str, assume: bool, tokens: Tokens
) -> SymbolicReading:
    cosine = {"C": symbols.c, "R": RHO, "Q": None}[letter]
    given = symbolic_inputs(network, q1, q2, cosine)
    maps, tokens = NamedTokenMaps(), replace(tokens, cosine=exact(tokens.cosine))

    def plain(uniform: bool = True) -> Kernel:
        return kernel_over(SYMPY, uniform, True, assume, maps)

    kernel = over_tokens(plain, plain, given.uniform, letter == "C")
    start = (
        one_sequence(tokens, kernel, given.first, given.gap or {})
        if letter == "R"
        else inputs_over(tokens, kernel, given.first, given.second, given.gap)
    )
    return read_symbols(given, TokenNamer(given.network, kernel, maps, given.taken), start)
