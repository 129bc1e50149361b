"""Claims about ratios of gradients to weights, Gauss-Newton blocks, biases and scalars.

They are from sec. 4, 5 and 8 and App. C to G.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import sympy as sp
from numpy.linalg import svd
from sympy import Rational, Symbol, symbols

from ... import chain, scaling
from ... import layers as L
from ..bench import PRINTED, Bench, equal, exact, statistical, worst
from ..claim import Evidence
from .draws import Draws, measured
from .paper import claim
from .propagation import LEAKY, RELU, dense, images

# Q is the number of output positions
_N, _M, _K, _P, _Q, _W, _F, _B = symbols("n m k P Q w f b", positive=True)
_F_OUT = _N * _K**2 * _W * _F
_B_IN = _Q / _P * _M * _K**2 * _W * _B
_ZETA = _N * _P * _F * _B_IN
_INTRINSIC = _ZETA / (_N * _M * _K**2 * _W**2)
_EXTRINSIC = _N * _K**2 * _Q * _F**2 * _B / _F_OUT


def _family(
    bench: Bench, laws: tuple[str, ...] = ("gaussian", "laplace", "uniform")
) -> Iterator[Evidence]:
    for i in bench.rounds(6, 18):
        net, law = [dense, images][i % 2](bench), laws[i % len(laws)]
        s, run = scaling(net, weights=law), Draws(bench, net, 2500, 10000, law)
        yield run.ratios(
            s,
            f"network {i}, {law} weights",
        )


@claim("SC-prop3", "Sec. 5, Proposition 3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\nu_l = E[\Delta W_l^2]/E[W_l^2]$ equals $\gamma_l$ for linear layers and convolutions

    Under: i.i.d. symmetric weights; i.i.d. cotangents that are independent of the weights

    But: this is exact at every width, but only if no preactivation is 0 with positive probability
    (weights without atoms) and cotangents of different locations are uncorrelated (no averaging in
    later layers)
    """
    yield exact(
        _Q * _F * _B / _W - _INTRINSIC,
        "$E[\\Delta W^2] = QE[x^2]E[\\Delta y^2]$ over $E[W^2]$, by eqs. 9 and 10",
    )
    yield from _family(bench)
    net = chain(L.Input(4), L.Affine(5), RELU, L.Affine(5), RELU, L.Affine(5), LEAKY, L.Affine(3))
    run = Draws(bench, net, 20000, 100000, "sparse")
    s = scaling(net)
    yield run.ratios(
        s,
        "weights that are 0 with probability 4/5: a symmetric distribution with an atom",
        PRINTED,
    )
    yield equal(
        any("atoms" in note.text for note in scaling(net, weights="ternary").violations),
        True,
        "kcalc reports distributions with atoms",
        0.0,
    )


@claim("SC-prop6", "App. D, Proposition 6")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\nu_l=\gamma_l$ for multi-layer perceptrons

    Under: the hypotheses of Proposition 3

    But: only for weights without atoms
    """
    for i in bench.rounds(8, 30):
        net, law = dense(bench, 2 + i % 4), ("gaussian", "laplace", "uniform")[i % 3]
        s, run = scaling(net, weights=law), Draws(bench, net, 2500, 20000, law)
        truths = {}
        for node, w in s.weights.items():  # eq. 2 from eqs. 9 and 10, written out again
            above = [
                n for n in net.nodes_of(L.Affine) if list(net).index(n) > list(net).index(node)
            ]
            n_in, m = run.x[net.parents(node)[0]].shape[2], run.x[node].shape[2]
            zeta = run.x[net.outputs[0]].shape[2] * s.tensors[net.outputs[0]].forward
            truths[str(node)] = zeta / (n_in * m * run.variance[node] ** 2)
            yield equal(
                w.gamma,
                truths[str(node)],
                f"kcalc's gamma, {len(above)} layers below the output",
                1e-11,
            )
        yield worst({str(n): v for n, v in run.nu.items()}, truths, f"network {i}, {law} weights")
    net = chain(L.Input(3), L.Affine(4), RELU, L.Affine(4), LEAKY, L.Affine(3))
    run, s = Draws(bench, net, 20000, 100000, "sparse"), scaling(net)
    yield run.ratios(
        s,
        "weights that are 0 with a positive probability: nu against gamma",
        PRINTED,
    )


@claim("SC-extrinsic", "Sec. 4, display after eq. 2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\gamma_l = n_lk_l^2\rho_{l+1}^2E[x_l^2]^2E[\Delta x_{l+1}^2]/E[x_{l+1}^2]$"""
    yield exact(_EXTRINSIC - _INTRINSIC, "counting the locations of the output")
    for kernel, stride in ((2, 2), (3, 2), (3, 1)):
        conv = L.Affine(4, kernel=kernel, stride=stride, padding="circular", sigma_w=1.1)
        net = chain(L.Input(3, (4, 4)), conv, L.Flatten(), L.Affine(3))
        run, s = Draws(bench, net, 6000, 40000), scaling(net)
        f = s.tensors["affine_1"].forward
        b = s.tensors["affine_1"].backward
        q = run.x["affine_1"].shape[1]
        right = 3 * kernel**2 * q * b / f
        yield statistical(
            run.nu["affine_1"], right, f"kernel {kernel}, stride {stride}: nu, sampled"
        )
        yield equal(s.weights["affine_1"].extrinsic, right, "kcalc's extrinsic form")


@claim("SC-appC", "App. C, chain of displays")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the extrinsic form with $\rho_{l+1}^2$ equals $\varsigma_l/(n_{l+1}n_lk^2E[W_l^2]^2)$, eq. 2"""
    yield exact(_EXTRINSIC - _INTRINSIC, "the extrinsic form is eq. 2, by eqs. 9 and 10")
    for _ in bench.rounds(10, 60):
        s = scaling([dense, images][bench.whole(0, 2)](bench, bench.whole(2, 6)))
        found = [(w.gamma, w.extrinsic) for w in s.weights.values()]
        for w in found:
            yield equal(w[0], w[1], "kcalc's two forms over a random network", 1e-11)


@claim("SC-appD-dW", "App. D, second display")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E[\Delta W_l^2] = \rho_{l+1}^2E[x_l^2]E[\Delta x_{l+1}^2]$, so the ratio derived from it
    also contains $\rho_{l+1}^2$
    """
    for stride in (2, 3):
        net = chain(L.Input(2, (6, 6)), L.Affine(3, kernel=2, stride=stride, padding="circular"))
        run = Draws(bench, net, 4000, 40000)
        square, q = run.nu["affine_1"] * run.variance["affine_1"], (6 // stride) ** 2
        yield statistical(square, q, f"stride {stride}: counting the locations of the output")
        yield equal(
            scaling(net).weights["affine_1"].gamma * run.variance["affine_1"],
            q,
            "kcalc's mean square of weight gradients",
        )


def _blocks(bench: Bench, n: int, m: int, p: int, draws: int) -> tuple[np.ndarray, float]:
    """Return the mean squares of G r for each draw, and b/f, for y = W relu(z) with normal z.

    The loss is |Phi y|^2 / 2, where Phi is normal with variance 1/p.
    """
    x = np.maximum(bench.normal(draws, n), 0)
    phi = bench.normal(draws, p, m) / p**0.5
    r = bench.normal(draws, m, n)
    u = (phi @ (r @ x[:, :, None]))[:, :, 0]
    back = np.einsum("dpm,dp->dm", phi, u)
    return (x**2).sum(axis=1) * (back**2).sum(axis=1) / (n * m), 1 + (m + 1) / p


@claim("SC-prop4", "Sec. 5.1, Proposition 4; App. G, eqs. 13 to 16")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the average squared singular value of a linear layer's Gauss-Newton block is
    $n_l\,(E\|x_l\|^4/n_l^2)\,E[\Delta y^2]/E[y^2]$ up to $O(n_lE[x_l^2]^2/(n_{l+1}E[y^2]))$

    Under: cotangents that are linear in y; independent weights

    Printed: it is $n_lE[x_l^2]^2E[\Delta y^2]/E[y^2]$ up to this term; if $x$ is relu of a normal
    vector, the factor $1+5/n_l$ is missing
    """
    n = Symbol("n", positive=True)
    fourth = n * Rational(3, 2) + n * (n - 1) / 4
    yield exact(fourth / (n / 2) ** 2 - (1 + 5 / n), "$E\\|x\\|^4/(nE[x^2])^2$ for relu of normals")
    for size, m, p in ((4, 6, 5), (8, 60, 40), (30, 4, 4)):
        samples, ratio = _blocks(bench, size, m, p, bench.size(8000, 60000))
        printed = size * 0.25 * ratio
        data: dict[str, Any] = {"n": size, "m": m}
        if size < 30:
            yield statistical(
                samples,
                printed,
                f"n = {size}, m = {m}, no target: as printed, without its O term, which is 0",
                PRINTED,
                **data,
            )
        yield statistical(samples, printed * (1 + 5 / size), f"n = {size}, m = {m}", **data)
    wide, ratio = _blocks(bench, 1000, 3, 3, bench.size(2000, 10000))
    yield statistical(wide, 250 * ratio * 1.005, "n = 1000: both forms agree")
    phi = bench.normal(3, 4)
    x, R = bench.normal(5), phi.T @ phi
    J = np.kron(np.eye(4), x[None, :])
    values = svd(J.T @ R @ J, compute_uv=False)
    yield equal(
        (values**2).mean(),
        (x @ x) ** 2 * (R**2).sum() / 20,
        "a block by its singular values: $|x|^4\\|R\\|^2/(nm)$",
    )


@claim("SC-eq13", "App. G, eqs. 13 and 14")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E[(J_lr)^2] = n_lE[x_l^2]$ and $E[(J_l^Tu)^2] = E[u^2]E[x_l^2]$, $J_l = I\otimes x_l$"""
    for n, m in ((3, 4), (6, 2), (1, 5)):
        x = np.maximum(bench.normal(n), 0) + 0.1
        J = np.kron(np.eye(m), x[None, :])
        yield equal((J**2).sum() / m, n * (x**2).mean(), f"rows, n = {n}, m = {m}", 1e-13)
        yield equal((J**2).sum() / (n * m), (x**2).mean(), f"columns, n = {n}, m = {m}", 1e-13)
    r = bench.normal(bench.size(20000, 100000), 12)
    x = np.array([0.0, 1.0, 2.0])
    yield statistical(
        ((r @ np.kron(np.eye(4), x[None, :]).T) ** 2).mean(axis=1), 5.0, "$E[(J_lr)^2]$, sampled"
    )


@claim("SC-eq7", "Sec. 8, Def. 5, eq. 7")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in $x_{l+1} = C_l(x_l)+b_l$, the scaling of the bias (the average squared singular value of
    its block) is $\rho_{l+1}^2E[\Delta x_{l+1}^2]/E[x_{l+1}^2]$ at the tensor to which it is added
    """
    net = chain(
        L.Input(3, (4, 4)),
        L.Affine(5, kernel=3, stride=2, padding="circular", sigma_w=1.7),
        L.Affine(2),
    )
    s = scaling(net)
    y = s.tensors["affine_1"]
    run = Draws(bench, net, 6000, 40000)
    yield statistical(
        run.b("affine_1") * 4 / y.forward,
        s.biases["affine_1"],
        "kcalc's bias scaling against sampled gradients",
    )
    yield equal(s.biases["affine_1"], 4 * y.backward / y.forward, "P b/f after the layer", 1e-13)
    draws = bench.size(4000, 30000)
    # the Hessian at y: 2 positions with 3 channels, loss y^T R y / 2 with R as in Fig. 1
    R = bench.normal(draws, 2, 3, 2, 3)
    block = R.sum(axis=(1, 3))
    value = (block**2).sum(axis=(1, 2)) / 3
    cotangent = (R**2).sum(axis=(1, 2, 3, 4)) / 6  # E[(R y)^2] over y with E y^2 = 1
    yield statistical(
        value - 2 * cotangent,
        0.0,
        "the block of the bias in the Hessian: $\\|\\sum_{pq}R_{pq}\\|^2/m = P\\,b/f$ at y",
    )


@claim("SC-eq8", "Sec. 8, eq. 8")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\gamma^b = \rho^2b/f = \varsigma/(nE[x^2]^2)$"""
    yield exact(_P * _B / _F - (_N * _P * _F * _B) / (_N * _F**2), "both forms are equal by eq. 1")
    for _ in bench.rounds(6, 30):
        s = scaling(dense(bench, 4))
        pairs = [
            (
                s.biases[n],
                s.tensors[n].scaling / (s.tensors[n].channels * s.tensors[n].forward ** 2),
            )
            for n in s.biases
        ]
        for p in pairs:
            yield equal(p[0], p[1], "kcalc over a random network")


@claim("SC-eq11", "App. E, eq. 11")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a learnable scalar has $\nu = n\rho^2E[x_l^2]^2E[\Delta x_{l+1}^2]/E[x_{l+1}^2] =
    \varsigma/u^4$. It matches convolutions with constant $c$ if $u=\sqrt c$, but a separate scalar
    for each channel does not
    """
    u = Symbol("u", positive=True)
    yield exact(
        _N * _P * _F**2 * (_B / (u**2 * _F)) - _N * _P * _F * (u**2 * _B) / u**4,
        "both forms of the scalar's nu are equal",
    )
    for value in (0.7, 1.9):
        conv = L.Affine(3, kernel=2, padding="circular")
        net = chain(L.Input(3, (3, 3)), conv, LEAKY, L.Scale(value), conv)
        s, run = measured(bench, net, 8000, 60000)
        products = run.x["nonlinear_1"] * run.g["scale_1"]
        zeta = s.tensors["scale_1"].scaling
        yield equal(s.scalars["scale_1"], zeta / value**4, f"kcalc, u = {value}")
        yield statistical(
            products.sum(axis=(1, 2)) ** 2 / value**2, zeta / value**4, f"nu, sampled, u = {value}"
        )
        yield statistical(
            (products.sum(axis=1) ** 2).mean(axis=1) / value**2,
            zeta / (3 * value**4),
            f"a scalar per channel, u = {value}",
        )
    c = 0.49
    sides = sp.sqrt(c * sp.sqrt(Rational(4, 4)))
    s = scaling(
        chain(
            L.Input(4),
            L.Affine(4, sigma_w=sides),
            LEAKY,
            L.Scale(sp.sqrt(c)),
            L.Affine(4, sigma_w=sides),
        )
    )
    yield equal(
        s.scalars["scale_1"],
        [w.gamma for w in s.weights.values()],
        "$u = \\sqrt c$: kcalc's gamma of the scalar and of the weights",
    )
