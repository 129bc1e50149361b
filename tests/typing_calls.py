# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnusedExpression=false
"""Right and wrong calls, for pyright: `.ci/check types` reads this file, and nothing runs it.

A wrong call carries the errors that are expected of it; one that passes is an error itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, assert_type

import numpy as np
import sympy as sp
from matplotlib.axes import Axes

import kcalc as kc
from kcalc.fields.balls import Enclosure
from kcalc.maps.composition import Composition
from kcalc.shaping import EdgeShaping, NormaliserFree, RegionalShaping, ResidualShaping

if TYPE_CHECKING:
    import jax
    import torch

Array = np.ndarray[Any, Any]
Floats = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]


def maps(net: kc.Network, c: Array, many: list[float], traced: jax.Array) -> None:
    """A number for numbers, an array for arrays."""
    C, Q, phi = kc.c_map(net), kc.q_map(net), kc.activation("tanh")
    local = phi.c_map
    assert_type(local(0.5), float)
    assert_type(local(c), Floats)
    assert_type(local(traced), "jax.Array")
    assert_type(local.plot(), Axes)
    assert_type(C(0.5), float)
    assert_type(C(0.5, 1.0, 2), float)
    assert_type(C(sp.Rational(1, 2), q=2.0), float)
    assert_type(C({"x": 0.5}), float)
    assert_type(C(c), np.ndarray)
    assert_type(C(many), np.ndarray)
    assert_type(C(0.5, c), np.ndarray)
    assert_type(C(traced), "jax.Array")
    assert_type(C.at_angle(0.5), float)
    assert_type(C.derivative(1)(0.5), float)
    assert_type(C.derivative(1)(c), np.ndarray)
    assert_type(C.series(4), np.ndarray)
    assert_type(C.ball(0.5), Enclosure)
    assert_type(C.table()(0.5), float)
    assert_type(C.plot(), Axes)
    assert_type(C.expr, Composition)
    assert_type(C.closed_form, sp.Expr | None)
    assert_type(C.fixed_points()[0].value, float)
    assert_type(Q(1.5), float)
    assert_type(Q(c), np.ndarray)
    assert_type(Q.derivative()(1.0), float)
    assert_type(Q.table()(1.0), float)
    assert_type(phi(0.5), float)
    assert_type(phi(c), Floats)
    C(0.5, zeta=1)  # pyright: ignore[reportCallIssue]
    C(0.5)["x"]  # pyright: ignore[reportIndexIssue]


def kernels(net: kc.Network, c: Array) -> None:
    """Kernels as maps."""
    K = kc.ntk(net)
    assert_type(K(0.5), float)
    assert_type(K(c), np.ndarray)
    assert_type(K.nngp(0.5, q=2), float)
    assert_type(K.layers["affine_1"](0.5), float)
    assert_type(K.ball(0.5), Enclosure)
    assert_type(K.plot(), Axes)
    K(0.5, tokens=3)  # pyright: ignore[reportCallIssue]
    K.nngp.by_layer(0.5)  # pyright: ignore[reportAttributeAccessIssue]


def numbers(net: kc.Network, c: Array) -> None:
    """Other numbers."""
    assert_type(kc.gain("relu"), float)
    assert_type(kc.expectation("relu"), float)
    assert_type(kc.expectation("relu", c), np.ndarray)
    assert_type(kc.pair_expectation("relu", "tanh", 0.5), float)
    assert_type(kc.slope_polynomial(net), sp.Expr)
    assert_type(kc.slope_polynomial(net, expand=True), sp.Poly)
    assert_type(kc.q_values(net)["x"], float)
    assert_type(kc.maximal_slope(net)(1.1), float)
    kc.gain("relu", centered=True)  # pyright: ignore[reportCallIssue]


def shaping(net: kc.Network, reading: kc.Reading) -> None:
    """Each method with its own targets, and what it returns."""
    assert_type(kc.shape(net), kc.Shaping)
    assert_type(kc.shape(net, "tanh", zeta=1.5, q_slope="minimize"), kc.Shaping)
    assert_type(kc.shape(net, method="tat", eta=0.9), kc.Shaping)
    assert_type(kc.shape(net, method="eoc", sigma_b=0.1), EdgeShaping)
    assert_type(kc.shape(net, method="nf", alpha=0.2), NormaliserFree)
    assert_type(kc.shape(net, method="residual_weights", scheme="common"), ResidualShaping)
    assert_type(kc.shape(net, method="he", assume_independent=True), kc.Shaping)
    assert_type(kc.shape(net, method="edge", tokens=32, growth=2), kc.Shaping)
    assert_type(kc.shape(reading, zeta=1.5), kc.Shaping | RegionalShaping)
    assert_type(kc.shaping.dks(net, zeta=1.5, assume_independent=True), kc.Shaping)
    assert_type(kc.shaping.eoc(net, q=1.0), EdgeShaping)
    k = kc.shape(net).constants["tanh"]
    assert_type(k.alpha, float | None)
    kc.shape(net, method="dsk", zeat=1.5)  # pyright: ignore[reportCallIssue]
    kc.shape(net, zeat=1.5)  # pyright: ignore[reportCallIssue]
    kc.shape(net, "tanh", eta=0.9)  # pyright: ignore[reportCallIssue]
    kc.shape(net, method="tat", zeta=1.5)  # pyright: ignore[reportCallIssue, reportArgumentType]
    kc.shape(net, method="he", zeta=1.5)  # pyright: ignore[reportCallIssue, reportArgumentType]
    kc.shape(net, zeta="big")  # pyright: ignore[reportArgumentType, reportCallIssue]
    kc.shape(net, gates="keep")  # pyright: ignore[reportArgumentType, reportCallIssue]
    kc.shape(reading, method="dks", eta=0.9)  # pyright: ignore[reportCallIssue, reportArgumentType]
    kc.shape("net")  # pyright: ignore[reportArgumentType, reportCallIssue]
    kc.shaping.dks(net, zeat=1.5)  # pyright: ignore[reportCallIssue]
    kc.shaping.eoc(net, zeta=1.5)  # pyright: ignore[reportCallIssue]


def models(net: kc.Network, module: torch.nn.Linear, x: Array) -> None:
    """A model comes back as what it was."""
    s = kc.shape(kc.read(module, (2, 8)))
    assert_type(kc.apply_edits(module, s.edits), "torch.nn.Linear")
    assert_type(s.edits, kc.Edits)
    assert_type(kc.load_edited(module, "weights.pt"), "torch.nn.Linear")
    model = kc.to_jax(net)
    params = model.init(0)
    assert_type(model.apply(params, x), "jax.Array")
    assert_type(kc.empirical_ntk(model, params, x), np.ndarray)
    kc.apply_edits(module, s)  # pyright: ignore[reportArgumentType]


def chosen(net: kc.Network, method: Literal["dks", "tat"]) -> None:
    """A method that is chosen at run time among named ones."""
    assert_type(kc.shape(net, method=method), kc.Shaping)
