"""Startup: imports, the command line, the report page."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import kcalc as kc

from .. import child
from ..book import Figure, Options, Section, Table, digits, seconds
from ..timing import spent

NUMERIC = "numpy, sympy, networkx"
IMPORTS = {  # imports of one process
    "Python alone": "pass",
    NUMERIC: "import numpy, sympy, networkx",
    "the same and kcalc": "import numpy, sympy, networkx, kcalc",
    "the same and jax": "import numpy, sympy, networkx, kcalc, jax, jax.numpy",
}
PEERS = {"dks": "import dks.base.activation_transform", "neural-tangents": "import neural_tangents"}
COMMAND = "import sys; from kcalc.cli import main; sys.exit(main())"


def run(options: Options) -> Section:
    import_table, beyond = imports(options)
    command_table, command = commands(options)
    page_table, figures = pages(options)
    found = {
        "import": Figure(beyond, seconds(beyond)),
        "cli": Figure(command, seconds(command)),
        **figures,
    }
    return Section(
        "Starting",
        "Times are medians over whole processes, which run in turn. kcalc imports jax, matplotlib "
        "and torch only when they are used.",
        [import_table, command_table, page_table],
        found,
    )


def imports(options: Options) -> tuple[Table, float]:
    """Time and memory of imports, and kcalc's share."""
    cases = {name: (sys.executable, code) for name, code in IMPORTS.items()}
    cases |= {
        f"{name} in its environment": (options.peers[name], code)
        for name, code in PEERS.items()
        if name in options.peers
    }
    walls: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for measured in range(options.size(1, 5) + 1):
        for name, (python, code) in cases.items():
            found = child.process([python, "-c", code])
            if measured:
                walls[name].append(found)
    rows = []
    for name, (python, code) in cases.items():
        wall, cpu = (statistics.median(values) for values in zip(*walls[name], strict=True))
        peak = child.run("benchmarks.child:imported", python, code=code) / 1e6
        rows.append((name, seconds(wall), seconds(cpu), f"{peak:.0f} MB"))
    added = [b[0] - a[0] for a, b in zip(walls[NUMERIC], walls["the same and kcalc"], strict=True)]
    return Table(
        "Imports, each in a new process", ("what is imported", "time", "CPU", "peak memory"), rows
    ), statistics.median(added)


def commands(options: Options) -> tuple[Table, float]:
    """Commands as typed."""
    given = {
        "shape resnet-101 --activation tanh": [
            "shape",
            "resnet-101",
            "--activation",
            "tanh",
            "--method",
            "dks",
        ],
        "maps vanilla-100 --activation tanh": ["maps", "vanilla-100", "--activation", "tanh"],
        "ntk vanilla-100 --activation tanh": ["ntk", "vanilla-100", "--activation", "tanh"],
    }
    given = dict(list(given.items())[: options.size(1, 3)])
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in given}
    for _ in range(options.size(1, 3)):
        for name, words in given.items():
            found[name].append(child.process([sys.executable, "-c", COMMAND, *words]))
    middle = {
        name: [statistics.median(values) for values in zip(*rows, strict=True)]
        for name, rows in found.items()
    }
    rows = [
        (f"`kcalc {name}`", seconds(wall), seconds(cpu)) for name, (wall, cpu) in middle.items()
    ]
    return Table(
        "Commands, measured over the whole process", ("command", "time", "CPU"), rows
    ), next(iter(middle.values()))[0]


def pages(options: Options) -> tuple[Table, dict[str, Figure]]:
    """Report pages."""
    networks: dict[str, Callable[[], kc.Network]] = {
        "vanilla-20, tanh": lambda: kc.architectures.vanilla(20, "tanh"),
        "resnet-152, relu": lambda: kc.architectures.resnet_v2(152),
        "resnet-152, tanh": lambda: kc.architectures.resnet_v2(152, activation="tanh"),
        "vanilla-1000, relu": lambda: kc.architectures.vanilla(1000, "relu"),
    }
    rows, figures = [], {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        kc.report(kc.architectures.vanilla(3), path)  # loads and caches that happen only once
        for name, build in list(networks.items())[: options.size(1, 4)]:
            network = build()
            first, again = (
                spent(lambda network=network: kc.report(network, path)) for _ in range(2)
            )
            size = path.stat().st_size / 1e6
            rows.append(
                (
                    name,
                    seconds(first.wall),
                    seconds(first.cpu),
                    seconds(again.wall),
                    f"{size:.2f} MB",
                )
            )
            if name == "resnet-152, relu":
                figures = {
                    "report": Figure(
                        first.wall, f"{seconds(first.wall)} ({seconds(first.cpu)} of CPU)"
                    )
                }
                figures["report_size"] = Figure(size, f"{digits(size)} MB")
    return Table(
        "Report pages, in a process that has already written one",
        ("network", "time", "CPU", "again", "size"),
        rows,
    ), figures
