"""Example inputs by argument name: one rule for reading, transfer, audits, reports and shaping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.cli.models import assembled, by_name, sizes

torch = pytest.importorskip("torch")
nn = torch.nn
X, Y = torch.randn(2, 8), torch.randn(2, 8)
IDS = torch.arange(16).reshape(2, 8)


class Tokens(nn.Module):
    """As nanoGPT: what comes behind the ids may be left out."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, width), nn.Linear(width, 50)

    def forward(self, idx: Any, scale: Any = None) -> Any:
        x = self.table(idx)
        return self.head(torch.relu(x if scale is None else x * 2))


class Both(nn.Module):
    """Two inputs, read by different layers, so that a swap shows."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(8, width), nn.Linear(8, width), nn.Linear(width, 5)

    def forward(self, x: Any, y: Any) -> Any:
        return self.out(torch.relu(self.a(x) + self.b(y)))


class Only(Both):
    def forward(self, x: Any, *, y: Any) -> Any:
        return super().forward(x, y)


class Nested(Both):
    def forward(self, x: Any, extra: Any = None) -> Any:
        return super().forward(x, extra["y"][0])


CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "no tensor": (Tokens, ({"idx": IDS, "scale": 2.0},)),
    "nested": (Nested, (X, {"extra": {"y": [Y]}})),
}


def asked(make: Any, inputs: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """The functions that take example inputs."""
    packed = inputs[0] if len(inputs) == 1 else inputs

    def applied() -> Any:
        network = kc.read(make(), *inputs).network.normalised()
        return kc.shape(network, method="dks", zeta=1.5).apply_to(make(), *inputs)

    return {
        "read": lambda: kc.read(make(), *inputs),
        "example_inputs": lambda: kc.read(make(), example_inputs=packed),
        "transfer": lambda: kc.transfer(make, *inputs, base=16, to=32),
        "audit": lambda: kc.audit(make(), packed),
        "apply_to": applied,
    }


@pytest.mark.parametrize("case", CALLS)
def test_inputs_by_name(case: str) -> None:
    make, inputs = CALLS[case]
    found = {name: ask() for name, ask in asked(make, inputs).items()}
    network = found["read"].network
    assert list(network) == list(found["example_inputs"].network)
    names = {name for name, _ in make().named_parameters()}
    assert set(found["transfer"].parameters) == names
    assert {row.name for row in found["audit"].parameters} == names
    if make is not Tokens:
        assert "x" in str(network.parents("a")[0]) and "y" in str(network.parents("b")[0])


WRONG: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "no such name": (Tokens, ({"ids": IDS},), "'ids'.*idx, scale"),
    "one of two": (Tokens, ({"idx": IDS, "skale": 1},), "'skale'.*idx, scale"),
    "both of two": (Both, ({"u": X, "v": Y},), "x, y"),
    "left out": (Only, (X,), "'y'"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("what", ["read", "transfer", "audit"])
def test_wrong_names_list_the_right_ones(case: str, what: str) -> None:
    make, inputs, words = WRONG[case]
    with refused(words):
        asked(make, inputs)[what]()


def test_names_of_onnx_files(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx_graphs import model, node

    path = tmp_path / "m.onnx"
    onnx.save(model([node("Relu", "x", "y")], {"x": ["n", "c"]}, ["y"]), path)
    assert kc.read(path, {"x": (2, 8)}).network.features["x"] == 8
    with refused("'u'.*x"):
        kc.read(path, {"u": (2, 8)})


def test_names_on_the_command_line() -> None:
    given = [by_name(sizes)(text) for text in ("1,8", "mask=2,16", "y = 1,8")]
    assert assembled(given) == ((1, 8), {"mask": (2, 16), "y": (1, 8)})
    with pytest.raises(Exception, match="not a valid argument name"):
        by_name(sizes)("4x=1,8")


def test_transfer_check_takes_rows_of_every_array() -> None:
    y = torch.randn(12, 8)
    given = {"y": y, "x": torch.randn(12, 8)}
    rules = {"rates": (1e-3, 1e-2, 1e-1), "widths": (8, 16), "steps": 3, "batch": 4, "seeds": 1}
    found = kc.transfer_check(Both, given, torch.randn(12, 5), **rules)
    assert np.isfinite(found.losses).all()
    with refused(r"x\['y'\] has 3 examples"):
        kc.transfer_check(Both, given | {"y": y[:3]}, y, **rules)
    with refused("y must be"):
        kc.trained_coordinates(Both, given, [1.0], lr=0.1)
