"""Formulas spoilt on purpose: some claim must notice each."""

from __future__ import annotations

from collections.abc import Iterator

import claim_mutations as mutations

import kcalc as kc
from kcalc.claims import Bench, Evidence, Verdict


def test_no_more_is_computed_than_shows_a_spoilt_formula() -> None:
    reached = []

    def check(bench: Bench) -> Iterator[Evidence]:
        yield bench.equal(1.0, 2.0, "wrong")
        reached.append(1)
        yield bench.equal(1.0, 1.0, "right")

    claim = kc.claims.Claim("X-1", "dks", "p", "$x$", Verdict.HOLDS, check)
    assert mutations.noticed(claim)
    assert not reached
    assert not mutations.noticed(kc.claims.get("SC-table2"))
