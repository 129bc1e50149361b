"""Phases of transformers over gains, and the gains that reach targets."""

from __future__ import annotations

from typing import Any

import matplotlib

matplotlib.use("Agg")
import pytest
from refusals import refusals
from wiring import wired

import kcalc as kc
from kcalc import depth_laws, repeat, token_gain, token_phases
from kcalc.network.layers import Affine, Attend, RMSNorm
from kcalc.shaping.token_phases import with_gains

A = kc.architectures
T = 8


def stack(**options: Any) -> kc.Network:
    return A.transformer_stack(2, 8, 2, placement="post", **options)


def test_a_diagram_has_the_habits_of_a_result() -> None:
    found = token_phases(stack(), T, values=[0.5, 1.0, 2.0], residual=[0.5, 1.0])
    assert (found.cosine == 1).all() and "tokens become equal" in str(found)
    assert found.to_dict()["gains"] == ["values", "residual"]
    assert len(found.to_dataframe()) == 6 and repr(found).startswith("TokenPhases(residual x")
    ax = found.plot(quantity="slope")
    assert "sigma_V" in ax.get_xlabel() and "residual" in ax.get_ylabel()


def test_the_scores_of_a_token_cosine() -> None:
    net = stack(activation="tanh", gains={"up": 10.0, "values": 0.6})
    target = float(depth_laws(with_gains(net, {"scores": 3.0}), T).cosine)
    found = token_gain(net, T, "scores", cosine=target)
    assert depth_laws(with_gains(net, {"scores": found}), T).cosine == pytest.approx(target)
    with pytest.raises(kc.UnreachableTarget, match="values range from 0.51"):
        token_gain(stack(), T, "scores", slope=0.9)


test_other_arguments_are_refused = refusals(
    [
        (lambda: token_phases(stack(), T, scores=[1, 2]), "two of the gains"),
        (lambda: token_phases(stack(), T, scores=[1, 2], depth=[1, 2]), "depth"),
        (lambda: token_phases(stack(), T, scores=[2, 1], values=[1, 2]), "increasing"),
        (lambda: token_phases(stack(), 0, scores=[1, 2], values=[1, 2]), "an integer >= 1"),
        (
            lambda: token_phases(repeat(Affine(), 2), T, scores=[1, 2], values=[1, 2]),
            "no weights for the gains",
        ),
        (lambda: token_gain(stack(), T, "keys", slope=1.0), "keys"),
        (
            lambda: with_gains(wired(("n", RMSNorm()), ("a", Attend(), "n x x")), {"scores": 2}),
            "'a' reads its queries from 'n', which is not an Affine",
        ),
        (lambda: token_gain(stack(), T, "values"), "one of the targets"),
        (lambda: token_gain(stack(), T, "values", length=1.0), "length"),
    ]
)
