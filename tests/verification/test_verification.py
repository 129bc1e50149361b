"""Models against their kernel maps.

Laws of small samples that are known, wrong models found out, and the figures of the papers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.verification import layer_jacobians, plots
from kcalc.verification.statistics import bias, fitted, root_mean_square

L = kc.layers


def test_linear_gaussian_layers_have_known_laws(untouched_pyplot: None):
    """n Gaussian pairs: c has mean c - c (1 - c^2) / 2n and deviation (1 - c^2) / sqrt n, q the
    deviation q sqrt(2 / n).

    Products of Gaussian matrices: E|d out / d node|^2 = product of sigma_w^2 exactly, and a
    network's tangent kernel too in the mean.
    """
    n, c = 20, (0.0, 0.6)
    net = kc.chain(L.Input(8), L.Affine(), L.Affine(sigma_w=0.7), L.Affine(sigma_w=1.3))
    check = kc.verify_kernels(
        kc.to_jax(net, n, weights="gaussian", parameterization="ntk"),
        c=c,
        q=2.0,
        draws=1500,
        pairs=2,
    )
    s, q = check.statistic("c"), check.statistic("q")
    for j, value in enumerate(c):
        expected = value - value * (1 - value**2) / (2 * n)
        assert abs(s.mean[1, j] - expected) < 4 * s.error[1, j] + 0.3 / n**2
        assert s.std[1, j] == pytest.approx((1 - value**2) / np.sqrt(n), rel=0.12)
    assert np.allclose(q.std[1], 2 * np.sqrt(2 / n), rtol=0.12) and np.all(np.abs(q.z[1]) < 4)
    assert np.abs(s.mean[0] - c).max() < 1e-6 and not check.judged()[0]
    gradients, tangent = check.gradients, check.tangent
    assert gradients is not None and tangent is not None
    products = np.array([(0.7 * 1.3) ** 2, (0.7 * 1.3) ** 2, 1.3**2, 1])
    assert np.allclose(gradients.statistic.expected, products)
    assert np.all(np.abs(gradients.statistic.z) < 4) and np.all(
        gradients.statistic.error[:-1] < 0.03 * products[:-1]
    )
    total = tangent.total()
    assert np.allclose(total.expected, 3 * (0.7 * 1.3) ** 2 * 2 * np.array([[1, 1], [1, 1], c]))
    assert np.all(np.abs(total.z) < 4) and np.all(total.error < 0.1)


@pytest.fixture(scope="module")
def check() -> Any:
    """Three layers and a readout of one channel at two widths."""
    net = kc.shape(kc.architectures.vanilla(3), "tanh", method="dks")
    model = kc.to_jax(
        net, {"affine_4": 1, "input": 16, None: 9}, weights="gaussian", parameterization="ntk"
    )
    return kc.verify_kernels(model, c=(0.2, 0.8), widths=(24, 96), draws=480, gradients=False)


def test_powers_of_the_width(check: Any):
    """One draw deviates by width^-1/2, means by 1/width; so does the tangent kernel."""
    for quantity in ("q", "c"):
        assert check.fluctuation(quantity).exponent == pytest.approx(-0.5, abs=0.12)
    mean = check.bias("c")
    assert mean.exponent is None or mean.exponent == pytest.approx(-1, abs=4 * mean.error + 0.3)
    assert check.deviations[0] == check.worst and not check.deviating(slack=0.1)
    assert len(check.deviating(errors=0)) == len(check.deviations)
    assert check.tangent.fluctuation.exponent == pytest.approx(-0.5, abs=0.15)
    layers = check.tangent.layers(96)
    assert layers.mean.shape == (4, 3, 2)
    assert np.all(np.abs(layers.mean - layers.expected) < 5 * layers.error + 0.15 * layers.expected)


def test_singular_values(untouched_pyplot: None):
    """Orthogonal linear layers are isometries.

    a Gaussian one has singular values up to 2 and |J|^2 = channels.
    """
    linear = kc.chain(L.Input(), *[L.Affine() for _ in range(4)])
    one = layer_jacobians(
        kc.to_jax(linear, 24), nodes=["affine_3", "affine_4"], start="affine_2", draws=2
    )
    assert all(s.shape == (2, 24) and np.allclose(s, 1, atol=1e-5) for s in one.values.values())
    assert not one.expected and one.plot().get_lines() and "affine_4" in str(one)
    wide = layer_jacobians(
        kc.to_jax(kc.chain(L.Input(), L.Affine()), {"input": 400, None: 400}, weights="gaussian")
    )
    (s,) = wide.values.values()
    assert s.max() == pytest.approx(2, abs=0.15) and s.min() < 0.05
    assert wide.mean_square["affine_1"][0] == pytest.approx(1, abs=0.02)
    assert wide.expected["affine_1"] == pytest.approx(1)
    steep = kc.chain(L.Input(), L.Affine(sigma_w=1e30), L.Affine(sigma_w=1e30))
    with refused("'affine_2': its Jacobian overflows"):
        layer_jacobians(kc.to_jax(steep, 8))
    with refused("'affine_4'"):
        layer_jacobians(kc.to_jax(linear, 8), nodes=["affine_1"], start="affine_4")


def test_images_with_pooling_and_residuals():
    net = kc.chain(
        L.Input(image_shape=(3, 4)),
        L.Affine(kernel=3),
        L.Nonlinear("relu"),
        L.Affine(kernel=3, sigma_w=2**0.5, stride=2),
        L.Pool("mean"),
        L.Nonlinear("tanh"),
        L.Affine(),
    )
    with refused("channels.*'input'"):
        kc.verify_kernels(kc.to_jax(net, {"affine_1": 8, "affine_2": 8, "affine_3": 8}), draws=2)
    found = kc.verify_kernels(
        kc.to_jax(net, 40, weights="delta_gaussian", parameterization="ntk"),
        c=0.3,
        q=1.5,
        draws=40,
        jacobians=True,
    )
    assert found.passed, found
    assert any("the same vector" in a.text for a in found.assumptions)
    assert found.tangent is not None and np.all(np.abs(found.tangent.total().z) < 4.5)
    assert found.gradients is not None and np.all(np.abs(found.gradients.statistic.z) < 4.5)
    assert found.jacobians is not None and found.jacobians.expected


def test_two_q_values_and_two_inputs():
    net = wired(
        ("x", L.Input(32)),
        ("y", L.Input(48)),
        ("a", L.Affine(64), "x"),
        ("b", L.Affine(64, sigma_b=0.5), "y"),
        ("s", L.Sum((0.6, 0.8)), "a b"),
        ("t", L.Nonlinear("tanh")),
    )
    found = kc.verify_kernels(
        kc.to_jax(net), c={"x": 0.9, "y": -0.5}, q1=0.5, q2={"x": 2.0, "y": 0.5}, draws=60,
        gradients=False,
    )  # fmt: skip
    assert found.quantities == ("q1", "q2", "c") and found.passed, found
    s = found.statistic("q2")
    assert s.expected[list(found.nodes).index("a"), 0] == pytest.approx(2.0)
    assert found.tangent is None and any("different c or q" in a.text for a in found.assumptions)


def test_wrong_models_are_refused_and_found_out():
    net = kc.chain(L.Input(), L.Affine(64), L.Nonlinear("relu"), L.Affine(32))
    glorot = kc.to_jax(net, {"input": 32}, weights="glorot")
    with refused("node 'affine_1'.*heuristic=True"):
        kc.verify_kernels(glorot, draws=20)
    found = kc.verify_kernels(glorot, draws=40, heuristic=True, tangent=False, gradients=False)
    assert not found.passed and found.worst.quantity == "q"
    with refused("mup parameterization"):
        kc.verify_kernels(kc.to_jax(net, {"input": 32}, parameterization="mup"), draws=20)
    normed = kc.chain(L.Input(8), L.Affine(8), L.BatchNorm())
    with pytest.raises(kc.NoRule, match="BatchNorm"):
        kc.verify_kernels(kc.to_jax(normed), draws=20)


def test_bad_input():
    open_ = kc.to_jax(kc.architectures.vanilla(2, "relu"), 8)
    closed = kc.to_jax(kc.chain(L.Input(8), L.Affine(8)))
    for model, arguments, message in (
        (open_, {"draws": 1}, "draws must be an integer >= 2"),
        (open_, {"pairs": 0}, "pairs must be"),
        (open_, {"c": 1.5}, "cosine"),
        (open_, {"q": 0}, "q is a mean square"),
        (open_, {"c": (0.1, 0.2), "q": (1, 2, 3)}, "1-d arrays of equal length"),
        (open_, {"widths": (8, 8)}, "different positive"),
        (open_, {"widths": 8}, "widths must be a sequence"),
        (closed, {"widths": (8, 16)}, "every layer specifies its width"),
        (kc.to_jax(kc.chain(L.Input(1), L.Affine(8))), {}, "one channel"),
        (kc.to_jax(kc.chain(L.Input(), L.Affine(8))), {}, "number of channels of the input"),
        ("network", {}, "expected a model"),
    ):
        with refused(message):
            kc.verify_kernels(model, **arguments)  # pyright: ignore[reportArgumentType]
    dead = kc.to_jax(kc.chain(L.Input(2), L.Affine(1), L.Nonlinear("relu"), L.Affine(20)))
    with refused("'nonlinear_1'"):
        kc.verify_kernels(dead, draws=20, tangent=False, gradients=False)


def test_estimators_on_made_up_numbers():
    rng = np.random.default_rng(0)
    widths = (10, 100, 1000)
    noise = [0.3 * rng.standard_normal((400, 1)) + rng.standard_normal((400, 30)) for _ in widths]
    spread = root_mean_square(
        [n / np.sqrt(w) for n, w in zip(noise, widths, strict=True)], [0.0] * 3, widths
    )
    assert (
        spread.exponent == pytest.approx(-0.5, abs=4 * (spread.error or 0))
        and 0 < (spread.error or 0) < 0.02
    )
    assert spread.values[0] == pytest.approx(np.sqrt(1.09 / 10), rel=0.05)
    shifted = [5 / w + n / np.sqrt(w) / 10 for n, w in zip(noise, widths, strict=True)]
    mean = bias(shifted, widths)
    assert mean.exponent == pytest.approx(-1, abs=4 * (mean.error or 0))
    assert np.allclose(mean.values, [0.5, 0.05, 0.005], rtol=0.15)
    assert bias(noise, widths).exponent is None and np.isnan(bias(noise, widths).values).all()
    part = fitted(widths, (0.4, 0.04, float("nan")), (0.01, 0.001, float("nan")))
    assert part.exponent == pytest.approx(-1) and "2 of 3 widths" in str(part)
    exact = fitted((2, 4, 8), (3 / 4, 3 / 16, 3 / 64), (0.01, 0.01, 0.01))
    assert exact.exponent == pytest.approx(-2)


def test_results_show_themselves(check: Any, untouched_pyplot: None):
    assert "power" in str(check) and "affine_1" in str(check.rows)
    plain = check.to_dict()
    assert plain["powers"]["c"]["fluctuation"]["exponent"] < 0 and len(plain["values"]["c"]) == 2
    assert len(check.plot().axes) == 3
    errors = check.statistic("c").error[check.judged()]
    assert check.largest_error("c") == errors.max() > errors.min() > 0
    with refused("errors is a number of standard errors"):
        check.allowed(errors=-1)
    rows = check.to_dataframe()
    assert len(rows) == 2 * len(check.quantities) * len(check.nodes) * len(check.c)
    rows = rows[(rows["quantity"] == "c") & (rows["width"] == 24) & (rows["node"] == "affine_2")]
    assert list(rows["input c"]) == [0.2, 0.8]
    assert list(rows["mean"]) == list(check.statistic("c", 24).mean[check.nodes.index("affine_2")])
    for ax in (plots.values_by_layer(check, "q"), plots.errors_by_width(check)):
        assert ax.get_lines()
    for call in (
        lambda: check.statistic("k"),
        lambda: check.statistic("c", 17),
        lambda: plots.values_by_layer(check, case=2),
    ):
        with pytest.raises(kc.KcalcError):
            call()
