"""Gradients over exchangeable tokens of networks whose branches share weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from wiring import attending, wired

import kcalc as kc
from kcalc.calculi.attention.probes import joint_modes

L = kc.layers
DRAWN = json.loads((Path(__file__).parents[1] / "oracles" / "token_streams.json").read_text())
SHARED = wired(
    ("x", L.Input()),
    ("a", L.Affine(), "x"),
    ("f", L.Nonlinear("relu"), "a"),
    ("s", L.Sum((0.6, 0.8)), "a f"),
    ("out", L.Affine(), "s"),
    outputs=["out"],
)


def streams() -> kc.Network:
    """The network of tests/tools/oracles/token_streams.py."""
    steps = [("x", L.Input()), ("s0_0", L.Scale(1), "x"), ("s1_0", L.Scale(1), "x")]
    reads, writes = ((0.9, 0.2), (0.3, 0.8), (0.7, 0.4)), ((1.2, 0.7), (0.8, 1.1), (1, 0.6))
    for i, (read, write) in enumerate(zip(reads, writes, strict=True)):
        steps += [(f"r{i}", L.Sum(read), f"s0_{i} s1_{i}"), (f"n{i}", L.RMSNorm(), f"r{i}")]
        if i == 1:
            steps += [("u1", L.Affine(), "n1"), ("a1", L.Nonlinear("relu"), "u1")]
        else:
            for name, sigma in (("q", 1.1), ("k", 1), ("v", 1.3)):
                steps.append((f"{name}{i}", L.Affine(sigma_w=sigma), f"n{i}"))
            steps.append((f"a{i}", L.Attend(), f"q{i} k{i} v{i}"))
        steps.append((f"f{i}", L.Affine(sigma_w=1.2), f"a{i}"))
        for j, row in enumerate(((0.8, 0.3), (0.1, 0.9))):
            steps.append((f"s{j}_{i + 1}", L.Sum((*row, write[j])), f"s0_{i} s1_{i} f{i}"))
    return wired(*steps, ("m", L.Sum((0.6, 0.5)), "s0_3 s1_3"), outputs=["m"])


def test_gradients_of_streams_are_those_of_drawn_weights() -> None:
    net, options = streams(), {"tokens": 3, "token_cosine": 0.3}
    found = kc.gradients(net, **options)
    assert found.mean is not None
    values = dict(found.nodes) | {f"{node} mean": value for node, value in found.mean.items()}
    groups = [(f"s0_{i}", f"s1_{i}") for i in range(3)]
    for i, (one, mean) in enumerate(joint_modes(net, 1.0, "m", groups, options)):
        values |= {f"both_{i}": one, f"both_{i} mean": mean}
    for name, (drawn, error) in DRAWN.items():
        assert abs(values[name] - drawn) < 4 * error


def test_weights_and_equal_tokens() -> None:
    """Squared gradients of weights are tangent kernels; equal tokens act as one token."""
    net = streams()
    found, kernel = (
        kc.gradients(net, tokens=3, token_cosine=0.3),
        kc.ntk(net, tokens=3, token_cosine=0.3),
    )
    parts = {node: kernel.layers[node](1.0) for node in found.weights}
    assert found.weights == pytest.approx(parts, rel=1e-12)
    equal, one = kc.gradients(net, tokens=3, token_cosine=1.0), kc.gradients(net, tokens=1)
    assert equal.mean == pytest.approx(one.nodes, rel=1e-12, abs=1e-14)


def test_profiles_of_streams_over_tokens() -> None:
    branch = kc.chain(L.RMSNorm(), L.Affine(), L.Nonlinear("relu"), L.Affine())
    net = kc.architectures.hyper_connected(
        branch, 2, 2, kc.sinkhorn([[3, 0], [0, 3]]), [0.8, 0.2], [1, 0.7], readout="mean"
    )
    over, plain = kc.depth_profile(net, tokens=4, token_cosine=0.3), kc.depth_profile(net)
    for name in ("gradient_mean", "stream_gradient"):
        assert getattr(over, name) == pytest.approx(getattr(plain, name), rel=1e-12)
    assert over.gradient_difference == pytest.approx(over.gradient_mean, rel=1e-12)


def test_shared_branches_have_no_gradients_over_tokens_followed_one_by_one() -> None:
    with refused("'s': the addends share weights.*one by one.*tokens=T"):
        kc.gradients(SHARED, tokens=np.eye(3))


@pytest.mark.parametrize("tokens", [4, np.eye(4)], ids=["alike", "an array"])
def test_layers_that_leave_tokens_unchanged(tokens: int | np.ndarray) -> None:
    kept = wired(("h", L.Affine()), ("m", L.Pool("mean", 1)), ("o", L.Affine(sigma_w=2)))
    assert kc.gradients(kept, tokens=tokens).nodes == dict.fromkeys("xhm", 4) | {"o": 1}
    mean = wired(("m", L.Pool("mean")), ("f", L.Flatten()), ("o", L.Affine()))
    assert kc.gradients(mean, tokens=tokens).nodes == {"x": 0.25, "m": 1, "f": 1, "o": 1}
    unread = wired(*attending(), ("s", L.Sum((1, 0)), "x a"))
    assert kc.gradients(unread, tokens=tokens).nodes == dict.fromkeys("qkva", 0) | {"x": 1, "s": 1}
