"""Models with one number per example (times), against their own forward passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from forward_oracle import WIDTH, images  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.interchange.apply import apply_to  # noqa: E402

nn = torch.nn
SPEEDS = 10.0 ** -torch.arange(8)
TIMES = torch.tensor([0.7, 3.1])


def waves(t: Any) -> Any:
    angles = t.reshape(-1, 1).float() * SPEEDS
    return torch.cat([angles.sin(), angles.cos()], 1)


class Conditioned(nn.Module):
    """An image modulated by what an MLP makes of a time: ``h (1 + g) + b``, or ``h + b``."""

    def __init__(self, how: str, scaled: bool) -> None:
        super().__init__()
        self.how, self.scaled = how, scaled
        self.image = nn.Conv2d(32, WIDTH, 1)
        self.first = nn.Linear({"waves": 16}.get(how, 1), WIDTH)
        self.second = nn.Linear(WIDTH, 2 * WIDTH)
        self.last = nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x: Any, t: Any) -> Any:
        e = waves(t) if self.how == "waves" else t.reshape(-1, 1)
        g, b = self.second(torch.relu(self.first(e))).chunk(2, 1)
        h = self.image(x)
        h = h * (1 + g[..., None, None]) if self.scaled else torch.tanh(h + b[..., None, None])
        return self.last(h + b[..., None, None] if self.scaled else h)


@pytest.mark.parametrize("how", ["waves", "(examples,)"])
def test_a_shaped_model_takes_the_time_itself(how: str) -> None:
    model, x = Conditioned(how, False), images((32, 2, 2), 0.6)
    r = kc.read(model, x, TIMES)
    same = SimpleNamespace(network=r.network)
    with torch.no_grad():
        kept = apply_to(model, same, weights="keep")(x, TIMES)
        torch.testing.assert_close(kept, model(x, TIMES))
        drawn = kc.shape(r, activation="tanh").apply_to(model)(x, TIMES)
    assert drawn.shape == kept.shape and drawn.isfinite().all()
