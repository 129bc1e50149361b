"""Claims have no circles, and are pickled by their ids."""

from __future__ import annotations

import pickle
from graphlib import TopologicalSorter

from imports import modules, wanted

import kcalc as kc


def test_claims_have_no_circles() -> None:
    """The graph of imports sorts, also with those inside functions."""
    graph = {
        name: {
            module
            for module, _ in wanted(path, path.read_text(encoding="utf-8"))
            if module.startswith("kcalc.claims.") and path.name != "__init__.py"
        }
        for name, path in modules().items()
        if name.startswith("kcalc.claims")
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph) > 50


def test_registered_claims_are_pickled_by_their_ids() -> None:
    claim = kc.claims.get("DKS-eq4")
    own = kc.claims.Claim("X-1", "dks", "p", "$x$", kc.claims.Verdict.NOT_DECIDABLE, reason="no")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(claim, protocol)) is claim
        copied = pickle.loads(pickle.dumps(own, protocol))
        assert copied == own and copied is not own
