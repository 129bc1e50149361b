"""Claims of appendices I and J: path weights, and ResNets with LayerNorm and growing q values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from math import acos, cos, sin, sqrt
from typing import Any

import numpy as np
import sympy as sp
from sympy import Rational, Symbol, symbols

from ... import Network, activation, architectures, c_map, node_values, q_map, q_values
from ... import layers as L
from ...fields.balls import working
from ..bench import (
    PRINTED,
    Array,
    Bench,
    at_most,
    counterexample,
    equal,
    exact,
    proved,
    statistical,
)
from ..claim import Evidence
from ..functions import relu_map
from .paper import claim

STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_GRID = np.cos(np.linspace(np.pi, 0, 41))


# --- path weights ---------------------------------------------------------------------------------


def _weights(bench: Bench, sizes: tuple[int, ...], variance: float, draws: int) -> list[Array]:
    """Draw weight matrices (draws, out, in) with entries of variance ``variance`` / fan-in."""
    return [bench.normal(draws, m, k) * sqrt(variance / k) for k, m in itertools.pairwise(sizes)]


def _gates(weights: list[Array], x: Array) -> list[Array]:
    """Return masks of active units (draws, units) for all layers except the last."""
    out = []
    for W in weights[:-1]:
        u = W @ x if x.ndim == 1 else np.einsum("dij,dj->di", W, x)
        out.append((u > 0).astype(float))
        x = u * out[-1]
    return out


def _gated(weights: list[Array], gates: list[Array], x: Array) -> Array:
    """Compute the output for given masks, shape (draws,)."""
    u = np.broadcast_to(x, (weights[0].shape[0], x.shape[-1]))
    for W, gate in zip(weights, [*gates, None], strict=True):
        u = np.einsum("dij,dj->di", W, u)
        u = u if gate is None else u * gate
    return u[:, 0]


def _share(*gates: list[Array]) -> Array:
    """Compute the fraction of paths that are active in all given masks, shape (draws,)."""
    return np.prod(
        [np.prod(layer, axis=0).mean(axis=1) for layer in zip(*gates, strict=True)], axis=0
    )


@claim("DKS-eq29", "App. I, eq. 29")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$f(x)=\sum_pW_px_p$ over active paths; $E[W_pW_q]=\sigma^{2D}/P$ for $p=q$, else 0; so
    $E[f(x)f(x')]=\sigma^{2D}\,\dfrac{E[A_{x,x'}]}{P}\,\tfrac1kx^\top x'$

    Under: ReLU layers without biases, weights $N(0,\sigma^2/m)$, one linear output

    But: exact for $x'=x$; for $x'\ne x$, it assumes that the weights are independent of which paths
    are active, so after one hidden layer the term $\frac{\sigma^4}{2\pi k}\|x\|\|x'\|\sin\theta$ is
    missing
    """
    relu = activation("relu")
    # sigma^2 = 2, |x|^2 = k: sigma^4 E relu(u) relu(v), u, v independent
    missing = 2 * (relu.c_map(0.0) * relu.q_map(1.0)) * 2
    yield counterexample(
        missing,
        "one hidden layer, $\\sigma^2=2$, orthogonal inputs with $|x|^2=k$: $2/\\pi$; the formula "
        "gives 0",
        found=missing,
    )
    sizes = (2, 3, 2, 1)
    draws = bench.size(60_000, 600_000)
    x = np.array([1.0, 0.7])
    other = np.array([0.4, 1.1])
    W = _weights(bench, sizes, 2.0, draws)
    gates, gates2 = _gates(W, x), _gates(W, other)
    paths = np.zeros(200)
    for path in itertools.product(*(range(n) for n in sizes)):
        weight = (
            W[0][:200, path[1], path[0]]
            * W[1][:200, path[2], path[1]]
            * W[2][:200, path[3], path[2]]
        )
        paths += weight * gates[0][:200, path[1]] * gates[1][:200, path[2]] * x[path[0]]
    forward = _gated(W, gates, x)
    yield equal(paths, forward[:200], "explicit sums over active paths, and the network")
    one = W[0][:, 0, 0] * W[1][:, 0, 0] * W[2][:, 0, 0]
    two = W[0][:, 0, 1] * W[1][:, 0, 0] * W[2][:, 0, 0]
    yield statistical(one**2, 2.0**3 / 12, "$E[W_p^2]=\\sigma^{2D}/P$ with $P=2\\cdot3\\cdot2$")
    yield statistical(one * two, 0.0, "$E[W_pW_q]=0$ for paths that differ in one weight")
    own = 8 * _share(gates) * (x @ x) / 2
    yield statistical(forward**2 - own, 0.0, "$x'=x$: $f^2$ minus $\\sigma^{2D}\\,A/P\\,|x|^2/k$")
    other_w = _weights(bench, sizes, 2.0, draws)
    free, free2 = _gated(other_w, gates, x), _gated(other_w, gates2, other)
    expected = 8 * _share(gates, gates2) * (x @ other) / 2
    yield statistical(
        free * free2 - expected, 0.0, "$x'\\ne x$, with weights independent of the paths: eq. 29"
    )
    small = _weights(bench, (2, 4, 1), 2.0, draws)
    a, b = np.array([1.0, 1.0]), np.array([sqrt(2), 0.0])
    product = _gated(small, _gates(small, a), a) * _gated(small, _gates(small, b), b)
    theta = math.pi / 4
    formula = 4 * (math.pi - theta) / (2 * math.pi) * (a @ b) / 2
    yield statistical(product, formula, "the network itself, $\\theta=\\pi/4$: eq. 29", PRINTED)
    yield statistical(
        product,
        formula + 4 / (2 * math.pi) * sin(theta),
        "the network itself: eq. 29 plus the missing term",
    )
    yield equal(
        4 * (relu.c_map(cos(theta)) * relu.q_map(1.0)),
        formula + 4 / (2 * math.pi) * sin(theta),
        "kcalc's C map has the missing term",
    )


@claim("DKS-I2", "App. I")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for $R$ ReLU layers with $\sigma^2=2$, if half of the units are active and a quarter are
    co-active, $E[f(x)^2]\approx\|x\|^2/k$ and $E[f(x)f(x')]\approx2^{-R}x^\top x'/k$. The first
    agrees with $Q_g(q)=q$, but the second contradicts $C_g$, which tends to 1
    """
    R = Symbol("R", positive=True, integer=True)
    yield exact(2**R * Rational(1, 2) ** R - 1, "$\\sigma^{2R}(1/2)^R=1$")
    yield exact(2**R * Rational(1, 4) ** R - Rational(1, 2) ** R, "$\\sigma^{2R}(1/4)^R=2^{-R}$")
    W = _weights(bench, (3, 400, 1), 2.0, bench.size(200, 2000))
    x, orthogonal, near = np.array([1.0, 2, 0]), np.array([-2.0, 1, 0]), np.array([1.0, 2, 0.4])
    gate = _gates(W, x)[0]
    yield statistical(gate.ravel(), 0.5, "samples: half of the units are active")
    yield statistical(
        (gate * _gates(W, orthogonal)[0]).ravel(),
        0.25,
        "samples: a quarter of the units are active for both of two orthogonal inputs",
    )
    angle = acos((x @ near) / sqrt((x @ x) * (near @ near)))
    yield statistical(
        (gate * _gates(W, near)[0]).ravel(),
        (math.pi - angle) / (2 * math.pi),
        "for similar inputs, the fraction is $(\\pi-\\theta)/2\\pi$, which is closer to 1/2",
    )
    relu = activation("relu")
    yield equal(
        relu.c_map.derivative(1)(cos(angle)) / 2,
        (math.pi - angle) / (2 * math.pi),
        "this agrees with the slope of C",
    )
    net = architectures.vanilla(50, relu, sigma_w=sp.sqrt(2), readout=False)
    # with sigma_w^2 = 2 in every layer, q does not change
    yield equal(
        q_map(net)(np.array([0.3, 1.0, 4.0])),
        [0.3, 1.0, 4.0],
        "50 layers in kcalc: $Q(q)=q$",
        1e-10,
    )
    images = c_map(net)(np.array([-0.9, 0.0, 0.5]))
    yield at_most(0.98, images, "50 layers in kcalc: the C map is near 1, not $2^{-R}$")
    own = np.array([-0.9, 0.0, 0.5])
    for _ in range(50):
        own = relu_map(own)
    yield equal(images, own, "equation 15 applied 50 times", 1e-10)
    yield equal(
        c_map(net).derivative(1)(1.0), 1, "gradients at one input: $E|f'|^2$ keeps its size", 1e-10
    )


# --- ResNets --------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def resnet(depth: int) -> Network:
    """Build the library's ResNet with LayerNorm, for inputs without positions."""
    return architectures.layernorm_resnet(depth)


def blocks(network: Network) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return (sum, its addends) for all sums in order."""
    return [(node, network.parents(node)) for node in network.nodes_of(L.Sum)]


def entry(network: Network, parents: tuple[Any, ...]) -> tuple[Any, bool]:
    """Return the node that a block reads, and whether its shortcut has layers.

    The block reads the nearest common ancestor of both addends.
    """
    above = {node: below for node, _, below in network.steps()}

    def line(node: Any) -> list[Any]:
        out = [node]
        while len(above[out[-1]]) == 1:
            out.append(above[out[-1]][0])
        return out

    first, second = (line(parent) for parent in parents)
    shared = next(node for node in first if node in second)
    return shared, shared not in parents


def composed(c: Array, depth: int, grows: bool = True) -> Array:
    """Compute C_f by equation 30, with the maps B_q of the blocks if ``grows``, else with B_1."""
    for blocks_of in STAGES[depth]:
        c = (relu_map(relu_map(relu_map(c))) + relu_map(c)) / 2
        for q in range(2, blocks_of + 1):
            c = (relu_map(relu_map(relu_map(c))) + (q if grows else 1) * c) / (
                1 + (q if grows else 1)
            )
    return relu_map(c)


def _stage_lengths(network: Network) -> tuple[int, ...]:
    """Return the number of blocks between consecutive transition blocks."""
    starts = [i for i, (_, parents) in enumerate(blocks(network)) if entry(network, parents)[1]]
    ends = [*starts[1:], len(blocks(network))]
    return tuple(end - start for start, end in zip(starts, ends, strict=True))


@claim("DKS-Jq", "App. J")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$(q_1,q_2,q_3,q_4)$ is $(3,4,6,3)$ for $D=50$, $(3,4,23,3)$ for 101, $(3,8,36,3)$ for 152,
    with $(D-2)/3$ blocks in total
    """
    for depth, stages in STAGES.items():
        yield equal(sum(stages), (depth - 2) / 3, f"D = {depth}: the sum", 0.0)
        network = resnet(depth)
        yield equal(
            _stage_lengths(network),
            stages,
            f"D = {depth}: blocks from transition to transition in kcalc",
            0.0,
        )
        sizes = q_values(network, 1)
        yield equal(
            [sizes[node] for node, _ in blocks(network)],
            [q for n in stages for q in range(2, n + 2)],
            "q at the outputs of blocks: 2, 3, ... in every stage",
        )
        yield equal(
            len(network.nodes_of(L.Affine)),
            depth + len(stages),
            "D weight layers, and one in each transition shortcut",
            0.0,
        )


@claim("DKS-Jtr", "App. J")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the input q values of the transition blocks are $1$, $q_1+1$, $q_2+1$ and $q_3+1$; the last
    layers have the input q value $q_4+1$
    """
    for depth, stages in STAGES.items():
        network = resnet(depth)
        sizes = q_values(network, 1)
        read = [entry(network, parents) for _, parents in blocks(network)]
        yield equal(
            [sizes[source] for source, transition in read if transition],
            [1, *(n + 1 for n in stages[:3])],
            f"D = {depth}: the input of kcalc's transition blocks",
        )
        last = blocks(network)[-1][0]
        yield equal(sizes[last], stages[3] + 1, f"D = {depth}: the input of the last layers")
        q, own = 1, []
        for n in stages:  # a transition block gives 1 + 1, and every other block adds 1
            own.append(q)
            q = 2
            for _ in range(n - 1):
                q += 1
        yield equal(
            [*own, q], [1, *(n + 1 for n in stages)], f"D = {depth}: by the rule for sums", 0.0
        )


@claim("DKS-eq30", "App. J, eq. 30")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$B_q(c)=\dfrac{C(C(C(c)))+qc}{1+q}$ and $T(c)=\dfrac{C(C(C(c)))+C(c)}2$, where $C$ is the C
    map of ReLU
    """
    for depth in bench.size((50,), (50, 101, 152)):
        network = resnet(depth)
        values = node_values(network, _GRID)
        c = {node: np.broadcast_to(value[2], _GRID.shape) for node, value in values.items()}
        sizes = q_values(network, 1)
        for node, parents in blocks(network):
            source, transition = entry(network, parents)
            q, before = round(sizes[source]), c[source]
            cubed = relu_map(relu_map(relu_map(before)))
            yield equal(
                c[node],
                (cubed + relu_map(before)) / 2 if transition else (cubed + q * before) / (1 + q),
                f"D = {depth}: every block in kcalc against the formulas, from its input",
            )
        yield equal(
            c_map(network)(_GRID),
            composed(_GRID, depth),
            "the whole network by $C\\circ E_4\\circ\\cdots\\circ E_1$",
            1e-11,
        )
    c, s, q = symbols("c s q", positive=True)  # s: C^3(c)
    yield exact(
        (1 * s + q * c) / (1 + q) - (s + q * c) / (1 + q), "the rule for sums with q values 1 and q"
    )
    x, y = bench.normal(2, bench.size(100_000, 1_000_000))
    u, v = x, 0.3 * x + sqrt(1 - 0.09) * y
    yield statistical(
        2 * np.maximum(u, 0) * np.maximum(v, 0),
        relu_map(np.asarray(0.3)),
        "C of ReLU at 0.3, by samples",
    )


def _enclosed(depth: int) -> tuple[float, float]:
    """Return certified bounds on C_f(-1), the smallest value of C_f.

    C_f increases on [-1, 1], because C, T and B_q do.
    """
    import flint

    with working(200):
        pi = flint.arb.pi()

        def local(c: flint.arb) -> flint.arb:
            return (
                flint.arb(0) if bool(c == -1) else ((1 - c * c).sqrt() + (pi - c.acos()) * c) / pi
            )

        c = flint.arb(-1)
        for number in STAGES[depth]:
            c = (local(local(local(c))) + local(c)) / 2
            for q in range(2, number + 1):
                c = (local(local(local(c))) + q * c) / (1 + q)
        c = local(c)
        return float(c.lower()), float(c.upper())


@claim("DKS-J152", "App. J")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the ResNet with $D=152$ maps $[-1,1]$ to $[0.947,1]$; 100 ReLU layers map it to $[0.996,1]$"""
    for depth, least in ((50, 0.91790), (101, 0.93613), (152, 0.94691)):
        low, high = _enclosed(depth)
        yield proved(
            [low - (least - 5e-6), least + 5e-6 - high],
            f"D = {depth}: the image of $-1$ is {least} to 5 digits",
            image=low,
        )
        yield equal(c_map(resnet(depth))(-1.0), low, f"D = {depth}: kcalc")
    low, _ = _enclosed(152)
    yield proved([low - 0.9465, 0.9475 - low], "$D=152$: the image of $-1$ rounds to 0.947")
    values = c_map(resnet(152))(_GRID)
    yield equal(values, composed(_GRID, 152), "kcalc against the formulas on all of [-1, 1]", 1e-11)
    yield at_most(
        values[:-1], values[1:], "the map increases, so the image of $-1$ is the smallest", 1e-13
    )
    yield equal(values[-1], 1, "1 is a fixed point of the map", 1e-13)
    c = np.asarray(-1.0)
    for _ in range(100):
        c = relu_map(c)
    yield at_most([0.996, c], [c, 0.997], "100 ReLU layers: the smallest value is near 0.996")


def _reweighted(network: Network, grows: bool) -> Network:
    """Change the weights of the sums of a network, which stay normalised.

    With ``grows``, the branch has weight 1/sqrt(q + 1), where q is the q value at the block's
    input. Otherwise, branch and shortcut have weight sqrt(1/2).
    """
    sizes = q_values(network, 1)
    weights: dict[Any, tuple[Any, ...]] = {}
    for node, parents in blocks(network):
        source, transition = entry(network, parents)
        q = 1 if transition or not grows else round(sizes[source])
        shares = [
            Rational(q, q + 1) if parent == source else Rational(1, q + 1) for parent in parents
        ]
        weights[node] = tuple(sp.sqrt(share) for share in shares)
    return network.map_layers(
        lambda node, layer: L.Sum(weights[node]) if node in weights else layer
    )


@claim("DKS-Jq1", "App. J")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if all q values are 1, $B_q(c)=\tfrac12(C(C(C(c)))+c)$, which compresses c values clearly
    more than $B_q$ with growing q values does, but less than plain ReLU networks do
    """
    for depth, least in ((50, 0.9572), (101, 0.9864), (152, 0.9934)):
        network = _reweighted(resnet(depth), grows=False)
        sizes = q_values(network, 1)
        yield equal(
            [sizes[node] for node, _ in blocks(network)],
            1,
            f"D = {depth}: q values with weights $\\sqrt{{1/2}}$",
        )
        found = c_map(network)(_GRID)
        yield equal(
            found,
            composed(_GRID, depth, grows=False),
            f"D = {depth}: kcalc against the formula",
            1e-11,
        )
        yield equal(found[0], least, f"D = {depth}: the image of $-1$", 5e-5)
        before = composed(_GRID, depth)
        yield at_most(
            before[:-1] + 1e-9,
            found[:-1],
            f"D = {depth}: every c < 1 comes closer to 1 than with growing q",
            0.0,
        )
        yield at_most(
            1.5 * (1 - found[0]),
            1 - before[0],
            f"D = {depth}: the image is less than two thirds as long",
            0.0,
        )
        plain = _GRID
        for _ in range(depth - 1):
            plain = relu_map(plain)
        yield at_most(
            found, plain, f"D = {depth}: but not as close as after D - 1 plain ReLU layers"
        )


@claim("DKS-Jw", "App. J")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""normalised sums with $w=1/\sqrt{q+1}$ on the residual branch and $\sqrt{1-w^2}$ on the
    shortcut reproduce $B_q$
    """
    c, s, q = symbols("c s q", positive=True)
    w = 1 / sp.sqrt(q + 1)
    yield exact(w**2 * s + (1 - w**2) * c - (s + q * c) / (1 + q), "the convex combination")
    yield exact(sp.sqrt(1 - w**2) ** 2 - q / (1 + q), "the shortcut's share")
    for depth in bench.size((50, 101), (50, 101, 152)):
        network = _reweighted(resnet(depth), grows=True)
        sizes = q_values(network, 1)
        yield equal(
            [sizes[node] for node, _ in blocks(network)],
            1,
            f"D = {depth}: q stays 1 in kcalc",
        )
        yield equal(
            c_map(network)(_GRID),
            composed(_GRID, depth),
            f"D = {depth}: the C map is the same as with growing q",
            1e-11,
        )
        plain = c_map(_reweighted(resnet(depth), grows=False))(_GRID[:-1])
        yield at_most(
            1e-3,
            np.abs(plain - composed(_GRID[:-1], depth)).max(),
            "equal weights do not give $B_q$",
            0.0,
        )
