"""What completion offers: public names of the package, and the targets of every shaping method."""

from __future__ import annotations

from inspect import signature

import pytest

import kcalc as kc
from kcalc.shaping import METHODS, TARGETS


def test_the_package_offers_its_public_names() -> None:
    assert dir(kc) == sorted(kc.__all__) and all(hasattr(kc, name) for name in kc.__all__)


def test_shape_names_the_targets_of_all_methods() -> None:
    own = {name: set(signature(method).parameters) - {"network", "activation"} for name, method in METHODS.items()}
    assert set().union(*own.values()) == TARGETS
    assert all(f"``{name}" in (kc.shape.__doc__ or "") for name in TARGETS)
    net = kc.architectures.vanilla(2, "tanh")
    for name in TARGETS:
        for method in METHODS:
            if name not in own[method]:
                with pytest.raises(kc.KcalcError, match=rf"takes no targets, but '{name}'|'{name}' belongs to .*'{owner(own, name)}'"):
                    kc.shape(net, method=method, **{name: None})


def owner(own: dict[str, set[str]], name: str) -> str:
    return next(method for method, targets in own.items() if name in targets)


def test_a_target_that_is_given_reaches_the_method() -> None:
    net = kc.architectures.vanilla(3, "tanh")
    assert kc.shape(net, zeta=1.2, q_slope=None).options == METHODS["dks"](net, zeta=1.2, q_slope=None).options
    assert kc.shape(net).options == METHODS["dks"](net).options
