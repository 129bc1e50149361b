"""Axes that change the number of experts, of experts chosen, of streams or of heads."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import refusals

from kcalc import transfer

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
from modern_zoo import Model  # noqa: E402

Linear = nn.Linear
FLAT = (2, 16)


def ends(width: int) -> dict[str, Any]:
    return {"i": Linear(16, width), "o": Linear(width, 5)}


def stacked(width: int, experts: int, top: int = 0) -> Any:
    """Experts in one array; ``top``: how many are chosen."""

    def forward(m: Any, x: Any) -> Any:
        x = torch.relu(m.i(x))
        gates = m.r(x).softmax(-1)
        if top:
            best, ids = gates.topk(top, -1)
            gates = torch.zeros_like(gates).scatter(1, ids, best)
        return m.o((torch.einsum("bd,edf->bef", x, m.up) * gates[..., None]).sum(1))

    up = nn.Parameter(torch.randn(experts, width, width))
    return Model(forward, r=Linear(width, experts), up=up, **ends(width))


def listed(width: int, experts: int) -> Any:
    def forward(m: Any, x: Any) -> Any:
        x = torch.relu(m.i(x))
        gates = m.r(x).softmax(-1).unsqueeze(-2)
        return m.o((torch.stack([e(x) for e in m.each], -1) * gates).sum(-1))

    each = nn.ModuleList(Linear(width, width) for _ in range(experts))
    return Model(forward, r=Linear(width, experts), each=each, **ends(width))


def streams(width: int, count: int) -> Any:
    """Hyper-connections with static gates."""

    def forward(m: Any, x: Any) -> Any:
        both = torch.einsum("ij,bjd->bid", m.h, m.i(x)[:, None].expand(-1, count, -1))
        return m.o((both + m.p[:, None] * torch.relu(m.f(both.mean(1)))[:, None]).sum(1))

    gates = {"h": nn.Parameter(torch.eye(count)), "p": nn.Parameter(torch.ones(count))}
    return Model(forward, f=Linear(width, width), **gates, **ends(width))


CHANGED = {
    "experts in one array": (lambda k: stacked(32 * k, 4 * k), "'softmax'.*same number of exp"),
    "experts chosen": (lambda k: stacked(32 * k, 8, 2 * k), "'topk' selects 4.*but 2 in the"),
    "experts in a list": (lambda k: listed(32 * k, 4 * k), "8 parameters 'each.*', but .* has 4"),
    "streams": (lambda k: streams(32 * k, 2 * k), "'expand'.*same number of streams"),
}  # fmt: skip


test_numbers_that_have_no_power_are_named = refusals(
    CHANGED, lambda build: transfer(build, FLAT, base=1, to=2)
)


def test_the_same_numbers_at_every_width_have_rules() -> None:
    for build in (stacked, listed, streams):
        found = transfer(lambda w, b=build: b(w, 4), FLAT, base=32, to=64)
        assert found["o.weight"].role == "readout"


@pytest.mark.parametrize("act", [torch.relu, lambda h: h.sort(1)[0]], ids=["network", "program"])
def test_codes_that_are_normalised_are_noted(act: Any) -> None:
    def build(width: int) -> Any:
        return Model(
            lambda m, x: m.p(F.normalize(m.o(act(m.i(x))), dim=-1)),
            p=Linear(5, 3),
            **ends(width),
        )

    notes = transfer(build, FLAT, base=32, to=64).assumptions
    assert any("readout" in one.text and one.kind == "heuristic" for one in notes)
