"""NNGP and NTK matrices: comparison with neural-tangents and with the floor, costs paid once per
network, and matrices larger than memory.
"""

from __future__ import annotations

import tempfile
from typing import Any

from .. import child
from ..book import Figure, Options, Section, Table, digits, seconds, times

CELLS = tuple(
    (name, depth, rows)
    for name in ("relu", "erf")
    for depth in (10, 100)
    for rows in (1000, 2000, 3000)
)
TANH = ("tanh", 3, 500)  # rows: the peer's quadrature takes 25^2 numbers per entry
DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
MiB = 2.0**20
Result = dict[str, Any]


def run(options: Options) -> Section:
    cells = options.size((("relu", 10, 300),), (*CELLS, TANH))
    found = {cell: measured(options, *cell) for cell in cells}
    once_table, compile_ratio = once(options)
    large_table, beyond, apart = large(options)
    floor = {cell: ours["steady"] / ours["others"][0][0] for cell, (ours, _) in found.items()}
    worst = max(floor, key=lambda cell: floor[cell])
    figures = {
        "ntk_floor": Figure(floor[worst], f"{times(floor[worst])} ({_named(worst)})"),
        "ntk_compile": Figure(compile_ratio, times(compile_ratio)),
        "ntk_large": Figure(beyond / 2**30, f"{digits(beyond / 2**30)} GiB"),
        "ntk_same": Figure(apart, f"{apart:.0e}"),
    }
    return Section(
        "NNGP and NTK matrices",
        "The tables show the time for both kernels together, for N rows of 256 values with the "
        "same norm in float64. Every measurement runs in a separate process, with kcalc before "
        "and after the peer. The first call is cold: after the imports, it includes the network, "
        "the table, compilation and the matrices. Later calls are given as medians. The floor is a "
        "compiled X X^T and one jnp.arccos pass over it; it alternates with kcalc in the same "
        "process. MiB is the increase in peak memory during the first call.",
        [beside(found), once_table, large_table],
        figures | compared(found),
        [
            "At N = 2000 the two results take 61 MiB. For tanh the peer uses its Gauss-Hermite "
            "rule with 25^2 points per entry."
        ],
    )


def measured(options: Options, name: str, depth: int, rows: int) -> tuple[Result, Result | None]:
    """The figures of one cell, (kcalc's, the peer's).

    kcalc runs before and after the peer, and its medians are averaged.
    """
    task = {"activation": name, "depth": depth, "rows": rows}
    own = [child.run("benchmarks.kernel_jobs:ours", repeats=options.size(2, 11), **task)]
    if "neural-tangents" not in options.peers:
        return own[0], None
    other = child.run(
        "benchmarks.peer_jobs:neural_tangents",
        options.peers["neural-tangents"],
        repeats=3 if depth < 100 else 2,
        **task,
    )
    own.append(child.run("benchmarks.kernel_jobs:ours", repeats=options.size(2, 11), **task))
    mean = {
        key: sum(one[key] for one in own) / len(own) for key in ("first", "steady", "cpu", "memory")
    }
    return mean | {
        "others": [
            [sum(pair) / 2 for pair in zip(*both, strict=True)]
            for both in zip(*(o["others"] for o in own), strict=True)
        ]
    }, other


def beside(found: dict[tuple[str, int, int], tuple[Result, Result | None]]) -> Table:
    """All cells."""
    columns = (
        "activation, depth, N",
        "peer first",
        "then",
        "MiB",
        "kcalc first",
        "then",
        "MiB",
        "ratio first",
        "then",
        "CPU",
    )
    columns += ("floor", "X X^T alone", "over floor")
    rows = []
    for cell, (own, other) in found.items():
        theirs = (
            ("-",) * 3
            if other is None
            else (seconds(other["first"]), seconds(other["steady"]), f"{other['memory'] / MiB:.0f}")
        )
        ratios = (
            ("-",) * 3
            if other is None
            else tuple(f"{other[k] / own[k]:.0f}" for k in ("first", "steady", "cpu"))
        )
        mine = (seconds(own["first"]), seconds(own["steady"]), f"{own['memory'] / MiB:.0f}")
        floor, product = (other_one[0] for other_one in own["others"])
        rows.append(
            (
                _named(cell),
                *theirs,
                *mine,
                *ratios,
                seconds(floor),
                seconds(product),
                digits(own["steady"] / floor),
            )
        )
    return Table("NNGP and NTK of N rows", columns, rows)


def _named(cell: tuple[str, int, int]) -> str:
    return ", ".join(map(str, cell))


def compared(found: dict[tuple[str, int, int], tuple[Result, Result | None]]) -> dict[str, Figure]:
    """The ratios to the peer that have targets."""
    pairs = {cell: (own, other) for cell, (own, other) in found.items() if other is not None}
    if not pairs:
        return {}
    figures = {}
    for key, depth in (("ntk_100", 100), ("ntk_10", 10), ("ntk_tanh", 3)):
        ratios = [
            [other[k] / own[k] for (_, d, _), (own, other) in pairs.items() if d == depth]
            for k in ("steady", "cpu", "first")
        ]
        if ratios[0]:
            ranges = [
                f"{min(r):.0f} to {max(r):.0f}" if len(r) > 1 else f"{r[0]:.0f}" for r in ratios
            ]
            figures[key] = Figure(
                min(ratios[0]), f"{ranges[0]} (CPU {ranges[1]}, first call {ranges[2]})"
            )
    shares = [own["memory"] / other["memory"] for own, other in pairs.values()]
    figures["ntk_memory"] = Figure(max(shares), f"{digits(min(shares))} to {digits(max(shares))}")
    return figures


def once(options: Options) -> tuple[Table, float]:
    """Costs paid once per network, and compilation time by depth."""
    rows, compiled = [], {}
    for name in options.size(("relu",), ("relu", "erf")):
        for depth in (10, 100, 1000) if not options.quick else (10, 100):
            rounds = [
                child.run("benchmarks.kernel_jobs:once", activation=name, depth=depth)
                for _ in range(options.size(1, 3))
            ]
            best = {key: min(found[key] for found in rounds) for key in rounds[0]}
            compiled[name, depth] = best["compile"]
            rows.append((f"{name}, {depth} layers", *map(seconds, best.values())))
    ratio = compiled["relu", options.size(100, 1000)] / compiled["relu", 10]
    caption = (
        "Costs paid once per network: checks, table, XLA compilation. erf with sigma_w = 1.5 is "
        "chaotic, so 1000 layers need a table of 2444 points."
    )
    return Table(caption, ("network", "kc.ntk", "table", "compilation"), rows), ratio


def large(options: Options) -> tuple[Table, float, float]:
    """Several ways to compute matrices that are larger than memory."""
    rows = options.size(1000, 20_000)
    ways = {
        "streamed": "both kernels, streamed to files",
        "memory": "NTK in memory",
        "devices": "NTK, 8 simulated JAX devices",
        "dask": "NTK, a local dask cluster (the client's memory)",
    }
    ways = dict(list(ways.items())[: options.size(2, 4)])
    lines, most, worst = [], 0.0, 0.0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for way, title in ways.items():
            environment = DEVICES if way == "devices" else None
            found = child.run(
                "benchmarks.kernel_jobs:large",
                environment=environment,
                way=way,
                rows=rows,
                folder=folder,
            )
            most, worst = max(most, found["beyond"]), max(worst, found["difference"])
            apart = "-" if way == "streamed" else f"{found['difference']:.0e}"
            lines.append(
                (
                    title,
                    seconds(found["wall"]),
                    seconds(found["cpu"]),
                    f"{found['beyond'] / 2**30:.2f} GiB",
                    apart,
                )
            )
    caption = (
        f"N = {rows}, 100 layers, relu: memory in addition to the result, and the largest "
        "relative difference from the streamed NTK"
    )
    return Table(caption, ("way", "time", "CPU", "memory", "difference"), lines), most, worst
