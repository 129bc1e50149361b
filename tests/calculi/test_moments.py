"""Exact moments against closed forms derived apart, drawn networks, exact enumeration, and the
chi-square mixture.
"""

from __future__ import annotations

import itertools
import json
import math

import moments_oracle as oracle
import numpy as np
import pytest
import sympy as sp
from scipy import stats
from thinning import mostly_slow

import kcalc as kc
from kcalc.calculi.moments import crelu_budget, depth_stability, moments, moments_at_depth
from kcalc.network.layers import Affine, Concat, Dropout, Input, LayerNorm, Nonlinear, Sum

HE = sp.sqrt(2)
n = sp.Symbol("n", integer=True, positive=True)
alpha = sp.Symbol("alpha", positive=True)
SIGMAS = 4.0


def vanilla(depth, width, activation="relu", sigma_w=HE):
    return kc.architectures.vanilla(
        depth, activation, features=width, sigma_w=sigma_w, readout=False
    )


# -- closed forms of the architectures -------------------------------------------------------------


def test_vanilla_relu_closed_forms():
    L, width, a = 7, 20, 0.8
    found = moments(vanilla(L, width, sigma_w=sp.sqrt(sp.Rational(8, 5))))
    fourth = a ** (2 * L) * (1 + 5 / width) ** L
    assert found.out.mean == pytest.approx(a**L, rel=1e-12)
    assert found.out.fourth == pytest.approx(fourth, rel=1e-12)
    c = 2 * a / width
    for k, moment in enumerate(found.weights.values(), 1):
        assert moment.mean == pytest.approx(a**L / c, rel=1e-12)
        mode = (1 + 2 * ((width - 1) / (width + 5)) ** (L - k + 1)) / 3
        assert moment.fourth == pytest.approx(fourth / c**2 * mode, rel=1e-12)


def test_linear_closed_forms():
    L, width = 6, 15
    found = moments(vanilla(L, width, "identity", 1))
    assert found.out.fourth == pytest.approx((1 + 2 / width) ** L, rel=1e-12)
    for k, moment in enumerate(found.weights.values(), 1):
        mode = (1 + 2 * ((width - 1) / (width + 2)) ** (L - k + 1)) / 3
        assert moment.fourth == pytest.approx((1 + 2 / width) ** L * width**2 * mode, rel=1e-12)


def test_resnet_closed_forms():
    L, m, width, a1 = 5, 3, 24, 0.7
    found = moments(oracle.resnet(L, m, width, sp.Rational(7, 10)))
    a = a1**m

    def beta(s):
        return (
            1
            + 2 * a * (1 + 2 * s / width)
            + a * a * (1 + (1 + 4 * s) / width) ** (m - 1) * (1 + 2 * s / width)
        )

    assert found.out.mean == pytest.approx((1 + a) ** L, rel=1e-12)
    assert found.out.fourth == pytest.approx(beta(1) ** L, rel=1e-12)
    rho = a * a * (1 + 5 / width) ** (m - 1) * (1 + 2 / width)
    for k, j in itertools.product(range(1, L + 1), range(1, m + 1)):
        moment = found.weights[f"W{k - 1}{j - 1}"]
        c = (2 if j < m else 1) * a1 / width
        assert moment.mean == pytest.approx(a * (1 + a) ** (L - 1) / c, rel=1e-12)
        if j < m:
            ratio = (
                ((width - 1) / (width + 5)) ** (m - j)
                * (width - 1)
                / (width + 2)
                * (beta(-0.5) / beta(1)) ** (L - k)
            )
            expected = rho * beta(1) ** (L - 1) / c**2 / 3 * (1 + 2 * ratio)
        else:
            expected = beta(1) ** (k - 1) * (a1**2 * (1 + 5 / width)) ** (m - 1)
            expected *= (width**2 + 2 * width) / 3 * beta(1) ** (L - k) + 2 / 3 * (
                width**2 - width
            ) * beta(-0.5) ** (L - k)
        assert moment.fourth == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("flat", [False, True])
def test_densenet_closed_forms(flat):
    L, width, a = 6, 20, 0.6
    found = moments(oracle.densenet(L, width, sp.Rational(3, 5), flat))

    def g(k):
        return 1 + (a - 1) / k

    def f(k):
        return g(k) ** 2 * (1 + 5 * a * a / (width * (k + a - 1) ** 2))

    assert found.out.mean == pytest.approx(math.prod(g(k) for k in range(1, L + 1)), rel=1e-12)
    assert found.out.fourth == pytest.approx(math.prod(f(k) for k in range(1, L + 1)), rel=1e-12)
    at_one = moments(oracle.densenet(L, width, 1, flat))
    for k in range(1, L + 1):
        assert at_one.weights[f"W{k}"].mean == pytest.approx(
            width * k / (2 * (k + 1)) if k < L else width * L / 2, rel=1e-12
        )
    second = moments(oracle.densenet(6, 20)).weights["W2"].mean
    # not 20, as the paper's product over l != k has it
    assert second == pytest.approx(6.667, abs=1e-3)


def test_densenet_stays_bounded_at_alpha_one():
    found = moments(oracle.densenet(2000, 20), jacobian=False)
    assert found.out.mean == pytest.approx(1, rel=1e-12)
    assert found.out.variance <= math.exp(5 * math.pi**2 / (6 * 20)) - 1


def test_concatenated_relu_is_a_linear_network():
    depth, width = 4, 18
    paired = moments(oracle.crelu(depth, width))
    linear = moments(vanilla(depth + 1, width, "identity", 1))
    for i, moment in enumerate(linear.weights.values()):
        own = paired.weights[f"W{i}"]
        assert own.mean == pytest.approx(moment.mean, rel=1e-12)
        assert own.fourth == pytest.approx(moment.fourth, rel=1e-12)
    assert paired.out.fourth == pytest.approx((1 + 2 / width) ** (depth + 1), rel=1e-12)


def test_kurtosis_recursion_against_its_matrix_form():
    """The (A, B) recursion of a relu layer for weights that are not Gaussian, iterated here as 2 x
    2 matrices.
    """
    width, e = 12, -1.2
    c = 2 / width
    step = np.array(
        [
            [c * c * width * (width + 5) / 4, width * e * c * c / 2],
            [1.5 * width * c * c, width * e * c * c / 2],
        ]
    )
    state = np.array([1.0, 0.4])
    found = moments(vanilla(5, width), weights="uniform", input_fourth=0.4)
    for i in range(1, 6):
        state = step @ state
        assert found.nodes[f"nonlinear_{i}"].fourth == pytest.approx(state[0], rel=1e-12)
    assert moments(vanilla(5, width), weights=-1.2, input_fourth=0.4).out.fourth == pytest.approx(
        found.out.fourth, rel=1e-12
    )


def test_chi_square_mixture():
    """|y_l|^2/|y_{l-1}|^2 ~ c chi^2_K, K ~ Bin(n, 1/2).

    The fourth moment of a layer by summing over K.
    """
    width, depth = 9, 30
    k = np.arange(width + 1)
    ratio2 = float(stats.binom.pmf(k, width, 0.5) @ (k * (k + 2.0))) * (2 / width) ** 2
    assert moments(vanilla(depth, width)).out.fourth == pytest.approx(ratio2**depth, rel=1e-11)


# -- exact enumeration and drawing -----------------------------------------------------------------


def test_sign_weights_by_enumeration():
    """All 2^12 networks of weights +-s on a small DAG with a skip: forward moments, exactly."""
    steps = [
        ("x", Input(2), ()),
        ("A", Affine(2, sigma_w=1.1), ("x",)),
        ("h", Nonlinear("leaky_relu"), ("A",)),
    ]
    steps += [
        ("B", Affine(2, sigma_w=0.9), ("h",)),
        ("y", Sum((1, 0.7)), ("x", "B")),
        ("C", Affine(2), ("y",)),
        ("r", Nonlinear("relu"), ("C",)),
    ]
    net = kc.Network.from_steps(steps)
    x = np.array([0.8, -0.6])
    sums = np.zeros(2)
    for signs in itertools.product((-1.0, 1.0), repeat=12):
        a, b, c = np.array(signs).reshape(3, 2, 2) / math.sqrt(2)
        z = 1.1 * a @ x
        h = np.where(z > 0, z, 0.01 * z)
        y = np.maximum(c @ (x + 0.7 * 0.9 * b @ h), 0)
        sums += np.array([y @ y, (y @ y) ** 2]) / 2**12
    found = moments(net, weights="rademacher", input_fourth=float(np.sum(x**4)))
    assert [found.out.mean, found.out.fourth] == pytest.approx(list(sums), rel=1e-12)


@pytest.mark.parametrize("law", ["gaussian", "uniform", "laplace"])
@pytest.mark.parametrize("name", mostly_slow(["vanilla", "resnet", "densenet", "crelu", "leaky"]))
def test_architectures_against_draws(name, law):
    nets = {
        "vanilla": vanilla(3, 12),
        "resnet": oracle.resnet(2, 2, 12, sp.Rational(1, 2)),
        "densenet": oracle.densenet(3, 10),
        "crelu": oracle.crelu(2, 10),
        "leaky": vanilla(3, 12, "abrelu", 0.8),
    }
    net = nets[name]
    found = oracle.deviations(moments(net, weights=law), net, 12_000, 3, law)
    assert max(found.values()) < SIGMAS, max(found, key=found.get)


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 6, 7])
def test_random_networks_against_draws(seed):
    _check_random(seed, 12_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [s for s in range(1, 27) if s not in (5, 18)])
def test_more_random_networks_against_draws(seed):
    _check_random(seed, 60_000)


def _check_random(seed, draws):
    net, law = oracle.random_network(seed), ("gaussian", "uniform", "laplace")[seed % 3]
    found = oracle.deviations(moments(net, weights=law), net, draws, 1000 + seed, law)
    # of some 45 heavy-tailed estimates
    assert max(found.values()) < SIGMAS + 1, max(found, key=found.get)


# -- symbols ---------------------------------------------------------------------------------------


def test_symbolic_powers():
    found = moments(vanilla(9, n, sigma_w=sp.sqrt(2 * alpha)))
    assert sp.simplify(found.out.mean - alpha**9) == 0
    assert sp.simplify(found.out.fourth - alpha**18 * (1 + 5 / n) ** 9) == 0
    weights = found.weights["affine_4"]
    expected = alpha**16 * n**2 / 4 * (1 + 5 / n) ** 9 / 3 * (1 + 2 * ((n - 1) / (n + 5)) ** 6)
    assert sp.simplify(weights.fourth - expected) == 0
    assert weights.fourth.count_ops() < 60


@pytest.mark.parametrize(
    "make",
    [
        lambda a: oracle.resnet(3, 2, 14, a),
        lambda a: oracle.densenet(4, 14, a),
        lambda a: oracle.crelu(2, 14, a),
    ],
)
def test_symbols_agree_with_numbers(make):
    symbolic = moments(make(alpha)).subs({alpha: sp.Rational(3, 4)})
    numeric = moments(make(sp.Rational(3, 4)))
    for tables in ((symbolic.nodes, numeric.nodes), (symbolic.weights, numeric.weights)):
        for node, moment in tables[1].items():
            assert tables[0][node].mean == pytest.approx(moment.mean, rel=1e-13)
            assert tables[0][node].fourth == pytest.approx(moment.fourth, rel=1e-13)


def test_symbolic_kurtosis():
    e = sp.Symbol("e", real=True)
    symbolic = moments(vanilla(2, n), weights=e).subs({n: 11, e: 3})
    numeric = moments(vanilla(2, 11), weights="laplace")
    assert symbolic.out.fourth == pytest.approx(numeric.out.fourth, rel=1e-13)
    assert symbolic.weights["affine_1"].fourth == pytest.approx(
        numeric.weights["affine_1"].fourth, rel=1e-13
    )
    with pytest.raises(kc.KcalcError, match="written out for at most"):
        moments(vanilla(12, n), weights=e)


def test_depth_as_a_symbol():
    block = kc.residual(
        kc.chain(
            Affine(n, sigma_w=sp.sqrt(2 * alpha)),
            Nonlinear("relu"),
            Affine(n, sigma_w=sp.sqrt(alpha)),
        )
    )
    found = moments_at_depth(block, features=n)
    numeric = moments(oracle.resnet(5, 2, 20, sp.Rational(1, 2)))
    values = {n: 20, alpha: sp.Rational(1, 2), found.depth: 5}
    assert found.out.subs(values).fourth == pytest.approx(numeric.out.fourth, rel=1e-13)
    assert found.jacobian("affine_2", 3).subs(values).fourth == pytest.approx(
        numeric.weights["W21"].fourth, rel=1e-13
    )
    assert found.jacobian("affine_1", 2).subs(values).mean == pytest.approx(
        numeric.weights["W10"].mean, rel=1e-13
    )
    stable = found.stability("alpha")
    assert stable.mean_power == 2 and stable.mean_rate == 1
    assert sp.simplify(stable.fourth_rate - 2 * (1 + 2 / n)) == 0
    assert (
        "alpha^2" in str(stable)
        and "mean_factor" in found.to_dict()
        and "array" in found._repr_latex_()
    )
    assert "exp(s)" in str(stable) and "exp(2*s*(n + 2)/n)" in str(stable)
    layer = kc.chain(Affine(n, sigma_w=sp.sqrt(2)), Nonlinear("relu"))
    kept = moments_at_depth(layer, features=n)
    assert "|x|^2\\\\" in kept._repr_latex_() and str(kept).startswith("E|y|^2 = |x|^2\n")
    with pytest.raises(kc.KcalcError, match="no Affine"):
        found.jacobian("sum_1", 1)
    with pytest.raises(kc.KcalcError, match="whole number from 1"):
        moments_at_depth(block, 4, features=n).jacobian("affine_1", 5)


def test_plain_layers_are_never_stable():
    layer = kc.chain(Affine(sigma_w=sp.sqrt(2 * alpha)), Nonlinear("relu"))
    found = depth_stability(layer, alpha, features=n)
    assert found.critical == (1,) and sp.simplify(found.rate - sp.log(1 + 5 / n)) == 0
    assert depth_stability(layer.subs({alpha: 1}), features=30).bounded is False
    with pytest.raises(kc.KcalcError, match="no parameter"):
        depth_stability(layer, "beta", features=n)


def test_alpha_to_the_m_not_to_the_two_m():
    """alpha^(2m) = 1/L: the mean explodes; alpha^m = 1/L: it tends to e."""
    means = [
        moments(oracle.resnet(300, 2, 10, value), jacobian=False).out.mean
        for value in (300**-0.25, 300**-0.5)
    ]
    assert means[0] == pytest.approx((1 + 300**-0.5) ** 300, rel=1e-10) and means[0] > 1e7
    assert means[1] == pytest.approx((1 + 1 / 300) ** 300, rel=1e-10)


# -- answers ---------------------------------------------------------------------------------------


def test_width_for_a_variance():
    found = moments(kc.architectures.vanilla(20, sigma_w=HE, readout=False), features=50)
    width = found.width_for(0.5)
    assert (1 + 5 / width) ** 20 - 1 <= 0.5 < (1 + 5 / (width - 1)) ** 20 - 1
    with pytest.raises(kc.KcalcError, match="stand in the layers"):
        moments(vanilla(3, 10)).width_for(0.5)
    with pytest.raises(kc.KcalcError, match="must be"):
        found.width_for(0)
    with pytest.raises(kc.KcalcError, match="even 100"):
        found.width_for(0.01, most=100)


def test_crelu_budget():
    budget = crelu_budget(100, 20)
    assert budget.crelu_rate == pytest.approx(
        math.log(1 + 2 * math.sqrt(2) / 100)
    ) and budget.relu_rate == pytest.approx(math.log(1.05))
    assert budget.crelu_variance < budget.relu_variance and "concatenated" in str(budget)
    with pytest.raises(kc.KcalcError):
        crelu_budget(-1)
    with pytest.raises(kc.KcalcError):
        crelu_budget(10, 0)


def test_beyond_double_precision_is_said():
    found = moments(vanilla(3000, 10, sigma_w=3), features=None)
    assert found.out.log10_mean == pytest.approx(3000 * math.log10(4.5), rel=1e-12)
    assert found.out.log10_fourth == pytest.approx(3000 * math.log10(4.5**2 * 1.5), rel=1e-12)
    assert any("log10" in note.text for note in found.assumptions)
    assert "e+1959" in str(found) and "inf" not in str(found)
    assert "more" in str(found) and len(str(found).splitlines()) < 50
    json.dumps(found.to_dict(), allow_nan=False)


def test_small_variances_keep_their_digits():
    width = 10**9
    found = moments(vanilla(3, width))
    assert found.out.relative == pytest.approx(15 / width + 75 / width**2, rel=1e-9)


# -- the class and its borders ---------------------------------------------------------------------


def test_atoms():
    found = moments(vanilla(2, 6), weights="rademacher")
    assert found.out.fourth > 1
    with pytest.raises(kc.KcalcError, match="atoms"):
        _ = found.weights
    assert moments(vanilla(2, 6, "identity", 1), weights="rademacher").weights
    with pytest.raises(kc.KcalcError, match="not asked for"):
        _ = moments(vanilla(2, 6), jacobian=False).weights


def _steps(*steps):
    return kc.Network.from_steps([("x", Input(4), ()), ("A", Affine(4), ("x",)), *steps])


REFUSED = {
    "sum then relu": (
        _steps(("s", Sum(), ("x", "A")), ("r", Nonlinear("relu"), ("s",))),
        "'r'.*sum",
    ),
    "relu of the input": (kc.chain(Input(4), Nonlinear("relu"), Affine(4)), "network's input"),
    "smooth": (vanilla(2, 4, "tanh"), "not for tanh"),
    "kink elsewhere": (vanilla(2, 4, "relu6"), "not for relu6"),
    "two that are not fresh": (
        _steps(("r", Nonlinear("relu"), ("A",)), ("s", Sum(), ("x", "r"))),
        "'r'.*mean is not 0",
    ),
    "biases": (kc.chain(Input(4), Affine(4, sigma_b=0.1)), "sigma_b = 0"),
    "convolution": (kc.chain(Input(4), Affine(4, kernel=3)), "convolution"),
    "groups": (kc.chain(Input(4), Affine(4, groups=2)), "groups"),
    "layer norm": (kc.chain(Input(4), Affine(4), LayerNorm()), "LayerNorm"),
    "image": (kc.architectures.wide_resnet(10), "image"),
    "cancelled": (_steps(("s", Sum((1, -1)), ("A", "A"))), "cancel"),
    "misaligned": (
        _steps(
            ("P", Affine(2), ("x",)),
            ("Q", Affine(2), ("x",)),
            ("c", Concat(), ("P", "Q")),
            ("s", Sum(), ("A", "c")),
            ("B", Affine(2), ("s",)),
        ),
        "line up",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals_name_the_node_and_the_reason(name):
    net, message = REFUSED[name]
    with pytest.raises(kc.KcalcError, match=message):
        moments(net)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "features=N"),
        ({"features": True}, "whole number"),
        ({"features": -1}, "whole number"),
        ({"features": 5.5}, "whole number"),
        ({"features": sp.Symbol("n")}, "integer=True"),
        ({"features": 5, "weights": "gauss"}, "law of weights"),
        ({"features": 5, "weights": -3}, ">= -2"),
        ({"features": 5, "weights": float("nan")}, "finite"),
        ({"features": 5, "weights": True}, "must be a number"),
        ({"features": 5, "weights": {"nonlinear_1": 0}}, "no weights"),
        ({"features": 5, "input_fourth": 2}, "lies in"),
        ({"features": 5, "input_fourth": 0.1}, "lies in"),
        ({"features": 5, "jacobian": 1}, "True or False"),
        ({"features": 5, "output": "zz"}, "unknown output"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(kc.KcalcError, match=message):
        moments(kc.architectures.vanilla(2, sigma_w=HE), **options)


def test_two_inputs_and_two_outputs():
    two = kc.Network.from_steps(
        [
            ("x", Input(3), ()),
            ("y", Input(3), ()),
            ("c", Concat(), ("x", "y")),
            ("A", Affine(2), ("c",)),
        ]
    )
    with pytest.raises(kc.KcalcError, match="one input"):
        moments(two)
    split = _steps(("B", Affine(3), ("A",)), ("C", Affine(3), ("A",)))
    with pytest.raises(kc.KcalcError, match="choose one"):
        moments(split)
    found = moments(split, output="B")
    assert (
        found.weights["C"].mean == 0
        and found.weights["C"].variance == 0
        and found.weights["A"].mean > 0
    )
    with pytest.raises(kc.KcalcError, match="expected a kcalc.Network"):
        moments("vanilla")  # type: ignore[arg-type]


def test_mixed_laws_and_dropout():
    net = kc.chain(Input(6), Affine(6), Dropout(0.1), Nonlinear("relu"), Affine(4))
    found = moments(net, weights={"affine_1": "uniform", None: "laplace"})
    assert {note.text for note in found.assumptions} >= {
        "weights are uniform",
        "weights are laplace",
        "dropout is the identity (evaluation)",
    }
    law = {"affine_1": "uniform", "affine_2": "laplace"}
    deviations = oracle.deviations(found, net, 20_000, 5, law)
    assert max(deviations.values()) < SIGMAS


def test_result_habits():
    found = moments(vanilla(2, 5))
    assert repr(found).startswith("Moments(5 nodes") and "\n" not in repr(found)
    assert "<table>" in found._repr_html_() and "mean |y|^2" in str(found)
    assert found.growth == pytest.approx(1 + found.out.relative)
    assert found.out.deviation == pytest.approx(math.sqrt(found.out.variance))
    assert json.dumps(found.to_dict(), allow_nan=False)
    axes = found.plot()
    assert axes.get_ylabel() and len(axes.get_lines()) == 2
