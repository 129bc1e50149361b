"""Claims have no circles, and are pickled by their ids."""

from __future__ import annotations

from graphlib import TopologicalSorter

from imports import modules, wanted


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
