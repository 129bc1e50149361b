"""Mixtures of experts in networks, against sampled networks of finite width."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc import KcalcError

L = kc.layers
EXPERT = kc.chain(L.Affine(), L.Nonlinear("relu"), L.Affine(sigma_w=math.sqrt(2)))
CASES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "over all": {"normalise": False, "scale": 3},
    "sigmoid": {"score": "sigmoid", "scale": 2.5, "shared": L.Affine(sigma_w=0.5)},
    "router of variance 2": {"sigma_w": math.sqrt(2)},
    "independent sigmoids": {"score": "sigmoid", "normalise": False},
}


def mixture(**options: Any) -> kc.Network:
    """A mixture of 2 of 6 experts, and a readout."""
    return kc.chain(L.Input(), L.RMSNorm(), L.MoE(EXPERT, 6, 2, **options), L.Affine(1))


class Sampled:
    """A network of :func:`mixture` with ``n`` channels: outputs, and gradients by all weights."""

    def __init__(self, n: int, seed: int, options: dict[str, Any]) -> None:
        import torch

        def weights(rows: int, sigma: float, count: int | None = None) -> Any:
            size = (rows, n) if count is None else (count, rows, n)
            found = rng.normal(size=size)
            return torch.tensor(found).requires_grad_(), sigma / math.sqrt(n)

        self.torch, rng = torch, np.random.default_rng(seed)
        self.options = options
        self.router = weights(6, options.get("sigma_w", 1))
        self.up, self.down = weights(n, 1, 6), weights(n, math.sqrt(2), 6)
        self.shared, self.readout = weights(n, 0.5), weights(1, 1)

    def __call__(self, x: Any) -> Any:
        torch = self.torch

        def times(given: Any, value: Any) -> Any:
            tensor, scale = given
            return scale * (tensor @ value)

        logits = times(self.router, x)
        values, chosen = torch.topk(logits, 2)
        over_all = self.options.get("normalise", True) is False
        if self.options.get("score") == "sigmoid":
            scores = torch.sigmoid(values)
        else:
            scores = torch.softmax(logits, 0)[chosen] if over_all else torch.softmax(values, 0)
        w = scores if over_all else scores / scores.sum()
        out = 0
        for weight, i in zip(w, chosen, strict=True):
            hidden = torch.relu(times((self.up[0][i], self.up[1]), x))
            out = out + weight * times((self.down[0][i], self.down[1]), hidden)
        out = out * self.options.get("scale", 1)
        if "shared" in self.options:
            out = out + times(self.shared, x)
        return out, times(self.readout, out)[0]

    def gradients(self, x: Any) -> tuple[Any, np.ndarray]:
        """The mixture, and the gradient of the output by the weights; 0 where there is none."""
        parts = [self.router, self.up, self.down, self.shared, self.readout]
        tensors = [tensor for tensor, _ in parts]
        found, y = self(x)
        grads = self.torch.autograd.grad(y, tensors, allow_unused=True)
        flat = [
            (self.torch.zeros_like(t) if g is None else g).numpy().ravel()
            for t, g in zip(tensors, grads, strict=True)
        ]
        return found.detach().numpy(), np.concatenate(flat)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_sampled_networks(name: str) -> None:
    """q, kernel, squared gradient of the input and tangent kernel, 80 draws of 192 channels."""
    torch = pytest.importorskip("torch")
    n, c, draws = 192, 0.6, 80
    net = mixture(**CASES[name])
    found: dict[str, list[float]] = {key: [] for key in ("q", "kernel", "gradient", "ntk")}
    for seed in range(draws):
        model = Sampled(n, seed, CASES[name])
        rng = np.random.default_rng(1000 + seed)
        one, other = np.linalg.qr(rng.normal(size=(n, 2)))[0].T * math.sqrt(n)
        x = torch.tensor(one).requires_grad_()
        y = torch.tensor(c * one + math.sqrt(1 - c * c) * other)
        (a, da), (b, db) = model.gradients(x), model.gradients(y)
        (grad,) = torch.autograd.grad(model(x)[1], x)
        found["q"].append(float(a @ a) / n)
        found["kernel"].append(float(a @ b) / n)
        found["gradient"].append(float(grad @ grad))
        found["ntk"].append(float(da @ db))
    values = kc.node_values(net, c=c)["moe_1"]
    exact = {
        "q": values.q1,
        "kernel": values.q1 * values.c,
        "gradient": kc.gradients(net).nodes["rmsnorm_1"],
        "ntk": kc.ntk(net)(c),
    }
    for key, samples in found.items():
        error = np.std(samples, ddof=1) / math.sqrt(draws)
        assert abs(np.mean(samples) - exact[key]) < 4 * error, key
        assert error < 0.15 * exact[key], key


def test_gradients_of_a_mixture() -> None:
    """The oracle: .758 by backpropagation through 2 of 8 experts of chi_e = q_e = 1."""
    net = kc.chain(L.Input(), L.MoE(EXPERT, 8, 2))
    found = kc.gradients(net)
    assert found.nodes["input"] == pytest.approx(0.553763041186 + 0.2041506661, abs=1e-9)
    assert found.weights["moe_1.1"] == pytest.approx(0.2041506661, abs=1e-9)
    one = kc.gradients(kc.chain(L.Input(), L.MoE(EXPERT, 8, 1)))
    assert one.weights["moe_1.1"] == pytest.approx(0, abs=1e-12)  # a router that does not learn
    assert kc.ntk(net)(1.0) == pytest.approx(sum(found.weights.values()))


def test_maps_of_a_mixture() -> None:
    net = kc.chain(L.Input(), L.RMSNorm(), L.MoE(EXPERT, 8, 2, scale=2), L.Affine())
    relu = kc.c_map(EXPERT)(0.5)
    C = kc.c_map(net)
    assert C(0.5) == pytest.approx(0.2662534304 / 0.553763041186 * relu, abs=1e-9)
    assert kc.q_map(net)(3.0) == pytest.approx(4 * 0.553763041186, abs=1e-9)
    assert C(1.0) == 1 and C.derivative(1)(1.0) == math.inf
    cosines = np.array([0.99, 0.93, 0.5, 0.1, 0.0])
    by_table = np.array([kc.moe_statistics(8, 2, 1.0, c).cross for c in cosines])
    assert np.abs(C(cosines) - by_table / 0.553763041186 * kc.c_map(EXPERT)(cosines)).max() < 1e-8
    h = 1e-5
    assert C.derivative(1)(0.4) == pytest.approx((C(0.4 + h) - C(0.4 - h)) / (2 * h), abs=1e-7)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: L.MoE(EXPERT, 4, 5), "top_k = 5 exceeds num_experts = 4"),
        (lambda: L.MoE(EXPERT, 4, 2, sigma_w=0), "tie"),
        (lambda: L.MoE(EXPERT, 4, 2, score="relu"), "score of a MoE"),
        (lambda: L.MoE(EXPERT, 4, 2, scale=0), "scale must not be 0"),
        (lambda: L.MoE(kc.chain(L.Affine(), L.Nonlinear("relu")), 4, 2), "must end in an Affine"),
        (lambda: L.MoE([EXPERT] * 3, 4, 2), "got 3 experts"),
        (
            lambda: L.MoE([EXPERT, kc.chain(L.Affine(7), L.Affine())], 2, 1),
            "all experts must have the same widths",
        ),
        (
            lambda: kc.chain(L.MoE(L.Affine(7), 2, 1, shared=L.Affine(8)), L.Affine()),
            "give both the same width",
        ),
        (
            lambda: kc.c_map(kc.chain(L.MoE(EXPERT, 4, 2), L.Affine()))(0.5, 1.0, 2.0),
            "put an RMSNorm before the router",
        ),
        (
            lambda: kc.c_map(kc.chain(L.MoE(EXPERT, 4, 2), L.Nonlinear("relu"))),
            "fresh Gaussian",
        ),
        (
            lambda: kc.c_map(kc.chain(L.MoE(EXPERT, 4, 2), L.Affine())).ball(0.5),
            "double precision",
        ),
        (lambda: kc.slope_polynomial(kc.chain(L.MoE(EXPERT, 4, 2), L.Affine())), "no rule"),
        (lambda: kc.chain(L.Input(), L.Route(2)), "inputs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_mixtures(make: Any, words: str) -> None:
    with pytest.raises(KcalcError, match=words):
        make()


def shared_expert(second: list[Any]) -> kc.Network:
    """The sum of a mixture and of another reader of its expert."""
    steps = [("x", L.Input(), ()), ("l", L.Affine(4), ("x",)), ("e", L.Affine(), ("x",))]
    steps += [("m1", L.Route(2), ("l", "e")), *second, ("s", L.Sum([2, -1]), ("m1", "m2"))]
    return kc.Network.from_steps(steps, ["s"])


@pytest.mark.parametrize(
    "second",
    [
        [("m2", L.Route(2, scale=2), ("l", "e"))],
        [("l2", L.Affine(4), ("x",)), ("m2", L.Route(2), ("l2", "e"))],
        [("m2", L.Identity(), ("e",))],
    ],
)
def test_mixtures_of_one_expert_are_not_independent(second: list[Any]) -> None:
    for question in (kc.q_map, kc.c_map, kc.gradients, kc.ntk):
        with pytest.raises(KcalcError, match="share weights"):
            question(shared_expert(second))


def test_laws_of_depth_say_that_a_norm_reads_mixtures() -> None:
    block = kc.residual(kc.chain(L.RMSNorm(), L.MoE(EXPERT, 8, 2)))
    assert kc.depth_laws(block).heuristic


def test_streams_of_mixtures() -> None:
    branch = kc.chain(L.RMSNorm(), L.MoE(EXPERT, 4, 2))
    net = kc.architectures.hyper_connected(branch, 1, 1, [[1]], [1], [1], readout="sum")
    assert kc.c_map(net)(0.5) == pytest.approx(float(kc.c_map(kc.residual(branch, 1, 1))(0.5)))
