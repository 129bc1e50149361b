"""Claims of appendices A, B, D and K: average units, Stein's lemma, proofs and an experiment.

Appendix D proves the statements of Section 13.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyval
from sympy import symbols

from ... import activation, c_map, chain, pair_expectation, repeat
from ... import layers as L
from ..bench import Bench, at_most, equal, exact, proved, statistical
from ..claim import Evidence
from ..families import PowerMap, power_maps
from ..functions import FUNCTIONS
from . import coefficients as co
from . import reference
from .fixed_points import slope
from .paper import PAPER, claim
from .reference import power_series, second_moment, steepness

Real = Any  # of mpmath
_POINTS = np.array([-0.9, -0.5, -0.2, 0.2, 0.5, 0.9])


PAPER.undecidable(
    "DKS-K",
    "App. K",
    r"$Q'(1)\in\{0.95,1,1.01\}$: the F1 score of predictions from Q maps, for softplus networks of "
    r"depth 50",
    "the plots come from a training experiment and show the accuracy of predictions, not an F1 "
    "score",
)


@claim("DKS-eq24", "App. A, eq. 24")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\tfrac1k\mathbf 1^\top y\approx E_{x\sim N(0,1)}[\phi(\sqrt q\,x)]$ for the output vector
    $y$ of a layer; this follows from the kernel of $\phi+1$

    Under: the kernel approximation holds for $\phi$ and $\phi+1$
    """
    names = ("relu", "softplus", "gelu", "sigmoid", "exp", "selu")
    f, g = symbols("f g")
    yield exact(
        (f + 1) * (g + 1) - (f * g + f + g + 1), "$(f+1)(f'+1)$: entries of $A+A^\\top$ are $f+f'$"
    )
    for name in names[: bench.size(4, 6)]:
        phi, plain = activation(name), FUNCTIONS[name]
        raised = phi.transformed(output_shift=1.0)
        for q1, q2, c in ((1.0, 1.0, 0.4), (0.5, 2.0, -0.3)):
            kernels = (
                pair_expectation(raised, raised, c, q1, q2)
                - pair_expectation(phi, phi, c, q1, q2)
                - 1
            )
            yield equal(
                kernels,
                reference.mean(plain.value, q1, plain.kinks)
                + reference.mean(plain.value, q2, plain.kinks),
                "the kernel of $\\phi+1$ minus the kernel of $\\phi$ minus 1 is $v+v'$, with $v$ "
                "by quadrature",
                1e-9,
            )
        yield equal(
            phi.mean(1.7),
            reference.mean(plain.value, 1.7, plain.kinks),
            "the means in kcalc",
            1e-11,
        )
    smooth = [FUNCTIONS[name] for name in names[: bench.size(4, 6)]]
    yield equal(
        [activation(name).mean_slope(1.7) for name in names[: bench.size(4, 6)]],
        [reference.mean(f.slope, 1.7, f.kinks) for f in smooth],
        "the mean slopes in kcalc",
        1e-10,
    )
    k, inputs = bench.size(100_000, 2_000_000), 30
    z = bench.normal(inputs)
    # W z, where the entries of W have variance 1/inputs
    pre = bench.normal(k) * sqrt((z @ z) / inputs)
    wide = bench.normal(bench.size(3000, 30_000), inputs) @ z / sqrt(inputs)
    for name in ("relu", "softplus"):
        value, q = FUNCTIONS[name].value, (z @ z) / inputs
        yield statistical(
            value(pre), activation(name).mean(q), f"{name}: the average of {k} outputs"
        )
        yield statistical(value(wide), activation(name).mean(q), f"{name}: with a weight matrix")


BENT = ("tanh", "sin", "erf", "softplus", "gelu", "exp", "gaussian")


@claim("DKS-appB", "App. B")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""With $u=\sqrt{q_2}(cx+\sqrt{1-c^2}y)$:
    $E[\phi(\sqrt{q_1}x)\phi'(u)x]=\sqrt{q_1}E[\phi'(\sqrt{q_1}x)\phi'(u)]+\sqrt{q_2}\,c\,E[\phi(\sqrt{q_1}x)\phi''(u)]$,
    so $\Gamma_\phi'=\sqrt{q_1q_2}\,\Gamma_{\phi'}$
    """
    for name in BENT[: bench.size(5, 7)]:
        phi = FUNCTIONS[name]
        for q1, q2, at in ((1.0, 1.0, 0.5), (0.6, 1.5, -0.7))[: bench.size(2, 2)]:
            if name == "exp":
                q1, q2 = q1 / 2, q2 / 2
            r1, r2 = sqrt(q1), sqrt(q2)
            left = reference.pair(lambda s, f=phi, r=r1: f.value(s) * s / r, q1, phi.slope, q2, at)
            straight = reference.pair(phi.slope, q1, phi.slope, q2, at)
            curved = reference.pair(phi.value, q1, phi.bend, q2, at)
            whole = reference.pair(phi.value, q1, lambda u, f=phi, r=r2: f.slope(u) * u / r, q2, at)
            yield equal(
                (whole - at * left) / sqrt(1 - at**2),
                r2 * sqrt(1 - at**2) * curved,
                "integration by parts in y",
                1e-9,
            )
            norm = sqrt(second_moment(name, q1) * second_moment(name, q2))
            yield equal(
                activation(name).c_map.derivative(1)(at, q1, q2) * norm,
                r1 * r2 * straight,
                "the derivative in kcalc is $\\sqrt{q_1q_2}\\,\\Gamma_{\\phi'}$",
                1e-9,
            )
            yield equal(
                left,
                r1 * straight + r2 * at * curved,
                "integration by parts in x, with the joint density",
                1e-9,
            )


# --- Appendix D -----------------------------------------------------------------------------------


@claim("DKS-D1", "App. D.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the coefficients of $C_f(c)=\sum_ib_ic^i$ satisfy $\sum_{i=0}^\infty b_i=C_f(1)=1$"""
    for name in ("sin", "exp", "gaussian", "erf", "square", "cube", "cos", "tanh")[
        : bench.size(6, 8)
    ]:
        C = activation(name).c_map
        own = power_series(name, 120)
        yield equal(
            [own.sum(), C.series(100).sum()],
            1,
            "sums of the coefficients: quadrature against kcalc",
            1e-6,
        )
        yield equal(C(1.0), 1, "kcalc's value of $C(1)$", 1e-14)
        yield equal(C.derivative(1)(0.0), own[1], "$b_1=C'(0)$", 1e-10)
    parts = np.array(
        [float(b.mid()) for name in bench.size(co.NAMES[::3], co.NAMES) for b in co.enclosed(name)]
    )
    yield at_most(
        [0 * parts, parts], [parts, 0 * parts + 1], "$0\\le b_i\\le1$: midpoints of enclosures"
    )


@claim("DKS-eq27", "App. D.1, eq. 27")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C_f'(1)-1\ge1-C_f'(0)$ if $C_f(0)=0$

    Under: uniform q values
    """
    n = np.arange(2, 1000)
    yield proved(
        [int(v) for v in n - 2], "$\\sum_{i\\ge2}(i-1)b_i\\ge\\sum_{i\\ge2}b_i$: term by term"
    )
    maps = power_maps(bench, 500, 5000, zero=True)
    for C in maps:
        yield at_most(
            1 - C.weights[1], slope(C) - 1, "the inequality for random C maps with $C(0)=0$"
        )
    for name in bench.size(co.NAMES[::3], co.NAMES):
        if name in ("abs", "square", "gaussian", "cos"):
            continue
        phi = FUNCTIONS[name]
        centre = reference.mean(phi.value, 1.0, phi.kinks)
        C = activation(name).transformed(output_shift=-centre).c_map
        size = second_moment(name) - centre**2
        left = 1 - reference.mean(phi.slope, 1.0, phi.kinks) ** 2 / size
        right = steepness(name) / size - 1
        yield at_most(left, right, "the inequality for centred activations, by quadrature")
        yield equal(
            [C.derivative(1)(0.0) - 1 + left, C.derivative(1)(1.0) - 1 - right],
            0,
            "kcalc's slopes at 0 and 1",
            1e-9,
        )
    bad = PowerMap(np.array([0.5, 0.0, 0.5]))
    yield at_most(
        slope(bad) - 1,
        1 - bad.weights[1] - 0.5,
        "without $C(0)=0$, the inequality may fail, for example for $(1+c^2)/2$",
    )


@claim("DKS-eq28", "App. D.2, eq. 28")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the dual activation is $\tilde\varphi(c)=\sum_{i=0}^\infty\langle\varphi,h_i\rangle^2c^i$
    with the normalised Hermite polynomials $h_i$

    Under: input q value 1
    """
    for name in bench.size(
        ("tanh", "gelu", "softplus", "exp", "erf", "cos"),
        tuple(n for n in co.NAMES if not FUNCTIONS[n].kinks),
    ):
        squares = power_series(name, 120) * second_moment(name)
        for c in (-0.5, 0.0, 0.3, 0.7):
            direct = reference.gamma(name, c)
            yield equal(
                polyval(c, squares),
                direct,
                "Hermite sums that start at 0 against the joint density",
                1e-8,
            )
            yield equal(
                pair_expectation(name, name, c), direct, "kcalc against the joint density", 1e-9
            )


@claim("DKS-D3", "App. D.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathrm{na}(\varphi)^2=1-\dfrac{\langle\varphi',h_0\rangle^2}{\|\varphi'\|^2}$, and
    $\mathrm{nl}(\varphi)^2=1-\dfrac{\langle\varphi,h_1\rangle^2}{\|\varphi\|^2}$

    Under: input q value 1
    """
    for name in bench.size(co.NAMES[::3], co.NAMES):
        phi = FUNCTIONS[name]
        x, w = reference.line(phi.kinks)
        joint = w * reference.density(x)
        values, steep = phi.value(x), phi.slope(x)
        centre, size = joint @ steep, joint @ steep**2
        found = (joint @ (steep - centre) ** 2) / size
        C = activation(name).c_map.derivative(1)
        along = joint @ (values * x)
        yield equal(
            (joint @ (values - along * x) ** 2) / (joint @ values**2),
            1 - along**2 / (joint @ values**2),
            "the distance of phi from linear functions",
            1e-11,
        )
        yield equal(found, 1 - centre**2 / size, "the distance of phi' from its mean", 1e-11)
        yield equal(1 - C(0.0) / C(1.0), found, "$1-C'(0)/C'(1)$ in kcalc", 1e-9)


@claim("DKS-D4-7", "App. D.4, D.6, D.7")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""steps of the proofs: $F_f(c)=\sum_{i\ge1}b_i|c|^{i-1}$. Let $f$ have $D$ layers with the
    same C map $C$, and let $c^*=1$. If $C(-1)=1$, then $C$ is even and $C_f'(-1)=-C_f'(1)$.
    Otherwise $C_f'(-1)\to0$ as $D\to\infty$. Finally, $C_f(1-\varepsilon)\le
    C_f(0)+F_f(1-\varepsilon)$ and $C_f'(1)\ge(1-C_f(1-\varepsilon))/\varepsilon$

    Under: uniform q values
    """
    maps = [C for C in power_maps(bench, 300, 3000) if C.weights[1:].sum() > 1e-3]
    size = np.abs(_POINTS)
    flat = np.array([polyval(size, C.weights[1:]) for C in maps])
    yield equal([(C(size) - C(0)) / size for C in maps], flat, "D.4: F against its series", 1e-10)
    yield at_most(
        [np.abs(polyval(_POINTS, C.weights[1:])) for C in maps],
        flat,
        "D.4: $|\\sum b_ic^{i-1}|\\le F$",
    )
    eps = bench.uniform(0.01, 0.99, len(maps))
    inner = np.array([C(1 - e) for C, e in zip(maps, eps, strict=True)])
    F = np.array([(v - C.weights[0]) / (1 - e) for C, v, e in zip(maps, inner, eps, strict=True)])
    yield at_most(
        inner,
        [C.weights[0] + f for C, f in zip(maps, F, strict=True)],
        "D.7: the value at $1-\\varepsilon$",
    )
    yield at_most((1 - inner) / eps, [slope(C) for C in maps], "D.7: the slope at 1", 1e-11)
    even, other = [], []
    for C in maps:
        weights = C.weights.copy()
        weights[1::2] = 0
        if weights[2:].sum() > 1e-3:
            even.append(_ends(PowerMap(weights / weights.sum()), 6))
        steep = slope(C)
        weights = C.weights * min(1.0, 0.95 / steep)
        weights[0] = 1 - weights[1:].sum()
        mixed = PowerMap(weights)
        if weights[1::2].sum() > 1e-3 and len(other) < bench.size(25, 300):
            other.append(_ends(mixed, 400)[1])
    yield equal([p[1] / p[0] for p in even], -1, "D.6: even maps, $C_f'(-1)=-C_f'(1)$", 1e-10)
    yield equal(other, 0, "D.6: other maps with $C'(1)<1$, 400 copies", 1e-6)
    for name, expected in (("abs", -1.0), ("relu", 0.0)):
        phi = activation(name).transformed(output_scale=sqrt(2) if name == "relu" else 1.0)
        C = c_map(chain(L.Input(), repeat(chain(L.Affine(), L.Nonlinear(phi)), 120))).derivative(1)
        yield equal(C(1.0), 1, f"D.6: 120 layers of {name} in kcalc, the slope at 1", 1e-10)
        yield equal(
            C(-1.0),
            expected,
            "D.6: 120 layers in kcalc, the slope at -1",
            1e-10 if name == "abs" else 3e-3,
        )


def _ends(C: PowerMap, copies: int) -> tuple[float, float]:
    """Compute the slopes at 1 and -1 of C iterated ``copies`` times, by the chain rule."""
    steep, product, at = C.derivative(1), 1.0, -1.0
    for _ in range(copies):
        product, at = product * steep(at), C(at)
    return steep(1.0) ** copies, product
