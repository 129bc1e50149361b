"""The same in every run: under other hash seeds, with other numbers of threads of the linear
algebra, and asked in another order.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc.interchange.json_format import network_to_dict

X_ROWS, X_COLUMNS = 96, 24  # products large enough for more than one thread of OpenBLAS


def texts() -> dict[str, str]:
    """What no linear algebra is in: written out, exactly equal in every run."""
    a = kc.architectures
    shaped = kc.shape(a.vanilla(20, "tanh"), method="dks")
    resnet, mixed = a.rescaled_resnet(3), a.wide_resnet(16)
    mu = kc.maximal_slope(a.densenet(3))
    found: dict[str, Any] = {
        "slopes": (
            kc.slope_polynomial(resnet),
            kc.slope_polynomial(mixed),
            mu,
            mu(1.2),
            mu.active(1.2),
            mu.warning,
        ),
        "subnetworks": [(str(s), str(s.network)) for s in kc.subnetworks(a.densenet(2))],
        "symbols": (
            kc.ntk(a.vanilla(3, "relu")).expr.latex(),
            kc.ntk(a.vanilla(2, "relu")).closed_form,
            kc.c_map(resnet).expr.latex(),
        ),
        "json": json.dumps(network_to_dict(mixed)),
        "exports": [
            shaped.export(target)
            for target in ("torch", "jax", "flax", "keras", "numpy", "json", "latex")
        ],
        "shaping": (
            str(shaped),
            repr(shaped),
            shaped.assumptions,
            kc.shape(a.vanilla(20, "gelu"), method="dks").all_solutions,
        ),
        "report": kc.report(a.vanilla(3, "tanh")).html,
        "claims": [(claim.id, claim.place) for claim in kc.claims.all()],
        "laws": (
            kc.moments(a.vanilla(3, "relu"), features=32),
            kc.scaling(a.lenet()),
            kc.smoothness(a.vanilla(2, "tanh", features=8), radius=0.5),
        ),
        "drawing": resnet._repr_html_(),
        "activations": [
            (str(phi), phi.kinks, phi.jumps(1))
            for phi in map(kc.activation, kc.activations.names())
        ],
        "blocks": (mixed.blocks(), kc.c_map(mixed).assumptions),
        "errors": [
            _refused(lambda: kc.activation("tanhh")),
            _refused(lambda: kc.shape(resnet, "tanh", method="dsk")),
        ],
        "parameters": list(kc.to_jax(shaped, features=4).init(_key(), np.ones((2, 4), np.float32))),
    }
    return {name: str(value) for name, value in found.items()}


def _key() -> Any:
    import jax

    return jax.random.key(0)


def _refused(call: Any) -> str:
    with pytest.raises(kc.KcalcError) as error:
        call()
    return str(error.value)


def numbers() -> dict[str, list[float]]:
    """What matrix products are in: equal to 1e-12, relatively."""
    a = kc.architectures
    rng = np.random.default_rng(0)
    x = rng.normal(size=(X_ROWS, X_COLUMNS))
    x *= math.sqrt(X_COLUMNS) / np.linalg.norm(x, axis=1, keepdims=True)  # of one norm: one table
    deep, resnet = kc.c_map(a.vanilla(10, "swish")), kc.c_map(a.rescaled_resnet(3))
    c = np.linspace(-0.999, 0.999, 31)
    ntk = kc.ntk(kc.shape(a.vanilla(6, "tanh"), method="dks").network)
    model = kc.to_jax(a.vanilla(3, "tanh"), features=16, dtype="float64")
    found: dict[str, Any] = {
        "maps": (deep(c), resnet(c), deep(c, 2.0, 0.5), deep.derivative()(0.5)),
        "gaps": resnet.gap_at_angle(np.geomspace(1e-9, 1, 10)),
        "kernel": ntk.matrix(x),
        "kernel values": ntk(c),
        "regression": kc.kernel_regression(ntk, x[:40], np.sin(x[:40, 0]), ridge=1e-2).predict(
            x[40:]
        ),
        "fluctuations": kc.fluctuations(a.vanilla(5, "tanh"), features=64).out.relative,
        "spectrum": kc.residual_spectrum(0.5).support,
        "weights": [np.asarray(leaf) for leaf in _leaves(model.init(_key(), x[:2]))],
    }
    return {name: _flat(value) for name, value in found.items()}


def _leaves(tree: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(tree)


def _flat(value: Any) -> list[float]:
    if isinstance(value, list | tuple):
        return [number for part in value for number in _flat(part)]
    return np.asarray(value, dtype=float).ravel().tolist()


SCRIPT = """
import json, sys
import test_determinism as t
parts = [t.texts, t.numbers]
found = [part() for part in (parts if sys.argv[1] == "forward" else parts[::-1])]
print(json.dumps(found if sys.argv[1] == "forward" else found[::-1]))
"""


@cache
def run(seed: str, threads: int, order: str) -> tuple[dict[str, str], dict[str, list[float]]]:
    """Both in a process of its own."""
    places = os.pathsep.join([str(Path(kc.__file__).parents[1]), str(Path(__file__).parent)])
    counts = {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "OPENBLAS", "MKL")}
    around = (
        os.environ
        | {
            "PYTHONPATH": places,
            "PYTHONHASHSEED": seed,
            "MPLBACKEND": "Agg",
            "SOURCE_DATE_EPOCH": "1000000000",
        }
        | counts
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, order],
        env=around,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def assert_there_is_something_to_compare(
    text: dict[str, str], value: dict[str, list[float]]
) -> None:
    assert all(len(part) > 20 for part in text.values())
    digests = {hashlib.sha256(part.encode()).hexdigest() for part in text.values()}
    assert len(digests) == len(text) == 14 and len(value) == 8
    assert " at 0x" not in "".join(text.values())


FIRST = ("0", 1, "forward")
OTHERS = [("random", 2, "backward"), ("1", 2, "forward"), ("random", 1, "backward")]
MORE = [
    (str(seed), threads, order)
    for seed in (2, 77, 4242)
    for threads in (1, 4)
    for order in ("forward", "backward")
]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "threads", "order"), [*OTHERS, *MORE])
def test_runs_agree(seed: str, threads: int, order: str) -> None:
    """Text to the letter; numbers of matrix products to 1e-12, and to the letter where the number
    of threads is the same.
    """
    (text, value), (own_text, own_value) = run(*FIRST), run(seed, threads, order)
    assert_there_is_something_to_compare(text, value)
    assert {name for name in text if text[name] != own_text[name]} == set()
    assert text.keys() == own_text.keys() and value.keys() == own_value.keys()
    for name, first in value.items():
        scale = max(map(abs, first))
        assert len(first) == len(own_value[name]) > 0 and math.isfinite(scale), name
        assert (
            max(abs(x - y) for x, y in zip(first, own_value[name], strict=True)) <= 1e-12 * scale
        ), name
        if threads == FIRST[1]:
            assert first == own_value[name], name
