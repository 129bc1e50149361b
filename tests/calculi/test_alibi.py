"""ALiBi with any number of heads, against the rule of its released code written out here."""

from __future__ import annotations

import math
from typing import Any

from wiring import wired

import kcalc as kc
from kcalc.network.layers import Affine, Attend


def released(heads: int) -> list[float]:
    """The recursion of Press et al.: of a power of 2, else with every other slope of twice that."""

    def by_power(count: int) -> list[float]:
        first = 2 ** -(2 ** -(math.log2(count) - 3))
        return [first * first**i for i in range(count)]

    near = 2 ** math.floor(math.log2(heads))
    if near == heads:
        return by_power(heads)
    return by_power(near) + released(2 * near)[0::2][: heads - near]


def network(heads: int | None, **options: Any) -> kc.Network:
    steps: list[Any] = [("q", Affine(sigma_w=1.5))]
    steps += [(name, Affine(), "x") for name in "kv"]
    steps += [("a", Attend(heads, alibi=True, **options), "q k v"), ("o", Affine())]
    return wired(*steps)


def test_an_unknown_number_of_heads_is_an_assumption() -> None:
    given = {"tokens": 4, "sampling": kc.Sampling(1, 2)}
    for heads, told in ((None, True), (8, False)):
        notes = kc.node_values(network(heads), **given).assumptions
        assert any("heads=" in note.text for note in notes if note.node == "a") == told
