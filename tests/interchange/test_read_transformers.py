"""Transformers in PyTorch are read whole, and kernel values are those of their own
forward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from refusals import refused

import kcalc as kc
from kcalc.interchange import network_from_dict, network_to_dict

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from transformer_models import GPT2, T5, Bert, Llama, drawn  # noqa: E402

L, A = kc.layers, kc.architectures
T, VOCABULARY = 6, 50
IDS = torch.stack(
    [torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(n))[:T] for n in range(2)]
)


def plain(network: kc.Network) -> kc.Network:
    """The network with weights of variance 1 / fan-in and no biases' noise."""

    def with_one(_: Any, layer: Any) -> Any:
        if isinstance(layer, L.Affine):
            return replace(layer, sigma_w=1, sigma_b=0)
        if isinstance(layer, L.Attend) and layer.relative is not None:
            return replace(layer, relative=(1, *layer.relative[1:]))
        return replace(layer, sigma=1) if isinstance(layer, L.Embedding | L.Positions) else layer

    return network.map_layers(with_one)


class Local(nn.Module):
    """Attention within a window of 8 tokens, or chunks of them, as a layer of a transformer."""

    def __init__(self, kind: str, config: Any, **told: Any) -> None:
        super().__init__()
        self.heads, self.kind, self.config = Heads(self.attended), kind, config
        for name, value in told.items():
            setattr(self, name, value)

    def attended(self, *qkv: torch.Tensor) -> torch.Tensor:
        row = torch.arange(qkv[0].shape[2])
        far = row[:, None] - row
        seen = {
            "window": (far >= 0) & (far < 8),
            "both sides": far.abs() < 8,
            "chunks": (far >= 0) & (row[:, None] // 8 == row // 8),
            "all": far >= 0,
        }
        return F.scaled_dot_product_attention(*qkv, attn_mask=seen[self.kind])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads(x)


class Windowed(nn.Module):
    """A layer with a window behind one without, and a configuration that tells of it."""

    def __init__(self, kind: str, config: dict[str, Any], told: dict[str, Any]) -> None:
        super().__init__()
        self.table, self.config = nn.Embedding(VOCABULARY, 48), SimpleNamespace(**config)
        self.layers = nn.ModuleList([Local(kind, self.config, **told)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers[0](self.table(ids))


KINDS = ["full_attention", "sliding_attention"]
TOLD: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "every layer": ("window", {"sliding_window": 8}, {"layer_idx": 0}, {"window": 8}),
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


@pytest.mark.parametrize("tokens", [6, 8, 12])
@pytest.mark.parametrize("name", TOLD)
def test_windows_are_read_from_masks_and_from_configurations(name: str, tokens: int) -> None:
    """Over up to 8 tokens only the configuration tells of the window, over 12 the trace does."""
    kind, config, told, expected = TOLD[name]
    ids = torch.arange(2 * tokens).reshape(2, tokens)
    found = kc.read(drawn(Windowed(kind, config, told)), ids)
    (node,) = found.network.nodes_of(L.Attend)
    layer = found.network.layer(node)
    assert found.fidelity.level == "exact"
    assert {n: getattr(layer, n) for n in ("window", "chunk") if getattr(layer, n)} == expected
    assert layer.causal == (kind != "both sides")


def test_windows_of_unknown_layers_are_heuristic() -> None:
    """The configuration has a window for some layers, and the module does not say which it is."""
    model = Windowed("window", {"sliding_window": 8, "layer_types": KINDS}, {})
    found = kc.read(drawn(model), IDS)
    assert found.fidelity.level == "approximate"
    assert "sliding_window = 8 in its configuration), which an example of 6 tokens" in str(found)
    assert (
        "approximate" not in kc.read(drawn(model), torch.arange(24).reshape(2, 12)).fidelity.counts
    )


def test_masks_of_arrays_are_heuristic_for_more_tokens_than_the_example() -> None:
    """The mask of the model has a window of 8 that an example of 6 tokens cannot show."""
    found = kc.read(drawn(Windowed("window", {}, {})), IDS)
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
    plain = kc.read(drawn(Heads(lambda *qkv: F.scaled_dot_product_attention(*qkv))), (2, 6, 48))
    assert not any("mask" in a.text for a in kc.q_map(plain.network, tokens=9).assumptions)


class Padded(nn.Module):
    """Attention under a mask of padding that is an input; ids are looked up in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.heads = nn.Embedding(VOCABULARY, 48), Heads(self.attended)
        self.seen: Any = None

    def attended(self, *qkv: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*qkv, attn_mask=self.seen)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.seen = mask.to(torch.bool)[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
        return self.heads(self.table(ids.view(-1, ids.shape[-1])))


def test_masks_of_padding_are_said_to_be_left_out() -> None:
    mask = torch.ones(2, T, dtype=torch.long)
    mask[:, -2:] = 0
    found = kc.read(drawn(Padded()), IDS, mask)
    assert "'mask' is not part of the network; a padding mask is read as" in str(found)


# -- details of attention --------------------------------------------------------------------------


class Heads(nn.Module):
    """Attention by a function of queries, keys and values in four heads of 12 channels."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(48, 48) for _ in range(4))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).view(*x.shape[:2], 4, 12).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        return self.o(self.function(q, k, v).transpose(1, 2).flatten(2))


SEES = torch.tril(torch.ones(T, T, dtype=torch.bool))
SLOPES = 2.0 ** (-2.0 * torch.arange(1, 5))
FAR = -SLOPES[:, None, None] * (torch.arange(T)[:, None] - torch.arange(T)).abs()
LATER = torch.full((T, T), float("-inf")).triu(1)
ATTENTION: dict[str, tuple[Callable[..., Any], Any]] = {
    "scale": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.2),
        L.Attend(4, 12, scale=0.2),
    ),
    "causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        L.Attend(4, 12, causal=True),
    ),
    "ALiBi": (
        lambda q, k, v: F.softmax(q @ k.mT / 12**0.5 + FAR + LATER, -1) @ v,
        L.Attend(4, 12, causal=True, alibi=True),
    ),
    "ALiBi added first": (
        lambda q, k, v: (
            torch.baddbmm(
                FAR.repeat(len(q), 1, 1),
                q.flatten(0, 1),
                k.flatten(0, 1).mT,
                beta=1,
                alpha=12**-0.5,
            )
            .softmax(-1)
            .bmm(v.flatten(0, 1))
            .view(q.shape)
        ),
        L.Attend(4, 12, alibi=True),
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_scales_masks_and_biases(name: str) -> None:
    function, layer = ATTENTION[name]
    found = kc.read(drawn(Heads(function)), (2, T, 48))
    assert [found.network.layer(node) for node in found.network.nodes_of(L.Attend)] == [
        layer
    ] and found.fidelity.level == "exact"


class HeadsByAxes(nn.Module):
    """Attention whose weights have an axis of heads, applied by einsum."""

    def __init__(self, by_head: bool) -> None:
        super().__init__()
        wide = (4, 48, 12) if by_head else (48, 4, 12)
        self.q, self.k, self.v = (nn.Parameter(torch.empty(wide)) for _ in range(3))
        self.o = nn.Parameter(torch.empty(4, 12, 48))
        self.word = "btd,hde->bhte" if by_head else "btd,dhe->bthe"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (torch.einsum(self.word, x, w) for w in (self.q, self.k, self.v))
        one, two = self.word[-4:], self.word[-4:].replace("t", "s")
        scores = torch.einsum(f"{one},{two}->bhts", q, k) / 12**0.5
        heads = torch.einsum(f"bhts,{two}->{one}", scores.softmax(-1), v)
        return torch.einsum(f"{one},hed->btd", heads, self.o)


@pytest.mark.parametrize("by_head", [True, False])
def test_weights_with_an_axis_of_heads(by_head: bool) -> None:
    torch.manual_seed(0)
    model = HeadsByAxes(by_head)
    for weight in model.parameters():
        nn.init.normal_(weight, std=48**-0.5)
    found = kc.read(model, (2, T, 48))
    assert found.fidelity.level == "exact"
    assert [found.network.layer(n) for n in found.network.nodes_of(L.Attend)] == [L.Attend(4, 12)]
    assert [found.network.features[n] for n in found.network.nodes_of(L.Affine)] == [48] * 4


class Fused(nn.Module):
    """Queries, keys and values of one layer, split last; a function normalises every head."""

    def __init__(self, norm: Callable[..., torch.Tensor], scale: float) -> None:
        super().__init__()
        self.qkv, self.o, self.norm, self.scale = nn.Linear(48, 144), nn.Linear(48, 48), norm, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 12).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (self.scale * self.norm(q) @ self.norm(k).mT).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("norm", "scale", "seen"),
    [
        (lambda x: F.rms_norm(x, (12,)), 12**-0.5, "sqrt"),
        (lambda x: F.layer_norm(x, (12,)), 0.5, 0.5),
        (lambda x: F.normalize(x, dim=-1), 10.0, 10 / 12),
    ],
)
def test_norms_of_heads_behind_a_split(norm: Any, scale: float, seen: Any) -> None:
    """x / |x| is the norm of a head divided by the square root of its width."""
    net = kc.read(drawn(Fused(norm, scale)), (2, T, 48)).network
    (node,) = net.nodes_of(L.Attend)
    norms = [type(net.layer(parent)) for parent in net.parents(node)]
    assert norms[:2] in ([L.RMSNorm] * 2, [L.LayerNorm] * 2) and norms[2] is L.Affine
    attend: Any = net.layer(node)
    assert (attend.heads, attend.key_width) == (4, 12)
    assert attend.scale == (seen if seen == "sqrt" else pytest.approx(seen, rel=1e-6))


HOLE = SEES.clone()
HOLE[4, 2] = False
NOTHING = SEES.clone()
NOTHING[0] = False
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a hole": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=HOLE),
        "token 4 sees 4 of",
    ),
    "over queries": (
        lambda q, k, v: F.softmax(q @ k.mT, -2) @ v,
        "its softmax runs over the queries",
    ),
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
    "fused": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=NOTHING),
    "large": lambda q, k, v: F.softmax((q @ k.mT).masked_fill(~NOTHING, -1e30), -1) @ v,
}


@pytest.mark.parametrize("name", ["fused", "large"])
def test_masks_that_leave_a_row_empty_are_errors(name: str) -> None:
    with refused(r".*\.py:\d+\).*0"):
        kc.read(drawn(Heads(EMPTY[name])), (2, T, 48))


def test_errors_of_the_model_come_without_the_frames_of_pytorch() -> None:
    with refused("could not be traced") as caught:
        kc.read(drawn(Heads(EMPTY["fused"])), (2, T, 47))
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None


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
        assert "if they are copies, as nn.TransformerEncoder makes them, draw them again" in str(
            kc.read(model, (2, T, 48))
        )
        turned = nn.TransformerEncoderLayer(48, 4, 96, norm_first=before).eval()
        assert (
            "of the same example; the examples must be on axis 0 (in PyTorch: batch_first=True)"
            in str(kc.read(turned, (T, 2, 48)))
        )
        found = kc.read(drawn(model), (2, T, 48))
        kinds = [type(found.network.layer(node)) for node in found.network]
        assert found.fidelity.level == "exact" and (
            kinds.count(L.Attend),
            kinds.count(L.Affine),
            kinds.count(L.LayerNorm),
        ) == (2, 12, 4)


# -- numbers ---------------------------------------------------------------------------------------


WIDTH, HEADS, TOKENS = 256, 8, 8
MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: Bert(2, WIDTH, HEADS, VOCABULARY, TOKENS),
    "gpt2": lambda: GPT2(2, WIDTH, HEADS, VOCABULARY, TOKENS),
    "llama": lambda: Llama(2, WIDTH, HEADS, VOCABULARY, HEADS // 2),
    "qwen3": lambda: Llama(2, WIDTH, HEADS, VOCABULARY, HEADS, normed=True),
    "t5": lambda: T5(2, WIDTH, HEADS, VOCABULARY),
}
