"""Kernel matrices in files, in JAX and in dask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from test_gram import RELU, TANH, sphere

import kcalc as kc


def test_files_of_another_run_are_refused(tmp_path: Path) -> None:
    x, path = sphere(30, 5), tmp_path / "k.npy"
    K = kc.ntk(RELU)
    first = np.array(K.matrix(x, out=path))
    np.testing.assert_array_equal(K.matrix(x, out=str(path)[:-4]), first)  # finished: read back
    with refused("different data"):
        K.matrix(sphere(30, 5, 1), out=path)
    with refused("different kernel"):
        kc.ntk(TANH).matrix(x, out=path)
    with refused("dtype"):
        K.matrix(x, out=path, dtype=np.float32)
    with refused("pass block_rows=30 as before"):
        K.matrix(x, out=path, block_rows=7)
    with refused("parts"):
        K.nngp.matrix(x, out=path)
    first[5, 7] += 1e-9
    np.save(path, first)
    with refused("was changed after the interruption"):
        K.matrix(x, out=path)
    (tmp_path / "k.npy.progress.json").write_text("{")
    with refused("cannot be read"):
        K.matrix(x, out=path)
    np.save(tmp_path / "mine.npy", x)
    with refused("was not created"):
        K.matrix(x, out=tmp_path / "mine.npy")
    with refused("folder .* does not exist"):
        K.matrix(x, out=tmp_path / "nowhere" / "k.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "mine.npy"), x)


def test_jax_arrays_gradients_and_precision() -> None:
    import jax
    import jax.numpy as jnp

    K = kc.ntk(RELU)
    x = sphere(23, 6)
    x[3], x[4], x[5] = x[2], -x[2], x[2] + 1e-7 * x[6]
    ntk = K.matrix(x)
    np.testing.assert_allclose(K.matrix(x, backend="jax"), ntk, rtol=1e-13)
    np.testing.assert_allclose(
        K.matrix(x, x[:9].copy(), backend="jax", block_rows=5), ntk[:, :9], rtol=1e-12
    )
    single = K.matrix(jnp.asarray(x, jnp.float32))
    assert isinstance(single, jax.Array) and single.dtype == jnp.float32
    with jax.enable_x64(True):
        z = jnp.asarray(x * np.linspace(1, 2, 23)[:, None])
        for found in (K.matrix(z), K.matrix(z, memory=10_000), jax.jit(K.matrix)(z)):
            np.testing.assert_allclose(found, K.matrix(np.asarray(z)), rtol=1e-12)

        @jax.jit
        def loss(y: jax.Array) -> jax.Array:
            return (K.matrix(y)[:9, 7:] ** 2).sum()

        gradient = jax.jit(jax.grad(loss))(z)
        assert np.isfinite(gradient).all()
        way = np.random.default_rng(0).standard_normal(z.shape) * (np.arange(23) > 5)[:, None]
        step = 1e-5
        quotient = (loss(z + step * way) - loss(z - step * way)) / (2 * step)
        np.testing.assert_allclose((gradient * way).sum(), quotient, rtol=1e-7)
        with refused("pass q="):
            jax.grad(lambda y: kc.ntk(TANH).matrix(y).sum())(z)
        slopes = jax.jit(jax.grad(lambda y: kc.ntk(TANH).matrix(y, q=1.0).sum()))(z)
        assert np.isfinite(slopes).all()
        with refused("must contain only finite numbers"):
            K.matrix(jnp.full((2, 3), jnp.nan))


DEVICES = """
import numpy as np, jax, jax.numpy as jnp
import kcalc as kc
from test_gram import RELU, sphere
assert len(jax.devices()) == 8
mesh = jax.make_mesh((4, 2), ("a", "b"))
K = kc.ntk(RELU)
for n, options in ((64, {}), (61, {"block_rows": 20})):
    x = sphere(n, 5)
    x[9] = x[1]; x[10] = x[1] + 1e-6 * x[2]
    expected = K.matrices(x)
    for a, b in zip(K.matrices(x, mesh=mesh, **options), expected):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    with jax.enable_x64(True):
        found = K.matrix(jnp.asarray(x), mesh=mesh)
        np.testing.assert_allclose(found, expected.ntk, rtol=1e-12)
        assert n != 64 or len(found.sharding.device_set) == 8
assert not jax.config.jax_enable_x64
print("same")
"""


def test_a_mesh_of_eight_devices(tmp_path: Path) -> None:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [*map(str, Path(__file__).parents[:2]), os.environ.get("PYTHONPATH", "")]
    )
    run = subprocess.run(
        [sys.executable, "-c", DEVICES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0 and "same" in run.stdout, run.stderr[-2000:]


def test_dask_arrays_give_the_same_numbers_lazily() -> None:
    da = pytest.importorskip("dask.array")
    x = sphere(120, 6)
    x[90], x[91] = x[3], x[4] + 1e-8 * x[5]
    for network in (RELU, TANH):
        K = kc.ntk(network)
        lazy = K.matrices(da.from_array(x, chunks=(50, 4)))
        assert isinstance(lazy.ntk, da.Array) and lazy.ntk.chunks == ((50, 50, 20), (50, 50, 20))
        for found, expected in zip(
            da.compute(*lazy, scheduler="threads"), K.matrices(x), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
        norms = x * np.random.default_rng(1).choice([1.0, 1.5], 120)[:, None]
        mixed = K.matrix(da.from_array(norms, chunks=(50, 6)), x[:20])
        np.testing.assert_allclose(
            mixed.compute(scheduler="sync"), K.matrix(norms, x[:20]), rtol=1e-12, atol=1e-15
        )
    with refused("does not support out"):
        kc.ntk(RELU).matrix(da.from_array(x), out="k.npy")
    with refused("must contain only finite numbers"):
        kc.ntk(RELU).matrix(da.full((5, 3), np.nan)).compute(scheduler="sync")


def test_a_run_stopped_before_its_first_numbers_begins_again(tmp_path: Path) -> None:
    x, K = sphere(30, 5), kc.ntk(RELU)
    paths = (tmp_path / "a.npy", tmp_path / "b.npy")
    original = np.lib.format.open_memmap

    def stopped(path: Path, **options: object) -> np.ndarray:
        if path == paths[1]:
            raise KeyboardInterrupt
        return original(path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.lib.format, "open_memmap", stopped)
        with pytest.raises(KeyboardInterrupt):
            K.matrices(x, out=paths, block_rows=7)
    found = K.matrices(x, out=paths, block_rows=7)
    np.testing.assert_allclose(found.ntk, K.matrix(x), rtol=1e-14)


def test_options_that_would_do_nothing_are_refused() -> None:
    import dask.array as da
    import jax.numpy as jnp

    x, K = sphere(8, 5), kc.ntk(RELU)
    with refused("block_rows= has no effect"):
        K.matrix(da.from_array(x), block_rows=3)
    with refused("progress= has no effect"):
        K.matrix(jnp.asarray(x), progress=True)
    with refused("omit dtype"):
        K.matrix(x, out=np.empty((8, 8)), dtype="float32")
