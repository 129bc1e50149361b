"""Cross moments and what they lose, against closed forms.

E sin(g) sin(2 h) = exp(-(q1 + 4 q2)/2) sinh(2 Cov(g, h)).
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from wiring import wired

import kcalc as kc
from kcalc import c_map, chain
from kcalc.network.layers import Affine, Input, LayerNorm, Nonlinear, RMSNorm, Scale, Sum


@pytest.fixture(autouse=True)
def _digits():
    with mpmath.workdps(50):
        yield


def relu_and_normed_relu() -> kc.Network:
    """relu(f / rms f) - relu(f) + g.

    Two activations of Gaussians whose cosine is 1 for equal inputs, whatever their q.
    """
    return wired(
        ("f", Affine()),
        ("g", Affine(), "x"),
        ("r", RMSNorm(), "f"),
        ("p", Nonlinear("relu")),
        ("p2", Nonlinear("relu"), "f"),
        ("s", Sum((1, -1, 1)), "p p2 g"),
    )


def test_learnable_kernels_of_equal_rows_have_all_digits_behind_norms() -> None:
    jax = pytest.importorskip("jax")
    q = np.random.default_rng(4).uniform(0.1, 6, 12)
    kernel = kc.learnable_kernel(relu_and_normed_relu())
    with jax.enable_x64(True):
        found = kernel({}, jax.numpy.asarray(np.sqrt(q)[:, None] * np.ones((12, 4))))
    np.testing.assert_allclose(np.diag(found), (1 / np.sqrt(q) - 1) ** 2 * q / 2 + q, rtol=1e-12)


def sigmoid_kernel(one: float, two: float, c: float) -> tuple[Any, Any, Any]:
    """(variance, variance, correlation) of sigmoids of Gaussians of cosine c, by Hermite series.

    1/(1 + exp(-x)) is 1/2 and the odd function tanh(x/2)/2, whose coefficient over the half line is
    half.
    """

    def coefficient(size: float, n: int) -> Any:
        odd = mpmath.quad(
            lambda z: (
                mpmath.npdf(z) * mpmath.tanh(size * z / 2) * mpmath.hermite(n, z / mpmath.sqrt(2))
            ),
            [0, 4, 12],
        )
        return odd / mpmath.sqrt(mpmath.mpf(2) ** n * mpmath.factorial(n))

    rows = [[coefficient(size, n) for n in (1, 3, 5)] for size in (one, two)]
    variances = [mpmath.fsum(a * a for a in row) for row in rows]
    terms = zip(*rows, (1, 3, 5), strict=True)
    cross = mpmath.fsum(a * b * mpmath.mpf(c) ** n for a, b, n in terms)
    return *variances, cross / mpmath.sqrt(variances[0] * variances[1])


def test_norms_of_what_varies_little_keep_their_digits() -> None:
    """Of sigmoids of small numbers, whose variance is 6e-8 beside a q of 1/4."""
    scale = 1e-3
    layers = [Input(), Affine(sigma_w=scale), Nonlinear("sigmoid")]
    normed = chain(*layers, LayerNorm())
    C = c_map(normed)
    with mpmath.workdps(30):
        variance, _, even = sigmoid_kernel(scale, scale * 1.5, 0.3)
        same = sigmoid_kernel(scale, scale, -0.7)[2]
        second = mpmath.mpf("0.25") + variance
    standardised = chain(*layers, Affine(standardised=True, sigma_w=2))
    for value in (
        C(-0.7),
        kc.ntk(chain(normed, Affine())).nngp(-0.7),
        c_map(chain(*layers, Scale(-3), LayerNorm()))(-0.7),
        c_map(standardised)(-0.7),
    ):
        assert float(value) == pytest.approx(float(same), rel=1e-15)
    assert float(C(0.3, 1, 2.25)) == pytest.approx(float(even), rel=5e-15)
    assert float(kc.q_map(standardised)(1.0)) == pytest.approx(4 * float(variance), rel=1e-12)
    slope = kc.slope_polynomial(normed, q=1.0) / kc.symbols.psi
    assert float(slope) == pytest.approx(float(second / variance), rel=1e-12)
    back = kc.gradients(normed).nodes["nonlinear_1"]
    assert back == pytest.approx(1 / float(variance), rel=1e-12)
    assert not any("digits" in note.text for note in C.assumptions)


def test_norms_that_lose_digits_say_so() -> None:
    """The variance of a sum of two sigmoids is taken as a difference."""
    scale = 1e-3
    steps: list[Any] = []
    for k in "ab":
        steps += [(k, Affine(sigma_w=scale), "x"), (f"s{k}", Nonlinear("sigmoid"))]
    steps += [("sum", Sum(), "sa sb"), ("n", LayerNorm())]
    C = c_map(wired(*steps))
    (digits,) = (int(note.text.split()[-2]) for note in C.assumptions if note.node == "n")
    with mpmath.workdps(40):
        truth = float(sigmoid_kernel(scale, scale, 0.3)[2])
    assert 7 <= digits <= 10 and abs(float(C(0.3)) / truth - 1) < 10.0**-digits
