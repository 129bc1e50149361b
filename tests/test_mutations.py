"""Formulas spoilt on purpose: some claim must notice each."""

from __future__ import annotations

import pytest

import kcalc as kc
from kcalc.claims import mutations


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
    with pytest.raises(kc.KcalcError, match="relu-square"):
        mutations.mutation("relu-squares")


@pytest.mark.slow
def test_every_mutation_is_noticed() -> None:
    found = mutations.run(processes=2)
    missed = [name for name, claims in found.items() if not claims]
    print(f"{len(found) - len(missed)} of {len(found)} mutations noticed")  # noqa: T201
    assert not missed
