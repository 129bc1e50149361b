"""All messages of kcalc stand in ``messages.txt``, where a change of words is read as a diff."""

from __future__ import annotations

import difflib
from pathlib import Path

import messages


def test_the_snapshot_of_messages_is_up_to_date() -> None:
    kept = messages.SNAPSHOT.read_text(encoding="utf-8").splitlines()
    changed = [
        line
        for line in difflib.unified_diff(kept, messages.messages(), lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    assert not changed, "\n".join(
        ["read the changes below; python tests/tools/messages.py keeps them", *changed[:40]]
    )


def test_messages_are_found_once_with_what_they_fill_in(tmp_path: Path) -> None:
    (tmp_path / "kcalc").mkdir()
    (tmp_path / "kcalc" / "a.py").write_text(
        'class A:\n    def f(self, n):\n        raise KcalcError(f"node {n!r} is "\n'
        '            "wrong" if n else "give it")\n\n'
        'def g(x):\n    return NoRule("no rule here", "key")\n',
        encoding="utf-8",
    )
    assert messages.messages(tmp_path) == [
        "a.py A.f: give it",
        "a.py A.f: node {n} is wrong",
        "a.py g: no rule here",
    ]
