"""Constants that preserve mean 0 and variance 1 from layer to layer, as SELU does.

This module also computes whether that fixed point is attracting.

[Klambauer, Unterthiner, Mayr, Hochreiter 2017]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import sympy as sp

from ..activations import Activation, X
from ..activations.jax_function import JaxFunction, jax_function
from ..activations.transformation import short
from ..fields import SYMPY
from ..fields.arguments import number_within
from ..foundation.errors import KcalcError, UnreachableTarget, unknown
from ..foundation.process_state import cached_property
from ..gaussian.expectations.quadrature import Array
from ..maps.maps import Assumption
from ..network.network import Network
from .base import Shaping, prepared, replace_activations
from .choose_branch import check_nonlinear
from .constants import Constants, constants_of
from .hypotheses import check_fresh
from .methods import shaping_method
from .moments import FINEST, converged_moments, panels
from .needs import fresh, known_tokens, no_products, plain_network
from .records import MethodCall, Record
from .thirty_digits import local_values

PARAMETERS = {
    "shift": "gamma (phi + delta): output scale and output shift",
    "halves": "gamma (phi for x > 0, alpha phi for x < 0): output scale and scale of the "
    "negative half, the two constants of SELU",
}
ZERO = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class Halves(Activation):
    """The function phi(x) for x >= 0 and negative_scale * phi(x) for x < 0, with phi(0) = 0."""

    original: Activation = field(default=None)  # type: ignore[assignment]
    negative_scale: sp.Expr = field(default=sp.Integer(1))

    def _compile(self, n: int) -> Callable[[Array], Array]:
        inner, factor = self.original.numeric(n), float(self.negative_scale)
        return lambda x: np.where(np.asarray(x) < 0, factor, 1.0) * inner(x)

    def jax_values(self, n: int) -> JaxFunction:
        import jax.numpy as jnp

        inner, factor = jax_function(self.original, n), float(self.negative_scale)
        return lambda x: jnp.where(x < 0, factor, 1.0) * inner(x)


def scaled_halves(phi: Activation, negative_scale: Any) -> Activation:
    """Multiply the values of phi at x < 0 by a constant.

    Raises: KcalcError unless phi(0) = 0, because the result would jump there.
    """
    at_zero = float(phi(0.0))
    if abs(at_zero) > ZERO:
        raise KcalcError(
            f"{phi.name}(0) = {at_zero:.6g} is not 0, so scaling one half creates a jump; use "
            "parameters='shift'"
        )
    alpha = SYMPY.number(negative_scale)
    return Halves(
        name=f"{phi.name}[{short(alpha)} below 0]",
        expr=sp.Piecewise((alpha * phi.expr, X < 0), (phi.expr, True)),
        kinks=tuple(sorted({*phi.kinks, sp.Integer(0)}, key=float)),
        degree=phi.degree,
        growth=None
        if phi.growth is None
        else (phi.growth[0] * max(1.0, float(alpha)), *phi.growth[1:]),
        original=phi,
        negative_scale=alpha,
    )


@dataclass(frozen=True)
class HalvesConstants(Constants):
    """Constants that include ``negative_scale``, a factor of phi at x < 0."""

    negative_scale: float = 1.0

    @cached_property
    def transformed(self) -> Activation:
        """The activation ``output_scale * halves(input_scale x)``; see :class:`Halves`."""
        halves = scaled_halves(self.activation, self.negative_scale)
        return halves.transformed(
            1 if self.input_scale is None else self.input_scale, 0, self.output_scale, 0
        )

    def describe(self) -> str:
        """Describe the transformed activation in one line."""
        inside = "x" if self.input_scale is None else f"{self.input_scale:.6g}*x"
        name = self.activation.name
        return (
            f"{self.output_scale:.6g}*({name}({inside}) for x > 0, "
            f"{self.negative_scale:.6g}*{name}({inside}) for x < 0)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the constants as plain data."""
        return super().to_dict() | {"negative_scale": self.negative_scale}


@dataclass(frozen=True)
class FixedPointStability:
    """The map (mean, variance) -> (mean, variance) of one layer, linearised at (0, 1).

    The weights of each output sum to 0, and their squares sum to 1. Therefore z ~ N(0, variance)
    for any mean, and the first column is 0. The second column is d/dq of E phi(sqrt q z) and of the
    variance of phi(sqrt q z) at q = 1.
    """

    jacobian: tuple[tuple[float, float], tuple[float, float]]

    @property
    def eigenvalues(self) -> tuple[float, float]:
        """The eigenvalues: 0, and Q'(1) for the variance."""
        return 0.0, self.jacobian[1][1]

    @property
    def norm(self) -> float:
        """The largest singular value.

        If it is below 1, the map contracts at every step, not only asymptotically.
        """
        return math.hypot(self.jacobian[0][1], self.jacobian[1][1])

    @property
    def attractive(self) -> bool | None:
        """Whether (0, 1) is attracting: all eigenvalues have modulus < 1.

        None if a modulus is 1 up to rounding.
        """
        largest = abs(self.jacobian[1][1])
        return None if abs(largest - 1) < 1e-12 else largest < 1


def stability(phi: Activation) -> FixedPointStability:
    """Return the linearised map of a layer with this activation.

    The activation must satisfy E phi = 0 and E phi^2 = 1 at q = 1.
    """
    tilt = float(phi.q_series(1.0, 1, 1)[1])
    return FixedPointStability(((0.0, tilt), (0.0, float(local_values(phi)["Q'(1)"]))))


@dataclass(frozen=True, repr=False)
class SelfNormalising(Shaping):
    """A network whose activations preserve mean 0 and variance 1.

    Attributes
    ----------
    values
        The targets, and Q'(1), C'(1) and C_f'(1).

    """

    @cached_property
    def stability(self) -> dict[str, FixedPointStability]:
        """Return {activation name: linearised map of its layer at the fixed point}."""
        return {name: stability(self.constants[name].transformed) for name in self.constants}

    @cached_property
    def _measured(self) -> dict[str, Any]:
        """Compute the targets and the slopes.

        The slopes are the largest Q'(1) and C'(1) over activations, and the slope of the network.
        """
        local = [local_values(k.transformed) for k in self.constants.distinct]
        worst = {
            condition: max(values[condition] for values in local)
            for condition in ("Q'(1)", "C'(1)")
        }
        whole = {"C_f'(1)": self._ends[1]} if len(self.network.outputs) == 1 else {}
        return super()._measured | worst | whole

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain data with a versioned schema.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        found = {
            name: {
                "jacobian": [list(row) for row in s.jacobian],
                "eigenvalues": list(s.eigenvalues),
                "norm": s.norm,
            }
            for name, s in self.stability.items()
        }
        return super().to_dict() | {"stability": found}


def constants_exist(call: MethodCall) -> None:
    """Require that constants exist for every activation.

    Raises: KcalcError if they do not.
    """
    rule = halved if call.targets.get("parameters") == "halves" else shifted
    for phi in plain_network(call).activations:
        rule(phi, float(call.targets.get("input_scale", 1.0)))


@shaping_method(
    "self_normalising",
    Record(
        "The fixed point of SELU for any activation: mean 0 and variance 1 are preserved.",
        {
            "parameters": "shift (output scale and shift; default) or halves (output scale and "
            "scale of the negative half; elu gives SELU)",
            "input_scale": "factor applied to the activation's inputs, > 0; default 1",
        },
        needs=(known_tokens, no_products, fresh, constants_exist),
    ),
)
def self_normalising(
    network: Network,
    activation: Any = None,
    parameters: Literal["shift", "halves"] = "shift",
    input_scale: float = 1.0,
    *,
    assume_independent: bool = False,
) -> SelfNormalising:
    """Give every activation mean 0 and variance 1 for inputs with mean 0 and variance 1.

    This is the fixed point of SELU.

    Two free constants meet the two conditions E phi = 0 and E phi^2 = 1 at q = 1, each in closed
    form.

    The slope C'(1) >= 1 is not controlled, so C_f'(1) grows exponentially with depth; DKS bounds
    it. For discontinuous activations (sign), the slope is infinite although mean and variance are
    preserved; an assumption says so. ``stability`` contains the Jacobian of the map (mean,
    variance) -> (mean, variance) and its eigenvalues. A warning names activations with a repelling
    fixed point.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    parameters
        The two constants. "shift" uses the output scale and output shift, which is possible for
        every activation that is not linear. "halves" uses the output scale and the scale of the
        negative half (elu gives SELU). "halves" requires phi(0) = 0 and means of opposite sign on
        the two halves. It adds no constant to the outputs, but scales x > 0 and x < 0 differently.
    input_scale
        A factor applied to the inputs, 1 by default; it affects C'(1) and Q'(1).
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.

    Returns
    -------
    SelfNormalising
        The constants, the shaped network and its residuals.

    Raises
    ------
    KcalcError
        If an argument is invalid, or an activation is linear.
    UnreachableTarget
        If no positive scale of the negative half works.

    """
    if not isinstance(parameters, str) or parameters not in PARAMETERS:
        raise unknown("choice of parameters", parameters, PARAMETERS)
    refusal = "input_scale must be a number between 1e-6 and 1e6"
    scale = number_within(input_scale, "input_scale", lambda s: 1e-6 <= s <= 1e6, refusal)
    plain, changes = prepared(network, activation)
    rule = shifted if parameters == "shift" else halved
    table = constants_of(plain, lambda phi: rule(phi, scale))
    shaped = replace_activations(plain, table.activations)
    check_fresh(shaped)
    notes = [Assumption("network", text) for text in _consequences(table.distinct)]
    options = {"parameters": parameters} | ({} if scale == 1 else {"input_scale": scale})
    return SelfNormalising(
        "self_normalising",
        options,
        network,
        shaped,
        table,
        {"E phi": 0.0, "Q(1)": 1.0},
        {"Q_f(1)": 1.0},
        (*changes, *table.edits),
        warnings=tuple(notes),
    )


def _consequences(solved: Sequence[Constants]) -> Iterator[str]:
    """Return notes on activations that jump or have a repelling fixed point."""
    repelling = [k.activation.name for k in solved if stability(k.transformed).attractive is False]
    if repelling:
        yield (
            f"the fixed point is repelling for {', '.join(repelling)}: variances drift away from 1 "
            "with depth"
        )
    jumping = [k.activation.name for k in solved if any(k.activation.jump_sizes(0))]
    if jumping:
        yield (
            f"C'(1) is infinite for {', '.join(jumping)} (jumps): nearly equal inputs separate "
            "immediately"
        )


def shifted(phi: Activation, input_scale: float = 1.0) -> Constants:
    """Return gamma = 1/std and delta = -mean of phi(input_scale x).

    Raises: KcalcError for activations that are linear or constant.
    """
    check_nonlinear(phi)
    square, mean = float(phi.second_moment(input_scale**2)), float(phi.mean(input_scale**2))
    variance = square - mean**2
    if variance < 0.1 * square:  # avoid cancellation
        m = converged_moments(phi, math.log(input_scale), 0.0, 1)
        variance, mean = m.variance, m.mean
    if not variance > 0:
        raise KcalcError(
            f"activation {phi.name!r} is constant up to double precision at input scale "
            f"{input_scale:g}; choose another input_scale"
        )
    deviation = math.sqrt(variance)
    delta = None if abs(mean) <= 1e-15 * deviation else -mean
    return Constants(phi, None if input_scale == 1 else input_scale, None, 1 / deviation, delta)


def halved(phi: Activation, input_scale: float = 1.0) -> HalvesConstants:
    """Return the constants alpha and gamma of the two halves of phi(input_scale x).

    alpha = -E[phi; x > 0] / E[phi; x < 0] and gamma = (E[phi^2; x > 0] + alpha^2 E[phi^2; x <
    0])^(-1/2).

    Raises: KcalcError for activations that are linear or do not vanish at 0; UnreachableTarget if
    alpha would not be positive or would make phi linear.
    """
    check_nonlinear(phi)
    scaled_halves(phi, 1)
    (up, up_square), (down, down_square) = _half_moments(phi, input_scale)
    means = f"its means are {up:.6g} over x > 0 and {down:.6g} over x < 0"
    if abs(down) <= ZERO * math.sqrt(up_square + down_square):
        raise UnreachableTarget(
            f"no scale of the negative half gives {phi.name} mean 0: {means}; use "
            f"parameters='shift'"
        )
    alpha = -up / down
    if alpha <= ZERO:
        raise UnreachableTarget(
            f"no positive scale of the negative half gives {phi.name} mean 0: {means}, so the "
            f"scale would be {alpha:.6g}; use parameters='shift'"
        )
    try:
        check_nonlinear(scaled_halves(phi, alpha))
    except KcalcError:
        raise UnreachableTarget(
            f"the only scale of the negative half that gives {phi.name} mean 0 is {alpha:.6g}, "
            "which makes it linear; use parameters='shift'"
        ) from None
    gamma = float(scaled_halves(phi, alpha).second_moment(input_scale**2)) ** -0.5
    return HalvesConstants(
        phi, None if input_scale == 1 else input_scale, output_scale=gamma, negative_scale=alpha
    )


def _half_moments(
    phi: Activation, input_scale: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (E[f; x > 0], E[f^2; x > 0]), and the same for x < 0, for f = phi(input_scale x).

    The result uses the first fineness that the next fineness confirms.
    """
    edges = tuple(sorted({0.0, *(k / input_scale for k in phi.kink_points)}))
    last = np.full(4, np.nan)
    for fineness in range(FINEST + 1):
        rule = panels(edges, fineness)
        values, below = phi.numeric(0)(input_scale * rule.z), rule.z < 0
        parts = [
            rule.w[side] @ values[side] ** power for side in (~below, below) for power in (1, 2)
        ]
        found = np.array(parts)
        size = math.sqrt(found[1] + found[3])
        if np.all(np.abs(found - last) <= 1e-14 * np.array([size, size**2, size, size**2])):
            return (float(found[0]), float(found[1])), (float(found[2]), float(found[3]))
        last = found
    raise KcalcError(
        f"activation {phi.name!r} varies too fast (or grows too fast) at input scale "
        f"{input_scale:.6g}"
    )
