"""Parts, mixings and norms that are not what they look like.

Read as what they are, or opaque with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import kcalc as kc

torch = pytest.importorskip("torch")

from modern_zoo import DENSE, IMAGE, TOKENS, D, Model, T, gpt_block, image, norm_model  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc.network.layers import Affine, Opaque, TokenMix  # noqa: E402

L = kc.layers


def halves(
    function: Callable[..., Any],
    size: int = 32,
    out: int = D,
    shape: tuple[int, ...] = DENSE,
    axis: int = -1,
) -> Any:
    model = Model(
        lambda m, x: m.o(function(*m.w(x).chunk(2, axis))),
        w=nn.Linear(D, size),
        o=nn.Linear(out, 8),
    )
    return model, shape


def test_halves_of_one_layer_added_again() -> None:
    found = kc.read(*halves(lambda a, b: torch.tanh(a + b)))
    assert [type(layer).__name__ for _, layer, _ in found.network.steps()] == [
        "Input",
        "Affine",
        "Affine",
        "Sum",
        "Nonlinear",
        "Affine",
    ]
    one = found.network.map_layers(
        lambda _, layer: (
            replace(layer, sigma_w=1, sigma_b=0) if isinstance(layer, Affine) else layer
        )
    )
    assert kc.node_values(one, 0.3)[
        found.network.parents(found.network.nodes_of(L.Nonlinear)[0])[0]
    ][0] == pytest.approx(2)


def test_unequal_parts() -> None:
    model = Model(
        lambda m, x: (lambda a, b: m.o(a) * m.p(b))(*m.w(x).split([10, 22], -1)),
        w=nn.Linear(D, 32),
        o=nn.Linear(10, 8),
        p=nn.Linear(22, 8),
    )
    network = kc.read(model, DENSE).network
    assert [network.features[node] for node in ("w[0:10]", "w[10:32]")] == [
        10,
        22,
    ] and not network.nodes_of(Opaque)


def written_into(m: Any, x: Any) -> Any:
    h = m.w(x)
    h[:, :16] = torch.relu(h[:, :16])
    return m.p(h)


def tied(layer: nn.Linear) -> nn.Linear:
    with torch.no_grad():
        layer.weight[16:] = layer.weight[:16]
    return layer


UNREAD: dict[str, tuple[Model, tuple[int, ...], str]] = {
    "parts of the tokens": (
        *halves(lambda a, b: a * b, out=32, shape=(2, 6, D), axis=1),
        "part of the locations",
    ),
    "tied halves": (
        Model(
            lambda m, x: (lambda a, b: m.o(torch.tanh(a) * b))(*m.w(x).chunk(2, -1)),
            w=tied(nn.Linear(D, 32)),
            o=nn.Linear(D, 8),
        ),
        DENSE,
        "its weights are those of",
    ),
    "overlapping slices of a parameter": (
        Model(
            lambda m, x: m.o(F.linear(x, m.w[:20]) * F.linear(x, m.w[12:])),
            w=nn.Parameter(torch.randn(32, D)),
            o=nn.Linear(20, 8),
        ),
        DENSE,
        "its weights are those of",
    ),
    "a write into a half": (
        Model(written_into, w=nn.Linear(D, 32), p=nn.Linear(32, 8)),
        DENSE,
        "in place",
    ),
    "mixing by the input": (
        Model(
            lambda m, x: m.o(F.softmax(x @ x.transpose(1, 2), -1) @ m.w(x)),
            w=nn.Linear(D, D),
            o=nn.Linear(D, 8),
        ),
        TOKENS,
        "its queries and keys are the same feature map",
    ),
    "mixing by example": (
        Model(
            lambda m, x: m.o(m.a @ m.w(x)),
            w=nn.Linear(D, D),
            o=nn.Linear(D, 8),
            a=nn.Parameter(torch.randn(2, T, T)),
        ),
        TOKENS,
        "different matrices",
    ),
    "norm over tokens": (
        norm_model(lambda m, x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)),
        TOKENS,
        "averages over axes (1,)",
    ),
    "lengths along the wrong axis": (
        norm_model(lambda m, x: x / x.norm(dim=-1)),
        (D, D),
        "a length over an axis",
    ),
    "half of the mean": (
        norm_model(
            lambda m, x: (x - 0.5 * x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
        ),
        DENSE,
        "hand-written",
    ),
    "a great epsilon": (
        norm_model(lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1.0)),
        DENSE,
        "averages channels",
    ),
    "rectified differences": (
        norm_model(
            lambda m, x: (
                F.relu(x - x.mean(-1, keepdim=True))
                / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5)
            )
        ),
        DENSE,
        "several feature maps",
    ),
    "mean absolute value": (
        norm_model(lambda m, x: x / (x.abs().mean(-1, keepdim=True) + 1e-6)),
        DENSE,
        "averages channels",
    ),
    "another array's length": (
        norm_model(lambda m, x: x * torch.rsqrt(m.b(x).pow(2).mean(-1, keepdim=True) + 1e-6)),
        DENSE,
        "averages channels",
    ),
    "positions": (
        Model(
            lambda m, x: m.o(torch.tanh(m.w(x) + m.p)),
            w=nn.Linear(D, D),
            o=nn.Linear(D, 8),
            p=nn.Parameter(torch.randn(1, T, D)),
        ),
        TOKENS,
        "p of shape (1, 5, 16)",
    ),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_understood_is_said(name: str) -> None:
    model, shape, word = UNREAD[name]
    found = kc.read(model.eval(), shape)
    assert found.fidelity.level == "not read" and any(word in note.text for note in found.notes), (
        str(found)
    )
    assert "opaque, not read (" in str(found)


def test_biases_along_tokens_are_said() -> None:
    model = Model(
        lambda m, x: m.o(m.t(m.w(x).mT).mT), w=nn.Linear(D, D), t=nn.Linear(T, T), o=nn.Linear(D, 8)
    ).eval()
    found = kc.read(model, TOKENS)
    assert found.fidelity.nodes["t"] == "approximate" and "heuristic (1 node): t" in str(found)
    with torch.no_grad():
        model.t.bias.fill_(0.25)
    assert "Nonlinear" in [
        type(layer).__name__ for _, layer, _ in kc.read(model, TOKENS).network.steps()
    ]
    with torch.no_grad():
        model.t.bias.zero_()
    assert kc.read(model, TOKENS).fidelity.nodes["t"] == "pooling"  # a heuristic of kernel maps


def test_blocks_behind_embeddings_are_read() -> None:
    model = Model(lambda m, t: m.block(m.token(t)), token=nn.Embedding(11, D), block=gpt_block())
    found = kc.read(model.eval(), torch.zeros(2, T, dtype=torch.long))
    assert found.fidelity.counts == {"exact": 12}
    scale = float(model.token.weight.detach().double().square().mean().sqrt())
    table = found.network.layer("token")
    assert (table.features, table.vocabulary) == (D, 11) and table.sigma == pytest.approx(
        scale, rel=1e-12
    )
    assert len(found.network.nodes_of(TokenMix)) == 1


def test_weight_standardisation_is_seen_in_the_numbers() -> None:
    def forward(m: Any, x: Any) -> Any:
        mean, std = m.w.mean((1, 2, 3), keepdim=True), m.w.std((1, 2, 3), keepdim=True)
        return m.o(torch.relu(F.conv2d(torch.relu(m.i(x)), (m.w - mean) / (std + 1e-5), padding=1)))

    model = Model(
        forward, i=image(3, D, 1), w=nn.Parameter(torch.randn(D, D, 3, 3)), o=image(D, 4, 1)
    )
    network = kc.read(model, IMAGE).network
    assert [layer.standardised for _, layer, _ in network.steps() if isinstance(layer, Affine)] == [
        False,
        True,
        False,
    ]


def test_a_gate_of_one_channel_is_opaque():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.gate = nn.Linear(16, 16), nn.Linear(16, 1)

        def forward(self, x):
            return self.up(x) * torch.sigmoid(self.gate(x))

    reading = kc.read(Gated(), (2, 16))
    assert [note.node for note in reading.notes if note.level == "not read"] == ["mul"]
    assert "of 1 channels is broadcast over 16" in str(reading)
