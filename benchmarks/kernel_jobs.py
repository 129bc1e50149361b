"""Measurements of kcalc's kernel matrices, each in a separate process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kcalc as kc

from . import child
from .peer_jobs import FEATURES, SIGMA, data, job
from .timing import spent


def network(name: str, depth: int) -> kc.Network:
    """A plain network with the gain that the peer uses."""
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


def load() -> None:
    """Load the modules that kcalc imports when kernels are first used, because the peer imports
    everything at once.
    """
    kc.ntk(kc.architectures.vanilla(1, "abs")).matrices(data(2))


def ours(activation: str, depth: int, rows: int, repeats: int) -> dict[str, Any]:
    """NNGP and NTK together, cold and warm, alternating with the floor and the product alone."""
    load()
    x = data(rows)
    kept: list[Any] = []
    made: list[Callable[[], Any]] = []

    def first() -> None:
        kept.append(kc.ntk(network(activation, depth)))
        kept[0].matrices(x)

    def floor() -> None:  # made after the first call, so that it does not affect that call's memory
        if not made:
            made.append(floor_of(x))
        made[0]()

    return job(
        floor, lambda: x @ x.T, first=first, later=lambda: kept[0].matrices(x), repeats=repeats
    )


def once(activation: str, depth: int) -> dict[str, float]:
    """Costs paid once per network: checks, the table, and the extra time of the first call for XLA
    compilation.
    """
    import jax

    x = data(512)
    with jax.enable_x64(True):
        jax.block_until_ready(jax.jit(lambda v: v @ v.T)(x))
    load()
    net, found = network(activation, depth), list[Any]()
    kernel = spent(lambda: found.append(kc.ntk(net))).wall
    table = spent(lambda: found[0].table(1.0)).wall
    found[0].matrices(x)
    first = spent(lambda: found[0].matrices(x, backend="jax")).wall
    later = min(spent(lambda: found[0].matrices(x, backend="jax")).wall for _ in range(5))
    return {"kernel": kernel, "table": table, "compile": first - later}


class Anonymous(threading.Thread):
    """The sampled peak of memory that is not backed by a file (Linux).

    Pages of a memory-mapped result are excluded, because the system can drop them.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0.0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, child.status("RssAnon"))


def large(way: str, rows: int, folder: str) -> dict[str, float]:
    """Kernels of N rows: both streamed to files, or one in memory, with JAX devices or with a dask
    cluster, compared with the streamed result.
    """
    x, kernel = data(rows), kc.ntk(network("relu", 100))
    kernel.matrices(x[:64])
    paths = tuple(str(Path(folder) / name) for name in ("nngp.npy", "ntk.npy"))
    base, watch, found = child.status("RssAnon"), Anonymous(), list[Any]()
    watch.start()
    took = spent(lambda: found.append(WAYS[way](kernel, x, paths)))
    watch.over.set()
    watch.join()
    kept = isinstance(found[0], np.ndarray) or hasattr(found[0], "addressable_shards")
    worst = apart(found[0], paths[1], rows) if kept else float(found[0])
    return {
        "wall": took.wall,
        "cpu": took.cpu,
        "beyond": watch.most - base - 8.0 * rows * rows * kept,
        "difference": worst,
    }


def streamed(kernel: Any, x: np.ndarray, paths: tuple[str, str]) -> float:
    kernel.matrices(x, out=paths)
    return 0.0


def on_devices(kernel: Any, x: np.ndarray, paths: tuple[str, str]) -> Any:
    import jax

    return kernel.matrix(x, mesh=jax.sharding.Mesh(np.array(jax.devices()), ("rows",)))


def by_dask(kernel: Any, x: np.ndarray, paths: tuple[str, str]) -> float:
    """The largest relative difference between blocks computed on a local cluster and the streamed
    result.
    """
    import dask.array as da
    from dask.distributed import Client, LocalCluster

    rows = min(2000, len(x))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        found = kernel.matrix(da.from_array(x, chunks=(rows, FEATURES)))  # pyright: ignore[reportArgumentType]
        return float(
            found.map_blocks(difference, path=paths[1], chunks=(1, 1), dtype=float).max().compute()
        )


WAYS: dict[str, Callable[[Any, np.ndarray, tuple[str, str]], Any]] = {
    "streamed": streamed,
    "memory": lambda kernel, x, paths: kernel.matrix(x),
    "devices": on_devices,
    "dask": by_dask,
}


def apart(found: Any, path: str, rows: int) -> float:
    """The largest relative difference from the streamed result."""
    truth = np.load(path, mmap_mode="r")
    return max(
        float(np.abs(np.asarray(found[i : i + 500]) / truth[i : i + 500] - 1).max())
        for i in range(0, rows, 500)
    )


def difference(block: np.ndarray, path: str, block_info: Any = None) -> np.ndarray:
    """The largest relative difference between a block and the same block of a file, which every
    worker opens separately.
    """
    place = (
        tuple(slice(*ends) for ends in block_info[0]["array-location"])
        if block_info
        else (slice(0, 0),) * 2
    )
    truth = np.load(path, mmap_mode="r")[place]
    return np.abs(block / truth - 1).max(initial=0.0, keepdims=True)
