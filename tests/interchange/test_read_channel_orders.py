"""Channel shuffles, and layers that a model reads in parts and as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from refusals import refused

import kcalc as kc
from kcalc.interchange.apply import apply_to

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def shuffled(x: Tensor, groups: int = 2) -> Tensor:
    examples, channels, *locations = x.shape
    x = x.view(examples, groups, channels // groups, *locations).transpose(1, 2).contiguous()
    return x.view(examples, channels, *locations)


class Shuffled(nn.Module):
    """Two units of ShuffleNet V2: halves of shuffled channels, of which one goes on as it is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.left, self.right = (nn.Conv2d(width, width, 1) for _ in range(2))
        self.units = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))
        self.out = nn.Conv2d(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = shuffled(torch.cat([F.relu(self.left(x)), torch.tanh(self.right(x))], 1))
        for unit in self.units:
            first, second = x.chunk(2, dim=1)
            x = shuffled(torch.cat([first, F.relu(unit(second))], 1))
        return self.out(x)


def images(width: int) -> Tensor:
    x = torch.randn(2, width, 1, 1, generator=torch.Generator().manual_seed(0))
    x[1] = 0.6 * x[0] + 0.8 * x[1]
    return x / x.square().mean(1, keepdim=True).sqrt()


def test_the_models_weights_are_kept_behind_a_shuffle() -> None:
    """The shuffle stays where it is in the model."""
    model, x = Shuffled(16), images(16)
    shaping = kc.shape(kc.read(model, x), "tanh")
    kept = shaping.apply_to(model, weights="keep")
    assert all(map(torch.equal, kept.parameters(), model.parameters()))
    same = apply_to(model, kc.read(model, x), x, weights="keep")
    assert torch.equal(same(x), model(x)) and not torch.allclose(kept(x), model(x), atol=0.01)


def test_channels_paired_in_two_orders_are_not_read() -> None:
    class Paired(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.out = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.out(F.relu(x + shuffled(x)))

    reading = kc.read(Paired(), images(16))
    (opaque,) = reading.network.nodes_of(kc.layers.Opaque)
    assert "elementwise" in reading.network.layer(opaque).reason


class Function(nn.Module):
    """A function of a layer, some of whose channels it puts together one by one."""

    def __init__(self, width: int, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.out, self.function = nn.Linear(width, width), nn.LazyLinear(256), function
        self(torch.zeros(1, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.function(self.first(x)))


def test_parts_that_overlap_in_other_places_are_refused_where_they_meet() -> None:
    model = Function(256, lambda h: h[:, :192] + h[:, 64:])
    network = kc.read(model, images(256).flatten(1)).network
    assert not network.nodes_of(kc.layers.Opaque)
    with refused("different.*channels"):
        kc.q_map(network)


def test_an_output_without_the_axis_of_its_one_channel() -> None:
    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 64), nn.Linear(64, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(self.last(torch.relu(self.first(x)))).squeeze(1)

    model = Score()
    reading = kc.read(model, (2, 8))
    assert reading.fidelity.level == "exact"
    new = kc.shape(reading, "tanh").apply_to(model)
    assert new(torch.zeros(5, 8)).shape == (5,)
