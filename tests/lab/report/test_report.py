"""The one-page report, as far as Python makes it.

Tables, programs, escaping, sizes, refusals, files, command line.
"""

from __future__ import annotations

import json
import math
import os
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import sympy as sp
from wiring import wired

import kcalc as kc
from kcalc.cli import main
from kcalc.lab.report.program import compiled
from kcalc.lab.report.replay import check, run

L, A = kc.layers, kc.architectures
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&{{ data }}{% if %}\u2028\x00"


class Reader(HTMLParser):
    """What a browser would make of a page: elements, attributes, and the data script."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.data = ""
        self.script: str | None = None
        self.stack: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.script = dict(attrs).get("type") if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self.script == "application/json":
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        self.script = None


def page_of(network: Any, **options: Any) -> tuple[Any, Reader]:
    found = kc.report(network, **options)
    return found, Reader(found.html)


@pytest.fixture(scope="module")
def vanilla() -> tuple[Any, Reader]:
    return page_of(A.vanilla(6, activation="tanh"), name="six layers")


# -- tables ----------------------------------------------------------------------------------------


# -- programs --------------------------------------------------------------------------------------


def test_programs_refuse_what_they_do_not_know() -> None:
    shared = nx.DiGraph()
    for name, layer in {
        "x": L.Input(),
        "w": L.Affine(),
        "p": L.Nonlinear(kc.activation("relu")),
        "s": L.Sum(),
        "o": L.Affine(),
    }.items():
        shared.add_node(name, layer=layer)
    shared.add_edges_from([("x", "w"), ("w", "p"), ("s", "o")])
    shared.add_edge("w", "s", slot=0)
    shared.add_edge("p", "s", slot=1)
    network = kc.Network(shared)
    kc.c_map(network)
    with pytest.raises(kc.KcalcError, match="share weights"):
        check(compiled(network), network)
    with pytest.raises(kc.KcalcError, match="symbols"):
        compiled(A.vanilla(2, sigma_w=sp.Symbol("s", positive=True)))
    found = kc.report(network)
    assert "share weights" in found.html


# -- the page --------------------------------------------------------------------------------------


def test_repr_and_saving(vanilla: tuple[Any, Reader], tmp_path: Path) -> None:
    report, _ = vanilla
    assert repr(report).startswith("NetworkReport('six layers', ") and "\n" not in repr(report)
    assert "not written" in report._repr_html_()
    target = tmp_path / "a<b>.html"
    target.write_text("old")
    saved = report.save(target)
    assert saved.path == target and target.read_text(encoding="utf-8") == report.html
    assert "<b>.html" not in saved._repr_html_() and os.listdir(tmp_path) == [target.name]
    assert stat.S_IMODE(target.stat().st_mode) & 0o600 == 0o600


def two_heads() -> kc.Network:
    return wired(
        ("x", L.Input()),
        ("w", L.Affine(), "x"),
        ("f", L.Nonlinear(kc.activation("relu")), "w"),
        ("a", L.Affine(), "f"),
        ("g", L.Nonlinear(kc.activation("tanh")), "w"),
        ("b", L.Affine(), "g"),
    )


def test_methods_and_targets() -> None:
    network = A.vanilla(9, activation="tanh")
    assert "zeta = 1.3" in kc.report(network, method="dks", zeta=1.3).html
    assert "TAT" in kc.report(network, method="tat", tau=0.2).html
    refused: list[tuple[dict[str, Any], str]] = [
        ({"method": "magic"}, "unknown shaping method"),
        ({"zeta": 0.5}, "zeta must be > 1"),
        ({"zeta": math.nan}, "zeta"),
        ({"method": "tat", "eta": 1.5}, "eta must be"),
        ({"speed": 3}, "unknown target"),
        ({"zeta": True}, "zeta"),
        ({"activation": "nope"}, "unknown activation"),
        ({"activation": 5}, "activation must be a name"),
        ({"name": 3}, "name must be text"),
    ]
    for options, words in refused:
        with pytest.raises(kc.KcalcError, match=words):
            kc.report(network, **options)


# -- what the page must not claim ------------------------------------------------------------------


def explored(network: Any, **options: Any) -> dict[str, Any]:
    """The data of the sliders."""
    return json.loads(page_of(network, **options)[1].data)["explorer"]


@pytest.mark.parametrize("phi", ["sign", "heaviside"])
def test_nothing_stands_in_for_activations_without_tables(phi: str) -> None:
    found = explored(A.vanilla(3, phi))
    assert found["own"] == phi and "jumps" in found["choices"][0]["reason"]
    assert f"no table of {phi}" in found["notes"]["raw"]


def test_outputs_are_named() -> None:
    found = kc.report(two_heads())
    for words in (
        "These figures are for the output b.",
        "The figures are for the output b;",
        "Variance of log q at the output b",
        "orthogonal inputs at b",
    ):
        assert words in found.html


def test_plain_sums_have_no_shortcut_weight() -> None:
    branch = kc.chain(L.Input(), L.Nonlinear(kc.activation("tanh")), L.Affine())
    ends = (L.Nonlinear(kc.activation("tanh")), L.Affine())
    plain = kc.chain(L.Input(), L.Affine(), kc.repeat(kc.residual(branch), 3), *ends)
    weighted = kc.chain(L.Input(), L.Affine(), kc.repeat(kc.residual(branch, 0.8), 3), *ends)
    assert "only the 'after' column" in explored(plain)["shortcut"]["hint"]
    assert "column" not in explored(weighted)["shortcut"]["hint"]


def test_products_have_a_page() -> None:
    network = A.gated_mlp(2)
    found = kc.report(network)
    assert "zeta is 3.375 here" in found.html and "adds the slopes of its factors" in found.html
    theta = np.array([0.1, 1.0, 2.5])
    (state,) = run(compiled(network), 2 * np.sin(theta / 2) ** 2)
    assert np.allclose(
        state.whole()[1], kc.c_map(network).gap_at_angle(theta), rtol=1e-9, atol=1e-14
    )


def test_large_networks_leave_out_finite_widths() -> None:
    assert "concatenations" in kc.report(A.densenet(14, activation="relu")).refused["fluctuations"]


@pytest.mark.parametrize("given", [None, 3, "no-such-file.json", [1, 2], object()])
def test_wrong_objects(given: Any) -> None:
    with pytest.raises(kc.KcalcError):
        kc.report(given)


@pytest.mark.parametrize("path", ["/no/such/folder/report.html", "", 3, ".", np.array([[1, 2]])])
def test_wrong_paths(path: Any) -> None:
    words = "path|file|folder" if isinstance(path, str) else "example_inputs="
    with pytest.raises(kc.KcalcError, match=words):
        kc.report(A.vanilla(2), path)


def test_models_are_read(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    kc.save_json(A.vanilla(3, activation="gelu", features=16), path)
    found = kc.report(path)
    assert "How the model was read" in found.html and "gelu" in found.html


def test_activation_replaces_all() -> None:
    found = kc.report(A.vanilla(4), activation="softplus")
    assert "activation softplus" in found.html


def test_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["report", "vanilla-5", "--activation", "tanh", "--zeta", "1.4", "-o", "r.html"]) == 0
    )
    assert "wrote r.html" in capsys.readouterr().out
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert (
        "kcalc report vanilla-5 --activation tanh --zeta 1.4 -o r.html" in text
        and "zeta = 1.4" in text
    )
    for arguments, words in (
        (["vanilla-5", "-o", "no/r.html"], "its folder does not exist"),
        (["vanila-5"], "unknown network"),
        (["vanilla-5", "--zeta", "0.5"], "zeta must be > 1"),
        (["vanilla-5", "--zeta", "2", "--eta", ".5"], "not both"),
        (["missing.json"], "missing.json"),
    ):
        assert main(["report", *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error and len(error.splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == ["r.html"]
    kc.save_json(A.vanilla(2, activation="erf"), "net.json")
    assert main(["report", "net.json"]) == 0
    assert "<h1>net.json</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_page_of_an_activation_with_a_symbol() -> None:
    symbol = sp.Symbol("a", positive=True)
    assert "leaky_relu" in kc.report(A.vanilla(2, kc.activations.leaky_relu(symbol))).html
