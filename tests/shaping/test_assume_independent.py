"""Shaping of networks with correlated feature maps as if they were independent."""

from __future__ import annotations

import re

import pytest
from wiring import wired

import kcalc as kc
from kcalc.shaping import METHODS

L = kc.layers


def depthwise() -> kc.Network:
    return kc.chain(
        L.Input(8),
        L.Affine(64),
        L.Nonlinear("relu"),
        L.Affine(64, kernel=3, groups=64),
        L.Nonlinear("relu"),
        L.Affine(10),
    )


def squeezed() -> kc.Network:
    """A block of squeeze and excitation behind a depthwise convolution."""
    return wired(
        ("x", L.Input(8)),
        ("a", L.Affine(64), "x"),
        ("r", L.Nonlinear("relu"), "a"),
        ("d", L.Affine(64, kernel=3, groups=64), "r"),
        ("r2", L.Nonlinear("relu"), "d"),
        ("s1", L.Affine(16), "r2"),
        ("r3", L.Nonlinear("relu"), "s1"),
        ("s2", L.Affine(64), "r3"),
        ("g", L.Nonlinear("sigmoid"), "s2"),
        ("p", L.Product(), "r2 g"),
        ("o", L.Affine(10), "p"),
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("build", [depthwise, squeezed])
def test_no_refusal_advises_the_option_in_vain(method: str, build: object) -> None:
    """Where a refusal advises an option or a method, that is not refused."""
    net = build()  # pyright: ignore[reportCallIssue]
    try:
        kc.shape(net, "tanh", method)
        return
    except kc.KcalcError as error:
        text = str(error)
    if "assume_independent" not in text:
        return
    assert method != "geometric" or "method=" in text
    other = re.search(r"method='(\w+)'", text)
    zeta = re.search(r"zeta=([\d.]+)", text)
    given = {"zeta": float(zeta[1])} if zeta else {}
    kc.shape(net, "tanh", other[1] if other else method, assume_independent=True, **given)


def test_geometric_has_no_such_option() -> None:
    with pytest.raises(kc.KcalcError, match="assume_independent"):
        kc.shape(depthwise(), method="geometric", assume_independent=True)
    with pytest.raises(kc.KcalcError, match="assume_independent must be True or False"):
        kc.shape(depthwise(), assume_independent="yes")  # pyright: ignore[reportArgumentType]
