"""Models with one number per example (times), against their own forward passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from forward_oracle import WIDTH, images, measured, redrawn  # noqa: E402

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


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("how", ["waves", "(examples,)", "(examples, 1)"])
def test_conditioning_on_a_time(how: str, scaled: bool) -> None:
    model = redrawn(Conditioned(how, scaled), torch.Generator().manual_seed(0), exact=True)
    x, t = images((32, 2, 2), 0.6), TIMES.reshape(2, 1) if how == "(examples, 1)" else TIMES
    r = kc.read(model, x, t)
    q, k = measured(model, (x, t), 32)
    if how == "waves":
        e = waves(t).double().numpy()
        assert np.square(e).mean(axis=1) == pytest.approx(0.5)
        assert ["the 16 features" in n.text for n in r.notes if n.node == "t"] == [True]
        first, second, c = 0.5, 0.5, float((e[0] * e[1]).mean() / 0.5)
    else:
        assert not [n for n in r.notes if n.node == "t"]
        first, second, c = float(t[0] ** 2), float(t[1] ** 2), 1.0
    q1, q2 = {"x": 1.0, "t": first}, {"x": 1.0, "t": second}
    q_map, c_map = kc.q_map(r.network), kc.c_map(r.network)
    ends = float(q_map(q1)), float(q_map(q2))
    assert q.deviation(ends[0]) < 3.5
    joint = float(c_map({"x": 0.6, "t": c}, q1, q2)) * np.sqrt(ends[0] * ends[1])
    assert k.deviation(joint) < 3.5


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
