"""Fitting on several devices, and by several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_training import SPLIT, classifier

from kcalc import training
from kcalc.training import Settings


def with_devices(count: int) -> dict[str, str]:
    """The environment of a process with so many devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


DEVICES = """
import jax, numpy as np
import kcalc as kc
from kcalc import training
L = kc.layers
assert len(jax.devices()) == 8
split = training.fold(training.load("digits"), 0)
block = kc.chain(L.Affine(16), L.BatchNorm(), L.Nonlinear("relu"))
model = kc.to_jax(kc.chain(L.Input(), kc.repeat(block, 3), L.Affine(10)), weights="gaussian")
settings = training.Settings("sgd", learning_rate=1e-3, steps=20, evaluate_every=10)
one = training.fit(model, split, settings)
trainer = training.Trainer(model, settings, training.data_mesh())
many = trainer.fit(split)
leaves = [jax.tree.leaves((run.params, run.state)) for run in (one, many)]
for a, b in zip(*leaves, strict=True):
    assert len(b.sharding.device_set) == 8
    assert np.allclose(a, b, atol=2e-5), np.abs(np.asarray(a) - b).max()
assert abs(one.accuracy - many.accuracy) < 0.01
engine = trainer.engine
arguments = np.zeros((50, 64), np.int32), np.zeros(50, np.float32), 0, 1, 0
tree = engine.start(model.init(0, split.x[:1]), split.x)
compiled = engine._advance.lower(tree, split.x, split.y, *arguments).compile().as_text()
# every device computes on 8 of the 64 examples
assert "all-reduce" in compiled and "f32[8,65]" in compiled
cases = (
    (lambda: training.data_mesh(9), "8 devices, not 9"),
    (lambda: training.data_mesh(3), "cannot be shared out"),
)
for mesh, match in cases:
    try:
        training.fit(model, split, settings, mesh=mesh())
    except kc.KcalcError as error:
        assert match in str(error), error
    else:
        raise AssertionError(match)
"""


def test_eight_devices_do_what_one_does() -> None:
    environment = with_devices(8)
    done = subprocess.run(
        [sys.executable, "-c", DEVICES],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


MACHINES = """
import sys
import numpy as np
from kcalc import training
training.connect(sys.argv[1], 2, int(sys.argv[2]))
import jax
import kcalc as kc
assert jax.process_count() == 2 and len(jax.devices()) == 4
net = kc.architectures.vanilla(4, "tanh")
model = kc.to_jax(kc.shape(net), {None: 16, net.outputs[0]: 10})
settings = training.Settings("sgd", learning_rate=1e-3, steps=20, evaluate_every=10)
split = training.fold(training.load("digits"), 0)
mesh, file = training.data_mesh(), sys.argv[3]
run = training.fit(model, split, settings, mesh=mesh, checkpoint=file, log=file + ".csv")
again = training.fit(model, split, settings, mesh=mesh, checkpoint=file, resume=True)
assert again.history == run.history
print("accuracy", run.accuracy)
"""


@pytest.mark.slow
def test_two_processes_train_together(tmp_path: Path) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = with_devices(2)
    command = [sys.executable, "-c", MACHINES, address]
    pair = [
        subprocess.Popen(
            [*command, str(i), str(tmp_path / "run.npz")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=300) for process in pair]
    finally:
        for process in pair:
            process.kill()
    assert all(process.returncode == 0 for process in pair), [out[1][-2000:] for out in outputs]
    one = training.fit(
        classifier(), SPLIT, Settings("sgd", learning_rate=1e-3, steps=20, evaluate_every=10)
    )
    found = [float(out[0].split("accuracy ")[1]) for out in outputs]
    assert found[0] == found[1] and abs(found[0] - one.accuracy) < 0.01
    assert (tmp_path / "run.npz.csv").read_text().count("\n") == 3
