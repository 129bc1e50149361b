"""Claims about residual blocks (App. B.7 and sec. 11)."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import sympy as sp
from sympy import symbols

from ... import Network, scaling
from ... import layers as L
from ..bench import PRINTED, STATEMENT, Bench, counterexample, equal, exact, statistical, worst
from ..claim import Evidence
from ..families import graph
from .draws import Draws, measured
from .paper import claim
from .propagation import RELU

WIDTH = 12


def residual(a: float, c: float, s: float) -> Network:
    """Build a x + c F(x) between weights, where F consists of weights, relu, weights.

    E[F^2] = s^2 E[x^2].
    """
    return graph(
        input=L.Input(5),
        x=(L.Affine(WIDTH), "input"),
        one=(L.Affine(WIDTH, sigma_w=sqrt(2)), "x"),
        relu=(RELU, "one"),
        F=(L.Affine(WIDTH, sigma_w=s), "relu"),
        S=(L.Scale(a), "x"),
        R=(L.Scale(c), "F"),
        y=(L.Sum(), "S", "R"),
        out=(L.Affine(4), "y"),
    )


@claim("SC-B7", "App. B.7 and Table 1, skip connections")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$x+R(x)$ with $E[R^2]=s^2E[x^2]$ multiplies both moments by $1+s^2$ and keeps $\varsigma$;
    $ax+cF(x)$ does the same with $a^2+c^2s^2$

    Under: R ends in fresh weights with mean 0 and preserves $\varsigma$
    """
    for a, c, s in ((1.0, 1.0, 0.7), (1.0, 1.0, 1.0), (0.8, 0.6, 1.0), (0.5, 1.4, 0.6)):
        net = residual(a, c, s)
        found = scaling(net)
        run = Draws(bench, net, 5000, 40000)
        factor = a * a + c * c * s * s
        x, y = found.tensors["x"], found.tensors["y"]
        yield equal(
            [y.forward / x.forward, x.backward / y.backward, y.scaling / x.scaling],
            [factor, factor, 1],
            f"kcalc's moments and scaling, a = {a}, c = {c}, s = {s}",
        )
        yield statistical(
            run.f("y") - factor * run.f("x"), 0.0, f"f, sampled, a = {a}, c = {c}, s = {s}"
        )
        yield statistical(
            run.b("x") - factor * run.b("y"), 0.0, f"b, sampled, a = {a}, c = {c}, s = {s}"
        )


@claim("SC-11-zeta", "Sec. 11")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""within a block $\alpha x+\beta F(x)$ with $\alpha^2+\beta^2=1$, the main branch has
    $\varsigma_R=\beta^2\varsigma$, so $E[W^2]$ of its weights needs the factor $c=\beta$
    """
    for beta in (0.6, 0.35):
        alpha = sqrt(1 - beta**2)
        net = residual(alpha, beta, 1.0)
        s, run = measured(bench, net, 6000, 40000)
        zeta = s.tensors["x"].scaling
        yield equal(
            [s.tensors[v].scaling / zeta for v in ("R", "F", "one", "S")],
            [beta**2] * 3 + [alpha**2],
            f"kcalc, beta = {beta}",
        )
        yield equal(s.tensors["y"].splits or (), (alpha**2, beta**2), "kcalc's shares of the sum")
        truth = {v: beta**2 * zeta / (WIDTH * WIDTH * run.variance[v] ** 2) for v in ("one", "F")}
        yield worst(
            {v: run.nu[v] for v in truth}, truth, f"nu within the branch, sampled, beta = {beta}"
        )
        c = sqrt(beta)  # factor of the standard deviation
        scaled = net.map_layers(
            lambda v, layer, c=c, net=net: (
                L.Affine(WIDTH, sigma_w=net.layer(v).sigma_w * c)  # type: ignore
                if v in ("one", "F")
                else L.Scale(layer.factor / c**2)
                if v == "R"
                else layer
            )
        )  # type: ignore
        before, after = s.weights["F"], scaling(scaled).weights["F"]
        yield equal(
            after.gamma * after.variance**2,
            before.gamma * before.variance**2,
            "the multiplier undoes c, so the function is the same",
        )
        yield equal(
            after.gamma,
            before.gamma / beta**2,
            "after multiplying E[W^2] by beta, gamma is the same as outside the block",
        )


@claim("SC-11-shortcut", "Sec. 11, two sentences")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the scaling factor of the shortcut is multiplied by $\alpha^2$ and that of the residual
    branch by $\beta^2$; convolutions of the shortcut are scaled by $\alpha$
    """
    s = scaling(residual(0.8, 0.6, 1.0))
    run = Draws(bench, residual(0.8, 0.6, 1.0), 6000, 40000)
    zeta, out = s.tensors["x"].scaling, run.b("y").mean()
    main = WIDTH * run.f("R") * out
    shortcut = WIDTH * run.f("S") * out
    yield statistical(main / zeta, 0.36, "the residual branch against beta^2")
    yield statistical(shortcut / zeta, 0.64, "the shortcut against alpha^2")


@claim("SC-11-last", "Sec. 11, last display of the general case")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\gamma_l = \varsigma_R/c_l^2 = (\beta^2/c^2)\varsigma$, and $c=\beta$ follows"""
    z, b, c = symbols("zeta beta c", positive=True)
    inside = b**2 * z
    yield exact(inside / c**2 - b**2 / c**2 * z, "with the scaling outside the branch")
    yield exact((inside / c**2).subs(c, b) - z, "c = beta equalises")
    s = scaling(residual(0.8, 0.6, 1.0))
    w = s.weights["one"]
    constant = w.variance * WIDTH
    yield equal(
        w.gamma, 0.36 * s.tensors["x"].scaling / constant**2, "kcalc's gamma within the branch"
    )


def _conv(n: int, m: int, k: int, c: float) -> L.Affine:
    return L.Affine(
        m, kernel=k, padding="circular", sigma_w=sqrt(c / (k * sqrt(n * m)) * n * k * k)
    )


def block(n: int, w: int, m: int, beta: float, last: float, down: float | None = None) -> Network:
    """Build the pre-activation block after a geometric layer with c = 1.

    ``last`` is the final scalar of the block. ``down`` is the constant c of a pooled shortcut.
    """
    alpha = sqrt(1 - beta**2)
    c = alpha if down is None else down
    rows: list[Any] = [
        ("in", L.Input(4, (4, 4)), ()),
        ("x", _conv(4, n, 1, 1.0), ("in",)),
        ("m0", L.Scale(sqrt(beta)), ("x",)),
        ("x1", RELU, ("m0",)),
        ("x3", L.Scale(sqrt(2 / beta)), ("x1",)),
        ("W1", _conv(n, w, 1, beta), ("x3",)),
        ("x5", RELU, ("W1",)),
        ("x7", L.Scale(sqrt(2 / (3 * beta))), ("x5",)),
        ("W2", _conv(w, w, 3, beta), ("x7",)),
        ("x9", RELU, ("W2",)),
        ("x11", L.Scale(sqrt(2 / beta)), ("x9",)),
        ("W3", _conv(w, m, 1, beta), ("x11",)),
        ("F", L.Scale(last), ("W3",)),
        ("s0", L.Pool("mean", 2) if down is not None else L.Scale(1), ("x",)),
        ("WS", _conv(n, m, 1, c), ("s0",)),
        ("S", L.Scale(1 / sqrt(alpha / (4 if down is not None else 1))), ("WS",)),
    ]
    if down is not None:
        return Network.from_steps(
            [row for row in rows if row[0] in ("in", "x", "s0", "WS", "S")], ["S"]
        )
    return Network.from_steps(
        [*rows, ("y", L.Sum((alpha, beta)), ("S", "F")), ("out", _conv(m, 5, 1, 1.0), ("y",))]
    )


@claim("SC-11.1-main", "Sec. 11.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in the pre-activation block (with multipliers $\sqrt\beta$, $\sqrt{2/\beta}$ and
    $\sqrt{2/(3\beta)}$, and constants $c=\alpha$ and $\beta$), all weights have the same $\gamma$
    as weights outside the block

    Under: $E[F^2]=E[S^2]$, which the final scalar should ensure
    """
    for n, w, m, beta in ((24, 12, 12, 0.6), (12, 12, 24, 0.45)):
        net = block(n, w, m, beta, 1 / sqrt(beta))
        s = scaling(net)
        f = s.tensors["x"].forward
        found = [weight.gamma for weight in s.weights.values()]
        yield equal(
            s.tensors["W3"].forward,
            beta * sqrt(n / m) * f,
            "kcalc: the moment before the final scalar is beta sqrt(n/m) f",
        )
        yield equal(
            found,
            s.tensors["out"].scaling,
            f"kcalc: gamma of all weights is zeta, n = {n}, width {w}, m = {m}, beta = {beta}",
            1e-11,
        )
        run = Draws(bench, net, 1000, 8000)
        yield worst(
            {v: run.nu[v] for v in s.weights},
            s.tensors["out"].scaling,
            "nu of sampled networks against zeta",
        )


@claim("SC-11.1-y2", "Sec. 11.1, shortcut of a downsampling block")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the convolution after 2 x 2 mean pooling has $c=\alpha$, so the second moment of the
    shortcut is $\sqrt{n/m}\,E[x^2]$

    Under: data that are uncorrelated within each window
    """
    beta, n, m = 0.6, 12, 24
    net = block(n, 8, m, beta, 1.0, down=0.8)
    s, run = measured(bench, net, 3000, 20000)
    yield statistical(run.f("S") - sqrt(n / m) * run.f("x"), 0.0, "f of the shortcut, sampled")
    yield equal(
        s.tensors["S"].forward / s.tensors["x"].forward,
        sqrt(n / m),
        "f of the shortcut, by kcalc",
        1e-11,
    )
    yield equal(
        s.weights["WS"].gamma * 0.64,
        s.tensors["S"].scaling,
        "gamma is zeta if the branch contributes the share alpha^2",
        1e-11,
    )


@claim("SC-11.1-final", "Sec. 11.1, fixed scalar at the end")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with a fixed scalar $(m/n)^{1/4}/\sqrt\beta$ at the end, $E[F^2]=E[x^2]$; with
    $1/\sqrt\beta$, $E[F^2]=\sqrt{n/m}\,E[x^2]$ as for the shortcut

    Printed: with $\sqrt{m/(\beta n)}$, $E[F^2]=E[x^2]$
    """
    n, w, m, beta = 24, 12, 6, 0.6
    fourth = (m / n) ** 0.25 / sqrt(beta)
    for about, last, truth in (
        (PRINTED, sqrt(m / (beta * n)), 1.0),
        (STATEMENT, fourth, 1.0),
        (STATEMENT, 1 / sqrt(beta), sqrt(n / m)),
    ):
        net = block(n, w, m, beta, last)
        s, run = measured(bench, net, 1000, 8000)
        yield equal(
            s.tensors["F"].forward / s.tensors["x"].forward,
            truth,
            f"kcalc, final scalar {last:.4f}",
            1e-11,
            about,
        )
        yield statistical(run.f("F") - truth * run.f("x"), 0.0, "sampled: $E[F^2]$", about)
    b, r = symbols("beta r", positive=True)  # r = sqrt(n/m)
    yield exact((1 / r) / b * b * r - 1, "$\\sqrt{m/n}/\\beta\\cdot\\beta\\sqrt{n/m} = 1$")


@claim("SC-11.1-bias", "Sec. 11.1, positions of the biases")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""at the positions in the text, the biases of the block have the scalings $\beta^2$ and
    $9\beta^2$ times $\varsigma/(nE[x^2]^2)$. If they are placed after each relu and before its
    multiplier, all have the factor 4

    Printed: the biases of the block are scaled equally, as required in Sec. 8
    """
    n, w, m, beta = 24, 12, 12, 0.6
    s = scaling(block(n, w, m, beta, 1 / sqrt(beta)))
    run = Draws(bench, s.network, 1000, 8000)
    unit = s.tensors["x"].scaling / (n * s.tensors["x"].forward ** 2)

    def of(node: str) -> float:
        return 16 * s.tensors[node].backward / s.tensors[node].forward / unit

    yield counterexample(
        abs(of("x7") / of("x3") - 1),
        "the two printed biases differ",
        first=of("x3"),
        second=of("x7"),
    )
    yield equal(
        [of("x3"), of("x7")],
        [beta**2, 9 * beta**2],
        r"biases as printed: the factors are $\beta^2$ and $9\beta^2$",
        1e-11,
    )
    yield equal(
        [of("x1"), of("x5"), of("x9")], 4.0, "biases after the relu: the factor is 4 for all", 1e-11
    )
    yield worst(
        {v: 16 * run.b(v) / s.tensors[v].forward / unit for v in ("x1", "x5", "x9")},
        4.0,
        "biases after the relu, sampled",
    )


@claim("SC-11.1-v", "Sec. 11.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the learnable scalar $v/\sqrt\beta$ with $v=\sqrt\beta$ has the same $\gamma$ as weights
    outside the block: $\beta^2\varsigma/v^4=\varsigma$
    """
    z, b = symbols("zeta beta", positive=True)
    yield exact(b**2 * z / sp.sqrt(b) ** 4 - z, "the scaling of the scalar by eq. 11")
    beta = 0.6
    net = residual(0.8, beta, 1.0).map_layers(
        lambda v, layer: L.Affine(WIDTH, sigma_w=1 / sqrt(beta)) if v == "F" else layer
    )
    rows = [row for row in net.steps() if row[0] not in ("R", "y", "out")]
    net = Network.from_steps(
        [
            *rows,
            ("v", L.Scale(sqrt(beta)), ("F",)),
            ("R", L.Scale(beta), ("v",)),
            ("y", L.Sum(), ("S", "R")),
            ("out", L.Affine(4), ("y",)),
        ]
    )
    s, run = measured(bench, net, 8000, 60000)
    yield equal(
        s.scalars["v"], s.tensors["x"].scaling, "nu of the scalar in kcalc, against zeta", 1e-11
    )
    yield statistical(
        (run.x["F"] * run.g["v"]).sum(axis=(1, 2)) ** 2 / beta,
        s.tensors["x"].scaling,
        "nu of the scalar in sampled networks against zeta",
    )


@claim("SC-concat", "Sec. 4, eq. 1, channels side by side")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the scaling of a concatenation is the sum of the scalings of its parts"""
    net = graph(
        input=L.Input(5),
        a=(L.Affine(6, sigma_w=1.5), "input"),
        b=(L.Affine(3, sigma_w=0.5), "input"),
        c=(L.Concat(), "a", "b"),
        r=(RELU, "c"),
        out=(L.Affine(4), "r"),
    )
    s, run = measured(bench, net, 8000, 60000)
    parts = [s.tensors[v].scaling for v in ("a", "b")]
    yield equal(s.tensors["c"].scaling, sum(parts), "kcalc's scaling of a concatenation")
    for v, channels in (("a", 6), ("b", 3)):
        yield statistical(
            channels * run.f(v) * run.b("c").mean(), s.tensors[v].scaling, f"part {v}, sampled"
        )
    yield equal(
        (run.x["c"] * run.g["c"]).sum(axis=(1, 2)),
        (run.x["out"] * run.g["out"]).sum(axis=(1, 2)),
        "the product of feature map and gradient is preserved in every draw",
        1e-10,
    )
