"""Parts of the report page: verdicts, kernels, drawings, programs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.lab.report import program
from kcalc.lab.report.local_tables import levels_needed
from kcalc.lab.report.program import Step, compiled
from kcalc.lab.report.replay import State, applied, run

A, L = kc.architectures, kc.layers


def narrowing(depth: int) -> kc.Network:
    layer = (L.Affine(sigma_w=0.5, sigma_b=0.5), L.Nonlinear("tanh"))
    return kc.chain(L.Input(), *(part for _ in range(depth) for part in layer), L.Affine())


def test_what_kernels_mean_for_training() -> None:
    for network, words in (
        (narrowing(10), "gradient descent fits the mean of the targets and almost nothing else"),
        (A.vanilla(40, "tanh", sigma_w=3.0), "is nearly diagonal: training fits each example"),
        (A.vanilla(3), "differences between inputs can be learnt"),
    ):
        said = re.search(r"Before shaping, [^<>]*", kc.report(network, method="he").html)
        assert said is not None and words in said[0].partition("After shaping")[0]
    K = kc.ntk(A.vanilla(3))
    assert f"orthogonal inputs have {100 * float(K(0.0)) / float(K(1.0)):.3g}%" in said[0]


def test_maps_and_kernels_that_there_are_not() -> None:
    wild = kc.report(kc.chain(L.Input(), *(L.Affine(sigma_w=1e100) for _ in range(4)))).html
    assert "affine_2&#39; has q = inf: q values must stay positive and finite" in wild
    bare = kc.report(kc.chain(L.Input(), L.LayerNorm())).html
    assert "no kernel: the network has no Affine layer" in bare


def test_programs_of_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST_NODES", 3)
    with refused("3.*repeat"):
        compiled(A.densenet(3))


def test_networks_too_large_to_draw_and_exports_too_long_to_show_say_so() -> None:
    widening = (part for i in range(360) for part in (L.Affine(5 + i), L.Nonlinear("relu")))
    shown = kc.report(kc.chain(L.Input(4), *widening, L.Affine(3))).html
    assert "The network is too large to draw" in shown and "Each activation phi becomes" in shown
    assert re.search(
        r"The json export is \d+ kB long; write it with shaping.export\(&#39;json&#39;, path\)",
        shown,
    )


def test_constants_are_explained_where_there_are_some() -> None:
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
    page = kc.report(kc.chain(L.Input(), L.Affine(), *blocks, *ends)).html
    assert "Before shaping, 1 of 2 sums have no pair of weights and do not change" in page
    weighted = kc.report(kc.chain(L.Input(), L.Affine(), blocks[0], *ends)).html
    assert "have no pair of weights" not in weighted


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
