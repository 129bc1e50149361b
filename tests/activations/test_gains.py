"""Gains against mpmath, and the page that compares them with those that libraries ship."""

from __future__ import annotations

from pathlib import Path

import mpmath
import pytest
from refusals import refused

import kcalc as kc
from kcalc.activations.gains import SHIPPED, comparison


@pytest.mark.parametrize(
    ("name", "function", "q"),
    [
        ("tanh", mpmath.tanh, 1),
        ("tanh", mpmath.tanh, 4),
        ("softplus", lambda x: mpmath.log1p(mpmath.exp(x)), 1),
        ("swish", lambda x: x / (1 + mpmath.exp(-x)), 2),
    ],
)
def test_gains_against_mpmath(name, function, q):
    with mpmath.workdps(25):
        root = mpmath.sqrt(q)
        edges = list(range(-12, 13, 2))
        second = mpmath.quad(lambda z: function(root * z) ** 2 * mpmath.npdf(z), edges)
        mean = mpmath.quad(lambda z: function(root * z) * mpmath.npdf(z), edges)
        assert kc.gain(name, q) == pytest.approx(float(mpmath.sqrt(q / second)), rel=1e-14)
        assert kc.gain(name, q, centred=True) == pytest.approx(
            float(mpmath.sqrt(q / (second - mean**2))), rel=1e-14
        )


def test_a_constant_has_no_centred_gain():
    with refused("constant"):
        kc.gain(kc.activation(1), centred=True)


def test_the_page_shows_the_table():
    page = (Path(__file__).parents[2] / "docs" / "gains.md").read_text()
    assert comparison() in page


def test_shipped_gains_are_off_as_the_page_says():
    by_name = {(row.library, row.name): row for row in SHIPPED}
    assert by_name["torch", "tanh"].error == pytest.approx(0.0465, abs=5e-4)
    assert by_name["torch", "selu"].error == pytest.approx(-0.25, abs=1e-6)
    assert all(1e-5 < abs(row.error) < 1e-3 for row in SHIPPED if row.library == "timm")
    assert by_name["timm", "tanh"].q_after(200) == pytest.approx(1.003, abs=1e-3)
