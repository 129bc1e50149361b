"""Parts of the report page: verdicts, kernels, drawings, programs."""

from __future__ import annotations

import math
import re
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.activations import X
from kcalc.gaussian.expectations.endzones import EndZone
from kcalc.report import sections
from kcalc.report.explorer import _touched
from kcalc.report.kernels import POINTS, Kernel, kernel, meaning
from kcalc.report.local_tables import levels_needed, raw_table
from kcalc.report.program import Step, compiled
from kcalc.report.replay import State, applied, run
from kcalc.report.traces import Trace, trace, verdict

A, L = kc.architectures, kc.layers


def test_verdicts_in_words() -> None:
    def says(slope: float, level: float) -> str:
        return verdict(Trace(q=[1.0, 2.0], slope=slope, level=level))

    assert "hardly tells inputs apart: orthogonal ones come out with cosine 0.9500" in says(
        1.0, 0.95
    )
    assert "keeps part of the differences" in says(1.0, 0.7) and "keeps inputs apart" in says(
        1.0, 0.0004
    )
    assert "grows by a factor 10" in says(100.0, 0.99) or "hardly" in says(100.0, 0.99)
    assert "blown up beyond use" in says(1e7, 0.1) and "shrinks by a factor 10" in says(
        0.01, 0.9999
    )


def test_traces_and_kernels_that_there_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    wild = kc.chain(L.Input(), *(L.Affine(sigma_w=1e100) for _ in range(4)))
    with refused("overflow|explode|finite"):
        trace(wild)
    with refused("Affine.*weights"):
        kernel(kc.chain(L.Input(), L.LayerNorm()))
    monkeypatch.setattr(import_module("kcalc.report.program"), "MOST_NODES", 3)
    with refused("3.*repeat"):
        compiled(A.densenet(3))


def test_what_kernels_mean_for_training() -> None:
    grid = np.cos(np.linspace(math.pi, 0, POINTS)).tolist()
    flat = Kernel(grid, [1.0] * POINTS, [], [0.95, 0.01], "")
    spiked = Kernel(grid, [0.0] * (POINTS - 1) + [1.0], [], [0.01, 0.02], "")
    assert "95% of the kernel's trace lies in the constant function" in meaning(flat, None)
    assert "the kernel is nearly diagonal: training fits each example by itself" in meaning(
        None, spiked
    )


def test_networks_too_large_to_draw_and_exports_too_long_to_show_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sections, "MOST_DRAWN", 2)
    monkeypatch.setattr(sections, "LONGEST_EXPORT", 10)
    shown = kc.report(A.vanilla(2, "tanh")).html
    assert "The network is too large to draw" in shown and "Each activation phi becomes" in shown
    assert re.search(
        r"The numpy export is \d+ kB long; write it with shaping.export\(&#39;numpy&#39;, path\)",
        shown,
    )
    linear = kc.shape(A.vanilla(2, "tanh"), method="looks_linear")
    assert bool(linear.constants.columns()) == (
        "Each activation phi becomes" in kc.report(linear).html
    )


def test_programs_that_cannot_be_replayed() -> None:
    def state(shares: list[float], q: float = 1.0, mean: float = 0.0) -> State:
        share = np.array(shares)[:, None]
        return State(share, q + 0 * share, 0.5 + 0 * share, mean + 0 * share)

    with refused("'n'.*vanishing"):
        applied(Step("n", "ln", (0,)), [state([1.0], 4.0, 2.0)])
    for kind in ("sum", "prd"):
        step = Step("s", kind, (0, 1), (1.0, 1.0))
        with refused("'s'.*concatenations"):
            applied(step, [state([0.5, 0.5]), state([0.25, 0.75])])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (
            [L.Nonlinear(kc.activation(1)), L.Affine(standardised=True)],
            "node 'affine_2', or .* has q = 0: ",
        ),
        (
            [L.Affine(sigma_w=1e-120)] * 2,
            "node 'affine_2', or its like in a repeated block, has q = 0: ",
        ),
        ([L.Affine(sigma_w=1e120)] * 2, "node 'affine_2', or .* has q = inf: "),
        ([L.Scale(1e200), L.Affine()], "node 'affine_2', or .* has q = inf: "),
    ],
)
def test_q_values_that_vanish_or_explode_are_refused_at_their_node_without_a_warning(
    pieces: list[Any], message: str
) -> None:
    program = compiled(kc.chain(L.Input(), L.Affine(), *pieces))
    with refused(message):
        run(program, np.array([0.1, 0.5]))


@pytest.mark.filterwarnings("error")
def test_sums_and_concatenations_that_vanish_are_refused_without_a_warning() -> None:
    branches: list[Any] = [
        ("x", L.Input(2), ()),
        *((name, L.Affine(2, sigma_w=1e-120), ("x",)) for name in "ab"),
    ]
    ends: dict[str, list[Any]] = {
        "s": [("s", L.Sum((1e-120, 1e-120)), ("a", "b"))],
        "o": [
            ("cat", L.Concat(), ("a", "b")),
            ("c", L.Scale(1e-120), ("cat",)),
            ("o", L.Affine(2), ("c",)),
        ],
    }
    for node, steps in ends.items():
        with refused(
            f"node '{node}', or .* has q = 0: q values must stay positive and finite",
        ):
            run(compiled(kc.Network.from_steps([*branches, *steps])), np.array([0.5]))


def test_a_range_of_one_level_needs_one() -> None:
    assert levels_needed(0.3, 0.3) == 1 and levels_needed(0.0, 0.1) >= 8


def test_some_sums_without_weights_are_counted() -> None:
    branch = kc.chain(L.Input(), L.Nonlinear(kc.activation("tanh")), L.Affine())
    ends = (L.Nonlinear(kc.activation("tanh")), L.Affine())
    blocks = [kc.repeat(kc.residual(branch, 0.8), 3), kc.residual(kc.chain(branch, L.Affine()))]
    found: Any = SimpleNamespace(program=compiled(kc.chain(L.Input(), L.Affine(), *blocks, *ends)))
    assert "Before shaping 1 of 2 sums have no pair of weights, and stay as they are" in _touched(
        found
    )
    assert "Before shaping" not in _touched(SimpleNamespace(program=None))  # type: ignore[arg-type]


def test_pages_of_mixers_hold_no_matrices() -> None:
    """24 blocks with token weights of their own, 196 x 196 and there and back over 98.

    a page of words, not of a million numbers.
    """
    rng, places, before = np.random.default_rng(0), 196, "e"
    steps: list[Any] = [
        ("x", kc.layers.Input(16, (places,)), ()),
        ("e", kc.layers.Affine(16), ("x",)),
    ]
    for i in range(24):
        matrices = [rng.standard_normal(shape) / 14 for shape in ((98, places), (places, 98))]
        steps += [
            (f"n{i}", kc.layers.LayerNorm(), (before,)),
            (f"t{i}", kc.layers.TokenMix(matrices[0]), (f"n{i}",)),
            (f"g{i}", kc.layers.Nonlinear("gelu"), (f"t{i}",)),
            (f"u{i}", kc.layers.TokenMix(matrices[1]), (f"g{i}",)),
            (f"s{i}", kc.layers.Sum(), (before, f"u{i}")),
        ]
        before = f"s{i}"
    page = kc.report(kc.Network.from_steps([*steps, ("y", kc.layers.Affine(3), (before,))])).html
    assert len(page.encode()) < 1_000_000
    assert (
        "TokenMix(matrix=&lt;98 x 196 numbers&gt;)" in page
        or "<98 x 196 numbers>" in page.replace("\\u003c", "<").replace("\\u003e", ">")
    )


@pytest.mark.parametrize(
    "expr", [sp.sin(30 * X), sp.cos(60 * X), sp.sin(30 * X + 1), sp.sin(30 * X) + X / 10]
)
def test_tables_of_waves_need_no_integrals_near_the_ends(
    expr: sp.Expr, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed forms or Hermite series serve every c, at q values where end zones took minutes."""
    monkeypatch.setattr(
        EndZone, "_derivative_at", lambda *_: pytest.fail("an end zone is integrated")
    )
    phi = kc.activation(expr)
    for q in (1e-3, 0.05, 0.5, 1.0, 8.0):
        c = np.array([1 - 1e-6, 0.99, 0.3, -0.9, -1 + 1e-9])
        assert np.all(np.isfinite(phi.taylor(1 - c, q, order=1)))
    table = raw_table(phi, 2.0**-9, 2.0**-7)
    theta = np.array([0.1, 1.3, 2.9])
    wanted = phi.taylor(2 * np.sin(theta / 2) ** 2, 0.005)[0] / (2 * np.sin(theta / 2) ** 2)
    assert table.ratio_at(theta, math.log(0.005)) == pytest.approx(wanted, abs=1e-9)
