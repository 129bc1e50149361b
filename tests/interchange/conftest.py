"""Every test here fails where a reader hits an internal error, unless it asks for these errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


@pytest.fixture
def internal_errors() -> None:
    """For tests in which readers are made to fail."""


@pytest.fixture(autouse=True)
def no_internal_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Internal errors of readers are opaque nodes for users and failures here."""
    log, listener = logging.getLogger("kcalc.interchange"), _Listener()
    before = log.level
    log.addHandler(listener)
    log.setLevel(logging.INFO)
    yield
    log.removeHandler(listener)
    log.setLevel(before)
    assert "internal_errors" in request.fixturenames or not listener.found
