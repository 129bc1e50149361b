"""Readouts tied to an embedding.

The logit of a token's own id against networks of finite width, and refusals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import Sampling, architectures, ntk, tied_readout
from kcalc.network.layers import Affine, Embedding, GroupNorm, Input, LayerNorm, Nonlinear, Sum

A = architectures


GPT = A.gpt2(2, 192, 6, 64, 8, std=None, hidden=192)


def test_the_own_logit_is_that_of_real_networks():
    net = GPT
    found = tied_readout(net, tokens=6, sampling=Sampling(64, 4))
    model, rng = kc.to_jax(net, weights="delta_gaussian"), np.random.default_rng(0)
    own, others = [], []
    for key in range(60):
        ids = rng.permutation(64)[:6]
        params = model.init(key, ids)
        logits = (
            np.asarray(model.apply(params, ids)).reshape(6, -1)
            @ np.asarray(model.unstack(params, ids)["embedding"]["weight"]).T
        )
        own.append(logits[np.arange(6), ids].mean())
        others.append(np.delete(logits, ids, axis=1).var())
    assert found.own is not None and found.spread is not None
    z = (np.mean(own) - found.own) / (np.std(own, ddof=1) / np.sqrt(len(own)))
    assert abs(z) < 4.5 and np.mean(own) == pytest.approx(found.own, rel=0.02)
    assert np.mean(others) == pytest.approx(found.spread**2, rel=0.02)
    assert found.own / found.spread == pytest.approx(found.cosine * np.sqrt(192), rel=1e-3)


IDS = ("ids", Input()), ("e", Embedding(8, 30))
TWO = *IDS, ("f", Embedding(8, 30), "ids"), ("s", Sum(), "e f")
ENDS = ("a", Affine(8), "e"), ("b", Affine(8), "e")
test_what_carries_no_embedding_is_refused = refusals(
    [
        (wired(*TWO), {}, r"pass the Embedding .*embedding=.*'e', 'f'"),
        (A.vanilla(1), {}, "Embedding nodes of the network: none"),
        (wired(*IDS, ("g", Nonlinear("gelu"))), {}, "'g'.*'e'.*Nonlinear"),
        (wired(*IDS, *ENDS), {}, "2 outputs"),
        (wired(*IDS), {"tokens": np.eye(3), "token_cosine": 0.2}, "omit token_cosine="),
        (wired(*IDS, ("n", GroupNorm(2))), {}, "'n'.*LayerNorm or RMSNorm"),
        (GPT, {"tokens": None}, "tokens="),
        (GPT, {"sampling": Sampling(error=0.002)}, "draws="),
    ],
    lambda network, options: tied_readout(network, **{"tokens": 3} | options),
)


def test_tangent_kernels_through_tied_readouts_are_refused():
    torch = pytest.importorskip("torch")
    from modern_zoo import Model

    nn = torch.nn
    table, head = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
    head.weight = table.weight

    def forward(m: Any, ids: Any) -> Any:
        x = m.table(ids)
        return m.head(m.norm(x + m.inner(m.norm(x))))

    parts = {"table": table, "norm": nn.LayerNorm(32), "inner": nn.Linear(32, 32), "head": head}
    net = kc.read(Model(forward, **parts), torch.zeros(1, 5, dtype=torch.long)).network
    with refused("'head'.*embedding"):
        ntk(net, tokens=5)
    assert ntk(net, tokens=5, assume_independent=True).heuristic
    found = tied_readout(net, tokens=5)
    assert net.layer(found.output) == LayerNorm() and 0.5 < found.cosine < 1


@pytest.mark.parametrize("sampling", [None, Sampling(16, 2)])
def test_a_sum_of_two_embeddings(sampling: Any):
    """The logit of f against e + f is |f|^2 = 8; other logits have variance 8 (1 + 1)."""
    found = tied_readout(wired(*TWO), tokens=3, embedding="f", sampling=sampling)
    assert found.own == pytest.approx(8) and found.spread == pytest.approx(4)
