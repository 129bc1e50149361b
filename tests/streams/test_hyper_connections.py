"""Networks of several streams against the recursion of their Gram matrices and frozen values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refusals
from scipy.special import expit

import kcalc as kc
from kcalc import KcalcError
from kcalc.streams.profile import forgetting_rate, half_life

L = kc.layers
BRANCH = kc.chain(L.RMSNorm(), L.Affine(), L.Nonlinear("relu"), L.Affine(sigma_w=2**0.5))
H = kc.sinkhorn(6 * np.eye(4) - 3, 3000)
WRITE = [1.2, 1.0, 0.9, 0.7]
GAMMA = (4.5340354763, 1.7368857306, 1.0994801368, 0.9778746167)  # at the start, for the mean
Q = (17.905614482821, 12.937242217350, 10.776698122258, 7.102894007363)


def read(layer: int) -> np.ndarray:
    """The read vector of a sub-layer with home stream ``layer`` mod 4."""
    return expit(np.where(np.arange(4) == layer % 4, 3, -3))


def streams(depth: int, **options: Any) -> kc.Network:
    return kc.architectures.hyper_connected(BRANCH, 4, depth, H, read, WRITE, **options)


def test_gradients_at_the_start() -> None:
    """An RMSNorm and a homogeneous branch: 1^T Gamma 1 is q at the end (of both, the mean)."""
    for readout in ("mean", None):
        found = kc.depth_profile(streams(12, readout=readout), 0.5)
        assert found.stream_q is not None and found.stream_gradient is not None
        assert found.gradient_mean is not None
        assert found.stream_gradient[0] == pytest.approx(GAMMA, abs=1e-10)
        assert found.gradient_mean[0] == pytest.approx(found.q[-1], rel=1e-12)
        assert found.stream_q[-1] == pytest.approx(Q, abs=1e-10)
        assert found.c[-1] == pytest.approx(0.672910222591, abs=1e-12)
        assert found.branch[1:] == pytest.approx(np.full(12, 0.95**2), rel=1e-12)
        assert found.forgetting_rate == pytest.approx(0.990158177609, abs=1e-12)
        assert found.half_life == pytest.approx(70.08, abs=0.005)
    assert "lambda_2 = 0.990158" in str(found) and "stream_q_4" in found.to_dataframe()
    assert found.to_dict()["forgetting_rate"] == found.forgetting_rate and found.plot()


def test_forgetting() -> None:
    draw = np.random.default_rng(1)
    matrices = [kc.sinkhorn(draw.normal(size=(3, 3))) for _ in range(5)]
    product = np.linalg.multi_dot(matrices[::-1])
    second = sorted(abs(np.linalg.eigvals(product)))[1]
    assert forgetting_rate(matrices) == pytest.approx(second**0.2, rel=1e-9)
    assert forgetting_rate([np.full((3, 3), 1 / 3)] * 9) == 0 == half_life(0.0)
    assert half_life(forgetting_rate([np.eye(2)])) == np.inf
    assert forgetting_rate([np.ones((1, 1))]) is half_life(None) is None
    jordan = np.diag([0.1, 0.1], 1) + np.diag([0, 0, 0.3])  # 0 has a single eigenvector
    assert forgetting_rate([jordan] * 2) == 0
    tiny = [np.full((2, 2), 0.5) + 1e-5 * k * np.array([[1, -1], [-1, 1]]) for k in range(1, 41)]
    expected = np.exp(np.mean(np.log([2e-5 * k for k in range(1, 41)])))
    assert forgetting_rate(tiny) == pytest.approx(expected, rel=1e-9)


def test_columns_without_gradients() -> None:
    """Nodes of the user may have the names that the means would have."""
    net = streams(2)
    steps = [*net.steps(), ("mean_0", L.Affine(), net.outputs[:1])]
    taken = kc.Network.from_steps(steps, (*net.outputs, "mean_0"))
    for net in (streams(2, readout="mean"), taken):
        found = kc.depth_profile(net, 0.5, backward=False)
        assert found.gradient_mean is None is found.stream_gradient
        assert found.stream_q is not None and found.stream_q[0] == pytest.approx([1] * 4)


def test_gradients_that_do_not_exist_are_noted() -> None:
    net = made(branch=kc.chain(L.Affine(), L.Nonlinear("sign"), L.Affine()), h_post=[1, 0.5])
    found = kc.depth_profile(net, 0.5)
    assert found.stream_gradient is None
    assert any("no gradients: node" in note.text for note in found.assumptions)
    with pytest.raises(KcalcError, match="unknown output 'stream_1_0'"):
        kc.depth_profile(net, 0.5, output="stream_1_0")


def test_streams_that_nothing_reads_are_left_out() -> None:
    net = made(readout=[1, 0])
    read = {parent for _, _, parents in net.steps() for parent in parents}
    assert {*net} - read == {*net.outputs}


def made(**changed: Any) -> kc.Network:
    given = {"h_res": np.eye(2), "h_pre": [1, 1], "h_post": [1, 1]} | changed
    branch = given.pop("branch", BRANCH)
    return kc.architectures.hyper_connected(branch, 2, 2, **given)


test_bad_arguments = refusals(
    [
        (lambda: made(h_res=np.ones((2, 3))), "h_res of sub-layer 0 must be a 2 x 2"),
        (lambda: made(h_res=[[0, 0], [1, 1]]), "row 0 of h_res"),
        (lambda: made(h_pre=[1, 1, 1]), "h_pre of sub-layer 0"),
        (lambda: made(h_pre=lambda layer: [1 - layer] * 2), "a branch has weight 0"),
        (lambda: made(h_post=[1, "b c"]), r"h_post of sub-layer 0\[1\]"),
        (lambda: made(readout="max"), "readout"),
        (lambda: made(readout=[0, 0]), "the readout has weight 0"),
        (lambda: made(branch=kc.chain(L.Affine(), L.Nonlinear("relu"))), "end in an Affine"),
        (lambda: made(expand=[1, 0], h_post=[1, 0]), "stream 2 is 0"),
        (lambda: kc.sinkhorn([[0, -np.inf], [1, -np.inf]]), "column 1 of the logits"),
        (lambda: kc.sinkhorn([0, 1]), "square"),
        (lambda: kc.sinkhorn([["a"]]), "numbers"),
        (lambda: kc.sinkhorn([[np.nan]]), "nan"),
        (lambda: kc.sinkhorn(np.eye(2), last="both"), "last"),
        (lambda: kc.sinkhorn(np.eye(2), eps=-1), "eps"),
        (lambda: kc.sinkhorn([[1000]], 0), "overflows"),
    ]
)
