"""Claims about mixtures of experts with a random router."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ... import c_map, chain, gradients, moe_statistics, q_values
from ... import layers as L
from ..bench import Bench, at_most, equal, statistical
from ..claim import Evidence
from .paper import claim

PLACE = "Streams and experts"
EXPERTS, SELECTED = 8, 2
EXPERT = chain(L.Affine(), L.Nonlinear("relu"), L.Affine(sigma_w=2**0.5))


def logits(rng: np.random.Generator, draws: int, cosine: float) -> np.ndarray:
    """Draw the logits of two tokens, shape (2, draws, experts)."""
    one, two = rng.normal(size=(2, draws, EXPERTS))
    return np.stack([one, cosine * one + np.sqrt(1 - cosine**2) * two])


def weights(scores: np.ndarray) -> np.ndarray:
    """Compute softmax over the selected experts, and 0 for the others."""
    kept = np.where(scores >= np.sort(scores, axis=-1)[..., [-SELECTED]], np.exp(scores), 0)
    return kept / kept.sum(axis=-1, keepdims=True)


@claim("MOE-size", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a mixture of independent experts with the same architecture and mean 0 has $q = S_2 q_e$ and
    the kernel $W(\rho)\,\kappa_e$. Here $S_2 = \mathbb E\sum_i w_i^2$, $W = \mathbb E\sum_i w_i
    w_i'$, and $\rho$ is the uncentred cosine of two tokens
    """
    net = chain(L.Input(), L.RMSNorm(), L.MoE(EXPERT, EXPERTS, SELECTED), L.Affine())
    law, alone = moe_statistics(EXPERTS, SELECTED, 1.0, 0.5), c_map(EXPERT)(0.5)
    yield equal(q_values(net)[net.outputs[0]], law.second, "q of a network with experts", 1e-9)
    yield equal(c_map(net)(0.5), law.cross / law.second * alone, "the C map of this network", 1e-7)
    one, two = weights(logits(bench.rng, bench.size(20_000, 200_000), 0.5))
    yield statistical((one**2).sum(axis=1), law.second, "S_2 against sampled squares of weights")
    yield statistical((one * two).sum(axis=1), law.cross, "W against sampled products of weights")


@claim("MOE-router", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for a softmax over the selected experts, the squared gradient at the logits of the router is
    $q_e R_2$ with $R_2 = S_2 - 2 S_3 + \mathbb E(\sum_i w_i^2)^2$; it is 0 for $k = 1$
    """
    w = weights(logits(bench.rng, bench.size(20_000, 200_000), 0.5))[0]
    squares, cubes = (w**2).sum(axis=1), (w**3).sum(axis=1)
    law = moe_statistics(EXPERTS, SELECTED, 1.0)
    yield statistical(
        squares - 2 * cubes + squares**2, law.router, "R_2 against sampled slopes of weights"
    )
    net = chain(L.Input(), L.RMSNorm(), L.MoE(EXPERT, EXPERTS, SELECTED))
    yield equal(
        gradients(net).nodes["moe_1.1"],
        law.router,
        "squared gradients at the router of a network",
        1e-9,
    )
    yield equal(
        moe_statistics(EXPERTS, 1, 1.0).router,
        0.0,
        "the router's gradient is 0 for one selected expert",
    )


@claim("MOE-load", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for many tokens, the load of experts at initialisation has a coefficient of variation of
    $\sqrt{oE/k - 1}$. Here $o$ is the probability that a token selects an expert that another token
    with cosine $\rho$ has selected. This probability depends on the cosine, but not on the variance
    of the router
    """
    found = [moe_statistics(EXPERTS, SELECTED, v, 0.5).load_cv() for v in (0.01, 1.0, 25.0)]
    yield at_most(
        max(found) - min(found),
        1e-12,
        "the coefficient of variation is the same for three variances of the router",
    )
    tokens, draws = 400, bench.size(100, 400)
    common = bench.rng.normal(size=(draws, 1, EXPERTS))
    own = bench.rng.normal(size=(draws, tokens, EXPERTS))
    chosen = weights(np.sqrt(0.5) * (common + own)) > 0
    load = chosen.sum(axis=1) / (tokens * SELECTED / EXPERTS)
    law = moe_statistics(EXPERTS, SELECTED, 1.0, 0.5).load_cv(tokens)
    yield statistical(
        load.var(axis=1), law**2, "the coefficient of variation against sampled loads of 400 tokens"
    )
