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
