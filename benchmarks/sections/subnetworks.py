"""Subnetworks: analysis, maximal slopes, their values and inverses, as functions of the network's
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kcalc as kc

from .. import child, graphs
from ..book import Figure, Options, Section, Table, digits, seconds
from ..timing import alternated, exponent, spent

FAMILIES: dict[str, Callable[[int], kc.Network]] = {
    "chain": graphs.plain,
    "residual": graphs.residual,
}


def run(options: Options) -> Section:
    sizes = options.size((100, 1000), (1_000, 10_000, 100_000))
    found = {
        family: child.run(
            "benchmarks.sections.subnetworks:family",
            name=family,
            sizes=sizes,
            rounds=options.size(1, 3),
        )
        for family in FAMILIES
    }
    edges = child.run(
        "benchmarks.sections.subnetworks:dense",
        size=options.size(100, 1000),
        rounds=options.size(1, 3),
    )
    resnet = kc.architectures.resnet_v2(152)
    whole = alternated(
        {"both": lambda: (kc.subnetworks(resnet), kc.maximal_slope(resnet).pieces)},
        options.size(2, 15),
    )["both"]
    tables = [_table(family, sizes, rows["steps"]) for family, rows in found.items()]
    tables.append(
        Table(
            f"{edges['edges']} edges: {edges['size']} layers, each of which reads all earlier "
            "layers",
            tuple(edges["steps"]),
            [tuple(map(seconds, edges["steps"].values()))],
        )
    )
    largest, steepest = _steepest(sizes, {family: rows["steps"] for family, rows in found.items()})
    peak = max(part["peak"] for part in (*found.values(), edges)) / 1e9
    chain = found["chain"]["steps"]
    return Section(
        "Subnetworks",
        "Times are CPU times, the best of alternating rounds. Each family runs in a separate "
        "process. The floor is one pass over nodes and edges; mu is the maximal slope function. "
        "For resnet-152, the subnetworks and the symbolic pieces of the maximal slope function "
        f"take {seconds(whole.wall)}.",
        tables,
        {
            "subnetworks_resnet": Figure(1e3 * whole.wall, seconds(whole.wall)),
            "subnetworks_chain": Figure(chain["analysis"][-1], seconds(chain["analysis"][-1])),
            "subnetworks_mu": Figure(chain["mu(psi)"][-1], seconds(chain["mu(psi)"][-1])),
            "subnetworks_inverse": Figure(chain["inverse"][-1], seconds(chain["inverse"][-1])),
            "subnetworks_dense": Figure(
                edges["steps"]["analysis"], seconds(edges["steps"]["analysis"])
            ),
            "subnetworks_memory": Figure(peak, f"{digits(peak)} GB"),
            "subnetworks_exponent": Figure(largest, f"{digits(largest)} ({steepest})"),
        },
    )


def _table(family: str, sizes: Any, steps: dict[str, list[float]]) -> Table:
    rows = [
        (name, *map(seconds, times), digits(exponent(sizes, times)))
        for name, times in steps.items()
    ]
    return Table(
        f"{family}, by number of nonlinear layers", ("step", *map(str, sizes), "exponent"), rows
    )


def _steepest(sizes: Any, found: dict[str, dict[str, list[float]]]) -> tuple[float, str]:
    return max(
        (exponent(sizes, times), f"{family}, {step}")
        for family, steps in found.items()
        for step, times in steps.items()
    )


# -- in a separate process -------------------------------------------------------------------------


def steps_of(net: kc.Network) -> dict[str, float]:
    """CPU seconds for every step on one network."""
    mu = kc.maximal_slope(net)
    mu(1.0)
    forward = mu.forward
    forward(1.0)
    general = kc.maximal(net, lambda x: x + 0.5 * (1 - x) ** 2)
    steps: dict[str, Callable[[], Any]] = {
        "analysis": lambda: kc.subnetworks(net),
        "mu": lambda: kc.maximal_slope(net),
        "mu(psi)": lambda: mu(1.0001),
        "inverse": lambda: mu.inverse(1.5),
        "forward": lambda: kc.maximal_slope(net).forward,
        "forward(psi)": lambda: forward(1.0001),
        "forward inverse": lambda: forward.inverse(1.5),
        "any r": lambda: kc.maximal(net, lambda x: x + 0.5 * (1 - x) ** 2),
        "any r(x)": lambda: general(0.1),
    }
    return {name: spent(step).cpu for name, step in steps.items()}


def family(name: str, sizes: list[int], rounds: int) -> dict[str, Any]:
    """Return {"steps": {step: seconds by size}, "peak": bytes}.

    Sizes alternate in rounds, and the best round is used.
    """
    networks = [FAMILIES[name](size) for size in sizes]
    best: list[dict[str, float]] = [{} for _ in sizes]
    for _ in range(rounds):
        for row, net in zip(best, networks, strict=True):
            for step, took in steps_of(net).items():
                row[step] = min(took, row.get(step, took))
    return {"steps": {step: [row[step] for row in best] for step in best[0]}, "peak": child.peak()}


def dense(size: int, rounds: int) -> dict[str, Any]:
    """The same for a network with size^2 / 2 edges."""
    net = graphs.dense(size)
    rows = [steps_of(net) for _ in range(rounds)]
    steps = {step: min(row[step] for row in rows) for step in rows[0]}
    return {"size": size, "edges": graphs.edges(net), "steps": steps, "peak": child.peak()}
