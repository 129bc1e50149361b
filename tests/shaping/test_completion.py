"""What completion offers: public names of the package, and the targets of every shaping method."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kcalc as kc

LAZY = """
import sys, kcalc
assert sum(name.startswith("kcalc") for name in sys.modules) < 20
assert "kcalc.foundation" in sys.modules and "kcalc.lab" not in sys.modules
import kcalc.lab.report
assert callable(kcalc.report)
print(kcalc.c_map.__module__, kcalc.claims.__name__, kcalc.shaping.METHODS["dks"].__name__)
"""


def test_the_package_offers_its_public_names() -> None:
    assert dir(kc) == sorted(kc.__all__) and all(hasattr(kc, name) for name in kc.__all__)


def test_rooms_are_imported_when_they_are_first_used() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kcalc.calculi.global_maps", "kcalc.claims", "dks"]
    with pytest.raises(AttributeError, match="module 'kcalc' has no attribute 'c_maps'"):
        _ = kc.c_maps  # pyright: ignore[reportAttributeAccessIssue]
