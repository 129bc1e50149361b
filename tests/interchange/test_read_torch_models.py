"""Reading PyTorch: forms of models and of examples, and errors."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")

from test_read_torch import Fn  # noqa: E402
from torch import nn  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

from kcalc.interchange.example_shapes import listed  # noqa: E402
from kcalc.interchange.read import read  # noqa: E402
from kcalc.interchange.torch_model import trace_torch  # noqa: E402

# -- examples and models ---------------------------------------------------------------------------


def test_many_forms_of_a_model() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    ).eval()
    x = torch.randn(2, 3, 8, 8)
    plain = read(model, x).network
    program, batch = torch.export.export(model, (x,)), torch.export.Dim("batch")
    for form in (
        torch.fx.symbolic_trace(model),
        torch.jit.trace(model, x),
        torch.jit.script(model),
        program,
        program.run_decompositions(),
        torch.export.export(model, (x,), dynamic_shapes=({0: batch},)),
    ):
        examples = () if isinstance(form, torch.export.ExportedProgram) else (x,)
        found = read(form, *examples)
        assert found.network.isomorphic(plain), f"{type(form)}\n{found}"


class Counted(nn.Module):
    """Positions that are counted without padding, or (``plain``) a range."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ids, self.positions = nn.Embedding(20, 8), nn.Embedding(9, 8)
        self.plain = plain
        self.register_buffer("padding", torch.tensor(0))

    def forward(self, x: Any) -> Any:
        mask = x.ne(self.padding).view(x.shape[0], 2, 2).flatten(1)
        places = torch.arange(1, 5) if self.plain else mask.cumsum(1) * mask
        return self.ids(x) + self.positions(places)


def test_positions_computed_from_ids() -> None:
    x, model = torch.arange(1, 9).reshape(2, 4), Counted(False).eval()
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    plain = read(Counted(True), x).network
    for found in (read(model, x), read(program)):
        assert found.network.isomorphic(plain) and "special ids" in str(found)


# -- errors ----------------------------------------------------------------------------------------


def broken(m: Any, x: Any) -> Any:
    raise RuntimeError("the cable is out")


@dataclass
class Found:
    logits: Any
    cache: Any = None


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, *, size: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.a(x) * size)


class Insists(nn.Module):
    """An optional input that it cannot do without."""

    def forward(self, x: Any, y: Any = None) -> Any:
        return x + y.tanh()


def test_example_inputs_by_name() -> None:
    """One array is one input: its rows are none, even of a batch of one."""
    linear = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    for given in ((1, 6), torch.ones(1, 6), np.ones((1, 6)), [(1, 6)]):
        assert len(kc.read(linear, example_inputs=given).network) == 3
        assert len(listed(given)) == 1
    with refused("example_inputs="):
        kc.read(linear, (1, 6), example_inputs=(1, 6))


def test_errors_stand_alone() -> None:
    linear = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    locked = Model(lambda m, x: m.a(x), a=linear, generator=(i for i in range(3)))
    wrapped = "the model returns an object of class Found, .* Wrap the model in a torch.nn.Module"
    line = r"test_read_torch_models.py:\d+ in broken: RuntimeError: the cable is out"
    cases: list[tuple[Any, tuple[Any, ...], str]] = [
        (linear, (), r"pass example inputs or their shapes, .*kc.report\(model, example_inputs="),
        (Named(), ((2, 6),), r"'size' only by keyword; .*kc.read\(model, \{'size': size\}\)"),
        (linear, ((2, 5),), r"could not be traced.*mat1 and mat2"),
        (nn.Embedding(9, 4), ((2, 5),), r"such as token ids, pass an array of integers"),
        (linear, ((0, 6),), r"positive integers"),
        (linear, (torch.zeros(0, 6),), r"contains no example"),
        (linear, (object(),), r"must be a tensor, an array or a shape"),
        (linear, (2.5,), "tensor|input"),
        (linear, ({3},), "tensor.*shape"),
        (linear, (np.array(["a"]),), r"must contain numbers"),
        (
            linear,
            ((2, 6), (2, 6)),
            r"does not take 2 inputs; pass the inputs as kc.read\(model, input\)",
        ),
        (Fn(Found), ((2, 6),), wrapped),
        (
            Fn(lambda y: {"y": y, "cache": [SimpleNamespace(y=y)]}),
            ((2, 6),),
            "returns an object of class SimpleNamespace",
        ),
        (Model(broken), ((2, 6),), f"could not be traced at {line}"),
        (locked, ((2, 6),), r"cannot be copied"),
        (
            Model(lambda m, x: m.a * 2, a=nn.Parameter(torch.ones(3))),
            ((2, 6),),
            r"no output of the model depends on its inputs",
        ),
        (nn.Identity(), ((2, 6),), r"no layers|nothing to analyse"),
        (nn.Linear(6, 6, device="meta"), ((2, 6),), r"meta device"),
        (Insists(), ((2, 6),), "optional inputs too .y"),
        (
            nn.Sequential(nn.Linear(6, 8), nn.LazyBatchNorm1d(affine=False)),
            ((2, 6),),
            r"^1\.\w+ has no shape yet; run the lazy module once",
        ),
        (Model, ((2, 6),), "Model.*class"),
    ]
    for model, examples, text in cases:
        with refused(text) as caught:
            read(model, *examples)
        if "traced" in text:  # without the frames of PyTorch
            assert caught.value.__suppress_context__ and caught.value.__cause__ is None
    with refused("expected a torch.nn.Module"):
        trace_torch(3, (2, 6))
