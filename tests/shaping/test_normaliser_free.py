"""Normaliser-free networks and weight standardisation.

Constants in 30 digits, recursions written here, and simulated networks.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import mpmath
import pytest
import sympy as sp
from refusals import refusals, refused

import kcalc as kc
from kcalc import c_map, chain, repeat, residual, slope_polynomial
from kcalc.network.layers import Affine, BatchNorm, Flatten, Input, Nonlinear, Pool
from kcalc.shaping import normaliser_free

A = kc.architectures


# -- weight standardisation as a layer option ------------------------------------------------------


def test_slopes_count_standardised_weights_where_q_is_known() -> None:
    s = normaliser_free(A.resnet_v2(50), "relu")
    assert float(slope_polynomial(s.network, q=1.0).subs(kc.symbols.psi, 1)) == pytest.approx(
        float(c_map(s.network).derivative(1)(1.0)), rel=1e-12
    )
    assert slope_polynomial(s.network).subs(kc.symbols.psi, 1) == pytest.approx(1)
    assert any("this Affine reads" in note.text for note in kc.maximal_slope(s.network).assumptions)
    with refused("Affine at node"):
        kc.maximal_curvature(s.network, q=1.0)


def test_standardised_layers_travel_and_refuse(tmp_path: Path) -> None:
    net = chain(
        Input(8),
        Affine(16, standardised=True),
        Nonlinear("relu"),
        Affine(4, standardised=True),
    )
    kc.save_json(net, tmp_path / "net.json")
    plain = net.map_layers(lambda _, x: Affine(x.features), Affine)
    assert kc.load_json(tmp_path / "net.json") == net != plain
    assert '"standardised": true' in (tmp_path / "net.json").read_text()
    with refused("True.*False"):
        Affine(standardised=1)  # pyright: ignore[reportArgumentType]
    depthwise = chain(Input(8), Affine(8, groups=8, standardised=True))
    with refused("single input channel"):
        c_map(depthwise)(0.3)
    constant = chain(
        Input(),
        Affine(),
        Nonlinear(kc.activation(sp.Symbol("x") * 0 + 1)),
        Affine(standardised=True),
    )
    with refused("variance.*0"):
        c_map(constant)(0.3)
    shaped = kc.shape(net, "tanh")
    assert not any(getattr(layer, "standardised", False) for _, layer, _ in shaped.network.steps())
    assert (
        "affine_2: weights no longer standardised" in shaped.changes
        and max(shaped.residuals.values()) < 1e-12
    )
    with refused("standard parameterisation"):
        kc.ntk(net, parameterization="standard")(0.3)


# -- normaliser-free networks ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("gelu", lambda x: x * mpmath.ncdf(x)),
        ("sigmoid", lambda x: 1 / (1 + mpmath.exp(-x))),
        ("elu", lambda x: x if x > 0 else mpmath.expm1(x)),
    ],
)
def test_gamma_is_exact(name: str, f) -> None:
    with mpmath.workdps(30):
        edges = [-13, -8, -4, -2, 0, 2, 4, 8, 13]
        mean, square = (
            mpmath.quad(lambda x, n=n: f(x) ** n * mpmath.npdf(x), edges) for n in (1, 2)
        )
        centred = float((square - mean**2) ** mpmath.mpf(-0.5))
        plain = float(square ** mpmath.mpf(-0.5))
    for options, expected in (({}, centred), ({"standardise": False}, plain)):
        shaped = kc.shape(A.rescaled_resnet(2), name, method="nf", **options)
        assert shaped.constants[name].gamma == pytest.approx(expected, rel=3e-15)


def test_normalisers_are_taken_out_and_changes_say_so() -> None:
    norm = chain(BatchNorm(), Nonlinear("relu"), Affine(8, kernel=3))
    net = chain(
        Input(3, (8, 8)),
        Affine(8),
        repeat(residual(norm), 3),
        BatchNorm(),
        Nonlinear("relu"),
        Affine(2),
    )
    s = kc.shape(net, method="nf")
    assert (
        "batchnorm_1: BatchNorm removed" in s.changes
        and "sum_1: shortcut weight 0.9805806757" in s.changes[4]
    )
    assert (
        any("standardised" in text for text in s.changes)
        and "uses normalised sums, and" in s.changes[-1]
    )
    assert list(s.betas.values()) == pytest.approx([1, math.sqrt(1.04), math.sqrt(1.08)])
    data = json.loads(json.dumps(s.to_dict()))
    assert data["blocks"]["sum_2"]["variance"] == pytest.approx(1.08)
    assert data["options"] == {"alpha": 0.2, "standardise": True}
    assert kc.shape(A.vanilla(4), "relu", method="nf").betas == {}
    pooled = chain(
        Input(),
        Affine(),
        residual(chain(Nonlinear("relu"), Affine())),
        Pool("mean"),
        Flatten(),
        Affine(),
    )
    assert max(kc.shape(pooled, method="nf", alpha=2).residuals.values()) < 1e-14


test_refusals = refusals(
    [
        ({"alpha": 0}, "must be a number > 0"),
        ({"alpha": sp.Symbol("a")}, "must be a number > 0"),
        ({"standardise": "yes"}, "True or False"),
        ({"beta": 1}, "unknown argument of kc.shape"),
        ({"activation": "sign"}, "jumps"),
        ({"activation": "identity"}, "linear"),
    ],
    lambda options: kc.shape(
        A.rescaled_resnet(3), **{"method": "nf", "activation": "relu", **options}
    ),
)
