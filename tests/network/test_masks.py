"""The masks of attention: what they see, and that arrays of them are recognised."""

from __future__ import annotations

import numpy as np

from kcalc.network import masks as M
from kcalc.network.layers import Attend

T = 7
SEEN = {  # by hand, for 4 tokens
    "causal": (True, ["1000", "1100", "1110", "1111"]),
    "window": (2, ["1100", "1110", "0111", "0011"]),
    "chunk": (3, ["1110", "1110", "1110", "0001"]),
    "prefix": (2, ["1100", "1100", "1110", "1111"]),
}


def test_every_mask_sees_what_is_written_here() -> None:
    assert SEEN.keys() == M.MASKS.keys()
    places = np.arange(4)
    for name, (value, rows) in SEEN.items():
        sees = M.MASKS[name](value).sees(places[:, None], places)
        assert ["".join(row) for row in np.where(sees, "1", "0")] == rows


def test_other_arrays_are_no_known_masks() -> None:
    sees = np.tri(T, dtype=bool)
    sees[4, 2] = False
    assert M.recognised(sees) is None and M.recognised(sees[:, :5]) is None
    assert M.recognised(np.ones((3, 5), dtype=bool)) == ()


def test_masks_name_themselves() -> None:
    assert repr(Attend(2, 4, prefix=3)).endswith("prefix=3)")
    assert "prefix" not in repr(Attend(causal=True))
