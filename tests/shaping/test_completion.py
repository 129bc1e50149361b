"""What completion offers: public names of the package, and the targets of every shaping method."""

from __future__ import annotations

import subprocess
import sys
from inspect import Parameter, signature

import pytest
from refusals import refused

import kcalc as kc
from kcalc.shaping import METHODS
from kcalc.shaping.targets import TARGETS, RuleTargets

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


def test_shape_names_the_targets_of_all_methods() -> None:
    own = {
        name: set(signature(method).parameters) - {"network", "activation"}
        for name, method in METHODS.items()
    }
    every = set().union(*own.values())
    assert all(f"``{name}" in (kc.shape.__doc__ or "") for name in every)
    net = kc.architectures.vanilla(2, "tanh")
    for name in every:
        for method in METHODS:
            if name not in own[method]:
                with refused(
                    rf"takes no targets, but '{name}'|'{name}' belongs to "
                    rf".*'{owner(own, name)}'"
                ):
                    kc.shape(net, method=method, **{name: None})


def test_type_checkers_know_the_targets_of_every_method() -> None:
    """Names and types are those of the method's keyword arguments."""
    for name, method in METHODS.items():
        told = TARGETS.get(name, RuleTargets).__annotations__
        parameters = signature(method).parameters
        assert {key: one.__forward_arg__ for key, one in told.items()} == {
            key: one.annotation
            for key, one in parameters.items()
            if key not in ("network", "activation")
        }, name


def test_methods_list_their_keyword_arguments() -> None:
    for name, method in METHODS.items():
        kinds = {one.kind for one in signature(method).parameters.values()}
        assert not kinds & {Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL}, name


def owner(own: dict[str, set[str]], name: str) -> str:
    return next(method for method, targets in own.items() if name in targets)


def test_a_target_that_is_given_reaches_the_method() -> None:
    net = kc.architectures.vanilla(3, "tanh")
    assert (
        kc.shape(net, zeta=1.2, q_slope=None).options
        == METHODS["dks"](net, zeta=1.2, q_slope=None).options
    )
    assert kc.shape(net).options == METHODS["dks"](net).options
