"""ALiBi with any number of heads, against the rule of its released code written out here."""

from __future__ import annotations

from wiring import attending, wired

import kcalc as kc
from kcalc.network.layers import Affine, Attend


def test_an_unknown_number_of_heads_is_an_assumption() -> None:
    given = {"tokens": 4, "sampling": kc.Sampling(1, 2)}
    for heads, told in ((None, True), (8, False)):
        attend, one = Attend(heads, alibi=True), Affine()
        steps = attending(attend, "x", Affine(sigma_w=1.5), one, one)
        notes = kc.node_values(wired(*steps, ("o", one)), **given).assumptions
        assert any("heads=" in note.text for note in notes if note.node == "a") == told
