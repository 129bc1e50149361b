"""Formulas spoilt on purpose: some claim must notice each."""

from __future__ import annotations

from collections.abc import Iterator

import claim_mutations as mutations
import pytest
from refusals import refused

import kcalc as kc
from kcalc.claims import Bench, Evidence, Verdict


def test_mutations_name_claims_that_exist() -> None:
    known = {claim.id for claim in kc.claims.all()}
    assert len(mutations.MUTATIONS) >= 30
    assert len({item.name for item in mutations.MUTATIONS}) == len(mutations.MUTATIONS)
    for item in mutations.MUTATIONS:
        assert item.claims and set(item.claims) <= known, item.name


def test_a_formula_is_itself_again_afterwards() -> None:
    phi = kc.activation("relu")
    with mutations.mutation("relu-square").applied():
        assert phi.second_moment(1.0) == 1.0
    assert phi.second_moment(1.0) == 0.5
    with refused("relu-square"):
        mutations.mutation("relu-squares")


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


def test_what_verify_reports_is_noticed() -> None:
    for values, spotted in (
        ((1.0, float("nan")), True),
        ((1.0, 1.0), False),
        ((float("nan"), 2.0), True),
    ):
        claim = kc.claims.Claim(
            "X-1",
            "dks",
            "p",
            "$x$",
            Verdict.HOLDS,
            lambda b, v=values: [b.equal(x, 1.0, "") for x in v],
        )
        assert mutations.noticed(claim) is spotted is not kc.claims.check(claim).expected


@pytest.mark.slow
def test_every_mutation_is_noticed() -> None:
    found = mutations.run(processes=2)
    missed = [name for name, claims in found.items() if not claims]
    print(f"{len(found) - len(missed)} of {len(found)} mutations noticed")  # noqa: T201
    assert not missed
