"""Edited models write into no array that the original keeps."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402


class PreActivated(nn.Module):
    """A norm before an activation in place, on a stream that the shortcut reads again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.end = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)
        self.norm, self.act, self.conv = (
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 1),
        )

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        return self.end(x + self.conv(self.act(self.norm(x))))


class OutOfPlace(nn.Module):
    """A model whose norms return copies."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        self.model.norm = _Copied()

    def forward(self, x: Any) -> Any:
        return self.model(x)


class _Copied(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.clone()


def test_removed_norms_return_arrays_of_their_own() -> None:
    torch.manual_seed(0)
    model, x = PreActivated().eval(), torch.randn(5, 3, 4, 4)
    with torch.no_grad():
        model.norm.running_mean.normal_()
    s = kc.shape(kc.read(model, x), "tanh", assume_independent=True)
    norms = s.edits.only("norm")
    assert len(norms) == 1
    new = kc.apply_edits(model, norms, weights="keep")
    assert torch.allclose(new(x), OutOfPlace(model)(x), rtol=1e-6, atol=1e-7)
    assert not torch.allclose(new(x), model(x), rtol=1e-3)


def test_a_norm_whose_input_nobody_else_reads_is_not_copied() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 2, 1)
    )
    (edit,) = kc.shape(kc.read(model.eval(), (2, 3, 4, 4))).edits["1"]
    (call,) = edit.calls
    assert not call.action.copied


class Overwritten(nn.Module):
    """A norm whose input is changed in place before its result is read."""

    def __init__(self, view: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.view = nn.BatchNorm1d(8), view
        self.a, self.b, self.c, self.d = nn.Linear(6, 8), *(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        x = self.a(x)
        y = self.norm(x.view_as(x) if self.view == "read" else x)
        if self.view == "written":
            x = x.view_as(x)
        x.relu_()
        return self.d(torch.tanh(self.b(y)) + self.c(x))


@pytest.mark.parametrize("view", ["none", "written", "read"])
def test_a_norm_whose_input_is_overwritten_hands_on_a_copy(view: str) -> None:
    x = torch.randn(4, 6)
    model = Overwritten(view).eval()
    made = kc.shape(kc.read(model, x)).apply_to(model, x)
    assert torch.equal(made(x), OutOfPlace(made)(x))
