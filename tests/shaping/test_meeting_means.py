"""Sums of activations whose means are not 0, under every shaping method.

Refused, or the q they make is the one that is promised.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import kcalc as kc

L = kc.layers
WIDTH, DRAWS = 400, 60
POINTS = np.polynomial.hermite_e.hermegauss(120)


def adding(phi: str, behind: bool = False, affine: bool = False) -> kc.Network:
    """``.6 f + .8 g`` of two activations of which the second reads the first.

    ``affine``: with weights of its own behind the second.
    """
    steps: list = [
        ("x", L.Input(WIDTH), ()), ("a", L.Affine(WIDTH), ("x",)), ("f", L.Nonlinear(phi), ("a",)),
        ("b", L.Affine(WIDTH), ("f",)), ("g", L.Nonlinear(phi), ("b",)),
    ]  # fmt: skip
    last = "g"
    if affine:
        steps.append(("w", L.Affine(WIDTH), ("g",)))
        last = "w"
    steps.append(("s", L.Sum((0.6, 0.8)), ("f", last)))
    if behind:
        steps += [
            ("o", L.Affine(WIDTH), ("s",)),
            ("p", L.Nonlinear(phi), ("o",)),
            ("e", L.Affine(WIDTH), ("p",)),
        ]
    return kc.Network.from_steps(steps)


@pytest.mark.parametrize(
    ("phi", "method", "options"),
    [
        ("gelu", "tat", {}),
        ("tanh", "tat", {"tau": 0.1}),
        ("relu", "tat", {"eta": 0.3}),
        ("softplus", "normalisation", {}),
        ("relu", "residual_weights", {}),
        ("gelu", "residual_weights", {"scheme": "common", "shortcut_weight": 0.5}),
    ],
)
@pytest.mark.parametrize("behind", [False, True])
def test_means_that_meet_are_refused(phi: str, method: str, options: dict, behind: bool) -> None:
    with pytest.raises(
        kc.KcalcError, match=r"Sum at node 's'.*means add up.*own Affine.*method='dks'"
    ):
        kc.shape(adding(phi, behind), method=method, **options)


@pytest.mark.parametrize(
    ("phi", "method", "options"),
    [("gelu", "tat", {}), ("relu", "tat", {"eta": 0.3}), ("softplus", "normalisation", {})],
)
def test_one_affine_is_the_remedy(phi: str, method: str, options: dict) -> None:
    shaped = kc.shape(adding(phi, affine=True), method=method, **options)
    assert shaped.residuals["Q_f(1)"] < 1e-12


@pytest.mark.parametrize(
    ("phi", "method"),
    [("gelu", "dks"), ("relu", "dks"), ("gelu", "self_normalising"), ("tanh", "normalisation")],
)
def test_activations_of_mean_0_may_be_added(phi: str, method: str) -> None:
    shaped = kc.shape(adding(phi, behind=True), method=method)
    assert shaped.residuals["Q_f(1)"] < 1e-12
    assert abs(kc.node_values(shaped.network)["s"][0] - 1) < 1e-12


def test_the_q_that_a_refusal_names_is_that_of_drawn_networks() -> None:
    """q of the Sum in normalised softplus networks, 60 draws of width 400."""
    with pytest.raises(kc.KcalcError) as refused:
        kc.shape(adding("softplus"), method="normalisation")
    named = float(str(refused.value).split("q is ")[1].split()[0])
    nodes, weights = POINTS[0], POINTS[1] / math.sqrt(2 * math.pi)
    scale = 1 / math.sqrt(weights @ np.logaddexp(0, nodes) ** 2)
    rng = np.random.default_rng(5)
    found = []
    for _ in range(DRAWS):
        f = scale * np.logaddexp(0, rng.standard_normal(WIDTH))
        g = scale * np.logaddexp(0, rng.standard_normal((WIDTH, WIDTH)) @ f / math.sqrt(WIDTH))
        found.append(np.mean((0.6 * f + 0.8 * g) ** 2))
    error = np.std(found) / math.sqrt(DRAWS)
    assert abs(np.mean(found) - named) < 4 * error + 5e-3  # q of f scatters by 1/width
    assert named - 1 > 20 * error


@pytest.mark.parametrize("phi", ["relu", "tanh"])
def test_on_the_edge_of_chaos_outputs_that_no_affine_ends_are_no_promise(phi: str) -> None:
    bare = adding(phi)
    ended = kc.Network.from_steps(
        [*(step for step in bare.steps() if step[0] != "s"), ("o", L.Affine(WIDTH), ("g",))]
    )
    assert "Q_f(1)" not in kc.shape(bare, method="eoc").global_targets
    assert any(
        a.node == "s" and "does not end in an Affine" in a.text
        for a in kc.shape(bare, method="eoc").assumptions
    )
    shaped = kc.shape(ended, method="eoc", q=0.5)
    assert shaped.global_targets == {"Q_f(1)": 0.5} and shaped.residuals["Q_f(1)"] < 1e-12


def test_an_output_that_keeps_its_mean_says_so_when_normaliser_free() -> None:
    shaped = kc.shape(adding("relu"), method="nf")
    assert "Q_f(1)" not in shaped.global_targets
    note = next(a for a in shaped.assumptions if a.node == "s")
    # both see q = 1, for standardised weights take no means
    mean = math.sqrt(1 / (2 * math.pi)) / math.sqrt(0.5 - 0.5 / math.pi)
    along, through = 1 / math.sqrt(1.04), 0.2 / math.sqrt(1.04)
    wanted = 1 + mean**2 * (along + through) ** 2
    assert f"q = {wanted:.6g}" in note.text
    assert kc.shape(adding("relu", behind=True), method="nf").global_targets["Q_f(1)"] == 1


@pytest.mark.parametrize("phi", ["gelu", "relu"])
@pytest.mark.parametrize("behind", [False, True])
def test_without_standardised_weights_means_must_not_meet(phi: str, behind: bool) -> None:
    with pytest.raises(
        kc.KcalcError, match=r"Sum at node 's'.*means add up.*own Affine.*standardise=True"
    ):
        kc.shape(adding(phi, behind), method="nf", standardise=False)
    assert kc.shape(adding(phi, behind), method="nf").variances == {
        "s": pytest.approx(1.04, rel=1e-15)
    }
    assert kc.shape(adding("tanh", behind), method="nf", standardise=False).variances == {
        "s": pytest.approx(1.04, rel=1e-15)
    }


def test_variances_of_blocks_whose_shortcut_ends_in_an_activation() -> None:
    """q = 1 + .2^2 behind the Sum, of which the mean of relu, 1/sqrt(pi) at Q(1) = 1, is no
    variance without standardised weights.
    """
    shaped = kc.shape(adding("relu", affine=True), method="nf", standardise=False)
    assert shaped.variances == {"s": pytest.approx(1.04 - 1 / math.pi, rel=1e-12)}
    assert kc.q_values(shaped.unnormalised)["s"] == pytest.approx(1.04, rel=1e-14)
    assert shaped.to_dict()["blocks"]["s"] == {"beta": 1.0, "variance": shaped.variances["s"]}
    assert max(shaped.residuals.values()) < 1e-12
    # of relu / sqrt(Var relu), with weights that take it out
    mean = 1 / math.sqrt(2 * math.pi) / math.sqrt(0.5 - 0.5 / math.pi)
    standardised = kc.shape(adding("relu", affine=True), method="nf")
    assert standardised.variances == {"s": pytest.approx(1.04, rel=1e-15)}
    assert kc.q_values(standardised.unnormalised)["s"] == pytest.approx(1.04 + mean**2, rel=1e-13)


def test_an_affine_on_a_concatenation_of_different_means_is_named() -> None:
    steps = [step for step in adding("relu", affine=True).steps() if step[0] != "s"]
    steps += [("j", L.Concat((WIDTH, WIDTH)), ("a", "f")), ("s", L.Sum((0.6, 0.8)), ("j", "v"))]
    steps += [
        ("v", L.Affine(2 * WIDTH), ("g",)),
        ("o", L.Affine(), ("s",)),
        ("end", L.Sum((0.6, 0.8)), ("o", "u")),
        ("u", L.Affine(), ("w",)),
    ]
    with pytest.raises(
        kc.KcalcError,
        match=r"node 'o' has q = 1\.\d+.*concatenation of feature maps with different means",
    ):
        kc.shape(kc.Network.from_steps(steps), method="nf")
