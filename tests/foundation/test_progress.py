"""Bars of progress that nobody asked for."""

from __future__ import annotations

import pytest

from kcalc.foundation import progress


def test_a_bar_is_known_while_it_is_shown() -> None:
    assert not progress.has_bar()
    with progress.progress(2, "pairs", "pair", shown=True) as outer:
        outer(1)
        with progress.progress(2, "draws", "draw", shown=True):
            assert progress.has_bar()
        assert progress.has_bar()
        with progress.progress(2, "draws", "draw", shown=False):
            pass
        assert progress.has_bar()
    assert not progress.has_bar()
    with pytest.raises(ValueError, match="stop"), progress.progress(2, "pairs", "pair", shown=True):
        raise ValueError("stop")
    assert not progress.has_bar()
