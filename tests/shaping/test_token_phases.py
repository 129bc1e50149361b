"""Phases of transformers over gains, and the gains that reach targets."""

from __future__ import annotations

from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.shaping.token_phases import with_gains

A, L = kc.architectures, kc.layers
T = 8
SHARP: dict[str, Any] = {"activation": "tanh", "gains": {"up": 10.0, "values": 0.3}}


def stack(placement: str = "post", **options: Any) -> kc.Network:
    return A.transformer_stack(2, 8, 2, placement=placement, **options)


def test_a_diagram_has_the_laws_of_its_points() -> None:
    net = stack(**SHARP)
    found = kc.token_phases(net, T, scores=[1.0, 6.0], values=[1.0, 4.0])
    assert found.cosine.shape == (2, 2) and found.names == ("scores", "values")
    own = stack(activation="tanh", gains={"up": 10.0, "values": 1.2, "queries": 6.0})
    law = kc.depth_laws(own, T)
    assert found.cosine[1, 1] == pytest.approx(law.cosine, rel=1e-9)
    assert found.gradient_difference[1, 1] == pytest.approx(law.gradient_difference, rel=1e-9)
    # the slope at 1 does not see the scores, the limit does
    np.testing.assert_allclose(found.slope[:, 0], found.slope[:, 1], rtol=1e-12)
    assert abs(found.cosine[1, 0] - found.cosine[1, 1]) > 1e-3


def test_a_diagram_has_the_habits_of_a_result() -> None:
    found = kc.token_phases(stack(), T, values=[0.5, 1.0, 2.0], residual=[0.5, 1.0])
    assert (found.cosine == 1).all() and "tokens become equal" in str(found)
    assert found.to_dict()["gains"] == ["values", "residual"]
    assert len(found.to_dataframe()) == 6 and repr(found).startswith("TokenPhases(residual x")
    ax = found.plot(quantity="slope")
    assert "sigma_V" in ax.get_xlabel() and "residual" in ax.get_ylabel()


@pytest.mark.parametrize("a", [2.0])
def test_the_values_of_a_slope_in_closed_form(a: float) -> None:
    """``a^2 / (a^2 + v)`` of attention, 1 of a ReLU MLP: v = a^2 (1 / slope - 1)."""
    net = stack(activation="relu", shortcut_weight=a, residual_weight=1.0)
    found = kc.token_gain(net, T, "values", slope=0.6)
    assert found == pytest.approx((a * a * (1 / 0.6 - 1)) ** 0.5, rel=1e-8)
    shortcut = kc.token_gain(net, T, "shortcut", slope=0.6)
    assert (a * shortcut) ** 2 == pytest.approx(0.6 / 0.4, rel=1e-8)


def test_the_scores_of_a_token_cosine() -> None:
    net = stack(activation="tanh", gains={"up": 10.0, "values": 0.6})
    target = float(kc.depth_laws(with_gains(net, {"scores": 3.0}), T).cosine)
    found = kc.token_gain(net, T, "scores", cosine=target)
    assert kc.depth_laws(with_gains(net, {"scores": found}), T).cosine == pytest.approx(target)
    with pytest.raises(kc.UnreachableTarget, match="the range is 0.51"):
        kc.token_gain(stack(), T, "scores", slope=0.9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: kc.token_phases(stack(), T, scores=[1, 2]), "two of the gains"),
        (lambda: kc.token_phases(stack(), T, scores=[1, 2], depth=[1, 2]), "depth"),
        (lambda: kc.token_phases(stack(), T, scores=[2, 1], values=[1, 2]), "increasing"),
        (lambda: kc.token_phases(stack(), 0, scores=[1, 2], values=[1, 2]), "an integer >= 1"),
        (lambda: kc.token_phases(kc.repeat(L.Affine(), 2), T, scores=[1, 2], values=[1, 2]),
         "no weights for the gains"),
        (lambda: kc.token_gain(stack(), T, "keys", slope=1.0), "keys"),
        (lambda: kc.token_gain(stack(), T, "values"), "one of the targets"),
        (lambda: kc.token_gain(stack(), T, "values", length=1.0), "length"),
        (lambda: kc.token_phases(stack(), T, scores=[1, 2], values=[1, 2]).plot(quantity="q"),
         "quantity"),
    ],
)  # fmt: skip
def test_other_arguments_are_refused(call: Any, words: str) -> None:
    with refused(words):
        call()
