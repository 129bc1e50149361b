"""Normaliser-free networks and weight standardisation.

Constants in 30 digits, recursions written here, and simulated networks.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from thinning import mostly_slow

import kcalc as kc
from kcalc.shaping import normaliser_free

A, L = kc.architectures, kc.layers
GRID = np.linspace(-1, 1, 21)
WIDTH = 300
RELU_GAMMA = 1.7128585504496627  # sqrt(2/(1 - 1/pi))
PLAIN = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(0, x),
}


def relu_map(c):
    c = mpmath.mpf(c)
    return (mpmath.sqrt(max(1 - c * c, 0)) + c * (mpmath.pi - mpmath.acos(c))) / mpmath.pi


def centred_relu(c):
    """Standardised weights after a ReLU: the mean, 1/pi of the second moment, drops out."""
    return (relu_map(c) - 1 / mpmath.pi) / (1 - 1 / mpmath.pi)


# -- weight standardisation as a layer option ------------------------------------------------------


def test_the_rule_of_standardised_weights_after_relu() -> None:
    net = kc.chain(L.Input(), L.Affine(), L.Nonlinear("relu"), L.Affine(standardised=True))
    C = kc.c_map(net)
    truth = [float(centred_relu(c)) for c in GRID]
    assert np.allclose(C(GRID), truth, rtol=0, atol=2e-16 * 4)
    assert kc.q_map(net)(1.0) == pytest.approx(0.5 - 1 / (2 * math.pi), rel=1e-15)
    assert C.derivative(1)(1.0) == pytest.approx(math.pi / (math.pi - 1), rel=1e-14)
    q1, q2, c = 0.4, 2.5, 0.3  # the cosine of a homogeneous map does not know q
    assert C(c, q1, q2) == pytest.approx(float(centred_relu(c)), abs=1e-15)
    ball = C.ball(sp.Rational(3, 10), digits=30)
    with mpmath.workdps(40):
        assert abs(ball.mid - centred_relu(mpmath.mpf(3) / 10)) < 1e-28
    closed = C.closed_form
    assert float(closed.subs(next(iter(closed.free_symbols)), 0.3)) == pytest.approx(
        float(centred_relu(0.3)), abs=1e-15
    )
    layernorm = kc.chain(L.Input(), L.Affine(), L.Nonlinear("relu"), L.LayerNorm(), L.Affine())
    assert np.allclose(C(GRID), kc.c_map(layernorm)(GRID), rtol=0, atol=1e-15)


def test_biases_scales_and_unequal_q() -> None:
    net = kc.chain(
        L.Input(),
        L.Affine(),
        L.Nonlinear("softplus"),
        L.Affine(sigma_w=1.5, sigma_b=0.5, standardised=True),
    )
    c, q1, q2 = 0.3, 0.7, 1.9

    def expect(f):
        edges = [-12, -6, -2, 0, 2, 6, 12]
        return mpmath.quad(lambda x: f(x) * mpmath.npdf(x), edges)

    def soft(x):
        return mpmath.log1p(mpmath.exp(x))

    a, b, r = mpmath.sqrt(q1), mpmath.sqrt(q2), mpmath.sqrt(1 - mpmath.mpf(c) ** 2)
    means = [expect(lambda x, s=s: soft(s * x)) for s in (a, b)]
    squares = [expect(lambda x, s=s: soft(s * x) ** 2) for s in (a, b)]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    inner = PLAIN["softplus"](float(b) * (c * nodes[:, None] + float(r) * nodes))
    cross = weights @ (PLAIN["softplus"](float(a) * nodes) * (inner @ weights))
    var = [2.25 * (s - m * m) + 0.25 for s, m in zip(squares, means, strict=True)]
    truth = (2.25 * (cross - means[0] * means[1]) + 0.25) / mpmath.sqrt(var[0] * var[1])
    assert float(kc.c_map(net)(c, q1, q2)) == pytest.approx(float(truth), abs=1e-12)
    assert kc.q_map(net)(q1) == pytest.approx(float(var[0]), rel=1e-13)


def test_slopes_count_standardised_weights_where_q_is_known() -> None:
    s = normaliser_free(A.resnet_v2(50), "relu")
    assert float(kc.slope_polynomial(s.network, q=1.0).subs(kc.symbols.psi, 1)) == pytest.approx(
        float(kc.c_map(s.network).derivative(1)(1.0)), rel=1e-12
    )
    assert kc.slope_polynomial(s.network).subs(kc.symbols.psi, 1) == pytest.approx(1)
    assert any("this Affine reads" in note.text for note in kc.maximal_slope(s.network).assumptions)
    with refused("Affine at node"):
        kc.maximal_curvature(s.network, q=1.0)


def test_standardised_layers_travel_and_refuse(tmp_path: Path) -> None:
    net = kc.chain(
        L.Input(8),
        L.Affine(16, standardised=True),
        L.Nonlinear("relu"),
        L.Affine(4, standardised=True),
    )
    kc.save_json(net, tmp_path / "net.json")
    assert (
        kc.load_json(tmp_path / "net.json")
        == net
        != net.map_layers(lambda _, x: L.Affine(x.features) if isinstance(x, L.Affine) else x)
    )
    assert '"standardised": true' in (tmp_path / "net.json").read_text()
    with refused("True.*False"):
        L.Affine(standardised=1)  # pyright: ignore[reportArgumentType]
    depthwise = kc.chain(L.Input(8), L.Affine(8, groups=8, standardised=True))
    with refused("one input channel"):
        kc.c_map(depthwise)(0.3)
    constant = kc.chain(
        L.Input(),
        L.Affine(),
        L.Nonlinear(kc.activation(sp.Symbol("x") * 0 + 1)),
        L.Affine(standardised=True),
    )
    with refused("variance.*0"):
        kc.c_map(constant)(0.3)
    shaped = kc.shape(net, "tanh")
    assert not any(getattr(layer, "standardised", False) for _, layer, _ in shaped.network.steps())
    assert (
        "affine_2: weights no longer standardised" in shaped.changes
        and max(shaped.residuals.values()) < 1e-12
    )
    with refused("standard parameterisation"):
        kc.ntk(net, parameterization="standard")(0.3)


# -- a simulator -----------------------------------------------------------------------------------


def draw_weights(network: kc.Network, width: int, rng: np.random.Generator) -> dict:
    """Gaussian matrices; standardised ones with the mean of every row taken out and its variance
    restored.
    """
    sizes, weights = {}, {}
    for node, layer, parents in network.steps():
        if isinstance(layer, L.Affine):
            fan_in = sizes[parents[0]]
            W = rng.standard_normal((width, fan_in))
            if layer.standardised:
                W -= W.mean(axis=1, keepdims=True)
                W /= W.std(axis=1, keepdims=True)
            weights[node] = W * float(layer.sigma_w) / math.sqrt(fan_in)
            sizes[node] = width
        elif isinstance(layer, L.Concat):
            sizes[node] = sum(sizes[parent] for parent in parents)
        else:
            sizes[node] = sizes[parents[0]] if parents else width
    return weights


def run(network: kc.Network, weights: dict, x: np.ndarray, gammas: dict[str, float]) -> dict:
    """All feature maps, shape (inputs, channels), layers without rules of their own passing on."""
    values = {}
    for node, layer, parents in network.steps():
        below = [values[parent] for parent in parents]
        if isinstance(layer, L.Input):
            values[node] = x
        elif isinstance(layer, L.Affine):
            values[node] = below[0] @ weights[node].T
        elif isinstance(layer, L.Nonlinear):
            name = next(name for name in PLAIN if name in layer.activation.name)
            values[node] = gammas.get(name, 1.0) * PLAIN[name](below[0])
        elif isinstance(layer, L.Sum):
            values[node] = sum(
                float(w) * h for w, h in zip(layer.weights or (1,) * len(below), below, strict=True)
            )
        elif isinstance(layer, L.Scale):
            values[node] = float(layer.factor) * below[0]
        elif isinstance(layer, L.Concat):
            values[node] = np.concatenate(below, axis=1)
        else:
            values[node] = below[0]
    return values


def two_inputs(rng: np.random.Generator, width: int, c: float) -> np.ndarray:
    raw = rng.standard_normal((2, width))
    raw -= raw.mean(axis=1, keepdims=True)
    first = raw[0] / np.sqrt(np.mean(raw[0] ** 2))
    other = raw[1] - np.mean(raw[1] * first) * first
    other /= np.sqrt(np.mean(other**2))
    return np.stack([first, c * first + math.sqrt(1 - c * c) * other])


def measured(
    network: kc.Network,
    nodes: list,
    c: float,
    gammas: dict[str, float],
    width: int = WIDTH,
    draws: int = 40,
) -> dict:
    """{node: (mean and standard error of q, of c)} over independent networks."""
    rng = np.random.default_rng(7)
    rows = {node: [] for node in nodes}
    for _ in range(draws):
        x = two_inputs(rng, width, c)
        values = run(network, draw_weights(network, width, rng), x, gammas)
        for node in nodes:
            a, b = values[node]
            rows[node].append(
                (np.mean(a * a), np.mean(a * b) / math.sqrt(np.mean(a * a) * np.mean(b * b)))
            )
    out = {}
    for node, samples in rows.items():
        table = np.array(samples)
        out[node] = (table.mean(axis=0), table.std(axis=0, ddof=1) / math.sqrt(draws))
    return out


def test_standardised_weights_in_a_simulated_network() -> None:
    steps = [("x", L.Input(), ()), ("a", L.Affine(), ("x",)), ("b", L.Affine(), ("x",))]
    steps += [
        ("f", L.Nonlinear("relu"), ("a",)),
        ("g", L.Nonlinear("softplus"), ("b",)),
        ("j", L.Concat((1, 1)), ("f", "g")),
    ]
    steps += [
        ("s", L.Affine(sigma_w=1.3, standardised=True), ("j",)),
        ("h", L.Nonlinear("softplus"), ("s",)),
    ]
    steps += [("t", L.Affine(standardised=True), ("h",)), ("u", L.Affine(), ("h",))]
    net = kc.Network.from_steps(steps)
    told, found = kc.node_values(net, 0.4), measured(net, ["s", "t", "u"], 0.4, {})
    for node, (means, errors) in found.items():
        q, _, c = told[node]
        slack = errors * 4 + 3 / WIDTH  # finite width shifts both by O(1/width)
        assert abs(means[0] - q) < slack[0] * max(1, q) and abs(means[1] - c) < slack[1]
        assert errors[1] < 0.02
    assert told["u"][2] - told["t"][2] > 0.3  # the means that drop out are most of the cosine


# -- normaliser-free networks ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("relu", lambda x: max(x, 0)),
        ("gelu", lambda x: x * mpmath.ncdf(x)),
        ("swish", lambda x: x / (1 + mpmath.exp(-x))),
        ("tanh", mpmath.tanh),
        ("sigmoid", lambda x: 1 / (1 + mpmath.exp(-x))),
        ("softplus", lambda x: mpmath.log1p(mpmath.exp(x))),
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
    net = A.rescaled_resnet(2)
    assert kc.shape(net, name, method="nf").constants[name].gamma == pytest.approx(
        centred, rel=3e-15
    )
    assert kc.shape(net, name, method="nf", standardise=False).constants[
        name
    ].gamma == pytest.approx(plain, rel=3e-15)


def test_gamma_of_relu_is_the_published_one() -> None:
    assert normaliser_free(A.vanilla(3), "relu").constants["relu"].gamma == pytest.approx(
        RELU_GAMMA, rel=2e-16
    )


@pytest.mark.parametrize("alpha", mostly_slow([0.2, 1.0, 0.05]))
def test_beta_by_the_textbook_recursion(alpha: float) -> None:
    s = kc.shape(A.resnet_v2(101), "relu", method="nf", alpha=alpha)
    betas, after = [], []
    variance = mpmath.mpf(1)
    for blocks in (3, 4, 23, 3):
        for block in range(blocks):
            betas.append(mpmath.sqrt(variance))
            variance = (1 if block == 0 else variance) + mpmath.mpf(alpha) ** 2
            after.append(variance)
    assert np.allclose(list(s.betas.values()), [float(b) for b in betas], rtol=1e-14)
    assert np.allclose(list(s.variances.values()), [float(v) for v in after], rtol=1e-14)
    values = kc.q_values(s.unnormalised)
    assert np.allclose(
        [values[node] for node in s.variances], [float(v) for v in after], rtol=1e-13
    )
    for net in (s.network, s.unnormalised):
        inside = kc.q_values(net)
        assert (
            max(abs(inside[net.parents(node)[0]] - 1) for node in net.nodes_of(L.Nonlinear))
            <= 1e-13
        )
    assert np.max(np.abs(kc.c_map(s.network)(GRID) - kc.c_map(s.unnormalised)(GRID))) <= 1e-13
    assert max(s.residuals.values()) <= 1e-13
    squares = [
        float(a) ** 2 + float(b) ** 2
        for a, b in (block.weights for block in kc.residual_blocks(s.network))
    ]
    assert np.allclose(squares, 1, rtol=1e-15)
    assert {block.weights for block in kc.residual_blocks(s.unnormalised)} == {(1, alpha)}
    assert not s.network.nodes_of(L.Scale) and len(s.unnormalised.nodes_of(L.Scale)) == 33


def test_the_c_map_by_a_recursion() -> None:
    s = normaliser_free(A.rescaled_resnet(9, 2), "relu", alpha=0.3)
    with mpmath.workdps(30):
        c, variance = mpmath.mpf("0.35"), mpmath.mpf(1)
        square = mpmath.mpf(0.3) ** 2
        for _ in range(9):
            c = (variance * c + square * centred_relu(centred_relu(c))) / (variance + square)
            variance += square
    assert float(kc.c_map(s.network)(0.35)) == pytest.approx(float(c), abs=1e-14)
    assert float(kc.q_map(s.unnormalised)(1.0)) == pytest.approx(float(variance), rel=1e-14)


@pytest.mark.parametrize("name", ["relu", "softplus"])
def test_both_forms_are_one_function(name: str) -> None:
    s = normaliser_free(kc.chain(A.resnet_v2(50)), name, alpha=0.5)
    rng = np.random.default_rng(3)
    weights, x = draw_weights(s.network, 24, rng), rng.standard_normal((2, 24))
    gammas = {name: s.constants[name].gamma}
    ours, published = (run(net, weights, x, gammas) for net in (s.network, s.unnormalised))
    for node, variance in s.variances.items():
        assert np.allclose(
            published[node], math.sqrt(variance) * ours[node], rtol=1e-11, atol=1e-12
        )
    (out,) = s.network.outputs
    assert np.allclose(published[out], ours[out], rtol=1e-10, atol=1e-12)


def test_simulated_normaliser_free_network_keeps_its_variances() -> None:
    s = normaliser_free(A.rescaled_resnet(6, 1), "relu", alpha=0.7)
    nodes = list(s.variances)
    found = measured(s.unnormalised, nodes, 0.2, {"relu": s.constants["relu"].gamma})
    told = kc.node_values(s.unnormalised, 0.2)
    for node, (means, errors) in found.items():
        slack = errors * 4 + 3 / WIDTH
        assert (
            abs(means[0] / s.variances[node] - 1) < slack[0]
            and abs(means[1] - told[node][2]) < slack[1]
        )
    plain = normaliser_free(A.rescaled_resnet(6, 1), "relu", alpha=0.7, standardise=False)
    # standardised weights keep C(0) = 0
    assert kc.c_map(plain.network)(0.0) > 0.3 > abs(kc.c_map(s.network)(0.0))


def test_normalisers_are_taken_out_and_changes_say_so() -> None:
    norm = kc.chain(L.BatchNorm(), L.Nonlinear("relu"), L.Affine(8, kernel=3))
    net = kc.chain(
        L.Input(3, (8, 8)),
        L.Affine(8),
        kc.repeat(kc.residual(norm), 3),
        L.BatchNorm(),
        L.Nonlinear("relu"),
        L.Affine(2),
    )
    s = kc.shape(net, method="nf")
    assert (
        "batchnorm_1: BatchNorm removed" in s.changes
        and "sum_1: shortcut weight 0.9805806757" in s.changes[4]
    )
    assert (
        any("standardised" in text for text in s.changes)
        and "normalised sums instead of beta" in s.changes[-1]
    )
    assert list(s.betas.values()) == pytest.approx([1, math.sqrt(1.04), math.sqrt(1.08)])
    data = json.loads(json.dumps(s.to_dict()))
    assert data["blocks"]["sum_2"] == {
        "beta": pytest.approx(math.sqrt(1.04)),
        "variance": pytest.approx(1.08),
    }
    assert data["options"] == {"alpha": 0.2, "standardise": True}
    kc.shape(A.layernorm_resnet(50), method="nf")
    assert kc.shape(A.vanilla(4), "relu", method="nf").betas == {}
    pooled = kc.chain(
        L.Input(),
        L.Affine(),
        kc.residual(kc.chain(L.Nonlinear("relu"), L.Affine())),
        L.Pool("mean"),
        L.Flatten(),
        L.Affine(),
    )
    assert max(kc.shape(pooled, method="nf", alpha=2).residuals.values()) < 1e-14


def test_several_activations_have_gammas_of_their_own() -> None:
    net = kc.chain(
        L.Input(),
        L.Affine(),
        *[kc.residual(kc.chain(L.Nonlinear(n), L.Affine()), 0.5) for n in ("relu", "gelu", "tanh")],
    )
    s = kc.shape(net, method="nf")
    assert [s.constants[n].gamma for n in ("relu", "tanh")] == pytest.approx(
        [RELU_GAMMA, kc.gain("tanh", centred=True)], rel=1e-13
    )
    assert max(s.residuals.values()) < 1e-13


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": 0}, "must be a number > 0"),
        ({"alpha": -0.2}, "must be a number > 0"),
        ({"alpha": sp.Symbol("a")}, "must be a number > 0"),
        ({"alpha": math.inf}, "finite"),
        ({"alpha": "0.2"}, "must be a number"),
        ({"standardise": "yes"}, "True or False"),
        ({"beta": 1}, "unknown target"),
        ({"activation": "sign"}, "jumps"),
        ({"activation": "identity"}, "linear"),
    ],
)
def test_refusals(options: dict, words: str) -> None:
    with refused(words):
        kc.shape(A.rescaled_resnet(3), **{"method": "nf", "activation": "relu", **options})


def test_networks_that_cannot_be_normaliser_free() -> None:
    depthwise = kc.chain(
        L.Input(8), L.Affine(8), L.Nonlinear("relu"), L.Affine(8, groups=8), L.Affine(8)
    )
    with refused("standardise"):
        kc.shape(depthwise, method="nf")
    steps = [
        ("x", L.Input(), ()),
        ("a", L.Affine(), ("x",)),
        ("f", L.Nonlinear("relu"), ("a",)),
        ("j", L.Concat((1, 1)), ("a", "f")),
    ]
    steps += [
        ("b", L.Affine(), ("j",)),
        ("g", L.Nonlinear("relu"), ("b",)),
        ("o", L.Affine(), ("g",)),
    ]
    with refused("different means"):
        kc.shape(kc.Network.from_steps(steps), method="nf")
    linear = kc.chain(L.Input(), L.Affine())
    with refused("no nonlinear layer"):
        kc.shape(linear, method="nf")
    plain = kc.Network.from_steps(
        [
            *steps[:3],
            ("c", L.Affine(), ("f",)),
            ("d", L.Affine(), ("f",)),
            ("s", L.Sum(), ("c", "d")),
        ]
    )
    with refused("not normalised"):
        kc.shape(plain, method="nf")
