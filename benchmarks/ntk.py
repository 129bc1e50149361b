"""Time and memory of kernel matrices: ``python benchmarks/ntk.py [--peer PYTHON] [--only TABLE ...] [--rounds 3] [--large 20000]``.

``--peer``: the Python of an environment with neural-tangents 0.6.5 (see tests/oracles/ntk_peer.py). Every measurement is a process of its
own, on the same N x 256 rows of equal norm in float64, NNGP and NTK together. Peer and kcalc alternate in rounds, so that a slow moment of
the machine does not fall on one of them alone; the best round counts, and the ratio of CPU seconds depends less on what else runs. A first
call is a cold one: network, table, compilation and matrices, imports done. Memory is the peak of the resident set over what it was before
the first call. The floor, X X^T and one jnp.arccos pass over it, compiled, is timed in the same process, in turn with kcalc.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FEATURES = 256
SIZES, DEPTHS = (1000, 2000, 3000), (10, 100)
SIGMA = {"relu": math.sqrt(2), "erf": 1.5, "tanh": 1.5}
TANH = 500  # rows: the peer's quadrature takes 25^2 numbers per entry
POINTS = 25  # of the peer's Gauss-Hermite rule, what its documentation starts with
FIGURES = {"relu": {10: 15, 100: 50}, "erf": {10: 15, 100: 50}, "tanh": {3: 300}}
MiB = 2.0**20


def data(rows: int) -> np.ndarray:
    """Rows of |x|^2 / d = 1."""
    x = np.random.default_rng(0).standard_normal((rows, FEATURES))
    return x * (math.sqrt(FEATURES) / np.linalg.norm(x, axis=1, keepdims=True))


def peak() -> float:
    """The peak of this process's resident set in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report(*others: Callable[[], Any], first: Callable[[], Any], later: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """First call, memory, and the best of later calls, in turn with others."""
    before = peak()
    cold = seconds(first)
    grown = peak() - before
    for work in others:
        work()
    best, cpu = [math.inf] * (1 + len(others)), math.inf
    for _ in range(repeats):
        for i, work in enumerate((later, *others)):
            start = time.process_time()
            best[i] = min(best[i], seconds(work))
            cpu = cpu if i else min(cpu, time.process_time() - start)
    return {"first": cold, "steady": best[0], "others": best[1:], "memory": grown, "cpu": cpu}


# -- jobs, each in a process of its own ----------------------------------------------------------------------------------------------


def peer(job: dict[str, Any]) -> dict[str, Any]:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from neural_tangents import stax  # pyright: ignore[reportMissingImports]

    x, w, name = jnp.asarray(data(job["rows"])), SIGMA[job["activation"]], job["activation"]
    phi = {"relu": stax.Relu, "erf": stax.Erf}.get(name) or (
        lambda: stax.ElementwiseNumerical(jnp.tanh, POINTS, lambda v: 1 - jnp.tanh(v) ** 2)
    )
    layer = stax.serial(stax.Dense(FEATURES, w), phi())
    *_, kernel_fn = stax.serial(stax.repeat(layer, job["depth"]), stax.Dense(1, w))
    run = jax.jit(lambda x: kernel_fn(x, None, ("nngp", "ntk")))

    def matrices() -> None:
        jax.block_until_ready(tuple(run(x)))

    return report(first=matrices, later=matrices, repeats=job["repeats"])


def network(name: str, depth: int) -> Any:
    import kcalc as kc

    return kc.architectures.vanilla(depth, name, sigma_w=SIGMA[name])


def floor_of(x: np.ndarray) -> Callable[[], Any]:
    """X X^T and one arccos pass, compiled by JAX, in float64."""
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        given = jnp.asarray(x)
        run = jax.jit(lambda v: jnp.arccos(jnp.clip(v @ v.T / FEATURES, -1, 1)))

    def work() -> None:
        with jax.enable_x64(True):
            run(given).block_until_ready()

    return work


def ours(job: dict[str, Any]) -> dict[str, Any]:
    import kcalc as kc

    x, backend = data(job["rows"]), job.get("backend")
    if backend == "jax":
        import jax

        with jax.enable_x64(True):  # so that what JAX loads on its first use is no part of the memory
            jax.block_until_ready(jax.numpy.zeros(2))
    kept: list[Any] = []

    def first() -> None:
        kept.append(kc.ntk(network(job["activation"], job["depth"])))
        kept[0].matrices(x, backend=backend)

    later_floor: list[Callable[[], Any]] = []

    def floor() -> None:  # made after the first call, whose memory is not its business
        if not later_floor:
            later_floor.append(floor_of(x))
        later_floor[0]()

    return report(floor, first=first, later=lambda: kept[0].matrices(x, backend=backend), repeats=job["repeats"])


def compiling(job: dict[str, Any]) -> dict[str, Any]:
    """The table, and what XLA adds to the first call over later ones, for a network of some depth."""
    import jax

    import kcalc as kc

    x = data(512)
    with jax.enable_x64(True):
        jax.block_until_ready(jax.jit(lambda v: v @ v.T)(x))
    net = network(job["activation"], job["depth"])
    found: list[Any] = []
    kernel = seconds(lambda: found.append(kc.ntk(net)))
    table = seconds(lambda: found[0].tabulated(1.0))
    filled = seconds(lambda: found[0].matrices(x))
    first = seconds(lambda: found[0].matrices(x, backend="jax"))
    later = min(seconds(lambda: found[0].matrices(x, backend="jax")) for _ in range(5))
    return {"kernel": kernel, "table": table, "numpy": filled, "compile": first - later}


class Anonymous(threading.Thread):
    """The peak of memory that is no file's, sampled (Linux); pages of a mapped result are the system's to drop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0.0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, anonymous())


def anonymous() -> float:
    lines = Path("/proc/self/status").read_text().splitlines() if Path("/proc/self/status").exists() else []
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), math.nan)


def large(job: dict[str, Any]) -> dict[str, Any]:
    """N rows: one kernel in memory, or both streamed to files; through JAX devices or a dask cluster, compared with what was streamed."""
    import kcalc as kc

    rows, way = job["rows"], job["way"]
    x, kernel = data(rows), kc.ntk(network("relu", 100))
    kernel.matrices(x[:64])
    paths = [str(Path(job["folder"]) / name) for name in ("nngp.npy", "ntk.npy")]
    result = 8.0 * rows * rows
    start, base, watch = time.perf_counter(), anonymous(), Anonymous()
    watch.start()
    worst = 0.0
    if way == "memory":
        found: Any = kernel.matrix(x)
    elif way == "streamed":
        kernel.matrices(x, out=tuple(paths))
        found, result = None, 0.0
    elif way == "devices":
        import jax

        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
        found = kernel.matrix(x, mesh=mesh)
    else:
        found, result, worst = None, 0.0, by_dask(kernel, x, paths[1])
    spent = time.perf_counter() - start
    watch.over.set()
    watch.join()
    if found is not None and Path(paths[1]).exists():
        truth = np.load(paths[1], mmap_mode="r")
        worst = max(float(np.abs(found[i : i + 500] / truth[i : i + 500] - 1).max()) for i in range(0, rows, 500))
    return {"seconds": spent, "beyond": watch.most - base - result, "difference": worst}


def by_dask(kernel: Any, x: np.ndarray, path: str) -> float:
    """The largest relative difference between blocks made on a local cluster of processes and what was streamed."""
    import dask.array as da
    from dask.distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        found = kernel.matrix(da.from_array(x, chunks=(2000, FEATURES)))  # pyright: ignore[reportArgumentType]
        return float(found.map_blocks(difference, path=path, chunks=(1, 1), dtype=float).max().compute())


def difference(block: np.ndarray, path: str, block_info: Any = None) -> np.ndarray:
    """Of a block from what lies there in a file, which every worker opens for itself."""
    place = tuple(slice(*ends) for ends in block_info[0]["array-location"]) if block_info else (slice(0, 0),) * 2
    truth = np.load(path, mmap_mode="r")[place]
    return np.abs(block / truth - 1).max(initial=0.0, keepdims=True)


JOBS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"peer": peer, "ours": ours, "compiling": compiling, "large": large}


# -- tables --------------------------------------------------------------------------------------------------------------------------


def run(python: str, kind: str, more: dict[str, str] | None = None, **job: Any) -> dict[str, Any]:
    """A job's result from a fresh process, or {"error": its last line}."""
    command = [python, str(Path(__file__).resolve()), "--job", json.dumps({"kind": kind} | job)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (more or {}), check=False)
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": (done.stderr.strip().splitlines() or ["?"])[-1][:100]}


def best(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The best of every number over the rounds."""
    good = [r for r in results if "error" not in r]
    if not good:
        return results[0]
    out = {key: min(r[key] for r in good) for key in ("first", "steady", "memory", "cpu")}
    return out | {"others": [min(values) for values in zip(*(r["others"] for r in good), strict=True)]}


def against_peer(options: argparse.Namespace) -> None:
    print("\nNNGP and NTK of N rows (seconds; memory in MiB; floor: X X^T and one arccos pass, same process)\n")
    columns = "peer first | steady | MiB | first | steady | MiB | floor | ratio first | steady | CPU | wanted | over floor"
    print(f"| activation, depth, N | {columns} |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    cells = [(name, depth, rows) for name in ("relu", "erf") for depth in DEPTHS for rows in SIZES] + [("tanh", 3, TANH)]
    for name, depth, rows in cells:
        job = {"activation": name, "depth": depth, "rows": rows}
        theirs, mine = [], []
        for _ in range(options.rounds):
            if options.peer:
                theirs.append(run(options.peer, "peer", repeats=2 if name == "tanh" else 3, **job))
            mine.append(run(sys.executable, "ours", repeats=10, **job))
        other, own = best(theirs) if theirs else {"error": "-"}, best(mine)
        if "error" in own:
            print(f"| {name}, {depth}, {rows} | {own['error']} |")
            continue
        (floor,) = own["others"]
        shown = [other["error"], "-", "-"] if "error" in other else [f"{other['first']:.2f}", f"{other['steady']:.2f}", mib(other)]
        ratios = ["-"] * 3 if "error" in other else [f"{other[k] / own[k]:.0f}" for k in ("first", "steady", "cpu")]
        cells_ = [*shown, f"{own['first']:.3f}", f"{own['steady']:.3f}", mib(own), f"{floor:.3f}", *ratios, str(FIGURES[name][depth])]
        print(f"| {name}, {depth}, {rows} | " + " | ".join(cells_) + f" | {own['steady'] / floor:.2f} |", flush=True)


def mib(result: dict[str, Any]) -> str:
    return f"{result['memory'] / MiB:.0f}"


def against_depth(options: argparse.Namespace) -> None:
    print("\nWhat is done once per network (milliseconds): the kernel's checks, the table, XLA's compilation\n")
    print("| network | kc.ntk | table | compilation |")
    print("|---|---|---|---|")
    for name in ("relu", "erf"):
        for depth in (10, 100, 1000):
            rounds = [run(sys.executable, "compiling", activation=name, depth=depth) for _ in range(options.rounds)]
            found = {key: min(1e3 * r[key] for r in rounds) for key in ("kernel", "table", "compile")} if "error" not in rounds[0] else {}
            print(
                f"| {name}, {depth} layers | " + (" | ".join(f"{v:.0f}" for v in found.values()) or rounds[0]["error"]) + " |", flush=True
            )


def large_ones(options: argparse.Namespace) -> None:
    print(f"\nN = {options.large}, 100 layers, relu (memory beyond the result; difference: largest relative one from the streamed NTK)\n")
    print("| way | seconds | GiB beyond | difference |")
    print("|---|---|---|---|")
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    ways = {
        "streamed": "both kernels, streamed",
        "memory": "NTK in memory",
        "devices": "NTK, 8 simulated JAX devices",
        "dask": "NTK, a dask cluster",
    }
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for way, title in ways.items():
            found = run(sys.executable, "large", devices if way == "devices" else None, way=way, rows=options.large, folder=folder)
            if "error" in found:
                print(f"| {title} | {found['error']} |")
                continue
            apart = "-" if way == "streamed" else f"{found['difference']:.0e}"
            print(f"| {title} | {found['seconds']:.1f} | {found['beyond'] / 2**30:.2f} | {apart} |", flush=True)


TABLES = {"peer": against_peer, "depth": against_depth, "large": large_ones}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--peer", help="the Python of an environment with neural-tangents 0.6.5")
    options.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--large", type=int, default=20_000)
    options.add_argument("--folder", help="where streamed matrices go (twice 8 N^2 bytes)")
    options.add_argument("--job", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.job:
        job = json.loads(chosen.job)
        print(json.dumps(JOBS[job.pop("kind")](job)))
        return
    for name in chosen.only:
        TABLES[name](chosen)


if __name__ == "__main__":
    main()
