"""Channel shuffles, and layers that a model reads in parts and as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import refused

import kcalc as kc
from kcalc.interchange.apply import apply_to

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402


def shuffled(x: Tensor) -> Tensor:
    return x.unflatten(1, (2, -1)).transpose(1, 2).contiguous().view(x.shape)


def units(width: int) -> Model:
    """Two units of ShuffleNet V2: halves of shuffled channels, of which one goes on as it is."""

    def run(m: Any, x: Tensor) -> Tensor:
        x = shuffled(torch.cat([F.relu(m.left(x)), torch.tanh(m.right(x))], 1))
        for unit in m.units:
            first, second = x.chunk(2, dim=1)
            x = shuffled(torch.cat([first, F.relu(unit(second))], 1))
        return m.out(x)

    left, right, *rest = (nn.Conv2d(width, width, 1) for _ in range(4))
    out = nn.Conv2d(2 * width, width, 1)
    return Model(run, left=left, right=right, units=nn.ModuleList(rest), out=out)


def images(width: int) -> Tensor:
    x = torch.randn(2, width, 1, 1, generator=torch.Generator().manual_seed(0))
    x[1] = 0.6 * x[0] + 0.8 * x[1]
    return x / x.square().mean(1, keepdim=True).sqrt()


def test_the_models_weights_are_kept_behind_a_shuffle() -> None:
    """The shuffle stays where it is in the model."""
    model, x = units(16), images(16)
    shaping = kc.shape(kc.read(model, x), "tanh")
    kept = shaping.apply_to(model, weights="keep")
    assert all(map(torch.equal, kept.parameters(), model.parameters()))
    same = apply_to(model, kc.read(model, x), x, weights="keep")
    assert torch.equal(same(x), model(x)) and not torch.allclose(kept(x), model(x), atol=0.01)


def test_channels_paired_in_two_orders_are_not_read() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        return m.out(F.relu(x + shuffled(x)))

    paired = Model(run, first=nn.Conv2d(16, 16, 1), out=nn.Conv2d(16, 16, 1))
    reading = kc.read(paired, images(16))
    (opaque,) = reading.network.nodes_of(kc.layers.Opaque)
    assert "elementwise" in reading.network.layer(opaque).reason


def test_parts_that_overlap_in_other_places_are_refused_where_they_meet() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x)
        return m.out(h[:, :192] + h[:, 64:])

    model = Model(run, first=nn.Linear(256, 256), out=nn.Linear(192, 256))
    network = kc.read(model, images(256).flatten(1)).network
    assert not network.nodes_of(kc.layers.Opaque)
    with refused("different.*channels"):
        kc.q_map(network)


def test_an_output_without_the_axis_of_its_one_channel() -> None:
    model = Model(
        lambda m, x: torch.sigmoid(m.last(torch.relu(m.first(x)))).squeeze(1),
        first=nn.Linear(8, 64),
        last=nn.Linear(64, 1),
    )
    reading = kc.read(model, (2, 8))
    assert reading.fidelity.level == "exact"
    new = kc.shape(reading, "tanh").apply_to(model)
    assert new(torch.zeros(5, 8)).shape == (5,)
