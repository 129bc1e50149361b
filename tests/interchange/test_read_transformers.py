"""Transformers in PyTorch are read whole, and kernel values are those of their own
forward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from refusals import refused

import kcalc as kc
from kcalc.interchange import network_from_dict, network_to_dict

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402
from transformer_models import drawn  # noqa: E402

L = kc.layers
sdpa = F.scaled_dot_product_attention
T, VOCABULARY = 6, 50
IDS = torch.stack(
    [torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(n))[:T] for n in range(2)]
)


class Heads(nn.Module):
    """Attention by a function of queries, keys and values in four heads of 12 channels, and what
    the module tells of it.
    """

    heads = 4

    def __init__(self, function: Callable[..., torch.Tensor], **told: Any) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(48, 48) for _ in range(4))
        self.function = function
        vars(self).update(told)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = *x.shape[:2], self.heads, -1
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(self.function(q, k, v).transpose(1, 2).flatten(2))


def local(kind: str, *qkv: torch.Tensor) -> torch.Tensor:
    """Attention within a window of 8 tokens, or chunks of them."""
    row = torch.arange(qkv[0].shape[2])
    far = row[:, None] - row
    seen = {
        "window": (far >= 0) & (far < 8),
        "both sides": far.abs() < 8,
        "chunks": (far >= 0) & (row[:, None] // 8 == row // 8),
        "all": far >= 0,
    }
    return sdpa(*qkv, attn_mask=seen[kind])


def windowed(kind: str, config: dict[str, Any], told: dict[str, Any]) -> Any:
    """A layer behind a table, and a configuration that tells of its window."""
    given = SimpleNamespace(**config)
    layers = nn.ModuleList([Heads(partial(local, kind), config=given, **told)])
    return drawn(
        Model(
            lambda m, ids: m.layers[0](m.table(ids)),
            table=nn.Embedding(VOCABULARY, 48),
            config=given,
            layers=layers,
        )
    )


KINDS = ["full_attention", "sliding_attention"]
TOLD: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "a layer by its number": (
        "window",
        {"sliding_window": 8, "layer_types": KINDS},
        {"layer_idx": 1},
        {"window": 8},
    ),
    "another layer": ("all", {"sliding_window": 8, "layer_types": KINDS}, {"layer_idx": 0}, {}),
    "the module": (
        "both sides",
        {"sliding_window": 7, "layer_types": KINDS[1:]},
        {"sliding_window": 8},
        {"window": 8},
    ),
    "both sides": ("both sides", {"sliding_window": 7}, {}, {"window": 8}),
    "chunks": ("chunks", {"attention_chunk_size": 8}, {}, {"chunk": 8}),
    "local": ("window", {"window_size": 8}, {"attention_type": "local"}, {"window": 8}),
    "global": ("all", {"window_size": 8}, {"attention_type": "global"}, {}),
    "no window": ("all", {"sliding_window": None}, {"layer_idx": 0}, {}),
}


@pytest.mark.parametrize("tokens", [8, 12])
@pytest.mark.parametrize("name", TOLD)
def test_windows_are_read_from_masks_and_from_configurations(name: str, tokens: int) -> None:
    """Over up to 8 tokens only the configuration tells of the window, over 12 the trace does."""
    kind, config, told, expected = TOLD[name]
    ids = torch.arange(2 * tokens).reshape(2, tokens)
    found = kc.read(windowed(kind, config, told), ids)
    (node,) = found.network.nodes_of(L.Attend)
    layer = found.network.layer(node)
    assert found.fidelity.level == "exact"
    assert {n: getattr(layer, n) for n in ("window", "chunk") if getattr(layer, n)} == expected
    assert layer.causal == (kind != "both sides")


def test_windows_of_unknown_layers_are_heuristic() -> None:
    """The configuration has a window for some layers, and the module does not say which it is."""
    model = windowed("window", {"sliding_window": 8, "layer_types": KINDS}, {})
    found = kc.read(model, IDS)
    assert found.fidelity.level == "approximate"
    words = "windows (sliding_window = 8), but they do not restrict attention in an example with 6"
    assert words in str(found)
    assert "approximate" not in kc.read(model, torch.arange(24).reshape(2, 12)).fidelity.counts


def test_masks_of_arrays_are_heuristic_for_more_tokens_than_the_example() -> None:
    """The mask of the model has a window of 8 that an example of 6 tokens cannot show."""
    found = kc.read(windowed("window", {}, {}), IDS)
    net = found.network
    assert found.fidelity.level == "exact" and net.layer(net.nodes_of(L.Attend)[0]).window is None
    told = {
        tokens: [a for a in kc.node_values(net, tokens=tokens).assumptions if "its mask" in a.text]
        for tokens in (6, 9)
    }
    assert not told[6] and [a.kind for a in told[9]] == ["heuristic"]
    assert "sequences of 6 tokens; for 9 tokens it is assumed to continue" in told[9][0].text
    back = network_from_dict(network_to_dict(net))
    assert kc.node_values(back, tokens=9).assumptions == kc.node_values(net, tokens=9).assumptions
    plain = kc.read(drawn(Heads(sdpa)), (2, 6, 48))
    assert not any("mask" in a.text for a in kc.q_map(plain.network, tokens=9).assumptions)


def test_masks_of_padding_are_said_to_be_left_out() -> None:
    """Ids are looked up in another shape."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.heads = nn.Embedding(VOCABULARY, 48), Heads(sdpa)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            seen = mask.to(torch.bool)[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
            self.heads.function = partial(sdpa, attn_mask=seen)
            return self.heads(self.table(ids.view(-1, ids.shape[-1])))

    mask = torch.ones(2, T, dtype=torch.long)
    mask[:, -2:] = 0
    found = kc.read(drawn(Padded()), IDS, mask)
    assert "'mask' is not part of the network; if it is a padding mask" in str(found)


# -- details of attention --------------------------------------------------------------------------


SEES = torch.tril(torch.ones(T, T, dtype=torch.bool))
SLOPES = 2.0 ** (-2.0 * torch.arange(1, 5))
FAR = -SLOPES[:, None, None] * (torch.arange(T)[:, None] - torch.arange(T)).abs()
LATER = torch.full((T, T), float("-inf")).triu(1)


def added_first(q: Any, k: Any, v: Any) -> Any:
    bias, alpha = FAR.repeat(len(q), 1, 1), 12**-0.5
    scores = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).mT, beta=1, alpha=alpha)
    return scores.softmax(-1).bmm(v.flatten(0, 1)).view(q.shape)


ATTENTION: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "scale": (partial(sdpa, scale=0.2), {"scale": 0.2}),
    "ALiBi": (
        lambda q, k, v: F.softmax(q @ k.mT / 12**0.5 + FAR + LATER, -1) @ v,
        {"causal": True, "alibi": True},
    ),
    "ALiBi added first": (added_first, {"alibi": True}),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_scales_masks_and_biases(name: str) -> None:
    function, options = ATTENTION[name]
    found = kc.read(drawn(Heads(function)), (2, T, 48))
    layers = [found.network.layer(node) for node in found.network.nodes_of(L.Attend)]
    assert layers == [L.Attend(4, 12, **options)] and found.fidelity.level == "exact"


def test_weights_with_an_axis_of_heads() -> None:
    """Applied by einsum."""

    def run(m: Any, x: Any) -> Any:
        q, k, v = (torch.einsum("btd,hde->bhte", x, w) for w in (m.q, m.k, m.v))
        scores = torch.einsum("bhte,bhse->bhts", q, k) / 12**0.5
        heads = torch.einsum("bhts,bhse->bhte", scores.softmax(-1), v)
        return torch.einsum("bhte,hed->btd", heads, m.o)

    torch.manual_seed(0)
    shapes = {**dict.fromkeys("qkv", (4, 48, 12)), "o": (4, 12, 48)}
    parts = {name: nn.Parameter(48**-0.5 * torch.randn(shape)) for name, shape in shapes.items()}
    model = Model(run, **parts)
    found = kc.read(model, (2, T, 48))
    assert found.fidelity.level == "exact"
    assert [found.network.layer(n) for n in found.network.nodes_of(L.Attend)] == [L.Attend(4, 12)]
    assert [found.network.features[n] for n in found.network.nodes_of(L.Affine)] == [48] * 4


@pytest.mark.parametrize(
    ("norm", "scale", "seen"),
    [
        (lambda x: F.rms_norm(x, (12,)), 12**-0.5, "sqrt"),
        (lambda x: F.normalize(x, dim=-1), 10.0, 10 / 12),
    ],
)
def test_norms_of_heads_behind_a_split(norm: Any, scale: float, seen: Any) -> None:
    """x / |x| is the norm of a head divided by the square root of its width."""

    def run(m: Any, x: Any) -> Any:
        q, k, v = m.qkv(x).view(*x.shape[:2], 3, 4, 12).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (scale * norm(q) @ norm(k).mT).softmax(-1)
        return m.o((weights @ v).transpose(1, 2).flatten(2))

    model = Model(run, qkv=nn.Linear(48, 144), o=nn.Linear(48, 48))
    net = kc.read(drawn(model), (2, T, 48)).network
    (node,) = net.nodes_of(L.Attend)
    norms = [type(net.layer(parent)) for parent in net.parents(node)]
    assert norms == [L.RMSNorm, L.RMSNorm, L.Affine]
    attend: Any = net.layer(node)
    assert (attend.heads, attend.key_width) == (4, 12)
    assert attend.scale == (seen if seen == "sqrt" else pytest.approx(seen, rel=1e-6))


HOLE, NOTHING = SEES.clone(), SEES.clone()
HOLE[4, 2] = NOTHING[0] = False
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a hole": (partial(sdpa, attn_mask=HOLE), "token 4 sees 4 of"),
    "squared scores": (
        lambda q, k, v: F.softmax((q @ k.mT) ** 2, -1) @ v,
        "not multiples of the products of queries and keys",
    ),
    "shared keys and values": (
        lambda q, k, v: F.softmax(q @ k.mT, -1) @ k,
        "its keys and values come from the same weights",
    ),
    "turned queries alone": (lambda q, k, v: F.softmax(q.roll(1, -1) @ k.mT, -1) @ v, "its"),
}
EMPTY: dict[str, Callable[..., Any]] = {
    "fused": partial(sdpa, attn_mask=NOTHING),
    "large": lambda q, k, v: F.softmax((q @ k.mT).masked_fill(~NOTHING, -1e30), -1) @ v,
}


@pytest.mark.parametrize("name", EMPTY)
def test_masks_that_leave_a_row_empty_are_errors(name: str) -> None:
    with refused(r".*\.py:\d+\).*0"):
        kc.read(drawn(Heads(EMPTY[name])), (2, T, 48))


@pytest.mark.parametrize("name", REFUSED)
def test_attention_of_another_kind_is_opaque_with_its_reason(name: str) -> None:
    function, reason = REFUSED[name]
    found = kc.read(drawn(Heads(function)), (2, T, 48))
    assert found.fidelity.level == "not read" and not found.network.nodes_of(L.Attend)
    assert any(reason in note.text for note in found.notes), str(found)


def test_layers_of_pytorch() -> None:
    """nn.TransformerEncoder copies its layer, weights and all.

    They are told, and read once they are redrawn.
    """
    for before in (True, False):
        layer = nn.TransformerEncoderLayer(
            48, 4, 96, dropout=0.0, activation="gelu", batch_first=True, norm_first=before
        )
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        found = kc.read(model, (2, T, 48))
        words = "if the layers are copies, like those in nn.TransformerEncoder, draw their weights"
        assert words in str(found)
        turned = nn.TransformerEncoderLayer(48, 4, 96, norm_first=before).eval()
        words = "the examples must be on axis 0 (in PyTorch: batch_first=True)"
        assert f"of the same example; {words}" in str(kc.read(turned, (T, 2, 48)))
        found = kc.read(drawn(model), (2, T, 48))
        counts = [len(found.network.nodes_of(kind)) for kind in (L.Attend, L.Affine, L.LayerNorm)]
        assert found.fidelity.level == "exact" and counts == [2, 12, 4]
