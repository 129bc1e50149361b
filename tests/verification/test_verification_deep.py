"""A hundred layers against their maps.

The figures of TAT App. E.1, compiled with all optimisations.
"""

from __future__ import annotations

import pytest

import kcalc as kc


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["gaussian", "orthogonal"])
def test_a_hundred_layers_of_tailored_relu(weights: str, every: int):
    """Every layer within 4 standard errors of the map.

    ``python -m benchmarks.accuracy`` does it at width 300 with 50 networks.
    """
    net = kc.shape(kc.architectures.vanilla(100), "relu", method="tat", eta=0.9)
    model = kc.to_jax(net, 128, weights=weights)
    draws = 16 if every == 1 else 8
    found = kc.verify_kernels(
        model, (0.0, 0.8), draws=draws, pairs=16, tangent=False, gradients=False
    )
    assert found.passed, found
    assert found.statistic("c").error.max() <= 0.2 / draws**0.5


@pytest.mark.slow
def test_tailored_relu_deviates_less_than_softplus(every: int):
    """TAT's claim for Gaussian weights, at a width of 100."""
    spread = {}
    for name, options in {
        "relu": {"method": "tat", "eta": 0.9},
        "softplus": {"method": "dks", "zeta": 10.0},
    }.items():
        net = kc.shape(kc.architectures.vanilla(100), name, **options)
        model = kc.to_jax(net, 100, weights="gaussian")
        found = kc.verify_kernels(
            model,
            (0.0, 0.8),
            draws=16 if every == 1 else 8,
            pairs=8,
            tangent=False,
            gradients=False,
        )
        spread[name] = found.fluctuation("c").values[0]
    assert spread["softplus"] > 1.5 * spread["relu"]
