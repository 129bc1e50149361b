"""Where the source of edited functions is found."""

import __future__

import ast
import linecache
from typing import Any

import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")
CELL = """
import torch


class Cell(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))
"""


@pytest.mark.parametrize("future", [0, __future__.annotations.compiler_flag])
def test_cells_after_an_import_of_the_future(future: int) -> None:
    """Notebooks compile later cells with the future of earlier ones, which their text has not."""
    name = f"<cell {future}>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(True), name)
    names: dict = {"__name__": "cells"}
    for node in ast.parse(CELL).body:  # notebooks compile statement by statement
        part = ast.Module([node], [])
        exec(compile(part, name, "exec", flags=future, dont_inherit=True), names)
    model, x = names["Cell"](), torch.randn(3, 8)
    s = kc.shape(kc.read(model, x), method="dks", zeta=1.5)
    assert s.edits.only("activation") and not s.edits.left_alone
    assert not torch.allclose(s.apply_to(model, weights="keep")(x), model(x))
    with refused("Cell.forward is not in a file"):
        s.patch()


def test_code_without_a_source_has_no_patch() -> None:
    names: dict = {"__name__": "nowhere"}
    exec(CELL, names)
    s = kc.shape(kc.read(names["Cell"](), torch.randn(3, 8)), method="dks", zeta=1.5)
    with refused("Cell is not in a file.*no source"):
        s.patch()


class ByLambda(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    forward = lambda self, x: self.second(torch.tanh(self.first(x)))  # noqa: E731


def test_a_lambda_as_forward_is_edited() -> None:
    model, x = ByLambda(), torch.randn(3, 8)
    s = kc.shape(kc.read(model, x), method="dks", zeta=1.5)
    assert s.edits.only("activation") and not s.left_alone
    assert not torch.allclose(s.apply_to(model, weights="keep")(x), model(x))


class Scaled(torch.nn.Sequential):
    def __call__(self, x: Any) -> Any:
        return super().__call__(2 * x)


def test_a_model_that_overrides_call_says_so() -> None:
    model = Scaled(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    x = torch.randn(3, 8)
    with refused("the class Scaled overrides __call__; move the code of __call__ to forward"):
        _ = kc.shape(kc.read(model, x), method="dks", zeta=1.5).edits
    program = torch.export.export(ByLambda(), (x,))
    with refused("read the original torch.nn.Module"):
        _ = kc.shape(kc.read(program), method="dks", zeta=1.5).edits
