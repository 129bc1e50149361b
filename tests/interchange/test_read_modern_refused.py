"""Parts, mixings and norms that are not what they look like.

Read as what they are, or opaque with the reason.
"""

from __future__ import annotations

from typing import Any

import pytest

import kcalc as kc

torch = pytest.importorskip("torch")

from modern_zoo import DENSE, TOKENS, D, Model, T, norm_model  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def written_into(m: Any, x: Any) -> Any:
    h = m.w(x)
    h[:, :16] = torch.relu(h[:, :16])
    return m.p(h)


UNREAD: dict[str, tuple[Model, tuple[int, ...], str]] = {
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
    "lengths along the wrong axis": (
        norm_model(lambda m, x: x / x.norm(dim=-1)),
        (D, D),
        "a norm over an axis",
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
