"""Shared test options: ``--run-slow`` runs the genuinely long checks."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import pytest

matplotlib.use("Agg")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run checks marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="long; run with --run-slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def untouched_pyplot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is shown, no global setting changes, no figure stays open."""
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda *_, **__: pytest.fail("a plot was shown"))
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before
    plt.close("all")
