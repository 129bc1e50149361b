"""Exported PyTorch code: values, gradients, initial weights, input normalisation, modules."""

from __future__ import annotations

from functools import partial

import exported
import numpy as np
import pytest

import kcalc as kc

torch = pytest.importorskip("torch")
names = partial(exported.module, "torch")


def drawn(name: str, shape: tuple[int, ...], groups: int) -> np.ndarray:
    """Kernels (*window, in, out) from a function that fills weights (out, in, *window)."""
    weight = torch.full((shape[-1], shape[-2], *shape[:-2]), 7.0)
    assert names()[f"{name}_"](weight, groups) is weight
    return np.moveaxis(weight.numpy(), (0, 1), (-1, -2))


def test_initial_weights() -> None:
    torch.manual_seed(0)
    exported.check_weights(drawn)
    half = names()["delta_orthogonal_"](torch.empty(8, 8, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16
    seeds = (torch.Generator().manual_seed(3) for _ in range(2))
    assert torch.equal(
        *(names()["delta_gaussian_"](torch.empty(8, 8), generator=seed) for seed in seeds)
    )


def test_initialise_a_model() -> None:
    nn = torch.nn
    convolutions = nn.Conv2d(4, 16, 3, stride=2), nn.Conv1d(16, 8, 5, groups=4)
    model = nn.Sequential(*convolutions, nn.Linear(8, 6), nn.BatchNorm1d(6))
    nn.init.constant_(model[3].weight, 3.0)
    assert names()["initialise"](model, sigmas={"2": (2.0, 1.0)}) is model
    for layer, centre in (
        (model[0], model[0].weight[:, :, 1, 1]),
        (model[1], model[1].weight[:, :, 2]),
    ):
        assert not layer.bias.any()
        assert layer.weight.count_nonzero() == centre.count_nonzero()
        assert (centre**2).mean().item() == pytest.approx(1 / layer.weight.shape[1], rel=1e-5)
    assert (model[2].weight ** 2).mean().item() == pytest.approx(4 / 8, rel=1e-5)
    assert model[2].bias.abs().min() > 0 and model[2].weight.requires_grad
    assert (model[3].weight == 3.0).all()


def test_modules_and_standardised_weights() -> None:
    shaping = kc.shape(kc.architectures.resnet_v2(50), "gelu", method="nf")
    names = exported.load(shaping.export("torch"))
    given = torch.randn(5, 7)
    assert torch.equal(names["GeluNf"]()(given), names["gelu_nf"](given))
    layer = torch.nn.Linear(16, 8)
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", names["Standardise"]())
    assert layer.weight.mean(dim=1).abs().max() < 1e-6
    assert torch.allclose(layer.weight.norm(dim=1), torch.ones(8))
    assert set(names["STANDARDISED"]) == set(shaping.network.nodes_of(kc.layers.Affine))
