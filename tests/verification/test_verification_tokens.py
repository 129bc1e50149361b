"""Networks over tokens measured against their maps, and the parts of that measurement against
enumeration.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc.network.tokens import Tokens
from kcalc.verification.inputs import InputPairs
from kcalc.verification.token_inputs import TokenPairs, over_tokens, token_shapes
from kcalc.verification.token_probes import token_statistics

L, A = kc.layers, kc.architectures


def small() -> Any:
    """One block over token ids."""
    net = A.gpt2(
        1, causal=False, features=64, heads=4, vocabulary=300, length=8, std=None
    )  # fmt: skip
    return kc.to_jax(net, weights="delta_gaussian", parameterization="ntk")


# -- parts -----------------------------------------------------------------------------------------


def test_sequences_have_exact_products():
    network = wired(
        ("x", L.Input(12)),
        ("ids", L.Input()),
        ("a", L.Affine(8), "x"),
        ("b", L.Embedding(8, 500), "ids"),
        ("c", L.Sum(), "a b"),
    )
    model = over_tokens(kc.to_jax(network, image_shape={"x": (4, 1)}), 4, 3)
    assert model.network.layer("b").vocabulary == 24  # 3 pairs of two sequences of 4 tokens
    shapes = token_shapes(model, 4)
    assert shapes == {"x": (4, 1, 12), "ids": (4, 1, 24)}
    cases = TokenPairs.over(InputPairs.of(network, [0.5, -0.3], 2.0, 3.0), Tokens(4, 0.2), None)
    cases.check(shapes)
    drawn = cases.draw(jax.random.key(0), model, shapes, 3)
    for node, length in (("x", 12), ("ids", 1)):
        x = np.asarray(drawn[node], float)[:, :, :, :, 0] / length**0.5
        assert x.shape == (2, 3, 2, 4, shapes[node][-1])
        for case, c in enumerate((0.5, -0.3)):
            pair = np.array([[2, c * 6**0.5], [c * 6**0.5, 3]])
            gram = np.kron(pair, np.full((4, 4), 0.2) + 0.8 * np.eye(4))
            for rows in x[case].reshape(3, 8, -1):
                np.testing.assert_allclose(rows @ rows.T, gram, atol=1e-5)
    assert not np.allclose(drawn["x"][0, 0], drawn["x"][0, 1])


@pytest.mark.parametrize("uniform", [True, False])
def test_statistics_of_tokens_are_means_over_pairs(uniform: bool):
    h = np.random.default_rng(1).normal(size=(2, 3, 2, 2, 2, 5))
    mean, variance = np.asarray(token_statistics(jnp.asarray(h), uniform), float)
    flat = h.reshape(2, 3, 2, 4, 5)  # case, pair, side, token, channel
    unit = flat / np.sqrt((flat**2).sum(-1, keepdims=True))
    q = (flat**2).mean(-1)
    across = (unit[:, :, 0] * unit[:, :, 1]).sum(-1)
    grams = unit @ np.swapaxes(unit, 3, 4)
    own = (grams.sum((3, 4)) - 4) / 12  # without the cosines of tokens to themselves
    sides = (q[:, :, 0], q[:, :, 1], across, own[:, :, 0], own[:, :, 1])
    rows = [row.reshape(2, -1) for row in ((q, across, own) if uniform else sides)]
    np.testing.assert_allclose(mean, [row.mean(-1) for row in rows], rtol=1e-5)
    np.testing.assert_allclose(variance, [row.var(-1) for row in rows], rtol=1e-4, atol=1e-7)


# -- whole measurements ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def check() -> Any:
    return kc.verify_kernels(small(), 0.5, tokens=4, token_cosine=0.2, draws=24, pairs=2)


def test_results_show_tokens(check: Any):
    said = json.loads(json.dumps(check.to_dict()))
    assert check.passed and (said["tokens"], said["token_cosine"]) == (4, 0.2)
    assert set(said["gradient_modes"]) == {"mean", "difference"}
    assert "token_cosine" in str(check) and "gradients, difference" in str(check)
    assert any("difference" in row for row in check.gradients.rows.rows)
    rows = check.gradients.to_dataframe()
    assert list(rows["mode"].unique()) == ["each token", "mean", "difference"]
    assert list(rows["mean"][rows["mode"] == "mean"]) == list(check.gradients.mean.mean)
    axes = check.plot().axes
    assert [ax.get_ylabel() for ax in axes] == ["$c$", "$q$", "token cosine"]
    plt.close("all")


test_bad_input = refusals(
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": 4, "token_cosine": -0.9}, "token_cosine must lie between"),
        ({"token_cosine": 0.1}, "tokens="),
        ({"sampling": kc.Sampling()}, "pass the number of tokens"),
        ({"tokens": 4, "sampling": 3}, "sampling must be a kc.Sampling"),
        ({"tokens": 4, "jacobians": True}, "Jacobians are not available"),
        ({"tokens": 9}, "has 8 positions"),
        ({"tokens": 8, "q1": 1, "q2": 2, "sampling": kc.Sampling(2, 2)}, "same q value"),
    ],
    lambda options: kc.verify_kernels(small(), draws=2, **options),
)


def test_inputs_that_cannot_hold_the_tokens_are_refused():
    network = wired(("x", L.Input(6)), ("a", L.Affine(8), "x"))
    with refused(r"6 channels.*8 dimensions"):
        kc.verify_kernels(kc.to_jax(network), tokens=4, draws=2)
    lookup = wired(("ids", L.Input()), ("e", L.Embedding(4), "ids"), ("a", L.Affine(8), "e"))
    with refused("vocabulary size of the token ids 'ids' is unknown"):
        kc.verify_kernels(kc.to_jax(lookup), tokens=4, draws=2)
    with refused("5.*tokens=.*4"):
        kc.verify_kernels(kc.to_jax(network, image_shape=(5, 1)), tokens=4, draws=2)


# -- tangent kernels -------------------------------------------------------------------------------


def test_a_table_in_the_standard_parameterisation_has_a_kernel_of_its_own():
    network = wired(
        ("ids", L.Input()),
        ("e", L.Embedding(4, 9, 0.5), "ids"),
        ("p", L.Positions("learned", 2, 4), "e"),
    )
    K = kc.ntk(network, "standard")
    assert [float(K.layers[node](c)) for node in ("e", "p") for c in (1.0, 0.0)] == pytest.approx(
        [1, 0, 1, 1]
    )
    model = kc.to_jax(network, weights="delta_gaussian")
    ids = np.array([[0, 1, 2, 3], [0, 5, 6, 7]])
    measured = kc.verification.empirical_ntk(model, model.init(0, ids), ids, by_layer=True)
    # one place of four has the same id
    np.testing.assert_allclose(measured["e"], [[1, 0.25], [0.25, 1]], atol=1e-6)
    np.testing.assert_allclose(measured["p"], 1, atol=1e-6)
