"""The masks of attention: what they see, and that arrays of them are recognised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc.network import masks as M

L = kc.layers
T = 7
SEEN = {  # by hand, for 4 tokens
    "causal": (True, ["1000", "1100", "1110", "1111"]),
    "window": (2, ["1100", "1110", "0111", "0011"]),
    "chunk": (3, ["1110", "1110", "1110", "0001"]),
    "prefix": (2, ["1100", "1100", "1110", "1111"]),
}


def test_every_mask_is_known_here() -> None:
    assert {*SEEN} == {*M.MASKS}


@pytest.mark.parametrize("name", SEEN)
def test_a_mask_sees_what_is_written_by_hand(name: str) -> None:
    value, rows = SEEN[name]
    (mask,) = L.Attend(**{name: value}).masks
    assert type(mask) is M.MASKS[name] and mask.value == value
    wanted = np.array([[mark == "1" for mark in row] for row in rows])
    np.testing.assert_array_equal(M.visible((mask,), 4, 4), wanted)
    assert mask.one_sided == (not np.triu(wanted, 1).any())
    assert mask.hides(4) and mask.hides(4) == (not wanted.all())


@pytest.mark.parametrize("tokens", range(2, 6))
@pytest.mark.parametrize("name", ["window", "chunk", "prefix"])
def test_sizes_that_hide_nothing(name: str, tokens: int) -> None:
    for size in range(1, 7):
        mask = M.MASKS[name](size)
        assert mask.hides(tokens) == (not M.visible((mask,), tokens, tokens).all())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"causal": True},
        *({name: size} for name in ("window", "chunk", "prefix") for size in (2, 3, 6)),
        *({"causal": True, name: size} for name in ("window", "chunk") for size in (2, 3, 6)),
    ],
    ids=str,
)
def test_arrays_of_known_masks_are_recognised(fields: dict[str, Any]) -> None:
    masks = L.Attend(**fields).masks
    assert M.as_fields(masks) == fields
    found = M.recognised(M.visible(masks, T, T))
    assert found is not None and M.as_fields(found) == fields


def test_other_arrays_are_no_known_masks() -> None:
    sees = np.tri(T, dtype=bool)
    sees[4, 2] = False
    assert M.recognised(sees) is None and M.recognised(sees[:, :5]) is None
    assert M.recognised(np.ones((3, 5), dtype=bool)) == ()


def test_masks_name_themselves() -> None:
    assert repr(L.Attend(2, 4, prefix=3)).endswith("prefix=3)")
    assert "prefix" not in repr(L.Attend(causal=True))


def test_a_prefix_of_all_tokens_hides_nothing() -> None:
    steps: list[Any] = [("x", L.Input(8), ()), *((n, L.Affine(8), ("x",)) for n in "qkv")]
    layer = L.Attend(2, 4, prefix=3)
    net = kc.Network.from_steps(
        [*steps, ("a", layer, tuple("qkv")), ("y", L.Affine(2), ("a",))], ["y"]
    )
    with pytest.raises(kc.KcalcError, match="a prefix of 3 tokens"):
        kc.c_map(net, tokens=5)
    every: Any = kc.c_map(net, tokens=3)
    assert every(0.5) == kc.c_map(net.map_layers(lambda *_: L.Attend(2, 4), L.Attend), tokens=3)(
        0.5
    )


def test_a_layer_without_what_tells_tokens_apart() -> None:
    layer = L.Attend(4, 8, rotary=10.0, prefix=3, window=2, alibi=True, relative=(1, 8, 4))
    assert layer.alike() == L.Attend(4, 8)
