"""Mirrored weights: networks that start linear, against real mirrored weight matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refusals, refused

import kcalc as kc
from kcalc import activation
from kcalc.network.layers import Affine, Nonlinear, Pool

A = kc.architectures


def shaped(name: Any, depth: int = 5, **options: Any) -> Any:
    return kc.shape(A.vanilla(depth, **options), name, method="looks_linear")


def test_what_is_linear_does_not_depend_on_the_size() -> None:
    tiny = activation("elu").transformed(output_scale=1e-20)
    s = shaped(tiny)
    assert (
        s.values["C_f'(1)"] == pytest.approx(shaped("elu").values["C_f'(1)"], rel=1e-12)
        and s.values["C_f'(1)"] > 1.01
    )
    assert "C'(1)" not in s.targets


def test_mirrored_networks_are_linear_functions() -> None:
    """Built from pairs (phi(x), phi(-x)), read by the weights that ``mirrored`` returns."""
    rng = np.random.default_rng(0)
    s = shaped("softplus", depth=6)
    matrices = [rng.standard_normal((20, 20)) / np.sqrt(20) for _ in range(7)]
    x = rng.standard_normal((2, 20))
    h = x @ matrices[0].T
    for node, weights in zip(s.network.nodes_of(Affine)[1:], matrices[1:], strict=True):
        pair = np.logaddexp(0, np.concatenate([h, -h], axis=-1))
        h = pair @ s.mirrored(node, weights).T
    product = np.linalg.multi_dot(matrices[::-1])
    assert h == pytest.approx(x @ product.T, abs=1e-13)


@pytest.mark.parametrize(
    ("name", "message"),
    [("abs", "is even"), ("sign", "jumps"), ("identity", "linear")],
)
def test_activations_that_cannot_be_mirrored(name: str, message: str) -> None:
    with refused(message):
        shaped(name)


PAIR = Affine(), Nonlinear("relu")
test_only_weights_read_pairs = refusals(
    [
        ((*PAIR, Pool("max"), Affine()), "max pooling.*only mirrored"),
        (
            (Affine(), kc.residual(kc.chain(*PAIR)).normalised(), Affine()),
            "Sum.*only mirrored weights",
        ),
        (PAIR, "the output 'nonlinear_1' is an activation"),
    ],
    lambda layers: kc.shape(kc.chain(*layers), method="looks_linear"),
)


def test_weights_that_cannot_be_mirrored_alone() -> None:
    s = shaped("relu")
    assert s.mirrored("affine_2", np.ones((2, 3))).tolist() == [[1, 1, 1, -1, -1, -1]] * 2
    assert s.mirrored("affine_2", np.ones((2, 3, 5, 5))).shape == (2, 6, 5, 5)
    with refused("reads a Input"):
        s.mirrored("affine_1", np.ones((2, 3)))
    with refused("not an Affine"):
        s.mirrored("nonlinear_1", np.ones((2, 3)))
    with refused("shape"):
        s.mirrored("affine_2", np.ones(3))
