"""Rooms of the lab at the paths that they had: names, pickles and modules lead to the new ones."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import kcalc as kc
from kcalc import wiring
from kcalc.foundation.guests import FORMER
from kcalc.foundation.moved import moved

ROOMS = ("audit", "regression", "report", "training", "transfer", "widgets")
FUNCTIONS = """
import warnings
warnings.simplefilter("ignore")
import kcalc.audit, kcalc.report.page, kcalc.transfer.rules, kcalc.training
import kcalc.lab.audit, kcalc.lab.report, kcalc.lab.transfer
import kcalc as kc
print(*(type(f).__name__ for f in (kc.audit, kc.report, kc.transfer)), kc.training.__name__)
"""
CIRCLE = """
import sys, warnings
warnings.simplefilter("error")
import kcalc, inspect, unittest
for module in list(sys.modules.values()):
    getattr(module, "__warningregistry__", None), hasattr(module, "__file__")
print(*[name for name in sys.modules if name.startswith("kcalc.lab")])
"""


def python(code: str, data: bytes = b"") -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def moving(match: str) -> Any:
    return pytest.warns(DeprecationWarning, match=match)


def modules() -> list[str]:
    """Every module of the moved rooms, below ``kcalc.lab``."""
    lab = Path(kc.__file__).parent / "lab"
    paths = (path.relative_to(lab).with_suffix("") for path in lab.rglob("*.py"))
    names = (".".join(path.parts) for path in paths)
    return [name for name in names if not name.endswith("__init__")]


@pytest.mark.parametrize("room", ROOMS)
def test_names_of_a_room_are_those_of_the_new_path(room: str) -> None:
    new = importlib.import_module(f"kcalc.lab.{room}")
    old = importlib.import_module(f"kcalc.{room}")
    names = getattr(new, "__all__", ["explore"])
    for name in names:
        with moving(rf"kcalc\.{room} is now kcalc\.lab\.{room};"):
            assert getattr(old, name) is getattr(new, name)
    with moving("is now"), pytest.raises(AttributeError, match="nothing"):
        _ = old.nothing


@pytest.mark.filterwarnings("ignore:kcalc:DeprecationWarning")
def test_inner_modules_are_the_same_modules() -> None:
    """Not copies, which would have classes of their own."""
    assert len(modules()) > 50
    for name in ["audit.result", "regression.dynamics", "training.runs"]:
        assert importlib.import_module(f"kcalc.{name}") is sys.modules[f"kcalc.lab.{name}"]
    for name in modules():
        assert "." not in name or importlib.util.find_spec(f"kcalc.{name}"), name
    assert importlib.util.find_spec("kcalc.audit") is not None
    assert importlib.util.find_spec("kcalc.audit.nothing") is None
    with pytest.raises(ImportError, match="nothing"):
        from kcalc.audit import nothing  # noqa: F401  # pyright: ignore
    with pytest.raises(ModuleNotFoundError, match=re.escape("kcalc.training.nothing")):
        importlib.import_module("kcalc.training.nothing")


def test_functions_stay_functions() -> None:
    found = python(FUNCTIONS)
    assert found == "function function function kcalc.lab.training"


def test_looking_at_all_modules_imports_none_and_warns_of_none() -> None:
    assert python(CIRCLE) == ""


def test_a_room_moves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setitem(sys.modules, "kcalc.somewhere", None)
    moved({"somewhere": "foundation"})
    with moving("kcalc.somewhere.errors is now"):
        assert importlib.import_module("kcalc.somewhere.errors") is kc.foundation.errors
    monkeypatch.delitem(sys.modules, "kcalc.somewhere.errors")


@pytest.mark.parametrize(("room", "name"), FORMER.places)
def test_former_names_lead_to_the_new_ones(room: str, name: str) -> None:
    said = rf"kcalc\.{room}\.{name} is now kcalc\."
    module = importlib.import_module(f"kcalc.{room}")
    if isinstance(vars(module).get(name), types.ModuleType):  # where the function was
        with moving(said), pytest.raises((TypeError, kc.KcalcError)):
            getattr(module, name)()
        return
    with moving(said):
        found = getattr(module, name)
    assert found is FORMER[room, name]


def test_functions_of_the_name_of_a_module_can_be_called_before_and_after_its_import() -> None:
    from kcalc.shaping import depth_laws

    net = kc.architectures.vanilla(3)
    for _ in range(2):
        with moving(r"kcalc\.shaping\.depth_laws is now"):
            assert depth_laws(net).to_dict() == kc.depth_laws(net).to_dict()
        kc.shaping.depth_laws.DepthLaws  # noqa: B018


@pytest.mark.parametrize("old", [old for old in wiring.FORMER_MODULES if "." in old])
def test_former_modules_are_the_new_ones(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"kcalc.{old}", raising=False)
    with moving(rf"kcalc\.{old} is now"):
        found = importlib.import_module(f"kcalc.{old}")
    assert found is importlib.import_module(f"kcalc.{wiring.FORMER_MODULES[old]}")


def test_the_warnings_end_with_the_next_minor_release() -> None:
    """Former names of 0.3 go with 0.4: empty the tables of ``wiring`` then."""
    assert kc.__version__.startswith("0.3.")
    assert set(ROOMS) <= wiring.FORMER_MODULES.keys()
