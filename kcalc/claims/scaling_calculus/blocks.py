"""Residual blocks: App. B.7 and sec. 11."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import sympy as sp

from ...calculi.scaling import scaling
from ...network import layers
from ...network.network import Network
from ..bench import PRINTED, Bench
from ..claim import Evidence
from .draws import Draws, all_agree
from .paper import PAPER
from .propagation import RELU

WIDTH = 12


def residual(a: float, c: float, s: float) -> Network:
    """a x + c F(x) between weights, F = weights, relu, weights with E[F^2] = s^2 E[x^2]."""
    return Network.from_steps(
        [
            ("in", layers.Input(5), ()),
            ("x", layers.Affine(WIDTH), ("in",)),
            ("one", layers.Affine(WIDTH, sigma_w=math.sqrt(2)), ("x",)),
            ("relu", RELU, ("one",)),
            ("F", layers.Affine(WIDTH, sigma_w=s), ("relu",)),
            ("S", layers.Scale(a), ("x",)),
            ("R", layers.Scale(c), ("F",)),
            ("y", layers.Sum(), ("S", "R")),
            ("out", layers.Affine(4), ("y",)),
        ]
    )


@PAPER.claim(
    "SC-B7",
    "App. B.7 and Table 1, skip connections",
    r"$x+R(x)$ with $E[R^2]=s^2E[x^2]$ multiplies both moments by $1+s^2$ and keeps $\varsigma$; "
    r"so does "
    r"$ax+cF(x)$ with $a^2+c^2s^2$",
    hypotheses="the last operation of R is a fresh weight of mean 0, and R keeps zeta",
)
def _(bench: Bench) -> Iterator[Evidence]:
    for a, c, s in ((1.0, 1.0, 0.7), (1.0, 1.0, 1.0), (0.8, 0.6, 1.0), (0.5, 1.4, 0.6)):
        net = residual(a, c, s)
        found = scaling(net)
        run = Draws(net, bench.size(5000, 40000), bench.rng)
        factor = a * a + c * c * s * s
        x, y = found.tensors["x"], found.tensors["y"]
        yield bench.equal(
            [y.forward / x.forward, x.backward / y.backward, y.scaling / x.scaling],
            [factor, factor, 1],
            f"kcalc, {a}, {c}, {s}",
            1e-12,
        )
        yield bench.statistical(
            run.f("y") - factor * run.f("x"), 0.0, f"f drawn, a = {a}, c = {c}, s = {s}"
        )
        yield bench.statistical(
            run.b("x") - factor * run.b("y"), 0.0, f"b drawn, a = {a}, c = {c}, s = {s}"
        )


@PAPER.claim(
    "SC-11-zeta",
    "Sec. 11",
    r"within a block $\alpha x+\beta F(x)$, $\alpha^2+\beta^2=1$, the main branch has "
    r"$\varsigma_R=\beta^2\varsigma$, "
    r"so that its weights need the factor $c=\beta$ of $E[W^2]$",
)
def _(bench: Bench) -> Iterator[Evidence]:
    for beta in (0.6, 0.35):
        alpha = math.sqrt(1 - beta**2)
        net = residual(alpha, beta, 1.0)
        s, run = scaling(net), Draws(net, bench.size(6000, 40000), bench.rng)
        zeta = s.tensors["x"].scaling
        yield bench.equal(
            [s.tensors[v].scaling / zeta for v in ("R", "F", "one", "S")],
            [beta**2] * 3 + [alpha**2],
            f"kcalc, beta = {beta}",
            1e-12,
        )
        yield bench.equal(
            s.tensors["y"].splits or (), (alpha**2, beta**2), "kcalc's shares of the sum", 1e-12
        )
        truth = {v: beta**2 * zeta / (WIDTH * WIDTH * run.variance[v] ** 2) for v in ("one", "F")}
        yield all_agree(
            bench,
            {v: run.nu[v] for v in truth},
            truth,
            f"nu within the branch drawn, beta = {beta}",
        )
        c = math.sqrt(beta)  # of the standard deviation
        scaled = net.map_layers(
            lambda v, layer, c=c, net=net: (
                layers.Affine(WIDTH, sigma_w=float(net.layer(v).sigma_w) * c)  # type: ignore
                if v in ("one", "F")
                else layers.Scale(float(layer.factor) / c**2)
                if v == "R"
                else layer
            )
        )  # type: ignore
        before, after = s.weights["F"], scaling(scaled).weights["F"]
        yield bench.equal(
            after.gamma * after.variance**2,
            before.gamma * before.variance**2,
            "the multiplier undoes c: the same function",
            1e-12,
        )
        yield bench.equal(
            after.gamma,
            before.gamma / beta**2,
            "after E[W^2] times beta, gamma equals that outside of the block",
            1e-12,
        )


@PAPER.claim(
    "SC-11-shortcut",
    "Sec. 11, two sentences",
    r"the shortcut's scaling factor is multiplied by $\alpha^2$, and its convolutions are scaled "
    r"by $\alpha$; the residual "
    r"branch has $\beta^2$",
)
def _(bench: Bench) -> Iterator[Evidence]:
    s = scaling(residual(0.8, 0.6, 1.0))
    run = Draws(residual(0.8, 0.6, 1.0), bench.size(6000, 40000), bench.rng)
    zeta, out = s.tensors["x"].scaling, run.b("y").mean()
    main = WIDTH * run.f("R") * out
    shortcut = WIDTH * run.f("S") * out
    yield bench.statistical(main / zeta, 0.36, "the residual branch against beta^2")
    yield bench.statistical(shortcut / zeta, 0.64, "the shortcut against alpha^2")


@PAPER.claim(
    "SC-11-last", "Sec. 11, last display of the general case",
    r"$\gamma_l = \varsigma_R/c_l^2 = (\beta^2/c^2)\varsigma$, and $c=\beta$ follows",
)  # fmt: skip
def _(bench: Bench) -> Iterator[Evidence]:
    z, b, c = sp.symbols("zeta beta c", positive=True)
    inside = b**2 * z
    yield bench.exact(inside / c**2 - b**2 / c**2 * z, "with the scaling outside")
    yield bench.exact((inside / c**2).subs(c, b) - z, "c = beta equalises")
    s = scaling(residual(0.8, 0.6, 1.0))
    w = s.weights["one"]
    constant = w.variance * WIDTH
    yield bench.equal(
        w.gamma,
        0.36 * s.tensors["x"].scaling / constant**2,
        "kcalc's gamma within the branch",
        1e-12,
    )


def _conv(n: int, m: int, k: int, c: float) -> layers.Affine:
    return layers.Affine(
        m, kernel=k, padding="circular", sigma_w=math.sqrt(c / (k * math.sqrt(n * m)) * n * k * k)
    )


def block(n: int, w: int, m: int, beta: float, last: float, down: float | None = None) -> Network:
    """The pre-activation block after a geometric layer of c = 1.

    ``last``: its final scalar; ``down``: c of a pooled shortcut.
    """
    alpha = math.sqrt(1 - beta**2)
    c = alpha if down is None else down
    rows: list[Any] = [
        ("in", layers.Input(4, (4, 4)), ()),
        ("x", _conv(4, n, 1, 1.0), ("in",)),
        ("m0", layers.Scale(math.sqrt(beta)), ("x",)),
        ("x1", RELU, ("m0",)),
        ("x3", layers.Scale(math.sqrt(2 / beta)), ("x1",)),
        ("W1", _conv(n, w, 1, beta), ("x3",)),
        ("x5", RELU, ("W1",)),
        ("x7", layers.Scale(math.sqrt(2 / (3 * beta))), ("x5",)),
        ("W2", _conv(w, w, 3, beta), ("x7",)),
        ("x9", RELU, ("W2",)),
        ("x11", layers.Scale(math.sqrt(2 / beta)), ("x9",)),
        ("W3", _conv(w, m, 1, beta), ("x11",)),
        ("F", layers.Scale(last), ("W3",)),
        ("s0", layers.Pool("mean", 2) if down is not None else layers.Scale(1), ("x",)),
        ("WS", _conv(n, m, 1, c), ("s0",)),
        ("S", layers.Scale(1 / math.sqrt(alpha / (4 if down is not None else 1))), ("WS",)),
    ]
    if down is not None:
        return Network.from_steps(
            [row for row in rows if row[0] in ("in", "x", "s0", "WS", "S")], ["S"]
        )
    return Network.from_steps(
        [*rows, ("y", layers.Sum((alpha, beta)), ("S", "F")), ("out", _conv(m, 5, 1, 1.0), ("y",))]
    )


@PAPER.claim(
    "SC-11.1-main",
    "Sec. 11.1",
    r"in the pre-activation block (multipliers $\sqrt\beta$, $\sqrt{2/\beta}$, "
    r"$\sqrt{2/(3\beta)}$, "
    r"constants $c=\alpha$ and $\beta$) "
    r"all weights have the $\gamma$ of those outside",
    hypotheses="$E[F^2]=E[S^2]$, as the final scalar is to ensure",
)
def _(bench: Bench) -> Iterator[Evidence]:
    for n, w, m, beta in ((24, 12, 12, 0.6), (12, 12, 24, 0.45)):
        net = block(n, w, m, beta, 1 / math.sqrt(beta))
        s = scaling(net)
        f = s.tensors["x"].forward
        found = [weight.gamma for weight in s.weights.values()]
        yield bench.equal(
            s.tensors["W3"].forward,
            beta * math.sqrt(n / m) * f,
            "kcalc: the moment before the final scalar is beta sqrt(n/m) f",
            1e-12,
        )
        yield bench.equal(
            found,
            s.tensors["out"].scaling,
            f"kcalc: gamma of all weights is zeta, {n}, {w}, {m}, beta = {beta}",
            1e-11,
        )
        run = Draws(net, bench.size(1000, 8000), bench.rng)
        yield all_agree(
            bench,
            {str(v): run.nu[v] for v in s.weights},
            {str(v): s.tensors["out"].scaling for v in s.weights},
            "nu drawn",
        )


@PAPER.claim(
    "SC-11.1-y2",
    "Sec. 11.1, shortcut of a downsampling block",
    r"the convolution behind 2 x 2 mean pooling has $c=\alpha$; the moment is then "
    r"$\sqrt{n/m}\,E[x^2]$",
    hypotheses="data without correlation in the windows",
)
def _(bench: Bench) -> Iterator[Evidence]:
    beta, n, m = 0.6, 12, 24
    net = block(n, 8, m, beta, 1.0, down=0.8)
    s, run = scaling(net), Draws(net, bench.size(3000, 20000), bench.rng)
    yield bench.statistical(
        run.f("S") - math.sqrt(n / m) * run.f("x"), 0.0, "f of the shortcut drawn"
    )
    yield bench.equal(
        s.tensors["S"].forward / s.tensors["x"].forward,
        math.sqrt(n / m),
        "the same by kcalc",
        1e-11,
    )
    yield bench.equal(
        s.weights["WS"].gamma * 0.64,
        s.tensors["S"].scaling,
        "gamma is zeta where the branch has alpha^2 of it",
        1e-11,
    )


@PAPER.claim(
    "SC-11.1-final",
    "Sec. 11.1, fixed scalar at the end",
    r"a fixed scalar $(m/n)^{1/4}/\sqrt\beta$ at the end makes $E[F^2]=E[x^2]$, and "
    r"$1/\sqrt\beta$ makes it the shortcut's "
    r"$\sqrt{n/m}\,E[x^2]$",
    printed=r"$\sqrt{m/(\beta n)}$ makes $E[F^2]=E[x^2]$",
)
def _(bench: Bench) -> Iterator[Evidence]:
    n, w, m, beta = 24, 12, 6, 0.6
    fourth = (m / n) ** 0.25 / math.sqrt(beta)
    for about, last, truth in (
        (PRINTED, math.sqrt(m / (beta * n)), 1.0),
        (None, fourth, 1.0),
        (None, 1 / math.sqrt(beta), math.sqrt(n / m)),
    ):
        net = block(n, w, m, beta, last)
        s, run = scaling(net), Draws(net, bench.size(1000, 8000), bench.rng)
        yield bench.equal(
            s.tensors["F"].forward / s.tensors["x"].forward,
            truth,
            f"kcalc, final scalar {last:.4f}",
            1e-11,
            about,
        )
        yield bench.statistical(run.f("F") - truth * run.f("x"), 0.0, "drawn", about)
    b, r = sp.symbols("beta r", positive=True)  # r = sqrt(n/m)
    yield bench.exact((1 / r) / b * b * r - 1, "$\\sqrt{m/n}/\\beta\\cdot\\beta\\sqrt{n/m} = 1$")


@PAPER.claim(
    "SC-11.1-bias",
    "Sec. 11.1, positions of the biases",
    r"where the text puts them, the biases of the block have the scalings $\beta^2$ and "
    r"$9\beta^2$ times "
    r"$\varsigma/(nE[x^2]^2)$; behind each relu, before its multiplier, all have 4 times it",
    printed="the biases of the block are scaled alike, as sec. 8 asks",
)
def _(bench: Bench) -> Iterator[Evidence]:
    n, w, m, beta = 24, 12, 12, 0.6
    s = scaling(block(n, w, m, beta, 1 / math.sqrt(beta)))
    run = Draws(s.network, bench.size(1000, 8000), bench.rng)
    unit = s.tensors["x"].scaling / (n * s.tensors["x"].forward ** 2)

    def of(node: str) -> float:
        return 16 * s.tensors[node].backward / s.tensors[node].forward / unit

    yield bench.counterexample(
        abs(of("x7") / of("x3") - 1),
        "the two printed biases differ",
        first=of("x3"),
        second=of("x7"),
    )
    yield bench.equal(
        [of("x3"), of("x7")], [beta**2, 9 * beta**2], "as printed: $\\beta^2$, $9\\beta^2$", 1e-11
    )
    yield bench.equal([of("x1"), of("x5"), of("x9")], 4.0, "behind relu: 4", 1e-11)
    drawn = {v: 16 * run.b(v) / s.tensors[v].forward / unit for v in ("x1", "x5", "x9")}
    yield all_agree(bench, drawn, dict.fromkeys(drawn, 4.0), "behind relu, drawn")


@PAPER.claim(
    "SC-11.1-v",
    "Sec. 11.1",
    r"the learnable scalar $v/\sqrt\beta$ with $v=\sqrt\beta$ has the $\gamma$ of the weights "
    r"outside: "
    r"$\beta^2\varsigma/v^4=\varsigma$",
)
def _(bench: Bench) -> Iterator[Evidence]:
    z, b = sp.symbols("zeta beta", positive=True)
    yield bench.exact(b**2 * z / sp.sqrt(b) ** 4 - z, "by eq. 11")
    beta = 0.6
    net = residual(0.8, beta, 1.0).map_layers(
        lambda v, layer: layers.Affine(WIDTH, sigma_w=1 / math.sqrt(beta)) if v == "F" else layer
    )
    rows = [row for row in net.steps() if row[0] not in ("R", "y", "out")]
    net = Network.from_steps(
        [
            *rows,
            ("v", layers.Scale(math.sqrt(beta)), ("F",)),
            ("R", layers.Scale(beta), ("v",)),
            ("y", layers.Sum(), ("S", "R")),
            ("out", layers.Affine(4), ("y",)),
        ]
    )
    s, run = scaling(net), Draws(net, bench.size(8000, 60000), bench.rng)
    yield bench.equal(
        s.scalars["v"], s.tensors["x"].scaling, "kcalc's nu of the scalar against zeta", 1e-11
    )
    product = (run.x["F"] * run.g["v"]).sum(axis=(1, 2)) ** 2 / beta
    yield bench.statistical(product, s.tensors["x"].scaling, "nu drawn")


@PAPER.claim(
    "SC-concat",
    "Sec. 4, eq. 1, channels side by side",
    r"the scaling of a concatenation is the sum of its parts'",
)
def _(bench: Bench) -> Iterator[Evidence]:
    net = Network.from_steps(
        [
            ("in", layers.Input(5), ()),
            ("a", layers.Affine(6, sigma_w=1.5), ("in",)),
            ("b", layers.Affine(3, sigma_w=0.5), ("in",)),
            ("c", layers.Concat(), ("a", "b")),
            ("r", RELU, ("c",)),
            ("out", layers.Affine(4), ("r",)),
        ]
    )
    s, run = scaling(net), Draws(net, bench.size(8000, 60000), bench.rng)
    parts = [s.tensors[v].scaling for v in ("a", "b")]
    yield bench.equal(s.tensors["c"].scaling, sum(parts), "kcalc", 1e-12)
    for v, channels in (("a", 6), ("b", 3)):
        product = channels * run.f(v) * run.b("c").mean()
        yield bench.statistical(product, s.tensors[v].scaling, f"part {v} drawn")
    products = (run.x["c"] * run.g["c"]).sum(axis=(1, 2))
    yield bench.equal(
        products,
        (run.x["out"] * run.g["out"]).sum(axis=(1, 2)),
        "draw by draw: the product of feature map and gradient is kept",
        1e-10,
    )
