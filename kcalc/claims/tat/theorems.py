"""Claims of Theorems 1 and 2 and their proofs (App. C, eqs. 10, 13, 32-37)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ... import c_map
from ..bench import Bench, at_most, certified, equal, proved
from ..claim import Evidence
from ..families import PowerMap, power_maps
from .enclosures import SMOOTH_BALLS, SmoothBalls, least, rational, rectifier_balls
from .independent import Dag, chain_of, random_dag, tailored_map, tailored_rectifier, tailored_slope
from .paper import claim

SLOPES = ("1/50", "1/10", "3/10", "43/100", "57/100", "84/100", "9/10", "3/2", "3", "1/5")
_GRID = np.cos(np.linspace(np.pi, 0.0, 301))
NAMES = tuple(SMOOTH_BALLS)


def _pairs(bench: Bench, count: int) -> list[tuple[str, Dag]]:
    """Return (slope, network) pairs, first chains, then random networks."""
    out = []
    for i in range(count):
        dag = chain_of(bench.whole(1, 12)) if i < 5 else random_dag(bench, bench.whole(3, 12))
        out.append((SLOPES[i % len(SLOPES)], dag))
    return out


def _maps(slope: float) -> tuple[object, object]:
    return (lambda c: tailored_map(slope, c), lambda c: tailored_slope(slope, c))


def _measured(dag: Dag, slope: float) -> tuple[float, float, float, float]:
    """Compute (C_f(0), C_f'(0), max |C_f - c|, max |C_f' - 1|) on a grid."""
    value, first = dag.derivatives(_GRID, _maps(slope))  # pyright: ignore[reportArgumentType]
    zero, flat = dag.derivatives(0.0, _maps(slope))  # pyright: ignore[reportArgumentType]
    return (zero, flat, np.abs(value - _GRID).max(), np.abs(first - 1).max())


def _against_calculus(bench: Bench, pairs: list[tuple[str, Dag]]) -> Evidence:
    found, truth = [], []
    c = np.array([-1.0, -0.7, 0.0, 0.4, 0.99])
    for slope, dag in pairs[: bench.size(6, 20)]:
        a = float(rational(slope))
        value, first = dag.derivatives(c, _maps(a))  # pyright: ignore[reportArgumentType]
        whole = c_map(dag.network(tailored_rectifier(a)))
        found.append([whole(c), whole.derivative(1)(c)])
        truth.append([value, first])
    return equal(
        found, truth, "kcalc's C_f and C_f' against the networks used for enclosures", 1e-11
    )


@claim("TAT-eq10", "Sec. 4.1, Theorem 1, eq. 10")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\max_c|\mathcal C_f(c)-c|\le\min\{4\mathcal C_f(0),1+\mathcal C_f(0)\}$ and
    $\max_c|\mathcal C_f'(c)-1|\le\min\{4\mathcal C_f(0),1\}$ for tailored rectifiers with
    $\alpha\ge0$

    Under: networks of combined layers and normalised sums
    """
    pairs = _pairs(bench, 20)
    bounds, shapes = [], []
    for slope, dag in pairs:
        local, first = rectifier_balls(rational(slope))
        zero = dag(rational("0"), local, rational)

        def slack(c, dag=dag, local=local, first=first, zero=zero):
            value, rise = dag.derivatives(c, (local, first), rational)
            return least(
                4 * zero - abs(value - c),
                1 + zero - abs(value - c),
                4 * zero - abs(rise - 1),
                1 - abs(rise - 1),
            )

        found = certified(
            slack, -1, 1, f"the inequalities for slope {slope}, {dag.depth} layers", digits=14
        )
        if not found.holds:
            yield found
        bounds.append(found.margin or 0.0)
        shapes.append([slope, dag.depth, len(dag.nodes)])
    yield proved(
        bounds,
        "the smallest slack of all four inequalities over [-1, 1], for each slope and network",
        pairs=shapes,
    )
    yield _against_calculus(bench, pairs)
    rows = []
    for _ in bench.rounds(100, 1000):
        dag = random_dag(bench, bench.whole(2, 30))
        slope = bench.rng.choice([0.0, 1.0, 1.0]) * bench.uniform(0, 3)
        rows.append(_measured(dag, slope))
    zero, _, far, steep = np.array(rows).T
    yield at_most(
        far, np.minimum(4 * zero, 1 + zero), "the first bound on a grid, including slope 0"
    )
    yield at_most(steep, np.minimum(4 * zero, 1), "the second bound on a grid, including slope 0")


@claim("TAT-thm1txt", "App. C, proof of Theorem 1, after eq. 33")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$0\le\mathcal C_f'(c)\le1$ and $|\mathcal C_f(c)|\le1$ for all $c\in[-1,1]$

    Under: $\alpha\ge0$
    """
    pairs = _pairs(bench, bench.size(8, 20))
    for slope, dag in pairs:
        local, first = rectifier_balls(rational(slope))

        def slack(c, dag=dag, local=local, first=first):
            value, rise = dag.derivatives(c, (local, first), rational)
            return least(rise, 1 + 1e-9 - rise, 1 + 1e-9 - abs(value))

        found = certified(slack, -1, 1, f"slope {slope}", digits=14)
        if not found.holds:
            yield found
        yield proved(
            [found.margin or 0.0],
            "0 <= C_f' <= 1 and |C_f| <= 1 (up to 1e-9 at c = 1) over [-1, 1]",
        )
    yield _against_calculus(bench, pairs)


@claim("TAT-eq34", "App. C, eq. 34")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\max_c|\mathcal C_f(c)-c| = \mathcal C_f(-1)+1\le\mathcal C_f(0)+1$

    Under: $\alpha\ge0$
    """
    for _ in bench.rounds(15, 150):
        dag = random_dag(bench, bench.whole(2, 20))
        slope = bench.uniform(0, 3)
        zero, _, distance, _ = _measured(dag, slope)
        ends = 1 + c_map(dag.network(tailored_rectifier(slope)))(-1.0)
        yield equal(distance, ends, "the largest distance from the identity is at c = -1", 1e-11)
        yield at_most(ends, 1 + (zero), "this distance is at most 1 + C_f(0)")


# -- smooth activations ----------------------------------------------------------------------------


@claim("TAT-thm2", "Sec. 4.2, Theorem 2, eq. 13")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $\mathcal C_f'(1)=1$, then $\max_c|\mathcal C_f(c)-c|\le2\,\mathcal C_f''(1)$ and
    $\max_c|\mathcal C_f'(c)-1|\le2\,\mathcal C_f''(1)$

    Under: smooth activations; combined layers and normalised sums
    """
    bounds, cases, found, truth = [], [], [], []
    for i, name in enumerate(NAMES):
        dag = chain_of(6) if i % 2 else random_dag(bench, 7)
        tau = (0.2, 0.3, 0.5)[i % 3]
        balls = SmoothBalls.of(name, dag, tau)
        bend = balls.curvature(dag)

        def slack(c, dag=dag, balls=balls, bend=bend):
            value, rise = dag.derivatives(c, (balls.value, balls.slope), rational)
            return least(2 * bend - abs(value - c), 2 * bend - abs(rise - 1))

        proof = certified(
            slack, -1, 1, f"the inequalities for {name}, {dag.depth} layers", digits=14
        )
        if not proof.holds:
            yield proof
        bounds.append(proof.margin or 0.0)
        cases.append(
            {
                "activation": name,
                "layers": dag.depth,
                "curvature": float(bend.mid()),
                "slope at 1": float(balls.slope_at_1.mid()),
            }
        )
        ours = [balls.value(rational("-1/2")), balls.value(rational("1/2")), bend]
        theirs = [
            *np.asarray(balls.shaped.c_map([-0.5, 0.5])),
            c_map(dag.network(balls.shaped)).derivative(2)(1.0),
        ]
        found += [abs(value - float(ball.mid())) for value, ball in zip(theirs, ours, strict=True)]
        truth += [ball.rad() for ball in ours]
    yield proved(
        bounds,
        "the smallest slack of both inequalities over [-1, 1], ten shaped activations",
        cases=cases,
    )
    yield at_most(
        found,
        truth,
        "kcalc's C(-1/2), C(1/2) and C_f''(1) lie within the radii of the enclosures",
        1e-11,
    )
    maps = slope_one_maps(bench)
    bends, far, steep = np.array([(C.derivative(2)(1.0), *_deviations(C)) for C in maps]).T
    yield at_most(
        far, 2 * bends, "the first bound for random positive definite maps with slope 1 at 1"
    )
    yield at_most(
        steep, 2 * bends, "the second bound for random positive definite maps with slope 1 at 1"
    )


def slope_one_maps(bench: Bench) -> list[PowerMap]:
    """Draw random positive definite maps with C(1) = C'(1) = 1.

    All such maps are mixtures of a map with C(0) = 0 and the constant 1.
    """
    out = []
    for C in power_maps(bench, 300, 3000, zero=True):
        share = 1 / C.derivative(1)(1.0)
        weights = share * C.weights
        weights[0] += 1 - share
        out.append(PowerMap(weights))
    return out


def _deviations(C: PowerMap) -> tuple[float, float]:
    return np.abs(C(_GRID) - _GRID).max(), np.abs(C.derivative(1)(_GRID) - 1).max()


def _series(bench: Bench) -> tuple[np.ndarray, np.ndarray]:
    """Compute (b_0, b_1) for networks of tailored rectifiers with the calculus."""
    rows = []
    for _ in bench.rounds(15, 100):
        dag = random_dag(bench, bench.whole(2, 12))
        slope = bench.uniform(-1, 3)
        rows.append(
            np.asarray(c_map(dag.network(tailored_rectifier(slope))).series(2), dtype=float)
        )
    return tuple(np.array(rows).T)  # pyright: ignore[reportReturnType]


@claim("TAT-eq32", "App. C, eq. 32")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $\sum b_n=\sum nb_n=1$, then $b_0=\sum_{n\ge2}(n-1)b_n$ and $2b_0+b_1\ge1$ for $\mathcal
    C_f(c)=\sum b_nc^n$, $b_n\ge0$
    """
    maps = slope_one_maps(bench)
    b = np.array([C.weights for C in maps])
    n = np.arange(b.shape[1])
    yield equal(
        b[:, 0], ((n - 1) * b)[:, 2:].sum(axis=1), "b_0 for random maps with slope 1 at 1", 1e-13
    )
    yield at_most(1, 2 * b[:, 0] + b[:, 1], "2 b_0 + b_1 for random maps with slope 1 at 1")
    first, second = _series(bench)
    yield at_most(1, 2 * first + second, "2 b_0 + b_1 for networks of tailored rectifiers in kcalc")


@claim("TAT-eq33", "App. C, eq. 33")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\max_c|\mathcal C_f(c)-c|\le2(1-\mathcal C_f'(0))\le4\,\mathcal C_f(0)$ if $\mathcal
    C_f'(1)=1$
    """
    yield from _chain(bench, 0)


@claim("TAT-eq35", "App. C, eq. 35")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\max_c|\mathcal C_f'(c)-1|\le2(1-\mathcal C_f'(0))\le4\,\mathcal C_f(0)$ if $\mathcal
    C_f'(1)=1$
    """
    yield from _chain(bench, 1)


def _chain(bench: Bench, which: int) -> Iterator[Evidence]:
    maps = slope_one_maps(bench)
    off = np.array([_deviations(C)[which] for C in maps])
    b = np.array([C.weights[:2] for C in maps]).T
    yield at_most(off, 2 * (1 - b[1]), "the first inequality, random maps with slope 1 at 1")
    yield at_most(2 * (1 - b[1]), 4 * b[0], "the second inequality, random maps with slope 1 at 1")
    rows = []
    for _ in bench.rounds(20, 100):
        dag = random_dag(bench, bench.whole(2, 15))
        slope = bench.uniform(-1, 3)
        C = c_map(dag.network(tailored_rectifier(slope)))
        off = np.abs(C(_GRID) - _GRID) if which == 0 else np.abs(C.derivative(1)(_GRID) - 1)
        rows.append((off.max(), 2 * (1 - C.derivative(1)(0.0)), 4 * C(0.0)))
    far, middle, right = np.array(rows).T
    yield at_most(far, middle, "the first inequality, networks of tailored rectifiers of any slope")
    yield at_most(
        middle, right, "the second inequality, networks of tailored rectifiers of any slope"
    )


@claim("TAT-eq36", "App. C, eqs. 36-37")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathcal C_f'(0)\ge\mathcal C_f'(1)-\mathcal C_f''(1)=1-\mathcal C_f''(1)$, hence
    $2(1-\mathcal C_f'(0))\le2\,\mathcal C_f''(1)$

    Under: smooth activations
    """
    maps = slope_one_maps(bench)
    flat = np.array([C.weights[1] for C in maps])
    bend = np.array([C.derivative(2)(1.0) for C in maps])
    yield at_most(1 - bend, flat, "the inequality for random maps with slope 1 at 1")
    for name in NAMES[: bench.size(4, 10)]:
        dag = chain_of(5)
        balls = SmoothBalls.of(name, dag, 0.3)
        _, first = dag.derivatives(rational("0"), (balls.value, balls.slope), rational)
        yield proved(
            [float((first - 1 + balls.curvature(dag)).lower())],
            "C_f'(0) - 1 + C_f''(1) >= 0 for shaped activations, five layers",
        )
