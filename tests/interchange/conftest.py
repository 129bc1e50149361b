"""Every test here fails where a reader hits an internal error, unless it asks for these errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def internal_errors() -> None:
    """For tests in which readers are made to fail."""


@pytest.fixture(autouse=True)
def no_internal_errors(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """Internal errors of readers are opaque nodes for users and failures here."""
    caplog.set_level(logging.INFO, "kcalc.interchange")
    yield
    found = [r for r in caplog.get_records("call") if r.name.startswith("kcalc.interchange")]
    assert "internal_errors" in request.fixturenames or not found
