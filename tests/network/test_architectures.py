"""Combinators and builders: the networks of the papers, counted and shaped as the papers count
them.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from refusals import refusals, refused

import kcalc as kc
from kcalc import chain, repeat, residual
from kcalc.network.layers import Affine, Input

A = kc.architectures
OWN = [name for name in A.__all__ if inspect.isfunction(vars(A).get(name))]  # not of guests


test_bad_pieces_are_refused = refusals(
    [
        (lambda: chain(), "at least one"),
        (lambda: chain(Affine), "pass an instance"),
        (lambda: chain(Affine(), Input()), "beginning"),
        (lambda: chain(Input()), "more than an Input"),
        (lambda: repeat(Affine(), 0), ">= 1"),
        (lambda: residual(Affine(), shortcut_weight=1.2), "\\[0, 1\\]"),
        (lambda: residual(Affine(), shortcut_weight=1), "removes the effect"),
        (lambda: A.vanilla(0), ">= 1"),
        (lambda: A.resnet_v2(7), "depth must be 50, 101 or 152 for a ResNet, got 7"),
        (lambda: A.wide_resnet(251), "250 and 256"),
        (lambda: A.preconditioned_block(8, 8, 4, shortcut_weight=0), "pass shortcut_weight > 0"),
        (lambda: A.vit(image_shape=(8, 8, 8)), "must be .height, width.* got .8, 8, 8"),
        (lambda: kc.token_mixing.preserving(np.ones((1, 4097)), np.eye(2)), "4097 tokens; the max"),
    ]
)


@pytest.mark.parametrize("count", ["__import__('os').getcwd()", 0, None, 2.5])
def test_channels_of_a_geometric_block_are_whole_numbers(count: object) -> None:
    for place in range(3):
        channels: list = [8, 8, 4]
        channels[place] = count
        with refused():
            A.preconditioned_block(*channels)


@pytest.mark.parametrize("name", OWN)
def test_unknown_options_are_refused_at_the_call(name: str) -> None:
    build = getattr(A, name)
    needed = {
        key: 1 for key, p in inspect.signature(build).parameters.items() if p.default is p.empty
    }
    with pytest.raises(TypeError, match=f"{name}.* unexpected keyword argument 'c'") as refusal:
        build(**needed, c=1)
    assert len(refusal.traceback) == 1, "raised inside of kcalc"


def test_arrays_and_ragged_rows_as_options() -> None:
    with refused("TokenMix.*rectangular"):
        A.transformer(1, [[[1], [1, 2]]])
    with refused("padding"):
        A.preconditioned_block(8, 8, 8, downsample=True, padding=np.array([-1, 2]))
    by_array, by_tuple = (
        A.preconditioned_block(8, 8, 8, downsample=True, padding=p)
        for p in (np.array([1, 1]), (1, 1))
    )
    assert by_array == by_tuple


def test_builders_that_take_weights_take_biases() -> None:
    makers = [getattr(A, name) for name in OWN]
    makers.append(kc.skip_network)
    for make in makers:
        names = inspect.signature(make).parameters
        assert ("sigma_w" in names) == ("sigma_b" in names), make


def test_layers_of_papers_are_counted() -> None:
    net = A.preactivation_resnet50(10, (32, 32), 8)
    kernels = [net.layer(node).kernel for node in net.nodes_of(Affine)]
    assert len(kernels) == 1 + 3 * 16 + 4 + 1  # four shortcuts, which change widths
    assert sum(kernel in (3, (3, 3)) for kernel in kernels) == 3 + 4 + 6 + 3
    net = A.vit(1, 64, 2, patch=4, image_shape=(8, 8), classes=None)
    assert net.outputs == ("pool",)
