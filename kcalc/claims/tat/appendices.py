"""Claims of the appendices: the proof of Lemma 1, orthogonal weights, and empirical c values.

They are from App. C (eqs. 21 to 24), D and E.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np
import sympy as sp
from sympy import Rational, Symbol, expand, integrate, oo, simplify, symbols

from ... import activation, activations, architectures, c_map, pair_expectation, shape
from ...backend import LAWS
from ..bench import Bench, at_most, equal, exact, statistical
from ..claim import Evidence
from ..families import power_maps
from .independent import chain_of, corner, forward, homogeneous_pair, leaky, tailored, tailored_map
from .paper import claim
from .tailored import exact_tailored_map, printed_tailored_map

_C = np.cos(np.linspace(0, np.pi, 31))


@claim("TAT-eq21", "App. C, eq. 21")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\phi_\alpha(x)=\alpha x+(1-\alpha)\phi_0(x)$, so $\mathcal
    C_{\phi_\alpha}(c)=\frac{2}{1+\alpha^2}[\alpha^2c+(1-\alpha)^2\mathcal C_{\phi_0}(c)\mathcal
    Q_{\phi_0}(1)+2\alpha(1-\alpha)E[(cz_1+\sqrt{1-c^2}z_2)\phi_0(z_1)]]$
    """
    a, x = symbols("a x", positive=True)
    yield exact(x - (a * x + (1 - a) * x), "phi_a for x > 0")
    yield exact(-a * x - a * (-x), "phi_a for x < 0, where phi_0 = 0")
    for slope in (-0.4, 0.0, 0.3, 1.5, *bench.uniform(-2, 3, bench.size(3, 30))):
        square = [homogeneous_pair(leaky(0.0), leaky(0.0), c) for c in _C]  # C_0(c) Q_0(1)
        mixed = [homogeneous_pair(leaky(1.0), leaky(0.0), c) for c in _C]
        parts = (
            slope**2 * _C
            + (1 - slope) ** 2 * np.array(square)
            + 2 * slope * (1 - slope) * np.array(mixed)
        )
        yield equal(
            activations.leaky_relu(slope).c_map(_C),
            2 / (1 + slope**2) * parts,
            "the expansion from angular integrals against kcalc's C map",
        )


@claim("TAT-eq22", "App. C, eq. 22")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""ReLU: $\mathcal C_{\phi_0}(c)=\frac1\pi(\sqrt{1-c^2}+(\pi-\cos^{-1}c)\,c)$"""
    truth, t, a = exact_tailored_map()
    formula = (sp.sin(t) + (sp.pi - t) * sp.cos(t)) / sp.pi
    yield exact(
        sp.expand_trig(expand(truth.subs(a, 0) - formula)),
        "the angular integral at slope 0 minus the formula",
    )
    q1, q2 = np.exp(bench.uniform(-3, 3, 2))
    numbers = (np.sqrt((1 - _C) * (1 + _C)) + (np.pi - np.arccos(_C)) * _C) / np.pi
    yield equal(
        activation("relu").c_map(_C, q1, q2),
        numbers,
        "the C map in kcalc, also at unequal q values",
    )
    yield equal(
        [2 * homogeneous_pair(leaky(0.0), leaky(0.0), c) for c in _C],
        numbers,
        "the angular integral",
    )


@claim("TAT-eq23", "App. C, eq. 23")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E[(cz_1+\sqrt{1-c^2}z_2)\,\phi_0(z_1)]=c/2$"""
    z = Symbol("z", positive=True)
    yield exact(
        integrate(z**2 * sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi), (z, 0, oo)) - Rational(1, 2),
        "E[z^2; z > 0] = 1/2",
    )
    yield equal(
        pair_expectation("identity", "relu", _C), _C / 2, "kcalc's expectation is c/2", 1e-13
    )
    yield equal(
        [homogeneous_pair(leaky(1.0), leaky(0.0), c) for c in _C],
        _C / 2,
        "the angular integral",
        1e-13,
    )


@claim("TAT-eq24", "App. C, eq. 24")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathcal C(c)=\frac{(1-\alpha)^2(\sqrt{1-c^2}+c(\pi-\cos^{-1}c))+2\pi\alpha
    c}{(1+\alpha^2)\pi}$ before rearranging
    """
    t, a = symbols("t a", positive=True)
    before = ((1 - a) ** 2 * (sp.sin(t) + sp.cos(t) * (sp.pi - t)) + 2 * sp.pi * a * sp.cos(t)) / (
        (1 + a**2) * sp.pi
    )
    inner = (
        a**2 * sp.cos(t)
        + (1 - a) ** 2 / 2 * (sp.sin(t) + (sp.pi - t) * sp.cos(t)) / sp.pi
        + a * (1 - a) * sp.cos(t)
    )
    yield exact(
        simplify(before - 2 / (1 + a**2) * inner), "eq. 24 minus eq. 21 with eqs. 22, 23 inserted"
    )
    yield exact(simplify(before - printed_tailored_map(t, a)), "eq. 24 minus Lemma 1")
    slopes = bench.uniform(-2, 3, bench.size(8, 60))
    numbers = [
        (
            (1 - s) ** 2 * (np.sqrt((1 - _C) * (1 + _C)) + _C * (np.pi - np.arccos(_C)))
            + 2 * np.pi * s * _C
        )
        / ((1 + s**2) * np.pi)
        for s in slopes
    ]
    yield equal(
        [activations.leaky_relu(s).c_map(_C) for s in slopes],
        numbers,
        "kcalc's C map, random slopes",
    )


def _orthogonal(bench: Bench, m: int, k: int) -> np.ndarray:
    """Draw orthogonal weights (X X^T)^(-1/2) X max(sqrt(m/k), 1), transposed for m > k."""
    x = bench.normal(min(m, k), max(m, k))
    values, vectors = np.linalg.eigh(x @ x.T)
    w = vectors @ np.diag(values**-0.5) @ vectors.T @ x
    return max(sqrt(m / k), 1.0) * (w if m <= k else w.T)


@claim("TAT-suo", "App. D")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""orthogonal $m\times k$ weights are $(XX^\top)^{-1/2}X$ times $\max\{\sqrt{m/k},1\}$, a
    factor that has an effect only if $k<m$
    """
    sizes = [(4, 4), (6, 4), (4, 6), (9, 2), (2, 9)]
    factor = [max(sqrt(m / k), 1.0) for m, k in sizes]
    yield equal(
        [f != 1 for f in factor],
        [k < m for m, k in sizes],
        "the factor differs from 1 exactly for k < m",
        0.5,
    )
    norms = []
    for m, k in sizes:
        noise = bench.normal(m, k)
        w = _orthogonal(bench, m, k)
        law = np.asarray(LAWS["orthogonal"].matrix(noise)) / sqrt(k)
        z = bench.normal(k)
        gram = law @ law.T if m <= k else law.T @ law
        yield equal(
            np.abs(gram - max(m / k, 1.0) * np.eye(min(m, k))).max(),
            0.0,
            "the rows (or columns) of kcalc's weights are orthogonal and have the same norm",
            1e-5,
        )
        yield equal(
            [(w**2).mean() * k, (law**2).mean() * k],
            1.0,
            "the mean square of an entry is 1/k, both in the recipe and in kcalc",
            1e-5,
        )
        if m >= k:
            norms += [(v @ v) / m / ((z @ z) / k) for v in (w @ z, law @ z)]
    yield equal(norms, 1.0, "|Wz|^2/m = |z|^2/k for m >= k, both in the recipe and in kcalc", 1e-5)
    yield statistical(
        [np.sum(_orthogonal(bench, 3, 6)[0, :2]) ** 2 for _ in bench.rounds(1500, 20000)],
        2 / 6,
        "rows are uniform on the sphere: E (w_1 + w_2)^2 = 2/k",
    )


# -- empirical c values ----------------------------------------------------------------------------


@claim("TAT-e1", "App. E.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""inputs with $\|x_1^0\|^2=\|x_2^0\|^2=d_0$ and $x_1^{0\top}x_2^0=0$ are orthogonal inputs
    with $q=1$; $\hat c^l=x_1^{l\top}x_2^l/(\|x_1^l\|\|x_2^l\|)$ is close to $\mathcal C^l(0)$
    """
    slope = (
        shape(architectures.vanilla(30), method="tat", eta=0.9).constants["relu"].negative_slope
        or 0.0
    )
    depth, widths, draws = 30, (30, 100, 300), bench.size(24, 200)
    errors = []
    theory: list[float] = [float("nan")]
    for width in widths:
        x = np.eye(2, 30) * sqrt(30)
        found = []
        for _ in range(draws):
            y = x
            found.append([])
            for _ in range(depth):
                y = forward(bench, tailored(slope), y, (width,))
                found[-1].append((y[0] @ y[1]) / (np.linalg.norm(y[0]) * np.linalg.norm(y[1])))
        theory = [chain_of(n)(0.0, lambda c: tailored_map(slope, c)) for n in range(1, depth + 1)]
        errors.append(np.sqrt(np.mean((np.array(found) - theory) ** 2)))
        if width == widths[-1]:
            final = np.array(found)[:, -1]
            # sampling errors, and a bias of order 1/width
            near = 4.5 * final.std() / sqrt(draws) + 10 / width
            yield at_most(
                abs(final.mean() - theory[-1]), near, "the mean of the last c value", width=width
            )
    yield equal(
        np.polyfit(np.log(widths), np.log(errors), 1)[0],
        -0.5,
        "the error of empirical c values falls like the inverse square root of the width",
        0.2,
        widths=list(widths),
        errors=errors,
    )
    network = architectures.vanilla(depth, activations.leaky_relu(slope), readout=False)
    yield equal(c_map(network)(0.0), theory[-1], "kcalc's c value at the last layer", 1e-11)


@claim("TAT-e1b", "App. E.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the conditions of DKS imply $\mathcal C(c)\le c$ on $[0,1]$

    Under: $\mathcal C(0)=0$, $\mathcal C(1)=1$
    """
    c = np.linspace(0, 1, 101)
    maps = power_maps(bench, 300, 3000, zero=True)
    yield at_most([C(c) for C in maps], c, "random positive definite maps with C(0) = 0")
    values = []
    for name, zeta in [
        ("softplus", 10.0),
        ("tanh", 1.5),
        ("relu", 1.5),
        ("gelu", 3.0),
        ("swish", 1.2),
    ][: bench.size(3, 5)]:
        shaped = shape(architectures.vanilla(20, name), method="dks", zeta=zeta).network
        local = shaped.activations[0]
        values += [local.c_map(c), c_map(shaped)(c)]
    yield at_most(
        values, np.tile(c, (len(values), 1)), "local and global maps of shaped networks", 1e-10
    )
    yield equal(
        activations.leaky_relu(0.5).c_map(0.0),
        corner(0.5),
        "it fails without C(0) = 0: a leaky ReLU has C(0) = k > 0",
    )
