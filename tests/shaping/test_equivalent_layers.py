"""Which layers pass shifts and scales of activations on, and which refuse them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused
from test_equivalent import check, drawn
from wiring import wired

import kcalc as kc
from kcalc import activation, chain, equivalent_parameters
from kcalc.network.layers import (
    Affine,
    Concat,
    Dropout,
    Flatten,
    GroupNorm,
    Identity,
    Input,
    LayerNorm,
    Nonlinear,
    Pool,
    RMSNorm,
    Scale,
    Sum,
)

SHIFTED = activation("softplus").transformed(0.5, 0.2, 1.5, -0.8)


def joined(*tail: Any, second: Any = None) -> kc.Network:
    """Two activations side by side in blocks of channels, and what reads both."""
    tails = [(f"t{k}", layer) for k, layer in enumerate(tail)]
    return wired(
        ("a", Affine(4)),
        ("m", Nonlinear(SHIFTED)),
        ("b", Affine(5), "x"),
        ("n", Nonlinear(second or activation("tanh"))),
        ("c", Concat(), "m n"),
        *tails,
        ("y", Affine(2)),
        features=3,
    )


def test_layers_that_pass_blocks_on_and_layers_that_read_them_as_one() -> None:
    rng = np.random.default_rng(12)
    check(joined(), rng)
    check(joined(Identity(), Scale(-0.7)), rng)
    steps = ("a", Affine(4)), ("m", Nonlinear(SHIFTED)), ("b", Affine(5, bias=False), "x")
    check(wired(*steps, ("c", Concat(), "m b"), ("y", Affine(2)), features=3), rng)
    # blocks that are alike may be mixed
    check(joined(Flatten(), second=SHIFTED), rng, (2, 2), {"y": 36})
    for layer in (Flatten(), LayerNorm()):
        with refused("t0.*concatenate.*Affine"):
            equivalent_parameters(joined(layer))
    check(joined(LayerNorm(), second=SHIFTED), rng)


def test_norms_without_a_mean_read_what_is_not_shifted() -> None:
    rng = np.random.default_rng(13)
    scaled = activation("tanh").transformed(0.5, 0.3, 1.5)
    check(chain(Input(3), Affine(4), Nonlinear(scaled), RMSNorm(), Affine(2)), rng)
    with refused("'nonlinear_1'.*'rmsnorm_1'"):
        equivalent_parameters(chain(Input(3), Affine(4), Nonlinear(SHIFTED), RMSNorm(), Affine(2)))


def test_pooling_by_weights_passes_a_scale_and_no_shift() -> None:
    def pooled(phi: kc.Activation) -> kc.Network:
        return chain(
            Input(2, (4, 4)),
            Affine(3),
            Nonlinear(phi),
            Pool("weighted_mean"),
            Flatten(),
            Affine(2),
        )

    found = equivalent_parameters(pooled(activation("tanh").transformed(0.5, 0.3, 1.5)))
    weights = drawn(found.network, np.random.default_rng(0), {"affine_2": 3})
    first, last = (
        found.arrays(weights)[node][0] / weights[node][0] for node in ("affine_1", "affine_2")
    )
    assert first == pytest.approx(0.5, rel=1e-13) and last == pytest.approx(1.5, rel=1e-13)
    with refused("'nonlinear_1'.*'pool_1'"):
        equivalent_parameters(pooled(SHIFTED))


def test_dropout_does_not_commute_with_shifts() -> None:
    net = chain(Input(3), Affine(4), Nonlinear(SHIFTED), Dropout(0.2), Affine(2))
    found = check(net, np.random.default_rng(14))
    assert [(a.node, a.kind) for a in found.assumptions if "dropout" in a.text] == [
        ("dropout_1", "convention")
    ]


def test_padding_in_numbers() -> None:
    def net(padding: Any) -> kc.Network:
        return chain(
            Input(2, (6, 6)),
            Affine(4),
            Nonlinear(SHIFTED),
            Affine(3, kernel=3, padding=padding),
        )

    with refused("zero padding"):
        equivalent_parameters(net((1, 0)))
    assert not any("padding" in a.text for a in equivalent_parameters(net((0, 0))).assumptions)


def test_sums_that_no_output_reads_directly_and_norms_over_positions() -> None:
    bent = activation("tanh").transformed(1.2, 0.1, 2, 0.3)  # 2 (tanh(1.2 x + 0.1) + 0.3)
    ways = [("n", Nonlinear(bent)), ("b", Affine(4), "x"), ("m", Nonlinear(bent))]
    net = wired(("a", Affine(4)), *ways, ("s", Sum(), "n m"), ("p", Affine(4)), features=3)
    check(net, np.random.default_rng(0))
    with refused("the output scale .*'nonlinear_1' cannot be absorbed: 'groupnorm_1' reads it"):
        equivalent_parameters(chain(Input(3), Affine(4), Nonlinear(bent), GroupNorm(2), Affine(2)))
