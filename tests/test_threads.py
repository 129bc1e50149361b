"""Threads, forked and spawned processes, pickles and memory.

Everything that is kept or that belongs to the whole process.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import flint
import mpmath
import numpy as np
import pytest
import sympy as sp

import kcalc as kc
from kcalc.activations import Activation
from kcalc.fields.balls import working
from kcalc.foundation.process_state import ALONE, decimal_digits

ROOT = Path(kc.__file__).parent
X = sp.Symbol("x", real=True)


def python(script: str, *arguments: str, **environment: str) -> Any:
    """What a script prints as JSON in a process of its own."""
    places = os.pathsep.join([str(ROOT.parent), str(Path(__file__).parent)])
    around = os.environ | {"PYTHONPATH": places, "MPLBACKEND": "Agg"} | environment
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=around,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_precision_is_not_seen_by_other_threads() -> None:
    """A thread that computes with 200 bits or 50 digits is waited for by others that do, and leaves
    what it found.
    """
    seen: list[int] = []
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with working(200), decimal_digits(50):
            inside.set()
            leave.wait(20)

    def other() -> None:
        with working(90):
            seen.append(flint.ctx.prec)
        with decimal_digits(20):
            seen.append(mpmath.mp.dps)

    first, second = threading.Thread(target=hold), threading.Thread(target=other)
    first.start()
    assert inside.wait(20)
    second.start()
    second.join(0.2)
    assert seen == [] and second.is_alive()
    leave.set()
    first.join(20)
    second.join(20)
    assert seen == [90, 20]


# --- processes ------------------------------------------------------------------------------------

FORK = """
import json, os, threading, time
import flint, mpmath
import kcalc as kc
from kcalc.fields.balls import working
from kcalc.foundation.process_state import decimal_digits

phi = kc.activation("gelu")
before = str(phi.c_map.ball(0.5))
inside = threading.Event()
def hold():
    with working(300), decimal_digits(77):
        inside.set()
        time.sleep(0.5)
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
read, write = os.pipe()
pid = os.fork()
if not pid:  # without the thread that held the precision
    erf = str(kc.c_map(kc.architectures.vanilla(2, "erf")).ball(0.25))
    found = [flint.ctx.prec, mpmath.mp.prec, str(phi.c_map.ball(0.5)), erf]
    os.write(write, json.dumps(found).encode())
    os._exit(0)
os.waitpid(pid, 0)
thread.join()
bits, digits, ball, erf = json.loads(os.read(read, 4096))
with working(120):
    pid = os.fork()  # by the thread that holds it
    if not pid:
        fine = flint.ctx.prec == 120
        os._exit(0 if fine and str(phi.c_map.ball(0.5)) == before else 1)
    nested = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
again = str(kc.c_map(kc.architectures.vanilla(2, "erf")).ball(0.25))
print(json.dumps([bits, digits, ball == before, erf == again, nested]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_computes_the_same() -> None:
    assert python(FORK) == [53, 53, True, True, 0]


def used() -> dict[str, Any]:
    """Results with their caches filled: {name: (object, what is asked of it)}."""
    a = kc.architectures
    net = a.vanilla(4, "tanh")
    shaped = kc.shape(net, method="dks")
    things = {
        "activation": kc.activation(sp.Max(sp.tanh(X), sp.sin(X) / 2)),
        "callable": kc.activation(np.arctan, name="arctangent"),
        "transformed": kc.activation("tanh").transformed(2, 1),
        "local map": kc.activation("gelu").c_map,
        "network": net,
        "C map": kc.c_map(net),
        "Q map": kc.q_map(net),
        "shaping": shaped,
        "ntk": kc.ntk(a.vanilla(3, "relu")),
        "slopes": kc.maximal_slope(a.rescaled_resnet(2)),
        "subnetworks": kc.subnetworks(a.rescaled_resnet(2)),
        "moments": kc.moments(a.vanilla(3, "relu"), features=16),
        "fluctuations": kc.fluctuations(shaped.network, features=16),
        "scaling": kc.scaling(a.vanilla(3, "relu"), features=16),
        "smoothness": kc.smoothness(a.vanilla(2, "tanh", features=8), radius=0.5),
        "gradients": kc.gradients(net),
        "gain": kc.gain("swish"),
        "expression": kc.ntk(a.vanilla(2, "relu")).expr,
        "model": kc.to_jax(shaped, features=8),
        "regression": kc.kernel_regression(kc.ntk(net), np.eye(3), np.arange(3.0), ridge=0.1),
        "process": kc.gaussian_process(kc.ntk(net).nngp, np.eye(3), np.arange(3.0), noise=0.1),
    }
    for thing in things.values():
        asked(thing)
    return things


def asked(thing: Any) -> str:
    """What a result says of itself, its numbers with every digit, and whether its hash goes with
    its equality.
    """
    numbers: list[Any] = []
    if isinstance(thing, Activation):
        same = thing == pickle.loads(pickle.dumps(thing)), thing in {thing: 1}
        numbers = [thing(0.3), thing.c_map(0.3), thing.kinks, *same]
    elif isinstance(thing, kc.Network):
        same = {thing: 1}[pickle.loads(pickle.dumps(thing))]
        edges = thing.graph.number_of_edges()
        numbers = [len(thing.blocks()), edges, same, kc.c_map(thing)(0.3)]
    elif hasattr(thing, "leave_one_out"):
        numbers = [thing.predict(np.ones((1, 3))).tolist(), thing.leave_one_out().tolist()]
    elif hasattr(thing, "inverse"):
        numbers = [thing(1.2), thing.inverse(1.3)]
    elif callable(thing):
        numbers = [thing(0.7), thing(np.array([0.2, 0.9]))]
    return f"{thing} {numbers!r}"


SPAWNED = """
import json, pickle, sys
from pathlib import Path
from test_threads import asked

things = pickle.loads(Path(sys.argv[1]).read_bytes())
Path(sys.argv[1]).write_bytes(pickle.dumps(things))
print(json.dumps({name: asked(thing) for name, thing in things.items()}))
"""


def test_pickles_of_used_results_work_in_another_process(tmp_path: Path) -> None:
    """In a process with other hashes: no cache is carried over that is wrong there. And back."""
    things = used()
    (tmp_path / "things").write_bytes(pickle.dumps(things))
    there = python(SPAWNED, str(tmp_path / "things"), PYTHONHASHSEED="12345")
    assert there == {name: asked(thing) for name, thing in things.items()}
    back = pickle.loads((tmp_path / "things").read_bytes())
    assert {name: asked(thing) for name, thing in back.items()} == there
    assert back["network"] == things["network"] and back["activation"] == things["activation"]


# --- locks ----------------------------------------------------------------------------------------


def test_the_lock_can_be_taken_again_by_its_thread() -> None:
    with ALONE, working(100), decimal_digits(40), working(60):
        assert kc.activation("gelu").c_map.ball(0.5).radius < mpmath.mpf(10) ** -25
