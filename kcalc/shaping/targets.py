"""Types of the targets that :func:`kcalc.shape` passes to each shaping method.

The types list the keyword arguments of the methods; a test checks that both agree.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Rule = Literal["normalisation", "he", "lecun", "glorot", "fan_out", "looks_linear"]
Scheme = Literal["layernorm_equivalent", "de_smith", "inverse_sqrt", "power", "common", "slope"]


class RuleTargets(TypedDict, total=False):
    """Targets that nearly all methods accept, including methods without specific targets."""

    assume_independent: bool


class DksTargets(RuleTargets, total=False):
    """Targets of :func:`kcalc.shaping.dks`."""

    zeta: float
    subnetworks: Literal["strict", "forward"]
    q_slope: float | Literal["minimize"] | None
    free_slope: bool
    tokens: Any
    token_rows: Literal["keep", "rescale"]
    gates: Literal["shape", "normalise"]


class TatTargets(RuleTargets, total=False):
    """Targets of :func:`kcalc.shaping.tat`."""

    eta: float | None
    tau: float | None
    tokens: Any
    token_rows: Literal["keep", "rescale"]


class EocTargets(RuleTargets, total=False):
    """Targets of :func:`kcalc.shaping.eoc`."""

    sigma_b: float | None
    sigma_w: float | None
    q: float | None


class SelfNormalisingTargets(RuleTargets, total=False):
    """Targets of :func:`kcalc.shaping.self_normalising`."""

    parameters: Literal["shift", "halves"]
    input_scale: float


class ResidualWeightsTargets(RuleTargets, total=False):
    """Targets of :func:`kcalc.shaping.residual_weights`."""

    scheme: Scheme
    shortcut_weight: float | None
    residual_weight: float | None
    power: float | None
    slope: float | None
    local_slope: float | None


class NormaliserFreeTargets(RuleTargets, total=False):
    """Targets of :func:`kcalc.shaping.normaliser_free`."""

    alpha: float
    standardise: bool


class GeometricTargets(TypedDict, total=False):
    """Targets of :func:`kcalc.finite_width.geometric`."""

    features: Any
    image_shape: Any
    typical: Any
    input_moment: Any
    input_scaling: bool
    output_std: Any
    balance: Literal["gamma", "nu"]


class EdgeTargets(TypedDict, total=False):
    """Targets of :func:`kcalc.shaping.transformer_edge.edge`."""

    growth: float | None
    token_slope: float | None
    gradient_mean: float | None
    gradient_difference: float | None
    score_variance: float | None
    centre: float | None
    mlp: str | None
    zeta: float
    tokens: int
    token_cosine: float


TARGETS: dict[str, type] = {
    "dks": DksTargets,
    "tat": TatTargets,
    "eoc": EocTargets,
    "self_normalising": SelfNormalisingTargets,
    "residual_weights": ResidualWeightsTargets,
    "nf": NormaliserFreeTargets,
    "geometric": GeometricTargets,
    "edge": EdgeTargets,
}
"""{method: its targets}; other methods have :class:`RuleTargets`."""
