"""Parts of the report page: verdicts, kernels, drawings, programs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.lab.report import program
from kcalc.lab.report.local_tables import levels_needed
from kcalc.lab.report.program import Step, compiled
from kcalc.lab.report.replay import State, applied, check, run

A, L = kc.architectures, kc.layers
TANH = L.Nonlinear("tanh")


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
    assert f"orthogonal inputs is {100 * float(K(0.0)) / float(K(1.0)):.3g}%" in said[0]


def test_maps_and_kernels_that_there_are_not() -> None:
    wild = kc.report(kc.chain(L.Input(), *(L.Affine(sigma_w=1e100) for _ in range(4)))).html
    assert "affine_2&#39; has q = inf, but q values must stay positive and finite" in wild
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
    long = r"The json export is \d+ kB long; write it with shaping.export\(&#39;json&#39;, path\)"
    assert re.search(long, shown)


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
    branches = [(name, L.Affine(2, sigma_w=1e-120), "x") for name in "ab"]
    joined = ("cat", L.Concat(), "a b"), ("c", L.Scale(1e-120), "cat"), ("o", L.Affine(2), "c")
    for steps in ([("s", L.Sum((1e-120, 1e-120)), "a b")], joined):
        said = f"node '{steps[-1][0]}', or .* has q = 0, but q values must stay positive and finite"
        with refused(said):
            run(compiled(wired(*branches, *steps, features=2)), np.array([0.5]))


def test_a_range_of_one_level_needs_one() -> None:
    assert levels_needed(0.3, 0.3) == 1 and levels_needed(0.0, 0.1) >= 8


def test_pages_of_mixers_hold_no_matrices() -> None:
    """24 blocks with token weights of their own, 196 x 196 and there and back over 98.

    a page of words, not of a million numbers.
    """
    rng = np.random.default_rng(0)

    def block() -> kc.Network:
        there, back = (rng.standard_normal(shape) / 14 for shape in ((98, 196), (196, 98)))
        mixing = (L.TokenMix(there), L.Nonlinear("gelu"), L.TokenMix(back))
        return kc.residual(kc.chain(L.LayerNorm(), *mixing))

    blocks = (block() for _ in range(24))
    page = kc.report(kc.chain(L.Input(16, (196,)), L.Affine(16), *blocks, L.Affine(3))).html
    assert len(page.encode()) < 1_000_000
    assert (
        "TokenMix(matrix=&lt;98 x 196 numbers&gt;)" in page
        or "<98 x 196 numbers>" in page.replace("\\u003c", "<").replace("\\u003e", ">")
    )


def test_what_a_trace_says() -> None:
    steep = kc.chain(L.Input(), *(x for _ in range(6) for x in (L.Affine(sigma_w=2), TANH)))
    slope = float(kc.c_map(steep).derivative(1)(1.0))
    said = f"slope at c = 1 is large, {slope:.3g}: a stack of such networks is chaotic"
    assert said in kc.report(steep).html


def test_dropout_and_pooling_in_programs() -> None:
    tail = L.Pool("max"), L.Dropout(0.5), L.Affine()
    net = kc.chain(L.Input(image_shape=(4, 4)), L.Affine(kernel=3), TANH, *tail)
    program = compiled(net)
    check(program, net)
    kinds = [step.kind for piece in program.pieces for step in piece.steps]
    assert kinds == ["in", "aff", "phi", "id", "id", "aff"]
    with refused("'dropout_1' is active dropout"):
        compiled(kc.chain(L.Input(), L.Affine(), L.Dropout(0.5, active=True), L.Affine()))


def test_weights_of_their_own_in_every_block_leave_depth_to_one_side() -> None:
    page = kc.report(A.rescaled_resnet(3), method="residual_weights").html
    assert "The depth slider works only before" in page
