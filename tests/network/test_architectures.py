"""Combinators and builders: the networks of the papers, counted and shaped as the papers count
them.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc

L, A = kc.layers, kc.architectures
w = sp.Symbol("w", positive=True)
OWN = [name for name in A.__all__ if inspect.isfunction(vars(A).get(name))]  # not of guests


def test_chain_puts_an_input_in_front_and_composes_networks() -> None:
    piece = kc.chain(L.Nonlinear("relu"), L.Affine())
    assert piece.inputs == ("input",)
    net = kc.chain(L.Input(3), L.Affine(), piece, piece)
    assert [type(layer).__name__ for _, layer, _ in net.steps()] == [
        "Input",
        "Affine",
        "Nonlinear",
        "Affine",
        "Nonlinear",
        "Affine",
    ]
    assert net.layer("input") == L.Input(3)
    assert kc.repeat(piece, 3) == kc.chain(piece, piece, piece)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kc.chain(), "at least one"),
        (lambda: kc.chain(L.Affine), "pass an instance"),
        (lambda: kc.chain(L.Affine(), L.Input()), "beginning"),
        (lambda: kc.chain(L.Input()), "more than an Input"),
        (lambda: kc.repeat(L.Affine(), 0), ">= 1"),
        (lambda: kc.repeat(L.Affine(), 2.0), ">= 1"),
        (lambda: kc.residual(L.Affine(), shortcut_weight=1.2), "\\[0, 1\\]"),
        (lambda: kc.residual(L.Affine(), shortcut_weight=1), "removes the effect"),
        (lambda: kc.residual(L.Affine(), shortcut_weight=float("nan")), "finite"),
        (lambda: A.vanilla(0), ">= 1"),
        (lambda: A.vanilla(2.5), "whole number"),
        (lambda: A.resnet_v2(7), "50"),
        (lambda: A.wide_resnet(251), "250 and 256"),
        (lambda: A.vanilla(3, "tanhh"), "tanh"),
    ],
)
def test_bad_pieces_are_refused(make, message: str) -> None:
    with refused(message):
        make()


def test_residual_weights_are_amplitudes_with_squares_summing_to_one() -> None:
    assert kc.residual(L.Affine(), shortcut_weight=0.6).layer("sum_1").weights == pytest.approx(
        (0.6, 0.8)
    )
    assert kc.residual(L.Affine(), residual_weight=w).layer("sum_1").weights == (
        sp.sqrt(1 - w**2),
        w,
    )
    assert kc.residual(L.Affine()).layer("sum_1").weights is None
    assert kc.residual(L.Affine(), 2, 3).layer("sum_1").weights == (2, 3)
    assert not kc.residual(L.Affine(), shortcut_weight=0).nodes_of(L.Sum)


@pytest.mark.parametrize("depth", [50, 101, 152])
def test_resnet_v2_has_depth_minus_one_nonlinear_layers_and_four_transitions(depth: int) -> None:
    net = A.resnet_v2(depth)
    assert len(net.nodes_of(L.Nonlinear)) == depth - 1 + 4
    assert len(net.nodes_of(L.Sum)) == (depth - 2) // 3
    skip_free = A.resnet_v2(depth, shortcut_weight=0)
    assert len(skip_free.nodes_of(L.Nonlinear)) == depth - 1
    assert not skip_free.nodes_of(L.Sum)


@pytest.mark.parametrize("depth", [10, 16, 28, 40, 250])
def test_wide_resnet_has_depth_minus_three_nonlinear_layers_and_three_transitions(
    depth: int,
) -> None:
    net = A.wide_resnet(depth)
    assert len(net.nodes_of(L.Nonlinear)) == depth - 3 + 3
    assert len(net.nodes_of(L.Sum)) == (depth - 4) // 2


def test_vanilla_counts_combined_layers_and_has_a_readout() -> None:
    net = A.vanilla(7, "tanh", features=5, sigma_w=2)
    assert len(net.nodes_of(L.Nonlinear)) == 7
    assert len(net.nodes_of(L.Affine)) == 8
    assert {net.layer(n) for n in net.nodes_of(L.Affine)} == {L.Affine(5, sigma_w=2)}
    assert len(A.vanilla(7, readout=False).nodes_of(L.Affine)) == 7


def relu_c(c: np.ndarray) -> np.ndarray:
    c = np.clip(c, -1, 1)
    return (np.sqrt(1 - c**2) + (np.pi - np.arccos(c)) * c) / np.pi


STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def layernorm_resnet_c(depth: int, c: np.ndarray) -> np.ndarray:
    """[DKS App. J] by hand: T = (C^3 + C)/2, then B_q = (C^3 + q c)/(1 + q) for q = 2, 3, ..., and
    C at the end.
    """
    for blocks in STAGES[depth]:
        c = (relu_c(relu_c(relu_c(c))) + relu_c(c)) / 2
        for q in range(2, blocks + 1):
            c = (relu_c(relu_c(relu_c(c))) + q * c) / (1 + q)
    return relu_c(c)


@pytest.mark.parametrize(("depth", "least"), [(50, 0.917902), (101, 0.936131), (152, 0.946907)])
def test_layernorm_resnet_is_appendix_j(depth: int, least: float) -> None:
    c = np.cos(np.linspace(0, np.pi, 101))
    values = kc.c_map(A.layernorm_resnet(depth))(c)
    assert np.abs(values - layernorm_resnet_c(depth, c)).max() < 1e-14
    assert values.min() == pytest.approx(least, abs=6e-7)


def constant_q_resnet(depth: int) -> kc.Network:
    """The same C map with q = 1 throughout.

    Residual weight 1/sqrt(q + 1) in the block that q would enter.
    """
    gain = sp.sqrt(2)
    combined = kc.chain(L.Nonlinear("relu"), L.Affine(sigma_w=gain))
    branch = kc.repeat(combined, 3)
    pieces: list[object] = [L.Input(), L.Affine()]
    for blocks in STAGES[depth]:
        pieces.append(
            kc.residual(branch, residual_weight=sp.sqrt(sp.Rational(1, 2)), shortcut=combined)
        )
        pieces.extend(
            kc.residual(branch, residual_weight=1 / sp.sqrt(q + 1)) for q in range(2, blocks + 1)
        )
    return kc.chain(*pieces, combined)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [50, 101, 152])
def test_growing_q_equals_constant_q_with_shrinking_residual_weight(depth: int) -> None:
    c = np.cos(np.linspace(0, np.pi, 51))
    constant = constant_q_resnet(depth)
    assert kc.q_map(constant)(1.0) == pytest.approx(1.0, rel=1e-13)
    assert np.abs(kc.c_map(constant)(c) - kc.c_map(A.layernorm_resnet(depth))(c)).max() < 1e-14


def test_relu_vanilla_100_collapses() -> None:
    values = kc.c_map(A.vanilla(100))(np.linspace(-1, 1, 201))
    assert values.min() == pytest.approx(0.99636, abs=6e-6)
    assert values.max() == 1.0


def test_densenet_concatenates_everything() -> None:
    net = A.densenet(4, growth=None)
    assert len(net.nodes_of(L.Concat)) == 4
    assert kc.c_map(net)(1.0) == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("count", ["__import__('os').getcwd()", float("nan"), 0, True, None, 2.5])
def test_channels_of_a_geometric_block_are_whole_numbers(count: object) -> None:
    for place in range(3):
        channels: list = [8, 8, 4]
        channels[place] = count
        with pytest.raises(kc.KcalcError):
            A.preconditioned_block(*channels)


def test_a_downsampling_block_takes_odd_images() -> None:
    block = A.preconditioned_block(4, 8, 2, downsample=True)
    net = kc.chain(L.Input(4, (7, 9)), block, L.Pool("mean"), L.Affine(3))
    assert kc.to_jax(net).apply(
        kc.to_jax(net).init(0), np.ones((2, 7, 9, 4), np.float32)
    ).shape == (2, 3)
    assert kc.scaling(net).tensors


@pytest.mark.parametrize("name", OWN)
def test_unknown_options_are_refused_at_the_call(name: str) -> None:
    build = getattr(A, name)
    needed = {
        key: 1 for key, p in inspect.signature(build).parameters.items() if p.default is p.empty
    }
    for option in ("sigma_c", "nonsense"):
        with pytest.raises(
            TypeError, match=f"{name}.* unexpected keyword argument '{option}'"
        ) as refusal:
            build(**needed, **{option: 1})
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


BIASED = {
    "vanilla": A.vanilla,
    "rescaled_resnet": A.rescaled_resnet,
    "lenet": lambda depth, **sigmas: A.lenet("tanh", **sigmas),
    "alexnet": lambda depth, **sigmas: A.alexnet("tanh", **sigmas),
    "skip_network": lambda depth, **sigmas: kc.skip_network(activation="tanh", **sigmas),
}


@pytest.mark.parametrize("build", BIASED.values(), ids=list(BIASED))
def test_builders_take_biases_with_weights(build) -> None:
    for sigmas in ({"sigma_b": 0.3}, {"sigma_w": 1.2, "sigma_b": w}, {"sigma_w": 1.2}):
        net = build(3, **sigmas)
        layers = [net.layer(node) for node in net.nodes_of(L.Affine)]
        assert {layer.sigma_w for layer in layers} == {sigmas.get("sigma_w", 1)}
        assert {layer.sigma_b for layer in layers} == {sigmas.get("sigma_b", 0)}
    assert build(3, sigma_b=0) == build(3)
    for wrong in ("a", None, float("nan")):
        with refused("sigma_b"):
            build(3, sigma_b=wrong)


def test_builders_that_take_weights_take_biases() -> None:
    makers = [getattr(A, name) for name in OWN]
    makers.append(kc.skip_network)
    for make in makers:
        names = inspect.signature(make).parameters
        assert ("sigma_w" in names) == ("sigma_b" in names), make


def test_a_biased_chain_follows_the_mean_field_recursion() -> None:
    """q <- sigma_w^2 E tanh(sqrt(q) z)^2 + sigma_b^2, readout included. [Poole et al. 2016]"""
    x = np.linspace(-12, 12, 401)  # the trapezoidal rule
    z, y, density = x[:, None], x[None, :], np.exp(-(x**2) / 2)
    product = np.outer(density, density) / density.sum() ** 2
    weight, bias, covariance, q = 1.5**2, 0.4**2, 0.3, 1.0
    covariance, q = weight * covariance + bias, weight * q + bias
    for _ in range(3):
        c = covariance / q
        first = np.tanh(np.sqrt(q) * z)
        second = np.tanh(np.sqrt(q) * (c * z + np.sqrt(1 - c * c) * y))
        covariance = weight * np.sum(product * first * second) + bias
        q = weight * np.sum(product * first**2) + bias
    net = A.vanilla(3, "tanh", sigma_w=1.5, sigma_b=0.4)
    assert float(kc.q_map(net)(1.0)) == pytest.approx(q, rel=1e-12)
    assert float(kc.c_map(net)(0.3)) == pytest.approx(covariance / q, rel=1e-12)
