"""Cost as a function of depth, from 10 to 10^5 layers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kcalc as kc

from .. import graphs
from ..book import Options, Section, Table
from ..growth import Work, grown, table


@dataclass(frozen=True)
class Prepared:
    """A network, its maps if they can be computed in time, and a file of it."""

    depth: int
    build: Callable[[int], kc.Network]
    network: kc.Network
    file: Path


def works(folder: Path) -> list[Work]:
    """The work done at every depth."""
    return [
        Work("build", lambda p: p.build(p.depth), rounds=1),
        Work("save JSON", lambda p: kc.save_json(p.network, folder / "saved.json"), rounds=1),
        Work("load JSON", lambda p: kc.load_json(p.file), rounds=1),
        Work(
            "`net.subs`, `features=` (a new network)",
            lambda p: p.network.map_layers(lambda _, layer: layer),
        ),
        Work("blocks", lambda p: kc.Network.from_steps(p.network.steps()).blocks()),
        Work("Q map, with its checks", lambda p: kc.q_map(p.network), rounds=1),
        Work("Q map and one value", lambda p: kc.q_map(p.network)(1.5), rounds=1),
        Work("C map and one value", lambda p: kc.c_map(p.network)(0.3), rounds=1),
        Work("C map and 1000 values", lambda p: kc.c_map(p.network)(GRID), rounds=1),
        Work("slope polynomial", lambda p: kc.slope_polynomial(p.network)),
        Work("maximal slope and one value", lambda p: kc.maximal_slope(p.network)(1.0001)),
        Work("subnetworks", lambda p: kc.subnetworks(p.network)),
        Work("tangent kernel and one value", lambda p: kc.ntk(p.network)(0.3), rounds=1),
        Work("`kc.shape`", lambda p: kc.shape(p.network, "tanh"), rounds=1),
    ]


GRID = [i / 1000 for i in range(1000)]


def run(options: Options) -> Section:
    sizes = options.size((10, 100), (10, 100, 1000, 10_000, 100_000))
    return Section(
        "Depth",
        "The tables show CPU times for chains of `depth` layers. Sizes that would take more than "
        "8 s, extrapolated from the last two sizes, are omitted. Exponents are least-squares "
        "slopes of log time against log depth, over all sizes and between the last two. The floor "
        "is one Python call per layer, about a microsecond. In addition, the rule for each layer "
        "checks its values and tracks freshness, means and assumptions.",
        [
            _grown(name, build, sizes)
            for name, build in {"relu": graphs.plain, "tanh": graphs.smooth}.items()
        ],
    )


def _grown(name: str, build: Callable[[int], kc.Network], sizes: tuple[int, ...]) -> Table:
    with tempfile.TemporaryDirectory() as folder:

        def prepare(depth: int) -> Prepared:
            network, file = build(depth), Path(folder) / "network.json"
            kc.save_json(network, file)
            return Prepared(depth, build, network, file)

        prepare(2)
        warm: Any = works(Path(folder))
        for work in warm:
            work.action(prepare(3))
        return table(f"{name}, by depth", "what", grown(warm, sizes, prepare), sizes)
