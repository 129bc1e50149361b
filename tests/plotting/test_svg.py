"""The SVG of a network: well-formed whatever nodes are called, everything drawn once, nothing on
top of anything else.
"""

from __future__ import annotations

from typing import Any
from xml.dom import minidom

import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc import Network
from kcalc.plotting.svg import network_svg

L = kc.layers
Element = Any


def residual(weight: Any = 0.6) -> Network:
    branch = kc.chain(L.Nonlinear("tanh"), L.Affine(64))
    return kc.chain(
        L.Input(64), L.Affine(64), kc.residual(branch, weight), L.Nonlinear("tanh"), L.Affine(10)
    )


def parsed(net: Network, **options: Any) -> Element:
    return minidom.parseString(network_svg(net, **options)).documentElement


def of_class(svg: Element, name: str) -> list[Element]:
    return [g for g in svg.getElementsByTagName("g") if name in g.getAttribute("class").split()]


def test_groups_are_drawn_behind_nodes_in_the_order_of_their_size() -> None:
    net = residual()
    svg = parsed(net, groups=kc.subnetworks(net))
    groups = of_class(svg, "group")
    assert [group.getAttribute("data-group") for group in groups] == ["1", "2"]
    assert "affine_1" in groups[1].getElementsByTagName("title")[0].firstChild.data
    order = [g.getAttribute("class").split()[0] for g in svg.getElementsByTagName("g")]
    assert order.index("node") > max(i for i, kind in enumerate(order) if kind == "group")


def test_labels_and_weights() -> None:
    w = sp.Symbol("sigma_w", positive=True)
    text = network_svg(residual(w / 2))
    assert "σ_w/2" in text
    assert ">branch<" in network_svg(residual(), labels={"affine_2": "branch"})
    bare = parsed(residual(), labels=False)
    assert not [t for node in of_class(bare, "node") for t in node.getElementsByTagName("text")]


def test_bad_arguments_are_refused() -> None:
    net = residual()
    for options, words in (
        ({"fold": 1}, "fold must be"),
        ({"labels": "all"}, "labels must be"),
        ({"labels": {"nobody": "x"}}, "nobody"),
        ({"groups": {"g": ["nobody"]}}, "nobody"),
        ({"columns": 0}, "columns"),
        ({"interactive": None}, "interactive"),
    ):
        with refused(words):
            network_svg(net, **options)  # pyright: ignore[reportArgumentType]
    with refused("expected a network"):
        network_svg("net")
