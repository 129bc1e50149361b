"""Gated MLPs, ConvNeXt-like stacks and transformers without shortcuts.

Built, shaped, and measured on random networks in NumPy.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from refusals import refusals, refused

import kcalc as kc
from kcalc import chain
from kcalc.network import token_mixing as tm
from kcalc.network.layers import Affine, Input, Nonlinear, TokenMix

A = kc.architectures
Array = np.ndarray
T = 5
TOKENS = np.exp(-np.abs(np.subtract.outer(np.arange(T), np.arange(T))))


# -- builders --------------------------------------------------------------------------------------


test_builders_refuse = refusals(
    [
        (lambda: A.gated_mlp(0), "blocks must be"),
        (lambda: A.gated_mlp(2, norm="batch"), "unknown norm"),
        (lambda: A.convnext(2, features=None), "features must be"),
        (lambda: A.transformer(2, [np.eye(3)]), "1 matrices for 2 blocks"),
        (lambda: A.transformer(2, np.eye(3), gated=1), "gated must be"),
    ]
)


# -- shaping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["keep", "rescale"])
def test_mixing_needs_the_cosines_of_the_tokens(rows: str):
    net = A.transformer(4, tm.exponential(T, [0.8, 0.6, 0.4, 0.3], start=1.0))
    with refused(r"TokenMix.*'tokenmix_1'.*permutation.*tokens=.*\(a.*array\).*value_skip"):
        kc.shape(net)
    with refused("is not a permutation"):
        kc.shape(net, method="he")
    # the first matrix fits the tokens; behind the first activation they have other cosines
    if rows == "keep":
        with refused(r"\d.*TokenMix.*'tokenmix_2'.*.*preserving\(source.*target\)"):
            kc.shape(net, tokens=TOKENS)
        return
    s = kc.shape(net, tokens=TOKENS, token_rows=rows)
    assert max(s.residuals.values()) < 1e-12 and s.targets and "Q(1) at tokens" in s.residuals
    assert any("tokenmix_4: rows divided" in change for change in s.changes)
    assert [a.kind for a in s.assumptions if "tokens" in a.text or "mixing" in a.text] == [
        "exact",
        "heuristic",
    ]
    json.dumps(s.to_dict())
    axes = [ax for ax in s.plot().axes if ax.get_label() != "<colorbar>"]
    assert len(axes) == 3 and "at the output" in axes[2].get_title(loc="left") + axes[2].get_title()
    with refused("3 Axes, one per panel, got 1"):
        s.plot(ax=axes[:1])
    assert s.compare(s) is not None and "Q(1) at tokens" in s._repr_html_()


test_tokens_that_are_none = refusals(
    [
        ({"tokens": np.eye(T + 1)}, "mixes 5 tokens, but its input has 6"),
        ({"token_rows": "rescale"}, "needs the cosines"),
        ({"tokens": TOKENS, "token_rows": "scale"}, "token_rows"),
        ({"tokens": -np.ones((T, T)) + 2 * np.eye(T)}, "positive semidefinite"),
    ],
    lambda options: kc.shape(A.transformer(2, tm.value_skip(T, 1, 0.1)), **options),
)


def test_tokens_without_mixing_and_of_other_images_are_refused():
    with refused("has no TokenMix"):
        kc.shape(A.vanilla(3), "tanh", tokens=TOKENS)
    image = chain(
        Input(3, (2, 2)),
        Affine(),
        TokenMix(tm.value_skip(4, 1, 0.1)),
        Nonlinear("tanh"),
        Affine(),
    )
    with refused(r"5.*4.*locations.*\(2.*2\)"):
        kc.shape(image, tokens=TOKENS)
    kc.shape(image, tokens=np.eye(4) * 0.5 + 0.5, token_rows="rescale")


# -- measured --------------------------------------------------------------------------------------


def weights(rng: np.random.Generator, fan_in: int) -> Array:
    return rng.standard_normal((fan_in, fan_in), dtype=np.float32) / np.float32(np.sqrt(fan_in))


def cosines(h: Array) -> Array:
    h = h.astype(float)
    return h[1:] @ h[0] / np.linalg.norm(h[0]) / np.linalg.norm(h[1:], axis=1)


def test_a_skipless_transformer_measures_its_token_cosines():
    """The first token of one input against its other tokens, and against the tokens of a second
    input of cosine .6 with it.
    """
    width = 256
    matrices = tm.exponential(T, np.linspace(1, 0.3, 4)[1:], start=1.0)
    s = kc.shape(A.transformer(3, matrices, "tanh"), zeta=1.5, tokens=TOKENS, token_rows="rescale")
    k: Any = s.constants["tanh"]
    mixes: list[Any] = [s.network.layer(node) for node in s.network.nodes_of(TokenMix)]
    root = np.linalg.cholesky(TOKENS)
    both = np.stack([np.c_[root, 0 * root], np.c_[0.6 * root, 0.8 * root]]) * np.sqrt(2 * T)
    last = s.network.outputs[0]
    other = kc.c_map(s.network, spatial="exact", image_shape=(T,)).c_values(
        both[0], both[1], pairs=True
    )[last][0]
    rng, found = np.random.default_rng(3), []
    for _ in range(16):
        embedding = np.linalg.qr(rng.normal(size=(width, 2 * T)))[0].T * np.sqrt(width / (2 * T))
        h = (both @ embedding).astype(np.float32) @ weights(rng, width)
        for mix in mixes:
            h = mix.array.astype(np.float32) @ (h @ weights(rng, width)) @ weights(rng, width)
            u = k.gamma * (np.tanh(k.alpha * (h @ weights(rng, width)) + k.beta) + k.delta)
            h = u.astype(np.float32) @ weights(rng, width)
        found.append(cosines((h @ weights(rng, width)).reshape(2 * T, width)))
    expected, rows = np.concatenate([s.token_cosines[last][0, 1:], other]), np.array(found)
    errors = rows.std(0, ddof=1) / np.sqrt(len(rows))
    assert (np.abs(rows.mean(0) - expected) < 5 * errors).all()
