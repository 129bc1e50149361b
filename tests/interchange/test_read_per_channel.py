"""Numbers per channel in the model, and heads of softmax, against the model's own forward pass."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from forward_oracle import WIDTH, images, measured, redrawn  # noqa: E402

import kcalc as kc  # noqa: E402

nn = torch.nn


class Behind(nn.Module):
    """Biases behind an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(32, WIDTH, 1), nn.Conv2d(WIDTH, WIDTH, 1)
        self.shift = nn.Parameter(torch.zeros(WIDTH, 1, 1))
        self.deviations = {"shift": 0.8}

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.first(x)) + self.shift)


class Sloped(nn.Module):
    """A PReLU with a slope per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(32, WIDTH, 1), nn.Conv2d(WIDTH, WIDTH, 1)
        self.act = nn.PReLU(WIDTH)
        self.deviations = {"act.weight": 0.3}

    def forward(self, x: Any) -> Any:
        return self.last(self.act(self.first(x)))


@pytest.mark.parametrize(
    ("kind", "words"), [(Behind, "per channel after an activation"), (Sloped, "a different slope")]
)
def test_numbers_per_channel_are_approximate(kind: Any, words: str) -> None:
    """q is right; the slopes of a PReLU have mean 0 here, so that its c is that of a ReLU."""
    model = redrawn(kind(), torch.Generator().manual_seed(0), exact=True)
    x = images((32, 2, 2), 0.5)
    r = kc.read(model, x)
    assert r.fidelity.counts["approximate"] == 1 and words in str(r)
    q, k = measured(model, (x,))
    expected = float(kc.q_map(r.network)(1.0))
    assert q.deviation(expected) < 3.5
    cosine = float(kc.c_map(r.network)(0.5))
    if kind is Behind:
        assert k.deviation(expected * cosine) < 3.5
    assert abs(k.mean / q.mean - cosine) < 0.1


def test_softmax_at_the_end_in_another_shape_is_left_out() -> None:
    class Headed(nn.Module):
        def __init__(self, more: Any) -> None:
            super().__init__()
            self.layer, self.more = nn.Linear(8, 5), more

        def forward(self, x: Any) -> Any:
            return self.more(self.layer(x).softmax(-1))

    r = kc.read(Headed(lambda y: y[:, None].transpose(1, 2)), (2, 8))
    assert "left out" in r.notes[0].text and r.fidelity.level == "approximate"
    assert kc.read(Headed(lambda y: y * y), (2, 8)).fidelity.level == "not read"
