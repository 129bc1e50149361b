"""Claims of App. B.5 and B.6: rescaled ResNets, and the two algorithms."""

from __future__ import annotations

from collections.abc import Iterator

from scipy import optimize

from ... import (
    Network,
    architectures,
    maximal,
    maximal_c_value,
    maximal_curvature,
    maximal_slope,
    shape,
)
from ... import layers as L
from ..bench import Bench, at_most, equal
from ..claim import Evidence
from .independent import greatest, one, random_dag, small_network, tailored_map, transformed
from .paper import claim
from .tailored import SHAPED


@claim("TAT-b5a", "App. B.5")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""rescaled ResNets have $\mu_f^2(\mathcal C''(1))=\max\{3,L(1-w^2)\}\,\mathcal C''(1)$

    Under: w is the weight of the shortcut; every branch has three nonlinear layers, and L is their
    total number
    """
    for blocks in (1, 2, 10, 16, *bench.rng.integers(1, 60, bench.size(6, 30))):
        w = bench.uniform(0, 1)
        yield equal(
            maximal_curvature(architectures.rescaled_resnet(int(blocks), 3, w, "tanh")).multiplier,
            max(3, 3 * int(blocks) * (1 - w**2)),
            "random numbers of blocks and random weights, in kcalc",
        )
    for blocks, w in ((1, 0.5), *([(2, 0.3)] if bench.budget == "full" else [])):
        yield equal(
            greatest(architectures.rescaled_resnet(blocks, 3, w, "tanh"), 0.0, lambda x: x + 1.0),
            max(3, 3 * blocks * (1 - w**2)),
            "one block and two blocks: kcalc against a search over all subsets of layers",
        )


@claim("TAT-b5b", "App. B.5, last display")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a ResNet with four transition blocks and a final layer has $\mu_f^2(\mathcal
    C''(1))=\max\{(L-6)(1-w^2)+5,\,3\}\,\mathcal C''(1)=[(L-6)(1-w^2)+5]\,\mathcal C''(1)$

    Under: L is the depth parameter (50, 101); the longest path has $L-1$ nonlinear layers
    """
    for depth in (50, 101, 152):
        for w in (0.0, 0.5, 0.8, 0.95):
            net = architectures.resnet_v2(depth, w, "tanh")
            yield equal(
                maximal_curvature(net).multiplier,
                (depth - 6) * (1 - w**2) + 5,
                "ResNet-50, -101 and -152 in kcalc",
            )
            number = (depth - 2) // 3
            small = (depth - 6) * (1 - w**2) + 5
            yield equal(
                float(maximal_slope(net).depth) - (depth - 1),
                0.0,
                "the longest path has L - 1 nonlinear layers",
            )
            yield equal(
                (number - 4) * 3 * (1 - w**2) + 4 * (w**2 + 3 * (1 - w**2)) + 1,
                small,
                "the sum over (L - 2)/3 blocks, four of them with a nonlinear shortcut",
            )
            yield at_most(
                3,
                small,
                "a single branch never attains the maximum, because the first entry is >= 5",
            )


# -- B.6 -------------------------------------------------------------------------------------------


def _shapeable(bench: Bench, phi: str) -> Network:
    return random_dag(bench, bench.whole(8, 14)).network(phi)


@claim("TAT-alg1", "App. B.6, Algorithm 1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""binary search finds the slope $\alpha$ with $\mu_f^0(\alpha)=\eta$

    Under: $\eta$ can be reached
    """
    for _ in bench.rounds(5, 30):
        net = small_network(bench, 8)
        most = greatest(net, 0.0, lambda c: tailored_map(0.0, c))
        if not most > 0.05:
            continue
        eta = bench.uniform(0.3, 0.95) * most

        def miss(alpha: float, net: Network = net, eta: float = eta) -> float:
            return greatest(net, 0.0, lambda c: tailored_map(alpha, c)) - eta

        yield equal(
            maximal_c_value(net).inverse(eta),
            optimize.bisect(miss, 0.0, 1.0, xtol=1e-11),
            "random networks: bisection over all subsets of layers against kcalc",
            1e-9,
        )
    for _ in bench.rounds(5, 30):
        dag = random_dag(bench, 14)
        most = maximal_c_value(dag.network("relu"))
        eta = 0.8 * most(0.0)
        slope = (
            next(
                iter(shape(dag.network("relu"), method="tat", eta=eta).constants.values())
            ).negative_slope
            or 0.0
        )
        yield equal(
            maximal(dag.network("relu"), lambda c, a=slope: tailored_map(a, c))(0.0) / eta,
            1.0,
            "shaped networks: the largest C_g(0) is eta",
            1e-11,
        )


@claim("TAT-alg2", "App. B.6, Algorithm 2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for smooth activations, $\mathcal C''(1)$ follows from $\mu_f^2=\tau$, and
    $\alpha,\beta,\gamma,\delta$ then follow from eq. 16
    """
    for name in SHAPED[: bench.size(5, 10)]:
        net, tau = _shapeable(bench, name), bench.rng.choice([0.2, 0.3, 0.5])
        phi, slope, bend = transformed(name, shape(net, method="tat", tau=tau).constants[name])
        squares = (
            lambda z, f=phi: f(z) ** 2,
            lambda z, f=phi, g=slope: f(z) * g(z) * z,
            lambda z, g=slope: g(z) ** 2,
        )
        yield equal(
            [one(square) for square in squares],
            1.0,
            "Q(1) = Q'(1) = C'(1) = 1 by independent quadrature",
            1e-10,
        )
        curvature = one(lambda z, f=bend: f(z) ** 2)
        yield equal(
            maximal(net, lambda x, k=curvature: x + k)(0.0) / tau,
            1.0,
            "the largest C_g''(1) is tau, from E[phi''^2]",
            1e-9,
        )
    small = [small_network(bench, 7, "tanh") for _ in bench.rounds(3, 15)]
    values = []
    for net in small:
        if (
            net.nodes_of(L.Nonlinear)
            and len(net.outputs) == 1
            and greatest(net, 0.0, lambda x: x + 1.0) > 0
        ):
            bend = maximal_curvature(net).inverse(0.3)
            values.append(greatest(net, 0.0, lambda x, k=bend: x + k))
    yield equal(
        values or [0.3], 0.3, "small networks: over all subsets of layers", networks=len(values)
    )
