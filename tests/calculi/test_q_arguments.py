"""One way to give q values: ``q=`` for both inputs, ``q1=`` and ``q2=`` where they differ.

Formulas and series of Q maps at given q.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc import ntk

A = kc.architectures
NET = A.vanilla(2, "tanh")
TANH = kc.activation("tanh")
C, K = kc.c_map(NET), ntk(NET)
CALLS: dict[str, Callable[..., Any]] = {
    "C": lambda **q: C(0.3, **q),
    "C.at_angle": lambda **q: C.at_angle(0.7, **q),
    "C.derivative": lambda **q: C.derivative(1)(0.3, **q),
    "C.ball": lambda **q: float(TANH.c_map.ball(0.3, digits=20, **q).mid),
    "C.table": lambda **q: C.table(**q)(0.3),
    "C.symbolic": lambda **q: str(C.symbolic(**q)),
    "C.plot": lambda **q: C.plot(**q).lines[1].get_ydata(),
    "local C": lambda **q: TANH.c_map(0.3, **q),
    "local C.q_derivative": lambda **q: TANH.c_map.q_derivative(1)(0.3, **q),
    "K": lambda **q: K(0.3, **q),
    "K.at_angle": lambda **q: K.at_angle(0.7, **q),
    "K.ball": lambda **q: float(ntk(A.vanilla(1)).ball(0.3, digits=20, **q).mid),
    "K.by_layer": lambda **q: K.by_layer(0.3, **q)["affine_1"],
    "K.symbolic": lambda **q: str(K.symbolic(**q)),
    "K.plot": lambda **q: K.plot(**q).lines[0].get_ydata(),
    "node_values": lambda **q: kc.node_values(NET, 0.3, **q)["affine_2"].c,
    "pair_expectation": lambda **q: kc.pair_expectation("tanh", "relu", 0.3, **q),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_spelling_everywhere(name: str) -> None:
    call = CALLS[name]
    exact = name.endswith("symbolic")

    def same(one: Any, other: Any) -> bool:
        return one == other if exact else bool(np.allclose(one, other, rtol=1e-12, atol=1e-13))

    assert (
        same(call(q=2), call(q1=2))
        and same(call(q=2), call(q1=2, q2=2))
        and same(call(), call(q=1))
    )
    assert not same(call(q=2), call(q1=2, q2=0.5)) and not same(call(q=2), call())
    for both in ({"q1": 2}, {"q2": 2}):
        with refused("q=2.*q1=.*q2="):
            call(q=2, **both)
    with refused("mean.*square"):
        call(q=-1)
    with refused("^q2.*square"):
        call(q1=1, q2=-1)
