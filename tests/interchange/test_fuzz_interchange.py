"""Spoilt files in great numbers.

One kcalc error each or a network, fast and small, nothing executed.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fuzz import files as fuzzing


def check(kind: str, count: int, first: int) -> None:
    found = fuzzing.in_child(kind, count, first)
    assert not found["faults"], found["faults"][:3]
    assert found["counts"]["read"] + found["counts"]["refused"] == count
    # some of both, or the changes are too mild or too wild
    assert min(found["counts"].values()) > count / 100
    assert found["longest"] < fuzzing.SECONDS and found["grown_mb"] < fuzzing.MEGABYTES


def test_spoilt_documents() -> None:
    check("json", 400, 10**6)


def test_spoilt_onnx_files() -> None:
    pytest.importorskip("onnx")
    check("onnx", 60, 10**6)


def test_the_audit_hook_sees_what_it_should() -> None:
    runs = (
        "lambda c: exec('1'), lambda c: os.system('true'), lambda c: open('/etc/hostname'), "
        "lambda c: eval('1+1')"
    )
    code = f"""
import sys, os
from fuzz import files as f
sys.addaudithook(f.watch)
print(f.judged(lambda c: None, 0), [f.judged(run, 0)[0] for run in ({runs})])
"""
    given = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(
        [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True
    ).stdout
    assert found.count("executed") == 4 and "('read', '')" in found
