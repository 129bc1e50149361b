"""Reports, kernels and refusals of networks over tokens: the page, the command line, the words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_words import run
from refusals import refused
from test_report import data_of
from wiring import attending, wired

import kcalc as kc

L, A = kc.layers, kc.architectures


def test_ids_have_a_page() -> None:
    page = kc.report(A.gpt2(1, causal=False), tokens=np.array([[1, 2, 2, 3], [1, 2, 4, 5]]))
    found = data_of(page)["tokens"]
    assert found["tokens"][1] == pytest.approx(1 / 12) and found["c"][1] == 0.5
    assert "exchangeable tokens" in page.refused["kernel before"]


@pytest.mark.parametrize(
    ("network", "chosen"),
    [
        (A.gpt2(1, causal=False), 128),
        (A.bert(1, length=10), 10),
    ],
)
def test_without_tokens_a_page_chooses_their_number(network: kc.Network, chosen: int) -> None:
    assert f"{chosen} tokens (a number chosen for this page)" in kc.report(network).html


def test_the_page_of_an_attention_with_two_outputs() -> None:
    heads = [("y", L.Affine(sigma_w=2.0), "x"), ("z", L.Affine(), "a")]
    net = wired(*attending(), *heads, outputs=["y", "z"])
    page = kc.report(net, tokens=1, method="dks")
    assert "Maps and gradients refer to the output &#39;y&#39;." in page.html
    assert "DKS, which does not support attention, but node &#39;a&#39; attends" in page.html
    assert "Each input has one token with q = 1; any two" in page.html
    assert "each input has one token, or its tokens are equal along the stream" in page.html
    assert data_of(page)["tokens"]["tokens"] == [None]


def test_blocks_that_can_be_stacked_have_the_fixed_points_of_their_token_map() -> None:
    block = wired(*attending(), ("output", L.Affine()), ("sum", L.Sum(), "x output"))
    page = kc.report(block, tokens=8)
    assert "Fixed points of the token map: 1 (slope 0.5)" in page.html


def test_tokens_stay_the_target_of_networks_that_mix_them() -> None:
    tokens = np.exp(-1.5 * np.abs(np.subtract.outer(np.arange(4), np.arange(4))))
    net = A.transformer(2, kc.token_mixing.exponential(4, [1.0, 0.5], start=1.5), "gelu")
    page = kc.report(net, tokens=tokens, token_rows="rescale", method="dks", zeta=1.5)
    assert "shaping" not in page.refused and data_of(page)["tokens"] is None


def test_tokens_that_cannot_be_are_refused() -> None:
    for options in ({"tokens": 0}, {"tokens": 3, "token_cosine": -0.9}):
        with refused("token"):
            kc.report(A.bert(1), **options)


# -- the command line ------------------------------------------------------------------------------


def test_kernels_over_tokens_are_printed_with_both_modes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = run(capsys, "ntk bert-1 --tokens 8 --layers").out
    K, g = kc.ntk(A.bert(1), tokens=8), kc.gradients(A.bert(1), tokens=8)
    assert g.mean is not None
    assert f"{float(K(1.0)):.10g}" in out and f"{g.mean['embedding_norm']:.6g}" in out
    assert f"{float(K.layers['block_1.keys'](1.0)):.8g}" in out and "difference mode" in out


def test_a_report_over_tokens_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, path = "report bert-1 --tokens 8 --token-cosine 0.5 -o", tmp_path / "page.html"
    assert "wrote" in run(capsys, f"{line} {path}").out
    assert f"kcalc {line} page.html" in path.read_text(encoding="utf-8")


def test_every_other_shaping_method_refuses_attention() -> None:
    for method in set(kc.shaping.METHODS) - {"edge"}:
        with pytest.raises(kc.NoRule, match="attends over tokens, and only method='edge' shapes"):
            kc.shape(A.bert(1), method=method)


def test_sampled_gradients_are_printed_with_their_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = run(capsys, "maps gpt2-1 --tokens 6").out
    gradients: Any = kc.gradients(A.gpt2(1), tokens=6)
    node, rows = "block_1.attend.sum", printed.partition("difference mode\n")[2].splitlines()
    (row,) = (line for line in rows if line.split()[:1] == [node])
    _, _, *values = re.split(" {2,}", row.strip())
    for value, name in zip(values, ("mean", "difference"), strict=True):
        number, error = map(float, value.split(" +- "))
        assert number == pytest.approx(getattr(gradients, name)[node], rel=1e-4)
        assert error == pytest.approx(gradients.errors[name][node], rel=0.5)
