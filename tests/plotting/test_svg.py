"""The SVG of a network: well-formed whatever nodes are called, everything drawn once, nothing on
top of anything else.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any
from xml.dom import minidom

import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import Network
from kcalc.foundation.templates import clean
from kcalc.network import architectures
from kcalc.plotting.svg import drawn_nodes, network_summary, network_svg, text_width

L = kc.layers
Element = Any


def parallel(branches: int) -> Network:
    steps: list[Any] = [("x", L.Input(), ())]
    for i in range(branches):
        steps += [
            (f"a{i}", L.Affine(), ("x",)),
            (f"f{i}", L.Nonlinear("tanh"), (f"a{i}",)),
            (f"b{i}", L.Affine(), (f"f{i}",)),
        ]
    return Network.from_steps([*steps, ("s", L.Sum(), tuple(f"b{i}" for i in range(branches)))])


def residual(weight: Any = 0.6) -> Network:
    branch = kc.chain(L.Nonlinear("tanh"), L.Affine(64))
    return kc.chain(
        L.Input(64), L.Affine(64), kc.residual(branch, weight), L.Nonlinear("tanh"), L.Affine(10)
    )


def parsed(net: Network, **options: Any) -> Element:
    return minidom.parseString(network_svg(net, **options)).documentElement


def of_class(svg: Element, name: str) -> list[Element]:
    return [g for g in svg.getElementsByTagName("g") if name in g.getAttribute("class").split()]


def rectangles(svg: Element) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of the boxes and circles of nodes."""
    found = []
    for node in of_class(svg, "node"):
        for box in node.getElementsByTagName("rect"):
            x, y, width, height = (
                float(box.getAttribute(name)) for name in ("x", "y", "width", "height")
            )
            found.append((x, y, x + width, y + height))
        for disc in node.getElementsByTagName("circle"):
            x, y, r = (float(disc.getAttribute(name)) for name in ("cx", "cy", "r"))
            found.append((x - r, y - r, x + r, y + r))
    return found


NETS = {
    "residual": residual,
    "densenet": lambda: architectures.densenet(12),
    "forty branches": lambda: parallel(40),
    "resnet": lambda: architectures.resnet_v2(152, shortcut_weight=0.9),
    "alexnet": architectures.alexnet,
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("fold", [True, False])
def test_nodes_stand_apart_on_the_page_with_their_texts_inside(name: str, fold: bool) -> None:
    net = NETS[name]()
    svg = parsed(net, fold=fold)
    width, height = float(svg.getAttribute("width")), float(svg.getAttribute("height"))
    boxes = rectangles(svg)
    assert len(boxes) == (drawn_nodes(net) if fold else len(net))
    for left, top, right, bottom in boxes:
        assert left >= 0 and top >= 0 and right <= width and bottom <= height
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)
    for node in of_class(svg, "node"):
        text = node.getElementsByTagName("text")[0].firstChild.data
        box = node.getElementsByTagName("rect")
        assert not box or text_width(text) * 124 <= float(box[0].getAttribute("width"))
    edges = {
        (g.getAttribute("data-from"), g.getAttribute("data-to"))
        for g in of_class(svg, "edge")
        if g.hasAttribute("data-from")
    }
    if not fold:
        assert edges == {(str(a), str(b)) for a, b in net.graph.edges}


def test_repeated_blocks_are_framed_once_with_their_number() -> None:
    net = architectures.resnet_v2(152, shortcut_weight=0.9)
    svg = parsed(net)
    frames = of_class(svg, "block")
    assert [frame.getAttribute("data-count") for frame in frames] == ["2", "7", "35", "2"]
    assert [frame.getElementsByTagName("text")[0].firstChild.data for frame in frames] == [
        "×2",
        "×7",
        "×35",
        "×2",
    ]
    total = sum(int(node.getAttribute("data-count") or 1) for node in of_class(svg, "node"))
    assert total == len(net)
    assert not of_class(parsed(net, fold=False), "block")


def test_skips_are_told_from_other_edges() -> None:
    skips = [
        (g.getAttribute("data-from"), g.getAttribute("data-to"))
        for g in of_class(parsed(residual()), "skip")
    ]
    assert skips == [("affine_1", "sum_1")]


HOSTILE = '<script>alert("1")</script> & \x00 \uffff ]]> $\\frac'


def test_hostile_names_are_texts() -> None:
    net = wired(
        (HOSTILE, L.Input()),
        ("漢字のノード" * 9, L.Affine(), (HOSTILE,)),
        ("t\n\t\u202e", L.Nonlinear("tanh"), ("漢字のノード" * 9,)),
        ("o'\"", L.Affine(), ("t\n\t\u202e",)),
        (("a", 1), L.Affine(), ("t\n\t\u202e",)),
    )
    for text in (
        network_svg(net),
        network_svg(net, interactive=True, groups={HOSTILE: [HOSTILE]}),
        net._repr_html_(),
    ):
        assert "<script" not in text and "\x00" not in text
        text.encode("utf-8")
    svg = parsed(net)
    assert next(node.getAttribute("data-node") for node in of_class(svg, "node")).startswith(
        "<script>"
    )
    assert clean("a\x07b") == "a\ufffdb"


def test_it_is_accessible_and_has_no_ids() -> None:
    text = network_svg(residual())
    svg = minidom.parseString(text).documentElement
    assert svg.getAttribute("role") == "img" and "7 nodes" in svg.getAttribute("aria-label")
    assert (
        svg.getElementsByTagName("title")[0].firstChild.data
        and svg.getElementsByTagName("desc")[0].firstChild.data
    )
    assert not re.search(r"\sid=", text) and "url(" not in text
    assert text == network_svg(residual())
    nodes = of_class(parsed(residual(), interactive=True), "node")
    assert all(
        node.getAttribute("tabindex") == "0" and node.getAttribute("aria-label") for node in nodes
    )


def test_colours_are_those_of_the_page() -> None:
    text = network_svg(residual())
    assert "currentColor" in text and "--kcalc-affine" in text
    assert not re.search(r"(fill|stroke):\s*(black|white|#000|#fff)\b", text)


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


def test_deep_chains_cost_what_their_blocks_do() -> None:
    net = architectures.vanilla(5000)
    assert len(network_svg(net)) < 20_000
    assert drawn_nodes(net) == 4
    assert "5000 Nonlinear" in network_summary(net)
