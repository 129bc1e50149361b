"""What is measured has products of all their digits, also where a device rounds by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kcalc as kc
from kcalc import architectures
from kcalc.calculi import arrays

NETWORK = architectures.vanilla(2, "tanh")
X = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)


def model() -> Any:
    return kc.to_jax(NETWORK, features=6)


def parameters() -> Any:
    return model().init(jax.random.key(0), X)


MEASURED: dict[str, Callable[[], Any]] = {
    "kernels": lambda: kc.verify_kernels(model(), draws=4),
    "tangent kernel": lambda: kc.empirical_ntk(model(), parameters(), X),
    "data-dependent": lambda: kc.lsuv(model(), parameters(), X),
}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[str | None]:
    """The precision of products in force wherever an activation is traced."""
    found: set[str | None] = set()
    activate = arrays.activate

    def noted(*given: Any) -> Any:
        found.add(jax.config.jax_default_matmul_precision)
        return activate(*given)

    monkeypatch.setattr(arrays, "activate", noted)
    return found


@pytest.mark.parametrize("what", MEASURED)
def test_measurements(what: str, seen: set[str | None]) -> None:
    with jax.default_matmul_precision("default"):
        MEASURED[what]()
    assert seen == {"highest"}


def test_traced_kernels() -> None:
    kernel = kc.learnable_kernel(NETWORK)
    with jax.default_matmul_precision("default"):
        traced = str(jax.make_jaxpr(lambda x: kernel({"sigma_w": 1.5}, x))(jnp.asarray(X)))
    assert (
        traced.count("dot_general[")
        == traced.count("precision=(Precision.HIGHEST, Precision.HIGHEST)")
        > 0
    )
