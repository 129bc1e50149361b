"""Bars of progress that nobody asked for."""

from __future__ import annotations

import pytest

import kcalc as kc
from kcalc.foundation import progress

A = kc.architectures


def test_long_sampling_shows_its_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    kc.node_values(A.gpt2(1), 0.0, tokens=4)
    assert not capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    kc.node_values(A.gpt2(1), 0.0, tokens=4)
    kc.gradients(A.gpt2(1), tokens=4)
    shown = capsys.readouterr().err
    assert "attention: 100%" in shown and "gradients: 100%" in shown


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
