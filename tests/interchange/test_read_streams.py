"""Models with several residual streams, as networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stream_models import (  # noqa: E402
    DEPTH,
    WIDTH,
    AttentionResiduals,
    Several,
    Static,
    log_sinkhorn,
    logits,
    sinkhorn,
)

import kcalc as kc  # noqa: E402

L = kc.layers
VECTORS = (2, 5, WIDTH)


def read(model: Any, inputs: Any = VECTORS) -> Any:
    found = kc.read(model.double(), inputs)
    assert not found.network.nodes_of(L.Opaque), str(found)
    return found


def branches(model: Any) -> list[kc.Network]:
    """The branches with the standard deviations of the weights as drawn."""
    return [
        kc.chain(
            L.RMSNorm(),
            L.Affine(sigma_w=rms(b.up.weight) * WIDTH**0.5, sigma_b=rms(b.up.bias)),
            L.Nonlinear("relu"),
            L.Affine(sigma_w=rms(b.down.weight) * (2 * WIDTH) ** 0.5, sigma_b=rms(b.down.bias)),
        )
        for b in model.branches
    ]


def rms(tensor: Any) -> float:
    return float(tensor.detach().square().mean().sqrt())


def recursion(model: Any, mixing: np.ndarray, write: Any, start: float) -> np.ndarray:
    """The second moments of the streams before the last sub-layer."""
    second = start * np.ones((4, 4))
    for branch in branches(model)[:-1]:
        q = kc.q_map(branch)(1.0)
        second = mixing @ second @ mixing.T + np.outer(write, write) * q
    return second


def number(array: Any) -> np.ndarray:
    return np.asarray(array.detach().double())


CASES: dict[str, Any] = {
    "mHC": (lambda: Several(), VECTORS, 3.0, sinkhorn, 1.0),
    "mHC, alpha 0": (lambda: Several(alpha=0.0), VECTORS, 3.0, sinkhorn, 1.0),
    "static": (lambda: Static(2.0, noise=0.0), (6, WIDTH), 2.0, sinkhorn, 1.0),
    "logarithms, folded": (
        lambda: Static(2.0, folded=True, softmax=True), (6, WIDTH), 2.0, log_sinkhorn, 0.25,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_streams_have_the_weights_of_their_biases(case: str) -> None:
    torch.manual_seed(0)
    make, inputs, home, normalised, write = CASES[case]
    model = make()
    found = read(model, inputs)
    matrix = number(normalised(logits(4, 0, home)[1].double()))
    start = kc.q_values(found.network)["embed"]
    second = recursion(model, matrix, np.full(4, write), start)
    values = kc.q_values(found.network)
    own = [values[f"stream_{i}_{DEPTH - 1}"] for i in range(1, 5)]
    assert own == pytest.approx(np.diag(second), rel=1e-6)
    profile = kc.depth_profile(found.network, 0.5)
    assert profile.stream_q is not None and profile.stream_q.shape == (DEPTH - 1, 4)
    assert profile.stream_gradient is not None and profile.gradient_mean is not None
    dynamic = [a for a in found.network.assumptions if "streams depend on the input" in a.text]
    assert bool(dynamic) == case.startswith("mHC")


@pytest.mark.parametrize("dynamic", [True, False])
def test_hyper_connections_start_as_one_residual_stream(dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Several("HC", dynamic=dynamic)
    net = read(model).network
    plain = [kc.residual(branch) for branch in branches(model)]
    chain = kc.chain(affine(model.embed), *plain, L.RMSNorm(), affine(model.head))
    assert kc.c_map(net)(0.5) == pytest.approx(kc.c_map(chain)(0.5), rel=1e-9)
    assert any("depend on the input" in a.text for a in net.assumptions) == dynamic


def affine(layer: Any) -> Any:
    sigma_w, sigma_b = rms(layer.weight) * WIDTH**0.5, rms(layer.bias)
    return L.Affine(sigma_w=sigma_w, sigma_b=sigma_b)


def test_attention_over_depth_with_queries_of_0_is_a_mean() -> None:
    torch.manual_seed(0)
    model = AttentionResiduals(depth=2)
    found = read(model)
    nets = branches(model)
    values = kc.q_values(found.network)
    ends = [kc.q_map(net)(1.0) for net in nets]
    assert values["branches.1.down"] == pytest.approx(ends[1], rel=1e-9)
    last = (values["embed"] + ends[0] + ends[1]) / 9
    head = values[found.network.parents("head")[0]]
    assert head == pytest.approx(last, rel=1e-9)
    assert any("queries" in a.text for a in found.network.assumptions)


def test_tokens() -> None:
    found = read(Several(vocabulary=50), torch.arange(10).reshape(2, 5))
    assert kc.q_values(found.network, tokens=5)[f"stream_1_{DEPTH - 1}"] > 1


def test_gates_without_a_start_are_not_read() -> None:
    """Queries that are not 0 give weights that differ between inputs."""
    model = AttentionResiduals(depth=2)
    with torch.no_grad():
        model.queries[1].normal_()
    assert kc.read(model, VECTORS).network.nodes_of(L.Opaque)
