"""Gated MLPs, ConvNeXt-like stacks and transformers without shortcuts.

Built, shaped, and measured on random networks in NumPy.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from refusals import refused
from scipy import special

import kcalc as kc
from kcalc.network import token_mixing as tm

A, L = kc.architectures, kc.layers
Array = np.ndarray
T = 5
TOKENS = np.exp(-np.abs(np.subtract.outer(np.arange(T), np.arange(T))))
COSINES = np.array([-0.8, -0.3, 0.0, 0.3, 0.6, 0.9])


def even(blocks: int) -> float:
    """The shortcut weight with which the slope of a gated stack stays below e^psi."""
    return float(np.sqrt(blocks / (blocks + 1)))


# -- builders --------------------------------------------------------------------------------------


def test_gated_blocks_are_what_they_say():
    net = A.gated_mlp(3, "gelu", shortcut_weight=0.8, norm="rms", features=8, hidden=16)
    kinds = [type(layer).__name__ for _, layer, _ in net.steps()]
    block = ["RMSNorm", "Affine", "Nonlinear", "Affine", "Product", "Affine", "Sum"]
    assert sorted(kinds) == sorted(["Input", "Affine", *block * 3, "RMSNorm", "Affine"])
    psi = kc.symbols.psi
    bare = A.gated_mlp(3, "gelu", shortcut_weight=0.8)
    assert kc.slope_polynomial(bare).subs(psi, 1.3) == pytest.approx((0.64 + 0.36 * 2.3) ** 3)
    assert kc.slope_polynomial(A.gated_mlp(50, shortcut_weight=even(50))).subs(psi, 1.0) < np.e
    assert A.gated_mlp(2, shortcut_weight=None).nodes_of(L.Sum)


def test_a_convnext_has_its_parts():
    net = A.convnext(2, features=8, classes=10, image_shape=(32, 32))
    depthwise = [
        layer for _, layer, _ in net.steps() if isinstance(layer, L.Affine) and layer.groups == 8
    ]
    assert len(depthwise) == 2 and all(layer.kernel == 7 for layer in depthwise)
    assert [net.features[node] for node in net.nodes_of(L.Nonlinear)] == [32, 32]
    assert net.features[net.outputs[0]] == 10


def test_transformers_with_and_without_shortcuts():
    matrices = tm.exponential(T, [1.0, 0.5])
    bare = A.transformer(2, matrices)
    assert not bare.nodes_of(L.Sum) and [
        bare.layer(n).array.tolist() for n in bare.nodes_of(L.TokenMix)
    ] == [m.tolist() for m in matrices]
    full = A.transformer(
        2, matrices[0], "swish", gated=True, shortcut_weight=0.8, norm="layer", features=8
    )
    assert [len(full.nodes_of(kind)) for kind in (L.Sum, L.TokenMix, L.Product, L.LayerNorm)] == [
        4,
        2,
        2,
        5,
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: A.gated_mlp(0), "blocks must be"),
        (lambda: A.gated_mlp(True), "blocks must be"),
        (lambda: A.gated_mlp(2, norm="batch"), "unknown norm"),
        (lambda: A.convnext(2, features=None), "features must be"),
        (lambda: A.transformer(2, [np.eye(3)]), "1 matrices for 2 blocks"),
        (lambda: A.transformer(2, "eye"), "rectangular"),
        (lambda: A.transformer(2, np.eye(3), gated=1), "gated must be"),
    ],
)
def test_builders_refuse(call: Any, message: str):
    with refused(message):
        call()


# -- shaping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "zeta"),
    [
        (A.gated_mlp(50, shortcut_weight=even(50)), 4.0),
        (A.gated_mlp(50, "gelu", even(50), norm="rms"), 4.0),
        (A.convnext(50), 1.5),
        (A.transformer(50, tm.value_skip(T)), 1.5),
        (A.transformer(50, np.eye(T)[::-1], gated=True, shortcut_weight=0.99), 3.0),
    ],
)
def test_stacks_of_fifty_blocks_are_shaped(net: kc.Network, zeta: float):
    s = kc.shape(net, zeta=zeta)
    assert max(s.residuals.values()) < 1e-12
    assert s.values["C_f'(1)"] == pytest.approx(zeta, rel=1e-12)


def test_a_slope_that_gates_cannot_have_names_the_least_and_another_method():
    with pytest.raises(
        kc.UnreachableTarget,
        match=r"DKS cannot .*Product.*6\.37\d+e\+08.*method='normalisation'.*shortcut weights",
    ):
        kc.shape(A.gated_mlp(50))


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
    with refused("3 panels, got 1"):
        s.plot(ax=axes[:1])
    assert s.compare(s) is not None and "Q(1) at tokens" in s._repr_html_()


def test_rows_that_preserve_the_cosines_that_reach_them_pass():
    """Layer by layer: the cosines behind an activation are its C map of those before, by
    definition.
    """
    first = kc.shape(kc.chain(L.Affine(), A.transformer(3, tm.value_skip(T), "tanh")), zeta=1.3)
    local = first.constants["tanh"].transformed.c_map
    source, matrices = TOKENS, []
    for rate in (0.8, 0.5, 0.3):
        target = TOKENS**rate
        matrices.append(tm.preserving(source, target))
        source = local(target)
    net = kc.chain(L.Affine(), A.transformer(3, matrices, "tanh"))
    s = kc.shape(net, zeta=1.3, tokens=TOKENS)
    assert max(s.residuals.values()) < 1e-12
    np.testing.assert_allclose(s.token_cosines[s.network.outputs[0]], source, atol=1e-12)


def test_norms_of_the_input_leave_its_tokens_as_they_are():
    """A LayerNorm in front of everything.

    The tokens are taken to have channel mean 0, so that it changes nothing.
    """
    s = kc.shape(
        kc.chain(L.LayerNorm(), A.transformer(1, tm.preserving(TOKENS, TOKENS**0.5), "tanh")),
        zeta=1.5,
        tokens=TOKENS,
    )
    np.testing.assert_allclose(
        s.token_cosines[s.network.nodes_of(L.TokenMix)[0]], TOKENS**0.5, atol=1e-13
    )


def test_norms_before_activations_take_any_rows():
    net = A.transformer(3, tm.value_skip(T, 0.4, 0.9), "tanh", shortcut_weight=0.8, norm="rms")
    s = kc.shape(net, tokens=TOKENS, zeta=2)
    assert max(s.residuals.values()) < 1e-12


def test_tailored_activations_with_tokens():
    net = A.transformer(20, tm.exponential(T, np.linspace(1, 0.5, 20), start=1.0), "leaky_relu")
    s = kc.shape(net, method="tat", eta=0.8, tokens=TOKENS, token_rows="rescale")
    assert max(s.residuals.values()) < 1e-10
    smooth = kc.shape(net, "tanh", method="tat", tau=0.3, tokens=TOKENS, token_rows="rescale")
    assert max(smooth.residuals.values()) < 1e-10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": np.ones((2, 3))}, "tokens must be square"),
        ({"tokens": 2 * np.eye(T)}, "ones on its diagonal"),
        ({"tokens": np.eye(T + 1)}, "mixes 5 tokens, but its input has 6"),
        ({"token_rows": "rescale"}, "needs the cosines"),
        ({"tokens": TOKENS, "token_rows": "scale"}, "token_rows"),
        ({"tokens": -np.ones((T, T)) + 2 * np.eye(T)}, "positive semidefinite"),
    ],
)
def test_tokens_that_are_none(options: dict[str, Any], message: str):
    with refused(message):
        kc.shape(A.transformer(2, tm.value_skip(T, 1, 0.1)), **options)


def test_tokens_without_mixing_and_of_other_images_are_refused():
    with refused("has no TokenMix"):
        kc.shape(A.vanilla(3), "tanh", tokens=TOKENS)
    image = kc.chain(
        L.Input(3, (2, 2)),
        L.Affine(),
        L.TokenMix(tm.value_skip(4, 1, 0.1)),
        L.Nonlinear("tanh"),
        L.Affine(),
    )
    with refused(r"5.*4.*locations.*\(2.*2\)"):
        kc.shape(image, tokens=TOKENS)
    kc.shape(image, tokens=np.eye(4) * 0.5 + 0.5, token_rows="rescale")


# -- measured --------------------------------------------------------------------------------------


def pairs(width: int, rng: np.random.Generator) -> Array:
    """One vector and others of the cosines ``COSINES`` with it, all of mean square 1,
    (7, width).
    """
    base = np.linalg.qr(rng.normal(size=(width, len(COSINES) + 1)))[0].T * np.sqrt(width)
    return np.concatenate(
        [base[:1], COSINES[:, None] * base[:1] + np.sqrt(1 - COSINES[:, None] ** 2) * base[1:]]
    ).astype(np.float32)


def weights(rng: np.random.Generator, fan_in: int, fan_out: int) -> Array:
    return rng.standard_normal((fan_in, fan_out), dtype=np.float32) / np.float32(np.sqrt(fan_in))


def deviations(samples: list[Array], expected: Array) -> Array:
    """How many standard errors the means lie from what is expected."""
    rows = np.array(samples, dtype=float)
    return (rows.mean(0) - expected) / (rows.std(0, ddof=1) / np.sqrt(len(rows)))


def cosines(h: Array) -> Array:
    h = h.astype(float)
    return h[1:] @ h[0] / np.linalg.norm(h[0]) / np.linalg.norm(h[1:], axis=1)


def layer_norm(h: Array) -> Array:
    h = h - h.mean(-1, keepdims=True)
    return h / h.std(-1, keepdims=True)


SIZES = [
    (3, 256, 16),
    pytest.param(12, 512, 16, marks=pytest.mark.slow),
    pytest.param(50, 1024, 16, marks=pytest.mark.slow),
]
"""Blocks, width, draws.

The bias of finite width at 50 blocks, some .01 at width 1024, is below half of a standard error of
16 draws.
"""


@pytest.mark.parametrize(("blocks", "width", "draws"), SIZES)
def test_a_gated_stack_measures_its_c_map(blocks: int, width: int, draws: int):
    w = even(blocks)
    s = kc.shape(A.gated_mlp(blocks, "swish", w), zeta=4.0 if blocks > 3 else 2.8)
    k: Any = s.constants["swish"]
    rng, found = np.random.default_rng(1), []
    for _ in range(draws):
        h = pairs(width, rng) @ weights(rng, width, width)
        for _ in range(blocks):
            u = k.alpha * (h @ weights(rng, width, width)) + k.beta
            gate = k.gamma * (u * special.expit(u) + k.delta) * (h @ weights(rng, width, width))
            h = w * h + np.sqrt(1 - w * w) * (gate.astype(np.float32) @ weights(rng, width, width))
        found.append(cosines(h @ weights(rng, width, width)))
    assert np.abs(deviations(found, kc.c_map(s.network)(COSINES))).max() < 5


@pytest.mark.parametrize(("blocks", "width", "draws"), SIZES)
def test_a_convnext_stack_measures_its_c_map(blocks: int, width: int, draws: int):
    """Delta-initialised convolutions act at each location by itself, so that one location is
    followed.
    """
    s = kc.shape(A.convnext(blocks, "gelu", features=width, expansion=1, classes=width), zeta=1.5)
    k: Any = s.constants["gelu"]
    rng, found = np.random.default_rng(2), []
    for _ in range(draws):
        # the patches: any embedding of inputs of these cosines
        h = pairs(width, rng) @ weights(rng, width, width)
        for _ in range(blocks):
            u = (
                k.alpha
                * (
                    layer_norm(h * rng.standard_normal(width, dtype=np.float32))
                    @ weights(rng, width, width)
                )
                + k.beta
            )
            phi = k.gamma * (u * special.ndtr(u) + k.delta)
            h = np.float32(np.sqrt(0.5)) * (h + phi.astype(np.float32) @ weights(rng, width, width))
        found.append(cosines(layer_norm(h) @ weights(rng, width, width)))
    assert np.abs(deviations(found, kc.c_map(s.network)(COSINES))).max() < 5


@pytest.mark.parametrize(("blocks", "width", "draws"), SIZES)
def test_a_skipless_transformer_measures_its_token_cosines(blocks: int, width: int, draws: int):
    """The first token of one input against its other tokens, and against the tokens of a second
    input of cosine .6 with it.
    """
    matrices = tm.exponential(T, np.linspace(1, 0.3, blocks + 1)[1:], start=1.0)
    s = kc.shape(
        A.transformer(blocks, matrices, "tanh"), zeta=1.5, tokens=TOKENS, token_rows="rescale"
    )
    k: Any = s.constants["tanh"]
    mixes: list[Any] = [s.network.layer(node) for node in s.network.nodes_of(L.TokenMix)]
    root = np.linalg.cholesky(TOKENS)
    both = np.stack(
        [np.concatenate([root, 0 * root], axis=1), np.concatenate([0.6 * root, 0.8 * root], axis=1)]
    ) * np.sqrt(2 * T)
    last = s.network.outputs[0]
    other = kc.c_map(s.network, spatial="exact", image_shape=(T,)).c_values(
        both[0], both[1], pairs=True
    )[last][0]
    rng, found = np.random.default_rng(3), []
    for _ in range(draws):
        embedding = np.linalg.qr(rng.normal(size=(width, 2 * T)))[0].T * np.sqrt(width / (2 * T))
        h = (both @ embedding).astype(np.float32) @ weights(rng, width, width)
        for mix in mixes:
            h = (
                mix.array.astype(np.float32)
                @ (h @ weights(rng, width, width))
                @ weights(rng, width, width)
            )
            u = k.gamma * (np.tanh(k.alpha * (h @ weights(rng, width, width)) + k.beta) + k.delta)
            h = u.astype(np.float32) @ weights(rng, width, width)
        found.append(cosines((h @ weights(rng, width, width)).reshape(2 * T, width)))
    assert (
        np.abs(deviations(found, np.concatenate([s.token_cosines[last][0, 1:], other]))).max() < 5
    )
