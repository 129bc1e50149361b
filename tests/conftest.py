"""Shared test options: ``--run-slow`` runs the genuinely long checks."""

from __future__ import annotations

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
