"""Several residual streams: those that train as one are found, the papers' are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from modern_zoo import Model
from stream_models import DEPTH, Several, Static
from torch import nn

import kcalc as kc

VECTORS, TOKENS, ROWS = (2, 5, 32), torch.arange(10).reshape(2, 5), (6, 32)
VECTORS_16 = (2, 5, 16)


def audited(model: nn.Module, inputs: Any = VECTORS) -> kc.Audit:
    return kc.audit(model, inputs, predict=False)


APART: dict[str, Any] = {
    "HC of its paper": (Several, {"kind": "HC"}, VECTORS),
    "HC, static": (Several, {"kind": "HC", "dynamic": False}, VECTORS),
    "mHC of its paper, tokens": (Several, {"vocabulary": 50}, TOKENS),
    "mHC, alpha 0": (Several, {"alpha": 0.0}, VECTORS),
    "dynamic gates that differ": (Several, {"home": 0.0}, VECTORS),
    "homes, softmaxes, folded": (Static, {"home": 4.0, "folded": True, "softmax": True}, ROWS),
    "equal at the start, no permutation": (Static, {"noise": 0.5}, ROWS),
}


@pytest.mark.parametrize(("make", "options", "inputs"), APART.values(), ids=APART.keys())
def test_streams_that_differ(make: Any, options: Any, inputs: Any) -> None:
    found = audited(make(**options), inputs)
    assert not found.findings
    assert [block.number for block in found.blocks] == [0] * DEPTH


def test_remarks_on_gates() -> None:
    """Iterations that are too few, equal streams, and logits of variance sigma^2 n d."""
    wide = audited(Several(alpha=1.0, std=0.2), (8, 16, 32))
    (remark,) = [r for r in wide.remarks if "logits of the stream gates" in r]
    assert float(remark.split("variance of ")[1].split(" ")[0]) == pytest.approx(5.12, rel=0.25)
    assert not wide.findings
    torch.manual_seed(0)
    static = audited(Static(3.0, noise=1.0), ROWS)
    assert any("row or column sums" in r for r in static.remarks) and not static.findings
    assert any("equal at initialisation" in r for r in audited(Static(3.0), ROWS).remarks)
    assert not audited(Several("HC")).remarks


def written(streams: list[Any], y: Any, mix: Any) -> list[Any]:
    """Mixed streams, to each of which a result is added."""
    return [y + sum(w * s for w, s in zip(row, streams, strict=True)) for row in mix]


class Lists(nn.Module):
    """Streams in a list of tensors, mixed in loops; every branch reads most from its home."""

    def __init__(self, home: float = 0.0, *, start: Any = (1, 1, 1), depth: int = 2) -> None:
        super().__init__()
        self.start = start
        self.branches = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
            for _ in range(depth)
        )
        self.read = nn.ParameterList(1 + home * torch.eye(3)[i % 3] for i in range(depth))
        self.mix = nn.ParameterList(0.1 + 0.7 * torch.eye(3) for _ in range(depth))
        self.write = nn.ParameterList(torch.ones(3) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        streams = [weight * x for weight in self.start]
        parts = (self.branches, self.read, self.mix, self.write)
        for branch, read, mix, write in zip(*parts, strict=True):
            y = branch(sum(read[j] * streams[j] for j in range(3)))
            made = [sum(row[j] * streams[j] for j in range(3)) for row in mix]
            streams = [write[i] * y + made[i] for i in range(3)]
        return sum(streams)


def pair(width: int = 16, home: bool = True) -> Any:
    """Two streams; equal small matrices of logits mix them in every sub-layer."""

    def forward(m: Any, x: Any) -> Any:
        streams = [1 * x, 1 * x]
        for i, (branch, logits) in enumerate(zip(m.branches, m.mix, strict=True)):
            read = streams[i] if home else sum(streams)
            streams = written(streams, branch(read.relu()), logits.softmax(-1))
        return sum(streams)

    branches = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
    mix = nn.ParameterList(6 * torch.eye(2) - 3 for _ in range(2))
    return Model(forward, branches=branches, mix=mix)


class Sums(Lists):
    """The result of a branch is the first or second of the addends of a stream."""

    def forward(self, x: Any) -> Any:
        streams = [x.clone() for _ in range(3)]
        for i, (branch, read, mix) in enumerate(
            zip(self.branches, self.read, self.mix, strict=True)
        ):
            y = branch(sum(read[j] * streams[j] for j in range(3)))
            parts = [[row[j] * streams[j] for j in range(3)] for row in mix]
            addends = [[*m[:k], y, *m[k:]] for m, k in zip(parts, (0, 0, min(i, 1)), strict=True)]
            streams = [sum(terms[1:], terms[0]) for terms in addends]
        return sum(streams)


class Read(Lists):
    """Branches read a function of the streams, which small matrices mix, or nothing."""

    def __init__(self, read: Any, begin: Any = lambda x: [x.clone() for _ in range(3)], mixed=True):
        super().__init__()
        self.reading, self.begin, self.mixed = read, begin, mixed

    def forward(self, x: Any) -> Any:
        streams = self.begin(x)
        for i, (branch, mix) in enumerate(zip(self.branches, self.mix, strict=True)):
            y = branch(self.reading(streams, i))
            streams = written(streams, y, mix) if self.mixed else [s + y for s in streams]
        return sum(streams)


def total(streams: list[Any], i: int) -> Any:
    return sum(streams)


LISTS: dict[str, tuple[Any, str | None]] = {
    "copies": (Lists, "1, 2, 3"),
    "clones": (lambda: Read(lambda streams, i: streams[i % 2]), "1, 3"),
    "sums of many": (Sums, "1, 2, 3"),
    "sums of many, homes": (lambda: Sums(4.0, depth=4), None),
    "copies that are not mixed": (
        lambda: Read(total, lambda x: [1 * x for _ in range(3)], False),
        "1, 2, 3",
    ),
    "multiples": (lambda: Lists(start=(1, 2, 2)), "2, 3"),
    "different functions": (lambda: Read(total, lambda x: [x, x.sin(), x.exp()]), None),
    "sines of streams": (lambda: Read(lambda streams, i: sum(s.sin() for s in streams)), None),
    "one sub-layer": (lambda: Lists(depth=1), None),
    "a pair": (pair, None),
}


@pytest.mark.parametrize("case", LISTS)
def test_streams_in_separate_tensors(case: str) -> None:
    make, alike = LISTS[case]
    model = make()
    found = audited(model, (6, 16))
    told = [f for f in found.findings if f.code == "STREAM-ALIKE"]
    assert "INIT-COPY" not in {finding.code for finding in found.findings}
    assert [f"streams {alike}." in finding.message for finding in told] == [True] * bool(alike)
    named = any("3 residual streams are in separate tensors" in r for r in found.remarks)
    assert named == (case in ("different functions", "sines of streams"))
    if len(model.branches) > 1:
        assert {block.number for block in found.blocks} == {0}


def test_nothing_is_predicted_for_several_streams() -> None:
    """Sums of the network that is read are in another order, and there may be as many of them."""
    found = kc.audit(Sums(4.0, depth=4), (6, 16))
    assert {block.predicted for block in found.blocks} == {None}
    assert any("several residual streams" in remark for remark in found.remarks)


def cosine(x: Any) -> float:
    """The mean cosine between different tokens out of five."""
    units = nn.functional.normalize(x, dim=-1)
    others = ~torch.eye(5, dtype=torch.bool)
    return (units @ units.mT)[..., others].mean().item()


def test_streams_share_the_rows_of_the_table() -> None:
    """A list of streams has the rows of the same streams in one tensor, and a cosine of tokens."""
    tables = []
    for form in ("einsum", "clones"):
        torch.manual_seed(0)
        rows = audited(Dynamic(form), (6, 16)).blocks
        tables.append([(r.name, r.number, r.token_cosine) for r in rows])
        tables.append([x for r in rows for x in (r.stream, r.branch)])
    assert tables[0] == tables[2] == [(f"branches.{i}.3", 0, None) for i in range(3)]
    assert tables[1] == pytest.approx(tables[3], rel=1e-6)

    torch.manual_seed(0)
    model, seen = Lists(), []
    model.branches[1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    first, _ = audited(model, VECTORS_16).blocks
    # equal streams: a branch reads a multiple
    assert first.token_cosine == pytest.approx(cosine(seen[0]), rel=1e-5)


def test_cosines_of_tokens_are_averaged_over_streams() -> None:
    model, seen = Several("HC", dynamic=False), []
    model.connections[1].register_forward_hook(lambda *given: seen.append(given[2]))
    block = audited(model).blocks[1]
    assert block.token_cosine == pytest.approx(cosine(seen[0].transpose(1, 2)), rel=1e-5)


def test_tokens_in_separate_tensors() -> None:
    """Linear layers flatten the tokens, so a view follows the last layer of every branch."""
    alike, apart = (audited(Lists(home, depth=4), VECTORS_16) for home in (0.0, 4.0))
    assert [finding.code for finding in alike.findings] == ["STREAM-ALIKE"]
    assert not apart.findings and len(apart.blocks) == 4


def towers() -> Any:
    """Two towers; the same result is added to what their branches read, not to the towers."""

    def forward(m: Any, x: Any) -> Any:
        a, b = x.sin(), x.cos()
        for shared, first, second in zip(m.shared, m.first, m.second, strict=True):
            c = shared(a * b)
            a, b = a + first((a + c).relu()), b + second((b + c).relu())
        return torch.cat([a, b], -1)

    names = ("shared", "first", "second")
    return Model(forward, **{n: nn.ModuleList(nn.Linear(16, 16) for _ in range(3)) for n in names})


def test_a_result_that_branches_share_makes_no_streams() -> None:
    assert not any("residual streams" in r for r in audited(towers(), (6, 16)).remarks)


def test_two_groups_of_streams_are_not_examined() -> None:
    def forward(m: Any, x: Any) -> Any:
        for first, second in (m.branches[:2], m.branches[2:]):
            streams = x.unsqueeze(1).repeat(1, 4, 1)
            streams = first(streams.sum(1)).unsqueeze(1) + streams
            streams = second(streams.sum(1)).unsqueeze(1) + streams
            x = m.last(streams.sum(1))
        return x

    torch.manual_seed(0)
    branches = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
    found = audited(Model(forward, branches=branches, last=nn.Linear(32, 32)), ROWS)
    assert any("the weights of the 4 residual streams" in remark for remark in found.remarks)


def test_a_further_group_of_streams_is_named() -> None:
    """Three streams, then two; small random matrices, equal in all sub-layers, mix each group."""

    def forward(m: Any, x: Any) -> Any:
        for count, first in ((3, 0), (2, 2)):
            streams = [1 * x for _ in range(count)]
            for branch, mix in zip(m.branches[first : first + 2], m.mix[first:], strict=False):
                streams = written(streams, branch(sum(streams).relu()), mix)
            x = sum(streams)
        return x

    def build() -> Any:
        branches = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        mixes = [torch.randn(k, k) for k in (3, 2)]
        mix = nn.ParameterList(mixes[i // 2].clone() for i in range(4))
        return Model(forward, branches=branches, mix=mix)

    found = audited(build, (6, 16))
    assert "INIT-COPY" not in {finding.code for finding in found.findings}
    assert any("group of 2 streams" in r and "branches.3.weight" in r for r in found.remarks)


class Dynamic(nn.Module):
    """Gates that separate matrices compute from the streams, with homes, in three forms.

    Permutation matrices mix the streams, so all row and column sums are exactly 1. ``cancelled``
    names the sub-layer in which a matrix is divided by itself.
    """

    def __init__(self, form: str, *, cancelled: int | None = None, apart: bool = True) -> None:
        super().__init__()
        self.form, self.cancelled = form, cancelled
        self.embed, self.head = nn.Linear(16, 16), nn.Linear(16, 10)
        self.register_buffer("cycles", torch.stack([torch.eye(3).roll(k, 0) for k in range(3)]))
        self.pre, self.post, self.res = (
            nn.ParameterList(0.1 * torch.randn(48, 3) for _ in range(3)) for _ in range(3)
        )
        self.home = nn.ParameterList(6 * torch.eye(3)[i] - 3 for i in range(3))
        self.write = nn.ParameterList(torch.zeros(3 if apart else 1) for _ in range(3))
        self.dead = nn.Parameter(torch.randn(16, 16))
        self.branches = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
            for _ in range(3)
        )

    def gates(self, streams: Any, i: int) -> tuple[Any, Any, Any]:
        normed = nn.functional.rms_norm(streams, (48,))
        write = (normed @ self.post[i] if len(self.write[i]) > 1 else 0) + self.write[i]
        res = (normed @ self.res[i] + 6 * torch.eye(3)[0].to(normed)).softmax(-1)
        mixing = torch.einsum("bk,kij->bij", res, self.cycles)
        return (normed @ self.pre[i] + self.home[i]).sigmoid(), 2 * write.sigmoid(), mixing

    def branch(self, x: Any, i: int) -> Any:
        if i == self.cancelled:
            y = x @ self.dead
            x = x * (y / y).mean(-1, keepdim=True)
        return self.branches[i](x)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        if self.form == "einsum":
            streams = x.unsqueeze(1).repeat(1, 3, 1)
            for i in range(3):
                read, write, mixing = self.gates(streams.flatten(1), i)
                y = self.branch(torch.einsum("bn,bnd->bd", read, streams), i)
                mixed = torch.einsum("bij,bjd->bid", mixing, streams)
                streams = mixed + write.unsqueeze(-1) * y.unsqueeze(1)
            return self.head(streams.mean(1))
        streams = [x] * 3 if self.form == "one tensor" else [x.clone() for _ in range(3)]
        for i in range(3):
            read, write, mixing = self.gates(torch.cat(streams, -1), i)
            write = write.expand(len(x), 3)
            y = self.branch(sum(read[:, j, None] * streams[j] for j in range(3)), i)
            mixed = [sum(mixing[:, k, j, None] * streams[j] for j in range(3)) for k in range(3)]
            streams = [mixed[k] + write[:, k, None] * y for k in range(3)]
        return self.head(sum(streams))


GATES: dict[str, tuple[Any, set[str]]] = {
    "one tensor": (lambda: Dynamic("one tensor"), set()),
    "einsum, cancelled": (lambda: Dynamic("einsum", cancelled=0), {"dead"}),
    "clones, cancelled": (lambda: Dynamic("clones", cancelled=1), {"dead"}),
    "streams that stay equal": (
        lambda: Dynamic("clones", apart=False),
        {"pre.1", "pre.2", "res.1"},
    ),
}


@pytest.mark.parametrize("case", GATES)
def test_gradients_of_matrices_that_compute_gates(case: str) -> None:
    """Only the first reads and the first and last mixtures may cancel."""
    make, dead = GATES[case]
    found = audited(make(), (6, 16))
    assert {name for f in found.findings for name in f.parameters} == dead
    (remark,) = [r for r in found.remarks if "act as weights of residual streams" in r]
    assert "pre.0" in remark and "dead" not in remark


@pytest.mark.parametrize("home", [False, True])
def test_streams_of_few_channels(home: bool) -> None:
    """Three channels do not determine three weights at one location; all locations do."""
    found = audited(pair(3, home), (6, 3))
    assert [finding.code for finding in found.findings] == ["STREAM-ALIKE"] * (not home)


class Products(nn.Module):
    """Streams on the last axis; products of one term write to them. Their sums may be flat."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.flat = flat
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 16)) for _ in range(4)
        )
        self.read = nn.ParameterList(torch.ones(3) for _ in range(4))
        self.mix = nn.ParameterList(0.1 + 0.7 * torch.eye(3) for _ in range(4))
        self.write = nn.ParameterList(torch.ones(1, 3) for _ in range(4))

    def forward(self, x: Any) -> Any:
        streams = x.unsqueeze(-1).repeat(1, 1, 3)
        parts = (self.branches, self.read, self.mix, self.write)
        for branch, read, mix, write in zip(*parts, strict=True):
            y = branch(streams @ read).unsqueeze(-1) @ write
            if self.flat:
                streams = ((streams @ mix).flatten(1) + y.flatten(1)).unflatten(1, (16, 3))
            else:
                streams = streams @ mix + y
        return streams.sum(-1)


@pytest.mark.parametrize("flat", [False, True])
def test_products_that_write_to_streams(flat: bool) -> None:
    """The branch ends before the product; equal weights of a product receive equal gradients."""
    found = audited(Products(flat), (6, 16))
    assert [block.name for block in found.blocks] == [f"branches.{i}.2" for i in range(4)]
    (finding,) = found.findings
    assert finding.parameters == tuple(f"write.{i}" for i in range(4))
    assert any("weights of the 3 residual streams could not" in r for r in found.remarks)


class Zeros(Lists):
    """A product of zeros is added before or behind the streams."""

    def __init__(self, before: bool) -> None:
        super().__init__(4.0, depth=4)
        self.before, (self.one, self.two) = before, (nn.Parameter(torch.zeros(16)) for _ in "ab")

    def forward(self, x: Any) -> Any:
        zero = self.one * self.two
        return super().forward(x + zero) if self.before else super().forward(x) + zero


@pytest.mark.parametrize("before", [False, True])
def test_zeros_outside_of_streams_are_dead(before: bool) -> None:
    (finding,) = audited(Zeros(before), (6, 16)).findings
    assert (finding.code, finding.parameters) == ("GRAD-DEAD", ("one", "two"))
