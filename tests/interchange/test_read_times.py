"""Models with one number per example (times), against their own forward passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from forward_oracle import WIDTH, images  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.interchange.apply import apply_to  # noqa: E402

nn = torch.nn
SPEEDS = 10.0 ** -torch.arange(8)
TIMES = torch.tensor([0.7, 3.1])


def waves(t: Any) -> Any:
    angles = t.reshape(-1, 1).float() * SPEEDS
    return torch.cat([angles.sin(), angles.cos()], 1)


@pytest.mark.parametrize("how", ["waves", "(examples,)"])
def test_a_shaped_model_takes_the_time_itself(how: str) -> None:
    """An image modulated by what an MLP makes of a time."""

    def run(m: Any, x: Any, t: Any) -> Any:
        e = waves(t) if how == "waves" else t.reshape(-1, 1)
        _, b = m.second(torch.relu(m.first(e))).chunk(2, 1)
        return m.last(torch.tanh(m.image(x) + b[..., None, None]))

    model = Model(
        run,
        image=nn.Conv2d(32, WIDTH, 1),
        first=nn.Linear(16 if how == "waves" else 1, WIDTH),
        second=nn.Linear(WIDTH, 2 * WIDTH),
        last=nn.Conv2d(WIDTH, WIDTH, 1),
    )
    x = images((32, 2, 2), 0.6)
    r = kc.read(model, x, TIMES)
    same = SimpleNamespace(network=r.network)
    with torch.no_grad():
        kept = apply_to(model, same, weights="keep")(x, TIMES)
        torch.testing.assert_close(kept, model(x, TIMES))
        drawn = kc.shape(r, activation="tanh").apply_to(model)(x, TIMES)
    assert drawn.shape == kept.shape and drawn.isfinite().all()
