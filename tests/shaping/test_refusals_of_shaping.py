"""What refusals of shaping advise is tried.

Methods, options, edits of the network, and targets named as the nearest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest
from refusal_networks import networks
from thinning import mostly_slow

import kcalc as kc
from kcalc import c_map, large_batch, learnable_kernel
from kcalc.network.layers import Product, Sum
from kcalc.shaping import METHODS

METHOD = re.compile(
    r"method=('\w+'(?: or '\w+')*)(?: (with|as) (\w+=(?:True|[\d.e+]*)(?: and \w+=[\d.e+]+)?))?"
)
JOINT = re.compile(r"assume_independent=True and (\w+)=([\d.e+]+)")
OPTION = re.compile(r"(?<![\w'])([a-z_]+)=('\w+'|[\w.]+)?")
EDIT = re.compile(r"net\.(\w+)\(\)")
FUNCTION = re.compile(r"kc\.([\w.]+)")
NEAREST = re.compile(
    r"(?:nearest that can be reached is|nearest found is about|which is|e\.g\.) (eta|tau|zeta)( = "
    r"|=)(1 \+ )?([\d.e+-]+\d)"
)
OF_LAYERS = {"groups"}  # what a message says of layers and not of options
OF_FUNCTIONS = {"spatial", "image_shape", "shortcut_weight"}  # and of functions that it names


def outcome(call: Callable[..., Any], *given: Any, **options: Any) -> str:
    """The text of a refusal, "" where there is none."""
    try:
        call(*given, **options)
    except kc.KcalcError as error:
        return str(error)
    return ""


def helped(then: str) -> bool:
    """Whether advice ends in a result, or at what only a solver knows: the activation's reach."""
    return then == "" or "the nearest found, at input scale" in then


def follow(net: kc.Network, phi: Any, method: str, text: str, targets: dict[str, Any]) -> None:
    """Do what a refusal advises; fail where it does not help."""
    for names, how, given in METHOD.findall(text):
        for name in re.findall(r"\w+", names.replace(" or ", " ")):
            own: dict[str, Any] = {}
            if given.startswith("tokens="):
                own = {"tokens": np.eye(2), "token_rows": "rescale"}
            elif how == "with":
                own = {option: literal(value) for option, value in OPTION.findall(given)}
            then = outcome(METHODS[name], net, phi, **own)
            assert helped(then), (name, own)
    rest = METHOD.sub("", text)
    joint: dict[str, Any] = {option: float(value) for option, value in JOINT.findall(rest)}
    for option, value in OPTION.findall(rest):
        if option in OF_LAYERS | OF_FUNCTIONS | set(joint):
            continue
        assert option in signature(METHODS[method]).parameters, option
        if value and not NEAREST.search(text):
            kept = {} if f"{option}={value} alone" in text else targets
            changed = {"activation": phi} | kept | {option: literal(value)}
            changed |= joint if option == "assume_independent" else {}
            then = outcome(METHODS[method], net, **changed)
            assert helped(then) or (option == "activation" and then != text), (option, value)
    edited = net
    for name in EDIT.findall(text):
        edited = getattr(edited, name)()
        assert outcome(METHODS[method], edited, phi, **targets) != text, name
    for path in FUNCTION.findall(text):
        found: Any = kc
        for part in path.split("."):
            found = getattr(found, part)
        assert callable(found)
    for about, name, one, value in NEAREST.findall(text):
        if about:  # where no more is known than that the target is out of reach on this side
            continue
        nearest = (1 if one else 0) + float(value)
        then = outcome(METHODS[method], net, phi, **(targets | {name: nearest}))
        assert then == "", (name, nearest)


def literal(text: str) -> Any:
    """The value that a message writes behind an option."""
    named = {"True": True, "False": False, "None": None}
    return (
        named[text] if text in named else text.strip("'") if text.startswith("'") else float(text)
    )


def check(net: kc.Network, phi: Any, method: str, **targets: Any) -> str:
    """The refusal of a method, its advice followed; "" where there is none."""
    text = outcome(kc.shape, net, phi, method=method, **targets)
    if text:
        follow(net, phi, method, text, targets)
    return text


@pytest.mark.parametrize("name", networks())
def test_advice_of_every_method_helps(name: str) -> None:
    net = networks()[name]
    for method in METHODS:
        check(net, None, method)


@pytest.mark.parametrize("phi", mostly_slow(["relu", "leaky_relu", "abs"]))
def test_advice_of_every_method_helps_with_other_activations(phi: str) -> None:
    for net in networks(phi).values():
        for method in METHODS:
            check(net, None, method)


TARGETS: list[tuple[str, dict[str, Any]]] = [
    ("dks", {"zeta": 1e6}),
    ("dks", {"q_slope": 3.0}),
    ("tat", {"eta": 0.999}),
    ("tat", {"tau": 1e4}),
    ("eoc", {"sigma_b": 0.0}),
    ("eoc", {"sigma_b": 5.0}),
    ("self_normalising", {"parameters": "halves"}),
    ("nf", {"standardise": False}),
    ("residual_weights", {"scheme": "slope", "slope": 1.2}),
]


@pytest.mark.parametrize(("method", "targets"), TARGETS)
def test_advice_about_targets_helps(method: str, targets: dict[str, Any]) -> None:
    for name, activations in (
        ("plain", ("tanh", "abs", "sign")),
        ("residual", ("relu", "square")),
        ("LayerNorm of activations", ("tanh", "relu")),
        ("two activations added", ("leaky_relu", "tanh")),
    ):
        for phi in activations:
            check(networks()[name], phi, method, **targets)


@pytest.mark.parametrize(
    "function",
    [
        kc.depth_limit,
        large_batch,
        learnable_kernel,
        lambda net: kc.sklearn_kernel(net)(np.eye(8)),
    ],
)
def test_functions_without_the_option_do_not_name_it(function: Callable[..., Any]) -> None:
    net = networks()["V1"]
    assert "assume_independent" in outcome(lambda: kc.q_map(net)(1.0))
    text = outcome(function, net)
    assert "not to a fresh Gaussian" in text and "assume_independent" not in text
    assert "assume_independent" not in signature(function).parameters


# -- the operation that is meant -------------------------------------------------------------------


CALCULI: dict[str, Callable[[kc.Network], Any]] = {
    "c_map": lambda net: c_map(net)(0.5),
    "expression": lambda net: c_map(net).expr,
    "ball": lambda net: c_map(net).ball(0.5),
    "ntk": lambda net: kc.ntk(net)(0.5),
    "gradients": kc.gradients,
    "moments": kc.moments,
    "fluctuations": kc.fluctuations,
    "scaling": kc.scaling,
    "smoothness": lambda net: kc.smoothness(net, radius=1.0),
    "slopes": kc.slope_polynomial,
    "maxima": lambda net: kc.maximal_slope(net)(1.5),
    "large_batch": large_batch,
    "learnable": learnable_kernel,
}


JOINED = (
    "dense",
    "dense, two activations in a row",
    "GroupNorm of joined maps",
    "groups of joined maps",
)


@pytest.mark.parametrize("name", JOINED)
def test_messages_speak_of_operations_that_the_network_has(name: str) -> None:
    net = networks("relu")[name]
    assert not net.nodes_of(Sum) and not net.nodes_of(Product)
    for call in [
        *CALCULI.values(),
        *(lambda net, method=method: kc.shape(net, "tanh", method=method) for method in METHODS),
    ]:
        text = outcome(call, net)
        assert "addend" not in text and "factors" not in text, text
        told = text.replace("a Sum of a shortcut and a deeper branch", "")
        assert not re.search(r"\bSum\b", told), text
