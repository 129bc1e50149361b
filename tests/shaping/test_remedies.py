"""What refusals of shaping suggest is data: no refusal runs another method."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from refusal_networks import networks
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.foundation.guests import METHODS as PLACES
from kcalc.foundation.guests import MissingGuest
from kcalc.network.layers import Affine, Nonlinear, Product
from kcalc.shaping import METHODS, Remedy, works

A = kc.architectures


def test_a_remedy_keeps_the_targets_of_its_own_method() -> None:
    with refused() as error:
        kc.shape(A.vanilla(40, "relu6"), zeta=1.2, free_slope=False)
    (remedy,) = error.value.remedies
    assert remedy.options == {"zeta": 1.2, "free_slope": False, "q_slope": None}


def test_a_remedy_with_a_value_that_only_the_user_knows_is_not_tried() -> None:
    with refused() as error:
        kc.shape(networks()["tokens"])
    assert {remedy.method for remedy in error.value.remedies} <= {"dks", "tat"}
    assert error.value.remedies
    assert not any(works(remedy, networks()["tokens"]) for remedy in error.value.remedies)


def test_remedies_of_many_products_and_of_attention() -> None:
    steps: list[tuple[Any, ...]] = []
    for i in range(20):
        below = f"p{i - 1}" if i else "x"
        steps += [(f"a{i}", Affine(), below), (f"b{i}", Affine(), below)]
        steps += [(f"p{i}", Product(), f"a{i} b{i}")]
    net = wired(*steps, ("n", Affine()), ("t", Nonlinear("tanh")), ("o", Affine()))
    with refused("'p0' is a Product") as error:  # slopes of 2^20 are too large for dks
        kc.shape(net, method="eoc")
    (remedy,) = error.value.remedies
    assert remedy.method == "normalisation" and works(remedy, net)
    bare = A.transformer_stack(1, 8, 2, "relu", placement="none", shortcut_weight=0)
    with refused("eta = 0.9 is not reachable") as error:
        kc.shape(bare, method="edge", mlp="tat", tokens=4)
    assert not error.value.remedies  # they cannot shape attention


def test_a_remedy_prints_as_the_call_that_it_is() -> None:
    assert str(Remedy("dks", {"zeta": 3.0})) == "try method='dks' with zeta=3"
    assert not works(Remedy("tat", {"tau": 0.3}), A.vanilla(3, "abs"))


def test_a_method_whose_folder_is_missing_is_named_and_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PLACES.places, "lost", "shaping.nowhere:lost")
    assert "lost" not in list(METHODS)
    with pytest.raises(MissingGuest, match="shaping/nowhere"):
        kc.shape(A.vanilla(2, "tanh"), method="lost")


WITHOUT_TOKENS = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        room, _, file = name.rpartition(".")
        of_tokens = ("transformer", "token", "depth_laws", "profiles", "traces")
        if room == "kcalc.shaping" and file.startswith(of_tokens):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import kcalc as kc
from kcalc.shaping import METHODS
net = kc.architectures.vanilla(3, "relu", features=8)
assert "edge" not in list(METHODS)
for method in METHODS:
    try:
        kc.shape(net, method=method)
    except kc.KcalcError as error:
        print(method, error)
for call in (lambda: kc.shape(net, method="edge"), lambda: kc.shape(net, tokens=[[1.0]])):
    try:
        call()
    except kc.KcalcError as error:
        print(error)
"""


def test_plain_networks_are_shaped_without_the_files_about_tokens() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TOKENS], capture_output=True, text=True, check=True
    )
    told = done.stdout.splitlines()
    assert "transformer_edge" in told[-2] and "TokenMix" in told[-1]
    assert [line.split()[0] for line in told[:-2]] in (
        ["residual_weights"],
        ["tat", "residual_weights"],
    ), told
