"""Stop-gradients that are meant, sizes that are units, and weights that are held on purpose."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from audit_models import (
    findings,
    improvised,
    listed,
    mlp,
    numbered,
    overwritten,
    separable,
)
from modern_zoo import Model
from torch import nn
from torch.nn import functional as F

DATA = (16, 8)


def taught(hidden: bool, scale: float = 1.0) -> Callable[[], Any]:
    """A student and its teacher, a copy: registered or in a list."""

    def build() -> Any:
        student = mlp(8, 16, 8)
        for parameter in student.parameters():
            parameter.data *= scale
        teacher = copy.deepcopy(student)
        return Model(followed, student=student, teacher=[teacher] if hidden else teacher)

    return build


def followed(model: Any, x: Any) -> Any:
    with torch.no_grad():
        aim = model.teacher[0](x) if isinstance(model.teacher, list) else model.teacher(x)
    return F.mse_loss(model.student(x), aim)


def code_book(kept: bool) -> Callable[[], Any]:
    """A code book with straight-through gradients; its loss is returned, or kept."""

    def forward(model: Any, x: Any) -> Any:
        z = model.encode(x)
        code = model.book[torch.cdist(z, model.book).argmin(-1)]
        loss = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        y = model.decode(z + (code - z).detach())
        if kept:
            model.loss = loss
        return y if kept else (y, loss)

    def build() -> Any:
        book = nn.Parameter(0.3 * torch.randn(32, 4))
        return Model(forward, encode=mlp(8, 16, 4), decode=mlp(4, 16, 8), book=book)

    return build


def pulled(model: Any, x: Any) -> Any:
    """Forces: minus the gradient of an energy, whose last bias has none."""
    x = x.detach().clone().requires_grad_(True)
    return -torch.autograd.grad(model.net(x).sum(), x, create_graph=True)[0]


def passed(model: Any, nodes: Any, edges: Any) -> Any:
    """A graph network that updates edges in its last block too, where nothing reads them."""
    to, of = torch.arange(16), torch.arange(16).roll(1)
    for edge, node in zip(model.edge, model.node, strict=True):
        new = edges + edge(torch.cat([nodes[to], nodes[of], edges], -1))
        sums = torch.zeros_like(nodes).index_add(0, to, edges)
        nodes = nodes + node(torch.cat([nodes, sums], -1))
        edges = new
    return model.head(nodes)


def chosen(model: Any, x: Any) -> Any:
    """Two experts of four by scores with a bias that only the choice sees."""
    share = model.router(x).sigmoid()
    choice = (share + model.bias).topk(2, -1).indices
    results = torch.stack([expert(x) for expert in model.experts], 1)
    taken = results.gather(1, choice[..., None].expand(-1, -1, 8))
    return (taken * share.gather(1, choice)[..., None]).sum(1)


def units() -> Any:
    """A last layer that gives pascals."""
    model = mlp(8, 64, 1)
    nn.init.constant_(model[2].bias, 1e5)
    model[2].weight.data *= 1e5
    return model


def noisy(model: Any, x: Any) -> Any:
    share = torch.rand(16, 1, requires_grad=True)
    return model.net(share * x + (1 - share) * x.flip(0))


MEANT: dict[str, tuple[Any, Any]] = {
    "a teacher that no_grad runs": (taught(False, 0.1), DATA),
    "a teacher in a list": (taught(True), DATA),
    "a code book": (code_book(False), DATA),
    "a code book whose loss is kept": (code_book(True), DATA),
    "forces": (
        lambda: Model(pulled, net=nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))),
        DATA,
    ),
    "the last update of edges": (
        lambda: Model(passed, edge=nn.ModuleList(mlp(24, 16, 8) for _ in range(3)),
                      node=nn.ModuleList(mlp(16, 16, 8) for _ in range(3)), head=mlp(8, 16, 3)),
        (DATA, DATA),
    ),
    "a bias that balances experts": (
        lambda: Model(chosen, router=nn.Linear(8, 4), bias=nn.Parameter(torch.zeros(4)),
                      experts=nn.ModuleList(nn.Linear(8, 8) for _ in range(4))), (64, 8),
    ),
    "noise with a gradient": (lambda: Model(noisy, net=mlp(8, 16, 1)), DATA),
    "a last layer with a unit": (units, DATA),
    "inputs of a large unit": (lambda: mlp(8, 32, 1), 1e6 * torch.ones(16, 8)),
    "seconds": (
        lambda: Model(lambda m, t: m.net(torch.stack([t.float(), t.float() / 7], -1)),
                      net=mlp(2, 32, 1)),
        torch.arange(1_600_000_000, 1_600_000_016),
    ),
    "a scripted module": (
        lambda: Model(lambda m, x: m.head(m.net(x)), net=torch.jit.script(mlp(8, 16, 8)),
                      head=mlp(8, 5)), DATA,
    ),
    "one bound for all": (lambda: separable(False, lambda _: 0.05), (2, 3, 12, 12)),
}  # fmt: skip


@pytest.mark.parametrize("case", MEANT.values(), ids=MEANT.keys())
def test_what_is_meant_is_no_finding(case: tuple[Any, Any]) -> None:
    assert findings(*case) == ()


@pytest.mark.parametrize(
    ("build", "code", "text"),
    [
        (lambda: listed(False), "PARAM-HIDDEN", "nn.Linear(8, 8) for"),
        (lambda: improvised(False), "PARAM-HIDDEN", "nn.Linear(16, 5)"),
        (lambda: numbered(lambda a: a.item()), "GRAD-DEAD", "a.item()"),
        (lambda: numbered(lambda a: a.detach()), "GRAD-DEAD", "a.detach()"),
        (lambda: overwritten(False), "GRAD-DEAD", "first(x)"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_lines_are_those_that_make_or_cut_off(
    build: Any, code: str, text: str, finished: bool
) -> None:
    (finding,) = findings(build() if finished else build)
    assert finding.code == code
    if finished and "Linear(8, 8)" in text:
        text = "layer(x)"  # where a list was filled is known of builders only
    file, _, line = finding.place.rpartition(":")
    source = Path(__file__).parents[2] / Path(file).name
    source = source if source.exists() else Path(__file__)
    assert text in source.read_text().splitlines()[int(line) - 1]


def test_hidden_tensors_of_one_kind_are_one_finding() -> None:
    def block() -> Any:
        scale = torch.ones(8, requires_grad=True)
        shift = torch.zeros(8, requires_grad=True)
        return Model(lambda m, x: x * m.scale + m.shift, scale=scale, shift=shift)

    (finding,) = findings(lambda: nn.Sequential(nn.Linear(8, 8), block(), block()))
    assert finding.parameters == ("1.scale", "1.shift", "2.scale", "2.shift")
    assert "*.scale (2), *.shift (2)" in finding.message


def test_a_dead_gradient_names_the_gains_that_are_zero() -> None:
    """A ReLU behind a zero gain passes no gradient; the line is that of the gain."""

    def build() -> Any:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
        nn.init.zeros_(model[1].weight)
        return model

    (finding,) = findings(build)
    assert finding.code == "GRAD-DEAD" and "1.weight starts at zero" in finding.message
    line = Path(__file__).read_text().splitlines()[int(finding.place.rpartition(":")[2]) - 1]
    assert "nn.init.zeros_(model[1].weight)" in line


def test_a_layer_that_the_first_run_makes_is_a_warning() -> None:
    def forward(model: Any, x: Any) -> Any:
        if not hasattr(model, "last"):
            model.last = nn.Linear(16, 5)
        return model.last(F.relu(model.first(x)))

    (finding,) = findings(lambda: Model(forward, first=nn.Linear(8, 16)))
    assert (finding.code, finding.severity) == ("PARAM-HIDDEN", "warning")
    assert set(finding.parameters) == {"last.weight", "last.bias"}


@pytest.mark.parametrize("last", [nn.Sigmoid, nn.Softplus])
def test_the_size_is_seen_through_the_last_function(last: Any) -> None:
    def build() -> Any:
        model = mlp(*[64] * 13, 1).append(last())
        for layer in model[:-1:2]:
            nn.init.normal_(layer.weight)
        return model

    assert "RESULT-SIZE" in {f.code for f in findings(build, (64, 64))}


def test_bounds_of_a_single_grouped_layer_are_known_by_usual_laws() -> None:
    def build(fan: int) -> Any:
        layer = nn.Conv1d(32, 32, 5, groups=32)
        nn.init.uniform_(layer.weight, -math.sqrt(6 / fan), math.sqrt(6 / fan))
        return Model(lambda m, x: m.head(F.relu(m.layer(x)).mean(-1)), layer=layer, head=mlp(32, 5))

    (finding,) = findings(lambda: build(160), (4, 32, 20))
    assert (finding.code, finding.parameters) == ("INIT-FAN", ("layer.weight",))
    assert findings(lambda: build(5), (4, 32, 20)) == ()
