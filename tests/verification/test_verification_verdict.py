"""What a check says of itself.

Nothing judged, few draws, small q values, wrong tangent kernels and gradients; compiled once.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from refusals import refused
from thinning import mostly_slow

import kcalc as kc
from kcalc.backend.initialisers import Initialiser


def test_nothing_judged_is_no_success(untouched_pyplot: None) -> None:
    check = kc.verify_kernels(kc.to_jax(kc.architectures.vanilla(2, "tanh"), 8), draws=3)
    assert check.passed is None and not check.deviations
    for text in (str(check), repr(check), check._repr_html_(), check._verdict()):
        assert "judged" in text
    plain = json.loads(json.dumps(check.to_dict()))
    assert plain["passed"] is None and plain["powers"]["c"]["bias"]["exponent"] is None
    for call in (lambda: check.worst, check.largest_error, lambda: check.fluctuation("c")):
        with refused("16 channels or more|16 or more channels"):
            call()
    assert len(check.plot().axes) == 2


@pytest.mark.parametrize("q", mostly_slow([1e-12, 1.0, 1e12]))
def test_wrong_sizes_are_found_at_every_q(monkeypatch: pytest.MonkeyPatch, q: float) -> None:
    monkeypatch.setattr(Initialiser, "matrix", lambda self, noise: 3 * noise)
    model = kc.to_jax(kc.architectures.vanilla(2, "relu"), 32, weights="gaussian")
    check = kc.verify_kernels(model, c=0.3, q=q, draws=20, tangent=False, gradients=False)
    assert check.passed is False and check.worst.quantity == "q"
    assert "tangent" not in check.to_dict() and "NTK" not in str(check.summary())


def test_the_tangent_kernel_and_gradients_count() -> None:
    model = kc.to_jax(kc.architectures.vanilla(2, "tanh"), 32, weights="gaussian")
    check = kc.verify_kernels(model, c=0.3, draws=20)
    tangent, gradients = check.tangent, check.gradients
    assert tangent is not None and gradients is not None
    assert check.passed and tangent.passed and gradients.passed
    assert "gradients" in str(check) and "affine_1" in str(gradients) and "passed" in str(gradients)
    s: Any = gradients.statistic
    wrong_gradients = replace(gradients, statistic=replace(s, expected=4 * s.expected))
    wrong_tangent = replace(tangent, expected=tuple(4 * e for e in tangent.expected))
    for part, changed, headline in (
        ("gradients", wrong_gradients, "|gradient|^2 at "),
        ("tangent", wrong_tangent, "tangent kernel of (x"),
    ):
        wrong = replace(check, **{part: changed})
        assert wrong.passed is False and not changed.passed
        assert f"deviates; worst: {headline}" in str(wrong).splitlines()[0]
        assert f"{changed.worst:.2f} of {changed.what}" in repr(wrong)
    assert "deviates" in repr(wrong_tangent)
