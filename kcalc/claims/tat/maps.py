"""Claims of sections 2, A.3 and A.4: kernels, Q maps and C maps, sums, derivatives."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np
import sympy as sp
from numpy.linalg import norm
from sympy import diff, symbols

from ... import (
    Network,
    activation,
    activations,
    architectures,
    c_map,
    chain,
    node_values,
    pair_expectation,
    q_map,
    residual,
)
from ... import layers as L
from ..bench import Bench, at_most, counterexample, equal, exact, statistical
from ..claim import Evidence
from ..families import graph
from .independent import NAMES, SMOOTH, Function, forward, homogeneous_pair, leaky, one, pair
from .paper import claim


def _inputs(bench: Bench, q1: float, q2: float, c: float, size: int = 16) -> np.ndarray:
    """Draw two inputs with exactly these q values and this cosine."""
    basis = np.linalg.qr(bench.normal(size, 2))[0].T
    return sqrt(size) * np.stack(
        [sqrt(q1) * basis[0], sqrt(q2) * (c * basis[0] + sqrt(1 - c * c) * basis[1])]
    )


def _square(phi: Function, q: float) -> float:
    root = sqrt(q)
    return one(lambda z: phi(root * z) ** 2)


def _points(bench: Bench, count: int) -> Iterator[tuple[float, float, float]]:
    for _ in range(count):
        yield (
            bench.uniform(-0.95, 0.95),
            np.exp(bench.uniform(-1, 1)),
            np.exp(bench.uniform(-1, 1)),
        )


@claim("TAT-eq3", "Sec. 2.1, eq. 3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the kernel of wide networks follows layer by layer from $\Sigma^{l+1} = E_{z\sim
    N(0,\Sigma^l)}[\phi(z)\phi(z)^\top]$

    Under: independent Gaussian weights with variance 1/fan-in, zero biases, infinite width; for one
    layer, the mean is exact at any width
    """
    for name in NAMES[: bench.size(5, 11)]:
        for c, q1, q2 in _points(bench, 2):
            yield equal(
                pair_expectation(name, name, c, q1, q2),
                pair(SMOOTH[name][0], SMOOTH[name][0], c, q1, q2),
                "E[phi(u) phi(v)] against a trapezoidal rule in the plane",
                1e-10,
            )
    for name, phi in (("tanh", np.tanh), ("relu", leaky(0.0)), ("softplus", SMOOTH["softplus"][0])):
        x = _inputs(bench, 0.7, 1.6, -0.4)
        samples = []
        for _ in bench.rounds(400, 4000):
            y = forward(bench, phi, x, (64,))
            samples.append((y[0] @ y[1]) / 64)
        yield statistical(
            samples,
            pair_expectation(name, name, -0.4, 0.7, 1.6),
            f"one layer of 64 {name} units with random weights",
            width=64,
        )


@claim("TAT-eq4", "Sec. 2.2, eq. 4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$q^{l+1} = \mathcal Q(q^l) = E[\phi(\sqrt{q^l}\,z)^2]$ with $q^0 = \|x\|^2/d_0$"""
    found, truth = [], []
    for name in NAMES[: bench.size(6, 11)]:
        for _, q, _ in _points(bench, 3):
            phi = SMOOTH[name][0]
            found += [activation(name).q_map(q), q_map(architectures.vanilla(3, name))(q)]
            steps = [q]
            for _ in range(3):
                root = sqrt(steps[-1])
                steps.append(one(lambda z, phi=phi, root=root: phi(root * z) ** 2))
            truth += steps[1::2]
    yield equal(
        found, truth, "the Q map, and three layers of it, against a trapezoidal rule", 1e-10
    )
    x = _inputs(bench, 1.7, 1.0, 0.0)[:1]
    yield statistical(
        [(forward(bench, np.tanh, x, (64,)) ** 2).mean() for _ in bench.rounds(400, 4000)],
        activation("tanh").q_map(1.7),
        "one layer of 64 tanh units, |x|^2/d_0 = 1.7",
    )


@claim("TAT-eq5", "Sec. 2.2, eq. 5")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$c^{l+1} = \mathcal C(c^l,q_1^l,q_2^l) = E[\phi(z_1)\phi(z_2)]/\sqrt{\mathcal
    Q(q_1^l)\mathcal Q(q_2^l)}$ with $c^0 = x_1^\top x_2/d_0$

    But: $c^0 = x_1^\top x_2/d_0$ only if $\|x_1\| = \|x_2\| = \sqrt{d_0}$; in general $c^0 =
    x_1^\top x_2/(\|x_1\|\,\|x_2\|)$
    """
    same = np.array([2.0, 2.0])
    printed, cosine = (same @ same) / 2, (same @ same) / (norm(same) ** 2)
    yield counterexample(
        abs(printed - cosine),
        "x_1 = x_2 = (2, 2) has c = 1, and x_1.x_2/d_0 = 4",
        x=[2, 2],
        c=cosine,
        printed=printed,
    )
    for name in NAMES[: bench.size(5, 11)]:
        phi = SMOOTH[name][0]
        for c, q1, q2 in _points(bench, 2):
            sizes = [_square(phi, q) for q in (q1, q2)]
            yield equal(
                activation(name).c_map(c, q1, q2),
                pair(phi, phi, c, q1, q2) / sqrt(sizes[0] * sizes[1]),
                "the C map at unequal q against a trapezoidal rule",
                1e-9,
            )
    q1, q2, c = 0.5, 2.0, 0.6
    x = _inputs(bench, q1, q2, c)
    cosine = x[0] @ x[1] / np.sqrt((x[0] @ x[0]) * (x[1] @ x[1]))
    phi = activation("tanh")
    expected = phi.c_map(cosine, q1, q2) * sqrt(phi.q_map(q1) * phi.q_map(q2))
    samples = []
    for _ in bench.rounds(400, 4000):
        y = forward(bench, np.tanh, x, (64,))
        samples.append((y[0] @ y[1]) / 64)
    yield statistical(
        samples, expected, "C sqrt(Q Q) at c^0 = x_1.x_2/(|x_1||x_2|), with random weights"
    )


def _two_branches(first: str, second: str, w: float) -> Network:
    return graph(
        x=L.Input(),
        a=(L.Affine(), "x"),
        f=(L.Nonlinear(first), "a"),
        fa=(L.Affine(), "f"),
        b=(L.Affine(), "x"),
        g=(L.Nonlinear(second), "b"),
        gb=(L.Affine(), "g"),
        sum=(L.Sum((w, sqrt(1 - w * w))), "fa", "gb"),
    )


def _branch_values(name: str, c: float, q1: float, q2: float) -> tuple[float, float, float]:
    phi = SMOOTH[name][0]
    sizes = [_square(phi, q) for q in (q1, q2)]
    return sizes[0], sizes[1], pair(phi, phi, c, q1, q2) / sqrt(sizes[0] * sizes[1])


@claim("TAT-sum", "Sec. 2.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a weighted sum has $q=\sum_i w_i^2 q_i$ and $c=\frac1q\sum_i w_i^2 q_i c_i$

    Under: the terms are outputs of independent affine layers

    But: the printed c requires that both inputs have the same $q_i$; in general $c = \sum_i
    w_i^2\sqrt{q_{i1}q_{i2}}\,c_i\big/\sqrt{\sum_i w_i^2q_{i1}\,\sum_i w_i^2q_{i2}}$
    """
    w, c = 0.6, 0.3
    a, b = _branch_values("tanh", c, 0.25, 9.0), _branch_values("gelu", c, 0.25, 9.0)
    true = (w**2 * sqrt(a[0] * a[1]) * a[2] + (1 - w**2) * sqrt(b[0] * b[1]) * b[2]) / sqrt(
        (w**2 * a[0] + (1 - w**2) * b[0]) * (w**2 * a[1] + (1 - w**2) * b[1])
    )
    printed = [
        (w**2 * a[j] * a[2] + (1 - w**2) * b[j] * b[2]) / (w**2 * a[j] + (1 - w**2) * b[j])
        for j in (0, 1)
    ]
    yield counterexample(
        min(abs(p - true) for p in printed),
        "tanh and gelu branches, q_1 = .25, q_2 = 9: c cannot be computed with the q value "
        "of either input",
        printed=printed,
        true=true,
    )
    general, general_true = [], []
    pairs = [("tanh", "gelu"), ("erf", "softplus"), ("sin", "sigmoid"), ("atan", "swish")]
    for first, second in pairs[: bench.size(3, 4)]:
        for c, q1, q2 in _points(bench, 2):
            net, w = _two_branches(first, second, 0.6), 0.6
            a, b = _branch_values(first, c, q1, q2), _branch_values(second, c, q1, q2)
            q = [w**2 * a[j] + (1 - w**2) * b[j] for j in (0, 1)]
            cross = w**2 * sqrt(a[0] * a[1]) * a[2] + (1 - w**2) * sqrt(b[0] * b[1]) * b[2]
            general += list(node_values(net, c, q1, q2)["sum"])
            general_true += [q[0], q[1], cross / sqrt(q[0] * q[1])]
            a, b = _branch_values(first, c, q1, q1), _branch_values(second, c, q1, q1)
            yield equal(
                c_map(net)(c, q1),
                (w**2 * a[0] * a[2] + (1 - w**2) * b[0] * b[2]) / (w**2 * a[0] + (1 - w**2) * b[0]),
                "c of a sum at uniform q, as printed",
                1e-9,
            )
    yield equal(
        general, general_true, "q_1, q_2 and c of a sum at unequal q, in the general form", 1e-9
    )


@claim("TAT-eq7", "Sec. 2.4, eq. 7")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a block $w\,x + \sqrt{1-w^2}\,\mathcal R(x)$ has $c \mapsto w^2c+(1-w^2)\,\mathcal
    C_{\mathcal R}(c)$ and keeps $q=1$

    Under: w is the weight of the shortcut; the branch has Q = 1 and ends in an affine layer
    """
    for _ in bench.rounds(8, 40):
        w = bench.uniform(0, 1)
        slope = bench.uniform(0, 1)
        c = bench.uniform(-1, 1)
        net = _tailored_block(w, slope)
        inner = homogeneous_pair(leaky(slope), leaky(slope), c) * 2 / (1 + slope**2)
        twice = homogeneous_pair(leaky(slope), leaky(slope), inner) * 2 / (1 + slope**2)
        yield equal(
            c_map(net)(c),
            w**2 * c + (1 - w**2) * twice,
            "blocks with two tailored rectifiers in the branch, by the angular integral",
            1e-11,
        )
        yield equal(q_map(net)(1.0), 1.0, "q of the block for inputs with q = 1")
    w, c, width = 0.7, -0.3, 16
    x = _inputs(bench, 1, 1, c, width)
    samples = []
    for _ in bench.rounds(1500, 20000):
        hidden = forward(bench, leaky(0.0), x, (width,)) * sqrt(2)
        y = w * x + sqrt(1 - w * w) * forward(bench, lambda v: v, hidden, (width,))
        samples.append((y[0] @ y[1]) / width)
    relu = chain(L.Affine(), L.Nonlinear("relu"))
    yield statistical(
        samples,
        w**2 * c + (1 - w**2) * c_map(relu)(c),
        "a block with one ReLU layer and random weights, width 16",
    )


def _tailored_block(w: float, slope: float) -> Network:
    scale = sqrt(2 / (1 + slope**2))
    phi = activations.abrelu(slope * scale, scale)
    branch = chain(L.Affine(), L.Nonlinear(phi), L.Affine(), L.Nonlinear(phi), L.Affine())
    return residual(branch, shortcut_weight=w)


# -- derivatives -----------------------------------------------------------------------------------


def _moment(name: str, i: int, c: float, q1: float, q2: float) -> float:
    """Compute the right-hand side of eq. 18."""
    f, phi = SMOOTH[name][i], SMOOTH[name][0]
    sizes = [_square(phi, q) for q in (q1, q2)]
    return (q1 * q2) ** (i / 2) / sqrt(sizes[0] * sizes[1]) * pair(f, f, c, q1, q2)


@claim("TAT-eq17", "App. A.3, eq. 17")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathcal C'(c,q_1,q_2)=\frac{\sqrt{q_1q_2}}{\sqrt{\mathcal Q(q_1)\mathcal
    Q(q_2)}}E[\phi'(\sqrt{q_1}z_1)\,\phi'(\sqrt{q_2}(cz_1+\sqrt{1-c^2}z_2))]$

    Under: $\phi$ continuous with a weak derivative
    """
    h = 1e-3
    for name in NAMES[: bench.size(4, 11)]:
        for c, q1, q2 in _points(bench, 2):
            truth = _moment(name, 1, c, q1, q2)
            at = [_moment(name, 0, c + k * h, q1, q2) for k in (-2, -1, 1, 2)]
            yield equal(
                activation(name).c_map.derivative(1)(c, q1, q2),
                truth,
                "kcalc's C' against the printed expectation",
                1e-9,
            )
            yield equal(
                truth,
                (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h),
                "the printed expectation against differences of C",
                1e-8,
            )
    slopes = [(0.0, 0.3), (0.3, -0.6), (-0.5, 0.8)]
    step = [(lambda x, a=a: np.where(x > 0, 1.0, a), a, c) for a, c in slopes]
    # degree 0: E r^0 = 1, not 2
    kinked = [homogeneous_pair(lambda x, g=g: g(x), g, c) / 2 * 2 / (1 + a * a) for g, a, c in step]
    yield equal(
        [activations.leaky_relu(a).c_map.derivative(1)(c) for a, c in slopes],
        kinked,
        "leaky ReLUs, by the angular integral",
        1e-11,
    )


@claim("TAT-eq18", "App. A.3, eq. 18")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathcal C^{(i)}(c,q_1,q_2)=\frac{(q_1q_2)^{i/2}}{\sqrt{\mathcal Q(q_1)\mathcal
    Q(q_2)}}E[\phi^{(i)}(\sqrt{q_1}z_1)\,\phi^{(i)}(\sqrt{q_2}(cz_1+\sqrt{1-c^2}z_2))]$

    Under: $\phi$ i times differentiable, $\phi^{(i-1)}$ continuous
    """
    found, truth = [], []
    for name in NAMES[: bench.size(5, 11)]:
        for c, q1, q2 in _points(bench, 2):
            found.append(activation(name).c_map.derivative(2)(c, q1, q2))
            truth.append(_moment(name, 2, c, q1, q2))
    yield equal(found, truth, "i = 2: kcalc's C'' against the printed expectation", 1e-8)
    found, truth = [], []
    for i in bench.rounds(5, 8):
        for c, q1, q2 in _points(bench, 2):
            wave = SMOOTH["sin"][i % 2]
            sizes = [_square(np.sin, q) for q in (q1, q2)]
            found.append(
                activation("sin").c_map.derivative(i)(c, q1, q2)
                if i
                else activation("sin").c_map(c, q1, q2)
            )
            truth.append(
                (q1 * q2) ** (i / 2) / sqrt(sizes[0] * sizes[1]) * pair(wave, wave, c, q1, q2)
            )
    yield equal(found, truth, "i = 0 to 4 and higher for the sine", 1e-9)
    c, a, b = symbols("c a b", positive=True)
    # E sin u sin v; E cos u cos v has cosh instead
    known = sp.exp(-(a + b) / 2) * sp.sinh(c * sp.sqrt(a * b))
    yield exact(
        diff(known, c) - sp.sqrt(a * b) * sp.exp(-(a + b) / 2) * sp.cosh(c * sp.sqrt(a * b)),
        "i = 1 for the sine, by symbolic differentiation",
    )


@claim("TAT-eq19", "App. A.4, eq. 19")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathcal C^{(i)}(0)=E[\phi^{(i)}(z)]^2 \ge 0$

    But: only for $q=1$ and $\mathcal Q(1)=1$; in general $\mathcal
    C^{(i)}(0)=q^i\,E[\phi^{(i)}(\sqrt q z)]^2/\mathcal Q(q)$
    """
    slope = activations.abrelu(2, 2).c_map.derivative(1)(0.0)
    printed = one(lambda z: 2.0 + 0 * z) ** 2
    yield counterexample(
        abs(printed - slope),
        "phi = 2x has C'(0) = 1, and E[phi']^2 = 4 (Q(1) = 4)",
        slope=slope,
        printed=printed,
    )
    found, truth = [], []
    for name in NAMES[: bench.size(6, 11)]:
        for _, q, _ in _points(bench, 2):
            root = sqrt(q)
            series = np.asarray(activation(name).c_map.series(3, q), dtype=float) * [1, 1, 2]
            size = one(lambda z, r=root, f=SMOOTH[name][0]: f(r * z) ** 2)
            found += list(series)
            truth += [
                q**i * one(lambda z, r=root, f=SMOOTH[name][i]: f(r * z)) ** 2 / size
                for i in range(3)
            ]
    yield equal(found, truth, "kcalc's C(0), C'(0) and C''(0) against means of derivatives", 1e-9)
    yield at_most(np.zeros(len(found)), found, "all of them are >= 0", 1e-15)
