"""Axes that change the number of experts, of experts chosen, of streams or of heads."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import refused

from kcalc import transfer

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
FLAT, TOKENS = (2, 16), (2, 6, 16)


class Called(nn.Module):
    """A model whose forward is a function of itself."""

    def __init__(self, forward: Any, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.call = forward

    def forward(self, x: Any) -> Any:
        return self.call(self, x)


def ends(width: int) -> dict[str, Any]:
    return {"i": nn.Linear(16, width), "o": nn.Linear(width, 5)}


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
    return Called(forward, r=nn.Linear(width, experts), up=up, **ends(width))


def listed(width: int, experts: int) -> Any:
    def forward(m: Any, x: Any) -> Any:
        x = torch.relu(m.i(x))
        gates = m.r(x).softmax(-1).unsqueeze(-2)
        return m.o((torch.stack([e(x) for e in m.each], -1) * gates).sum(-1))

    each = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
    return Called(forward, r=nn.Linear(width, experts), each=each, **ends(width))


def streams(width: int, count: int) -> Any:
    """Hyper-connections with static gates."""

    def forward(m: Any, x: Any) -> Any:
        both = torch.einsum("ij,bjd->bid", m.h, m.i(x)[:, None].expand(-1, count, -1))
        return m.o((both + m.p[:, None] * torch.relu(m.f(both.mean(1)))[:, None]).sum(1))

    gates = {"h": nn.Parameter(torch.eye(count)), "p": nn.Parameter(torch.ones(count))}
    return Called(forward, f=nn.Linear(width, width), **gates, **ends(width))


def heads(width: int, count: int) -> Any:
    def forward(m: Any, x: Any) -> Any:
        parts = (p.unflatten(2, (count, -1)).transpose(1, 2) for p in m.qkv(m.i(x)).chunk(3, 2))
        read = F.scaled_dot_product_attention(*parts)
        return m.o(read.transpose(1, 2).flatten(2).mean(1))

    return Called(forward, qkv=nn.Linear(width, 3 * width), **ends(width))


CHANGED = {
    "experts in one array": (lambda k: stacked(32 * k, 4 * k), "'softmax'.*same number of exp"),
    "only experts": (lambda k: stacked(32, 4 * k), "'softmax'.*same number of experts"),
    "experts chosen": (lambda k: stacked(32 * k, 8, 2 * k), "'topk' selects 4.*but 2 in the"),
    "experts in a list": (lambda k: listed(32 * k, 4 * k), "8 parameters 'each.*', but .* has 4"),
    "streams": (lambda k: streams(32 * k, 2 * k), "'expand'.*same number of streams"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_numbers_that_have_no_power_are_named(what: str) -> None:
    build, words = CHANGED[what]
    with refused(words):
        transfer(build, FLAT, base=1, to=2)


def test_the_same_numbers_at_every_width_have_rules() -> None:
    for build in (stacked, listed, streams):
        found = transfer(lambda w, b=build: b(w, 4), FLAT, base=32, to=64)
        assert found["o.weight"].role == "readout"


def test_codes_that_are_normalised_are_noted() -> None:
    def build(width: int) -> Any:
        return Called(
            lambda m, x: m.p(F.normalize(m.o(torch.relu(m.i(x))), dim=-1)),
            p=nn.Linear(5, 3),
            **ends(width),
        )

    notes = transfer(build, FLAT, base=32, to=64).assumptions
    assert any("readout" in one.text and one.kind == "heuristic" for one in notes)
