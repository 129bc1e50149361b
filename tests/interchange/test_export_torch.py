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


@pytest.mark.parametrize(("kernel", "stride", "padding", "more"), [
    (2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1), (3, 1, 1, 0), (6, 3, 2, 1),
])  # fmt: skip
def test_transposed_convolutions(kernel: int, stride: int, padding: int, more: int) -> None:
    """Every output location reads one location of the input, with orthogonal weights."""
    layer = torch.nn.ConvTranspose2d(8, 8, kernel, stride, padding, more, groups=2)
    given = torch.randn(3, 8, 5, 5)
    norms = given.unflatten(1, (2, 4)).norm(dim=2)
    found = names()["initialise"](layer)(given).unflatten(1, (2, 4)).norm(dim=2)
    near = torch.nn.functional.interpolate(norms, scale_factor=stride)
    torch.testing.assert_close(found, near)
    wide = torch.nn.ConvTranspose2d(8, 16, kernel, stride, padding, more)
    names()["initialise"](wide, fill=names()["delta_gaussian_"], sigmas={"": (2.0, 0.0)})
    count = 8 * 16 * min(kernel, stride) ** 2
    assert wide.weight.count_nonzero() == count and not wide.bias.any()
    found = wide.weight.square().sum() / count
    assert found.item() == pytest.approx(4 / 8, abs=5 * 0.5 * (2 / 128) ** 0.5)


def test_weights_of_other_layers() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="0.weight$"):
        names()["initialise"](model)


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
