"""The one-page report, as far as Python makes it.

Tables, programs, escaping, sizes, refusals, files, command line.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import command_words
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.lab.report.program import compiled
from kcalc.lab.report.replay import check, run

L, A = kc.layers, kc.architectures


def data_of(page: Any) -> dict[str, Any]:
    """What the page's program reads."""
    pattern = r'<script type="application/json" id="data">(.*?)</script>'
    return json.loads(re.findall(pattern, page.html, re.DOTALL)[0])


def test_programs_refuse_what_they_do_not_know() -> None:
    network = wired(
        ("x", L.Input()),
        ("w", L.Affine(), "x"),
        ("p", L.Nonlinear("relu"), "w"),
        ("s", L.Sum(), "w p"),
        ("o", L.Affine(), "s"),
    )
    kc.c_map(network)
    with refused("share weights"):
        check(compiled(network), network)
    with refused("symbols"):
        compiled(A.vanilla(2, sigma_w=sp.Symbol("s", positive=True)))
    assert "share weights" in kc.report(network).html


# -- the page --------------------------------------------------------------------------------------


def test_repr_and_saving(tmp_path: Path) -> None:
    report = kc.report(A.vanilla(6, activation="tanh"), name="six layers")
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
        ("f", L.Nonlinear("relu"), "w"),
        ("a", L.Affine(), "f"),
        ("g", L.Nonlinear("tanh"), "w"),
        ("b", L.Affine(), "g"),
    )


def test_methods_and_targets() -> None:
    network = A.vanilla(9, activation="tanh")
    assert "zeta = 1.3" in kc.report(network, method="dks", zeta=1.3).html
    shaped = kc.report(network, activation="softplus", method="tat", tau=0.2).html
    assert "TAT" in shaped and "activation softplus" in shaped
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"method": "magic"}, "unknown shaping method"),
        ({"zeta": 0.5}, "zeta must be > 1"),
        ({"speed": 3}, "unknown target"),
        ({"zeta": True}, "zeta"),
        ({"activation": "nope"}, "unknown activation"),
        ({"activation": 5}, "activation must be a name"),
        ({"name": 3}, "name must be a string"),
    ]
    for options, words in wrong:
        with refused(words):
            kc.report(network, **options)


# -- what the page must not claim ------------------------------------------------------------------


def test_nothing_stands_in_for_activations_without_tables() -> None:
    found = data_of(kc.report(A.vanilla(3, "sign")))["explorer"]
    assert found["own"] == "sign" and "jumps" in found["choices"][0]["reason"]
    assert "no table for sign" in found["notes"]["raw"]


def test_outputs_are_named() -> None:
    found = kc.report(two_heads())
    for words in (
        "These figures are for the output b.",
        "The figures are for the output b;",
        "Variance of log q at the output b",
        "orthogonal inputs at b",
    ):
        assert words in found.html


def test_sums_without_weights_are_counted_and_have_no_shortcut_weight() -> None:
    ends = (L.Nonlinear("tanh"), L.Affine())
    branch = kc.chain(*ends)
    weights, none = (kc.repeat(kc.residual(branch, *weight), 3) for weight in ((0.8,), ()))
    both, weighted, plain = (
        kc.report(kc.chain(L.Input(), L.Affine(), *blocks, *ends))
        for blocks in ((weights, kc.residual(kc.chain(branch, L.Affine()))), (weights,), (none,))
    )
    said = "have no pair of weights, so they do not change"
    assert f"Before shaping, 1 of 2 sums {said}" in both.html and said not in weighted.html
    hints = [data_of(page)["explorer"]["shortcut"]["hint"] for page in (weighted, plain)]
    assert ["only the 'after' column" in hint for hint in hints] == [False, True]


def test_products_have_a_page() -> None:
    network = A.gated_mlp(2)
    found = kc.report(network)
    assert "zeta is 3.375 here" in found.html and "adds the slopes of its factors" in found.html
    theta = np.array([0.1, 1.0, 2.5])
    (state,) = run(compiled(network), 2 * np.sin(theta / 2) ** 2)
    expected = kc.c_map(network).gap_at_angle(theta)
    assert np.allclose(state.whole()[1], expected, rtol=1e-9, atol=1e-14)


def test_large_networks_leave_out_finite_widths() -> None:
    assert "concatenations" in kc.report(A.densenet(14, activation="relu")).refused["fluctuations"]


@pytest.mark.parametrize("path", ["", ".", np.array([[1, 2]])])
def test_wrong_paths(path: Any) -> None:
    words = "path|file|folder" if isinstance(path, str) else "example_inputs="
    with refused(words):
        kc.report(A.vanilla(2), path)


def test_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = "report vanilla-5 --activation tanh --zeta 1.4 -o r.html"
    assert "wrote r.html" in command_words.run(capsys, line).out
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert f"kcalc {line}" in text and "zeta = 1.4" in text
    for options, words in (
        ("vanilla-5 -o no/r.html", "its folder does not exist"),
        ("vanilla-5 --zeta 2 --eta .5", "not both"),
    ):
        assert words in command_words.refused(capsys, f"report {options}")
    assert os.listdir(tmp_path) == ["r.html"]
    kc.save_json(A.vanilla(2, activation="erf"), "net.json")
    command_words.run(capsys, "report net.json")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>net.json</h1>" in text and "How the model was read" in text and "erf" in text


def test_a_page_of_an_activation_with_a_symbol() -> None:
    symbol = sp.Symbol("a", positive=True)
    assert "leaky_relu" in kc.report(A.vanilla(2, kc.activations.leaky_relu(symbol))).html
