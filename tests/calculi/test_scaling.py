"""The scaling calculus: closed forms worked out by hand, exact ratios in symbols, tables, and bad
input.
"""

from __future__ import annotations

import json
import math
from typing import Any

import mpmath
import pytest
import sympy as sp
from refusals import refusals, refused

import kcalc as kc
from kcalc import activation, chain, residual
from kcalc.calculi.scaling import Scaling, scaling
from kcalc.calculi.scaling.activation_moments import maximum
from kcalc.network.layers import Affine, Flatten, Input, Nonlinear, Pool
from kcalc.network.notes import read_at

RELU = Nonlinear("relu")
n = sp.symbols("n0:5", positive=True, integer=True)


def mlp(*widths: int, sigma_w: object = 1, bias: bool = True) -> kc.Network:
    pieces: list = [Input(widths[0])]
    for i, width in enumerate(widths[1:]):
        pieces += [*([RELU] if i else []), Affine(width, sigma_w=sigma_w, bias=bias)]
    return chain(*pieces)


# -- closed forms ----------------------------------------------------------------------------------


def test_an_mlp_by_hand() -> None:
    """He weights, widths 20, 30, 50, 7.

    f = 2, 2, 1 behind the layers, b = 1, 1/... from the top, gamma = zeta/(n m w^2).
    """
    s = scaling(mlp(20, 30, 50, 7, sigma_w=sp.sqrt(2)))
    assert [s.tensors[f"affine_{i}"].forward for i in (1, 2, 3)] == pytest.approx([2, 2, 2])
    for node, back in (("nonlinear_2", 7 * 2 / 50), ("nonlinear_1", 7 * 2 / 30)):
        assert s.tensors[node].backward == pytest.approx(back)
    assert {round(t.scaling, 10) for t in s.tensors.values()} == {14.0}
    for node, (a, b) in {"affine_1": (20, 30), "affine_2": (30, 50), "affine_3": (50, 7)}.items():
        gamma = s.weights[node].gamma
        assert gamma == pytest.approx(14 / (a * b * (2 / a) ** 2)) == s.weights[node].extrinsic
        assert s.biases[node] == pytest.approx(14 / (b * 4))
    assert s.output_moment == pytest.approx(2) and not s.violations
    assert s.spread == pytest.approx((50 / 7) / (30 / 50))  # gamma goes like fan-in over fan-out


def clipped_maximum() -> float:
    """E clip(20 Y, -1, 1)^2 for the maximum Y of four standard normals, to 30 digits."""
    with mpmath.workdps(30):
        edge = mpmath.mpf(1) / 20

        def within(y: Any) -> Any:
            return 4 * (20 * y) ** 2 * mpmath.npdf(y) * mpmath.ncdf(y) ** 3

        beyond = 1 - mpmath.ncdf(edge) ** 4 + mpmath.ncdf(-edge) ** 4
        return float(mpmath.quad(within, [-edge, 0, edge]) + beyond)


def test_maxima_of_normals() -> None:
    """E max^2 of 2 and 4 standard normals: 1, 1 + sqrt3/pi.

    With correlation r: r + (1 - r) times it.
    """
    for count, value in ((2, 1.0), (4, 1 + math.sqrt(3) / math.pi)):
        assert maximum(2, None, 1.0, 0.0, count) == pytest.approx(value, rel=1e-12)
        assert maximum(2, None, 2.0, 0.3, count) == pytest.approx(2 * (0.3 + 0.7 * value), rel=1e-9)
    relu = activation("relu")
    assert maximum(2, relu, 1.0, 0.0, 1) == pytest.approx(0.5, rel=1e-12)
    assert maximum(2, relu, 1.0, 0.0, 4, 1) == pytest.approx(1 - 2**-4, rel=1e-12)
    assert maximum(2, activation("hard_tanh"), 400.0, 0.0, 4) == pytest.approx(
        clipped_maximum(), rel=1e-12
    )
    s = scaling(chain(Input(3, (4, 4)), Affine(4), Pool("max", 2)))
    assert s.tensors["pool_1"].ratio == pytest.approx(1.5513, abs=5e-5)
    assert "max pooling" in s.violations[0].text


# -- objects and errors ----------------------------------------------------------------------------


def test_results_print_and_draw(untouched_pyplot: None) -> None:
    first = Input(3, (8, 8)), Affine(4, kernel=3), Nonlinear("tanh"), Pool("mean", 2)
    s = scaling(chain(*first, Flatten(), Affine(5)))
    assert json.loads(json.dumps(s.to_dict()))["weights"]["affine_1"]["taps"] == 9
    assert "violated" in str(s) and s.ordered()[0][1].gamma >= s.ordered()[1][1].gamma
    assert math.prod(w.correction for w in s.weights.values()) == pytest.approx(1)
    symbolic = scaling(mlp(n[0], n[1], n[2]))  # type: ignore[arg-type]
    assert isinstance(symbolic, Scaling) and "n0 -> n1" in str(symbolic)
    assert json.dumps(symbolic.to_dict())
    for what in (symbolic.plot, lambda: symbolic.spread):
        with refused("numbers"):
            what()


def test_what_is_violated_is_said() -> None:
    def told(*layers: Any, **options: Any) -> str:
        return " | ".join(v.text for v in scaling(chain(*layers), **options).violations)

    assert "atoms" in told(mlp(4, 5, 3), weights="ternary")
    biased = Input(4), Affine(5, sigma_b=0.5), RELU, Affine(2)
    assert "bias" in told(*biased)
    assert scaling(chain(*biased)).tensors["affine_1"].forward == pytest.approx(1.25)
    doubled = activation("relu").transformed(output_scale=2)  # slopes 0 and 2
    for phi, flat in ((doubled, True), ("abs", False)):
        depthwise = Input(6, (4, 4)), Affine(12), Nonlinear(phi), Affine(12, kernel=3, groups=12)
        assert ("2^-9" in told(*depthwise)) == flat
    assert "padding" in told(Input(6, (4, 4)), Affine(12, kernel=3, padding=3)).split(" | ")[0]
    first = Input(24), RELU, Affine(2)
    assert not told(*first)
    assert "not symmetric" in told(*first, input_symmetric=False).split(" | ")[0]
    block = residual(chain(Affine(4), RELU, Affine(4)), 0.6)
    assert "not symmetric" in told(Input(4), Affine(4), RELU, block, RELU, Affine(2))


READ_AT = read_at("input", (7, 7))
test_bad_input = refusals(
    [
        (chain(Input(3), Affine(4, kernel=3)), {}, "image_shape"),
        (mlp(3, 4), {"input_moment": -1}, "> 0"),
        (mlp(3, 4), {"cotangent_moment": n[0]}, "cotangent_moment = n0 contains symbols"),
        (mlp(3, 4), {"input_correlation": 2}, r"\[-1, 1\]"),
        (mlp(3, 4), {"weights": "delta_orthogonal"}, "independent taps"),
        (mlp(3, 4), {"correlation": {"affine_1": 0}}, "Pool"),
        (chain(Input(3, (4, 4)), Affine(4), Pool("weighted_mean", 2)), {}, "weighted"),
        (chain(Input(3), Affine(4, standardised=True)), {}, "standardised"),
        (chain(Input(n[0], (4, 4)), Affine(4, kernel=3)), {}, "zeros"),
        (chain(Input(n[0], (4, 4)), Affine(4), Pool("max", 2)), {}, "symbolic"),
        (chain(Input(3), Flatten()).with_notes([READ_AT]), {"image_shape": (8, 8)}, r"\(8.*8\)"),
    ],
    lambda network, options: scaling(network, **options),
)
