"""Claims about second moments through layers (sec. 4, Table 1, App. A and B)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import exp, pi, sqrt
from typing import Any

import numpy as np
import sympy as sp
from numpy.polynomial.hermite_e import hermegauss
from sympy import Rational, symbols

from ... import Network, activations, chain, scaling
from ... import layers as L
from ..bench import PRINTED, Bench, at_most, counterexample, equal, exact, statistical, worst
from ..claim import Evidence
from .draws import Draws, compared, measured
from .paper import claim

RELU = L.Nonlinear(activations.activation("relu"))
LEAKY = L.Nonlinear(activations.leaky_relu(Rational(1, 5)))
ABS = L.Nonlinear(activations.activation("abs"))


def dense(bench: Bench, depth: int = 3) -> Network:
    """Build a random chain of weights and 12-channel ReLUs, all 0 with probability 2^-12."""
    parts: list[Any] = [L.Input(bench.whole(3, 9))]
    for i in range(depth):
        phi = [RELU, LEAKY, ABS][bench.whole(0, 3)]
        width = 12 if phi is RELU else bench.whole(3, 12)
        parts += [L.Affine(width, sigma_w=bench.uniform(0.7, 1.6))] + [phi] * (i < depth - 1)
    return chain(*parts)


def images(bench: Bench, depth: int = 3) -> Network:
    """Build a random chain of convolutions with strides below, at and above the kernel size."""
    parts: list[Any] = [L.Input(bench.whole(2, 4), (6, 6))]
    for i in range(depth):
        phi = [RELU, LEAKY][bench.whole(0, 2)]
        stride, kernel = (bench.whole(1, 4), bench.whole(1, 4)) if i < 2 else (1, 1)
        width = 12 if phi is RELU and i < depth - 1 else bench.whole(2, 5)
        parts += [
            L.Affine(
                width,
                kernel=kernel,
                stride=stride,
                padding="circular",
                sigma_w=bench.uniform(0.8, 1.5),
            )
        ]
        parts += [phi] * (i < depth - 1)
    return chain(*parts)


def zetas(bench: Bench, network: Network, draws: int, what: str) -> Evidence:
    """Check that the measured products n P f b are the same at all nodes.

    Standard errors are computed by the delta method.
    """
    run = Draws(bench, network, draws)
    samples = {}
    for node, x in run.x.items():
        f, b = run.f(node), run.b(node)
        samples[str(node)] = (
            x.shape[1] * x.shape[2] * (f.mean() * b + f * b.mean() - f.mean() * b.mean())
        )
    out = samples.pop(str(network.outputs[0]))
    return worst({node: s - out for node, s in samples.items()}, dict.fromkeys(samples, 0.0), what)


@claim("SC-eq1", "Sec. 4, Def. 1 and eq. 1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$x_{l+1}=\sqrt2\,x_l$ preserves $\varsigma_l = n_l\rho_l^2E[\Delta x_l^2]E[x_l^2]$, and so
    does $x_{l+1}=ux_l$
    """
    n, p, f, b = symbols("n p f b", positive=True)
    yield exact(
        n * p * (b / 2) * (2 * f) - n * p * b * f,
        "doubling in the forward pass and halving in the backward pass",
    )
    for u in (sp.sqrt(2), Rational(-3, 7)):
        s = scaling(chain(L.Input(4), L.Scale(u), L.Affine(3)))
        first, second = (s.tensors[node] for node in list(s.tensors)[:2])
        yield equal(
            [
                second.forward / first.forward,
                first.backward / second.backward,
                second.scaling / first.scaling,
            ],
            [float(u) ** 2, float(u) ** 2, 1.0],
            f"kcalc: f, b and zeta through u = {u}",
            1e-13,
        )
        run = Draws(bench, s.network, 4000, 40000)
        yield equal(
            run.b("input") / float(u) ** 2 - run.b("scale_1"), 0.0, f"sampled gradients, u = {u}"
        )


@claim("SC-eq9", "App. A, eq. 9")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a convolution has $E[x_{l+1}^2] = n_lk_l^2E[W^2]E[x_l^2]$

    Under: i.i.d. symmetric weights; periodic borders or none
    """
    for i in bench.rounds(4, 16):
        net = [images, dense][i % 2](bench)
        s, run = measured(bench, net, 1500, 6000)
        samples, truths = {}, {}
        for node in net.nodes_of(L.Affine):
            (parent,) = net.parents(node)
            n, taps = run.x[parent].shape[2], int(net.layer(node).kernel) ** 2
            samples[str(node)] = run.f(node) - n * taps * run.variance[node] * run.f(parent)
            truths[str(node)] = 0.0
            yield equal(
                s.tensors[node].forward
                / (n * taps * run.variance[node] * s.tensors[parent].forward),
                1.0,
                "kcalc's f",
            )
        yield worst(samples, truths, f"random network {i}")


@claim("SC-eq10", "App. A, eq. 10")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a convolution has $E[\Delta x_{l+1}^2] = \rho_l^2E[\Delta
    x_l^2]/(\rho_{l+1}^2n_{l+1}k_l^2E[W^2])$

    Under: i.i.d. symmetric weights; cotangents that are independent over locations; periodic
    borders or none
    """
    for i in bench.rounds(4, 16):
        net = [images, dense][i % 2](bench)
        s, run = measured(bench, net, 1500, 6000)
        samples, truths = {}, {}
        for node in net.nodes_of(L.Affine):
            (parent,) = net.parents(node)
            (_, p_in, _), (_, p_out, m) = run.x[parent].shape, run.x[node].shape
            factor = p_out / p_in * m * int(net.layer(node).kernel) ** 2 * run.variance[node]
            samples[str(node)], truths[str(node)] = run.b(parent) - factor * run.b(node), 0.0
            yield equal(
                s.tensors[parent].backward / (factor * s.tensors[node].backward), 1.0, "kcalc's b"
            )
        yield worst(samples, truths, f"random network {i}")


@claim("SC-B1", "App. B.1, B.2 and Table 1, rows 1 and 2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""linear layers and convolutions preserve $\varsigma$

    Under: i.i.d. symmetric weights; periodic borders or none
    """
    n, m, k2, w, f, b, p, q = symbols("n m k2 w f b p q", positive=True)
    yield exact(
        m * q * (p * b / (q * m * k2 * w)) * (n * k2 * w * f) - n * p * b * f,
        "eqs. 9 and 10 inserted into eq. 1",
    )
    for i in bench.rounds(4, 12):
        net = [images, dense][i % 2](bench)
        yield zetas(bench, net, bench.size(2000, 8000), f"random network {i}: zeta at all nodes")
        found = [t.scaling for t in scaling(net).tensors.values()]
        yield equal(np.array(found) / found[0], 1.0, f"kcalc's zeta at all nodes of network {i}")


@claim("SC-T1-conv", "Table 1, convolution")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""convolutions preserve $\varsigma$ and $\nu=\gamma$ at any stride, even if kernels overlap or
    leave gaps

    Printed: they preserve $\varsigma$ only if the stride equals the kernel size
    """
    for kernel, stride in ((3, 1), (3, 2), (2, 3)):
        conv = L.Affine(3, kernel=kernel, stride=stride, padding="circular", sigma_w=1.2)
        net = chain(L.Input(2, (6, 6)), conv, RELU, conv, RELU, L.Affine(3))
        name = f"kernel {kernel}, stride {stride}"
        s = scaling(net)
        found = np.array([t.scaling for t in s.tensors.values()])
        off = np.abs(found / found[0] - 1).max()
        yield counterexample(
            1.0 if off <= 1e-6 else 1e-6 - off,
            f"{name}: zeta changes if the stride differs from the size",
            kernel=kernel,
            stride=stride,
            largest_change=off,
            one_sided=True,
        )
        yield from compared(bench, net, s, bench.size(2500, 20000), name)


@claim("SC-A6-padding", "Sec. 4 and App. A, extended to zero padding")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with zero padding, too, $\varsigma = n\sum_pf(p)b(p)$ is preserved, and
    $\nu=\varsigma/(nmk^2w^2)$

    But: f and b must be maps over positions; with averages over positions, nu and gamma of a stack
    differ by several per cent
    """
    conv = [L.Affine(4, kernel=3, padding="same", sigma_w=1.3) for _ in range(4)]
    net = chain(L.Input(3, (4, 4)), conv[0], RELU, conv[1], RELU, conv[2], RELU, conv[3])
    s = scaling(net)
    run = Draws(bench, net, 8000, 40000)
    f, b, average = 1.0, 1.0, {}
    nodes = list(net.nodes_of(L.Affine))
    valid = 100 / 16  # valid taps per position of a 4 x 4 image: (3 * 4 - 2)^2 over 16
    forward, backward = [], []
    for node in nodes:
        forward.append(f)
        n = run.x[net.parents(node)[0]].shape[2]
        f *= n * run.variance[node] * valid * (0.5 if node != nodes[-1] else 1)
    for node in reversed(nodes):
        backward.insert(0, b)
        b *= 4 * run.variance[node] * valid * (0.5 if node != nodes[0] else 1)
    for node, up, down in zip(nodes, forward, backward, strict=True):
        average[node] = 100 / 9 * up * down / run.variance[node]
    yield worst(
        {n: run.nu[n] for n in nodes},
        {n: average[n] for n in nodes},
        "nu from averages over positions",
        PRINTED,
    )
    yield worst(
        {n: run.nu[n] for n in nodes},
        {n: s.weights[n].gamma for n in nodes},
        "nu from maps over positions",
    )
    yield worst(
        {f"{n} {p}": (run.x[n][:, p] ** 2).mean(axis=1) for n in nodes for p in (0, 1, 5)},
        {f"{n} {p}": np.ravel(s.tensors[n].forward_map)[p] for n in nodes for p in (0, 1, 5)},
        "f at a corner, an edge and inside",
    )
    found = [t.scaling for t in s.tensors.values()]
    yield equal(
        found,
        found[0],
        "zeta from maps at all nodes",
        spread_of_averages=max(abs(average[n] / s.weights[n].gamma - 1) for n in nodes),
    )


@claim("SC-B4", "App. B.4 and Table 1, ReLU")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""relu, leaky relu and all other positively homogeneous functions of degree 1 preserve
    $\varsigma$; relu halves both moments if its input is symmetric

    But: the input must be symmetric and nonzero with probability 1. After weights that read n relu
    channels, it is 0 with probability $2^{-n}$, and the backward factor of relu is $(1-2^{-n})/2$
    """
    a, f, b = symbols("a f b", positive=True)
    half = (1 + a**2) / 2
    yield exact(
        (half * f) * (b / half) - f * b,
        "slopes 1 and a: the same factor (1 + a^2)/2 in the forward and the backward pass",
    )
    for name, layer, factor in (
        ("relu", RELU, 0.5),
        ("leaky relu", LEAKY, 0.52),
        ("abs", ABS, 1.0),
    ):
        s = scaling(chain(L.Input(5), layer, L.Affine(3)))
        x, y = (s.tensors[node] for node in list(s.tensors)[:2])
        yield equal([y.forward, x.backward / y.backward], factor, f"kcalc: {name}, f and b")
        run = Draws(bench, s.network, 4000, 40000)
        yield statistical(
            run.f("nonlinear_1") - factor * run.f("input"), 0.0, f"{name}: f, sampled"
        )
        yield statistical(
            run.b("input") - factor * run.b("nonlinear_1"), 0.0, f"{name}: b, sampled"
        )
    mu = 0.5
    Phi = (1 + math.erf(mu / sqrt(2))) / 2
    density = exp(-mu * mu / 2) / sqrt(2 * pi)
    ratio = 1 + mu * density / ((1 + mu * mu) * Phi)
    yield counterexample(
        ratio - 1,
        "relu of N(1/2, 1): $\\varsigma_{out}/\\varsigma_{in} = 1 + "
        "\\mu\\varphi(\\mu)/((1+\\mu^2)\\Phi(\\mu))$",
        ratio=ratio,
    )
    run = Draws(bench, chain(L.Input(5), RELU, L.Affine(3)), 20000, 100000, mean=mu)
    yield statistical(
        run.f("nonlinear_1"),
        (1 + mu * mu) * Phi + mu * density,
        "relu of N(1/2, 1), sampled: f after relu",
    )
    yield statistical(
        run.b("input") - Phi * run.b("nonlinear_1"),
        0.0,
        "relu of N(1/2, 1), sampled: b before relu",
    )
    two = chain(L.Input(3), L.Affine(2), RELU, L.Affine(6), RELU, L.Affine(3))
    narrow = Draws(bench, two, 20000, 100000)
    back = narrow.b("affine_2"), narrow.b("nonlinear_2")
    yield statistical(
        back[0] - back[1] / 2, 0.0, "relu after weights that read 2 relu channels: b/2", PRINTED
    )
    yield statistical(
        back[0] - 0.375 * back[1],
        0.0,
        "relu after weights that read 2 relu channels: b (1 - 1/4)/2, because both channels are 0 "
        "with probability 1/4",
    )
    found = scaling(chain(L.Input(5), RELU, L.Affine(3)), input_symmetric=False)
    yield equal(
        any("symmetric" in note.text for note in found.violations),
        True,
        "kcalc reports inputs that are not symmetric",
        0.0,
    )


@claim("SC-B5", "App. B.5 and Table 1, dropout")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""dropout multiplies both moments by $1-p$ (by $1/(1-p)$ if outputs are divided by $1-p$) and
    preserves $\varsigma$
    """
    for rate in (0.1, 0.4, 0.75):
        net = chain(L.Input(6), L.Dropout(rate), L.Affine(4))
        s, run = measured(bench, net, 4000, 40000)
        x, y = s.tensors["input"], s.tensors["dropout_1"]
        yield equal(
            [y.forward, x.backward / y.backward, y.scaling / x.scaling],
            [1 / (1 - rate)] * 2 + [1],
            f"kcalc, p = {rate}",
        )
        yield statistical(
            run.f("dropout_1") - run.f("input") / (1 - rate), 0.0, f"f, sampled, p = {rate}"
        )
        yield statistical(
            run.b("input") - run.b("dropout_1") / (1 - rate), 0.0, f"b, sampled, p = {rate}"
        )
        mask = bench.rng.random((4000, 6)) >= rate
        yield statistical(
            (mask * run.x["input"][:4000, 0] ** 2).mean(axis=1)
            - (1 - rate) * run.f("input")[:4000],
            0.0,
            "dropout without rescaling: sampled moments",
        )


def _ratio(bench: Bench, name: str, std: float, draws: int) -> tuple[float, np.ndarray]:
    """Return kcalc's zeta_out/zeta_in for an activation at N(0, std^2), and samples of it."""
    net = chain(L.Input(4), L.Nonlinear(activations.activation(name)), L.Affine(3))
    s, run = scaling(net, input_moment=std**2), Draws(bench, net, draws, std=std)
    slope = run.b("input").mean() / run.b("nonlinear_1").mean()
    return s.tensors["nonlinear_1"].scaling / s.tensors["input"].scaling, run.f("nonlinear_1") / (
        slope * std**2
    )


@claim("SC-T1-smooth", "Table 1, sigmoid and tanh")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""sigmoid and tanh change $\varsigma$, except that tanh preserves it in its linear range"""
    nodes, weights = hermegauss(120)
    weights = weights / weights.sum()
    forms = {
        "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
        "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2),
    }
    for name, std, told in (("tanh", 1.0, 0.84904), ("sigmoid", 1.0, 6.5433), ("tanh", 0.05, 1.0)):
        value, slope = forms[name]
        truth = (weights @ value(std * nodes) ** 2) / (weights @ slope(std * nodes) ** 2 * std**2)
        found, _ = _ratio(bench, name, std, 10)
        yield equal(
            found,
            truth,
            f"{name} at N(0, {std}^2): kcalc against $E[\\phi^2]/(E[\\phi'^2]E[x^2])$ by "
            f"quadrature",
            1e-7,
        )
        yield equal(found, told, f"{name}: the known digits", 5e-5)
        if std == 1.0:
            yield at_most(0.1, abs(truth - 1), f"{name}: zeta changes by more than 10 %")
            run = Draws(
                bench,
                chain(L.Input(4), L.Nonlinear(activations.activation(name)), L.Affine(3)),
                8000,
                60000,
            )
            yield statistical(
                run.f("nonlinear_1") - weights @ value(nodes) ** 2,
                0.0,
                f"{name}: E[phi^2], sampled",
            )
            yield statistical(
                run.b("input") - (weights @ slope(nodes) ** 2) * run.b("nonlinear_1"),
                0.0,
                f"{name}: b, sampled",
            )


@claim("SC-B6", "App. B.6")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$x_{l+1}=u_lx_l$ multiplies both moments by $u_l^2$ and preserves $\varsigma$"""
    for _ in bench.rounds(5, 30):
        u = bench.normal()
        net = chain(L.Input(5), L.Affine(4), L.Scale(u), L.Affine(3))
        s, run = measured(bench, net, 50)
        x, y = s.tensors["affine_1"], s.tensors["scale_1"]
        yield equal(
            [y.forward / x.forward, x.backward / y.backward, y.scaling / x.scaling],
            [u * u, u * u, 1],
            f"kcalc's moments and zeta, u = {u:.4f}",
        )
        yield equal(
            [run.f("scale_1"), run.b("affine_1")],
            [u * u * run.f("affine_1"), u * u * run.b("scale_1")],
            "sampled moments",
        )
