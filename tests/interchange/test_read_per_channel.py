"""Numbers per channel in the model, and heads of softmax, against the model's own forward pass."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from forward_oracle import WIDTH, images, measured, redrawn  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

import kcalc as kc  # noqa: E402

nn = torch.nn


def behind() -> Model:
    """Biases behind an activation."""
    model = Model(lambda m, x: m.last(torch.relu(m.first(x)) + m.shift), **layers())
    model.shift, model.deviations = nn.Parameter(torch.zeros(WIDTH, 1, 1)), {"shift": 0.8}
    return model


def sloped() -> Model:
    """A PReLU with a slope per channel."""
    model = Model(lambda m, x: m.last(m.act(m.first(x))), act=nn.PReLU(WIDTH), **layers())
    model.deviations = {"act.weight": 0.3}
    return model


def layers() -> dict[str, nn.Module]:
    return {"first": nn.Conv2d(32, WIDTH, 1), "last": nn.Conv2d(WIDTH, WIDTH, 1)}


@pytest.mark.parametrize(
    ("kind", "words"),
    [(behind, "per channel after an activation"), (sloped, "slopes differ between channels")],
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
    if kind is behind:
        assert k.deviation(expected * cosine) < 3.5
    assert abs(k.mean / q.mean - cosine) < 0.1


def test_softmax_at_the_end_in_another_shape_is_left_out() -> None:
    def read(more: Any) -> Any:
        model = Model(lambda m, x: more(m.layer(x).softmax(-1)), layer=nn.Linear(8, 5))
        return kc.read(model, (2, 8))

    r = read(lambda y: y[:, None].transpose(1, 2))
    assert "left out" in r.notes[0].text and r.fidelity.level == "approximate"
    assert read(lambda y: y * y).fidelity.level == "not read"
