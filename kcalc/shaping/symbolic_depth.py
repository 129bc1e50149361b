"""Plain networks of symbolic depth.

This module computes the Q map, slope, curvature and C map of ``L`` identical layers in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import sympy as sp

from ..activations import Activation
from ..activations import activation as resolve
from ..fields.arguments import as_number, symbolic_q
from ..foundation import symbols
from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import truth, whole
from ..foundation.printing import Shown, plain
from ..maps.maps import Assumption
from .limits import flow

AGREED = 1e-9  # tolerance for a symbolic limit compared with the numerical value
ROUNDING = 1e-12


@dataclass(frozen=True, repr=False)
class VanillaMaps(Shown):
    """Maps of ``kc.architectures.vanilla`` with symbolic depth.

    The network consists of ``depth`` layers, each an Affine with ``sigma_w`` and an activation,
    followed by a readout Affine. The two inputs have the same q value, and every layer preserves it
    (this is not required of positively homogeneous activations). Each map is computed when it is
    accessed; a map without a closed form raises a KcalcError.

    Attributes
    ----------
    q_map
        An expression in ``kc.symbols.q``.
    c_map
        An expression in ``kc.symbols.c``.
    slope
        The slope C_f'(1).
    curvature
        The curvature C_f''(1).
    psi
        The slope C'(1) of a layer.
    kappa
        The curvature C''(1) of a layer.

    """

    activation: Activation | None
    depth: sp.Expr
    sigma_w: sp.Expr
    q: sp.Expr
    readout: bool

    def __repr__(self) -> str:
        name = "any activation" if self.activation is None else self.activation.name
        return f"VanillaMaps({name}, depth {self.depth}, sigma_w {self.sigma_w})"

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the formulas."""
        text = (
            "infinite width, fresh Gaussian weights; any two inputs have the same q value, which "
            "every layer preserves"
        )
        return (Assumption("network", text, "convention"),)

    def _reasons(self) -> dict[str, sp.Expr | KcalcError]:
        """Return {quantity: its closed form, or the error if it has none}."""
        found: dict[str, sp.Expr | KcalcError] = {}
        for name in ("q_map", "c_map", "slope", "curvature", "gap"):
            try:
                found[name] = getattr(self, name)
            except KcalcError as error:
                found[name] = error
        return found

    def _closed(self) -> dict[str, sp.Expr]:
        """Return the quantities with a closed form."""
        return {
            name: value
            for name, value in self._reasons().items()
            if not isinstance(value, KcalcError)
        }

    def _frame(self) -> list[dict[str, Any]]:
        return [{"activation": self.activation, "depth": self.depth} | self._closed()]

    def to_dict(self) -> dict[str, Any]:
        """Return the closed-form expressions as text.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        name = None if self.activation is None else self.activation.name
        own = {
            "activation": name,
            "depth": str(self.depth),
            "sigma_w": str(self.sigma_w),
            "q": str(self.q),
            "readout": self.readout,
        }
        return (
            own
            | {key: str(value) for key, value in self._closed().items()}
            | {"assumptions": plain(self.assumptions)}
        )

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("", "value"),
            *((name.replace("_", " "), str(value)) for name, value in self._closed().items()),
        ]

    def _notes(self) -> list[str]:
        """Return one line for each reason why quantities have no closed form."""
        names: dict[str, list[str]] = {}
        for name, value in self._reasons().items():
            if isinstance(value, KcalcError):
                names.setdefault(str(value), []).append(name.replace("_", " "))
        return [f"no {', '.join(some)}: {reason}" for reason, some in names.items()]

    def __str__(self) -> str:
        return "\n".join(
            [repr(self), *([super().__str__()] if self._closed() else []), *self._notes()]
        )

    def _repr_html_(self) -> str:
        return super()._repr_html_() + "".join(f"<p>{escape(note)}</p>" for note in self._notes())

    @property
    def q_map(self) -> sp.Expr:
        """The Q map for degree k: a^((k^L - 1)/(k - 1)) q^(k^L) with a = sigma_w^(2k) E phi(z)^2.

        For k = 1, the map is (sigma_w^2 E phi(z)^2)^L q.

        Raises: KcalcError for activations that are not positively homogeneous.
        """
        phi, square = self._known("Q map"), self.sigma_w**2
        if phi.degree is None:
            raise KcalcError(
                f"the Q map of symbolic depth has no closed form for {phi.name}, which is not "
                "positively homogeneous; use kc.q_map(kc.architectures.vanilla(depth)) for a given "
                "depth"
            )
        k, moment = sp.Integer(phi.degree), _second_moment(phi)
        after = (
            (square * moment) ** self.depth * symbols.q
            if k == 1
            else (square**k * moment) ** ((k**self.depth - 1) / (k - 1))
            * symbols.q ** (k**self.depth)
        )
        return after * square if self.readout else after

    @property
    def psi(self) -> sp.Expr:
        """The slope C'(1) of a layer, or ``kc.symbols.psi`` if there is no activation."""
        return (
            symbols.psi if self.activation is None else _at_one(self.activation, self._level(), 1)
        )

    @property
    def kappa(self) -> sp.Expr:
        """The curvature C''(1) of a layer, infinite for kinked activations.

        If there is no activation, the result is the symbol ``kc.symbols.kappa``.
        """
        return (
            symbols.kappa if self.activation is None else _at_one(self.activation, self._level(), 2)
        )

    @property
    def slope(self) -> sp.Expr:
        """The slope C_f'(1) = psi^L [DKS sec. 17.1]."""
        return self.psi**self.depth

    @property
    def curvature(self) -> sp.Expr:
        """C_f''(1) = kappa psi^(L-1) (psi^L - 1)/(psi - 1), kappa L if psi = 1 [TAT App. B.2]."""
        psi, kappa, depth = self.psi, self.kappa, self.depth
        # (psi^L - 1)/(psi - 1) would be a ratio of rounding errors
        if psi.is_number and abs(float(psi) - 1) < ROUNDING:
            return kappa * depth
        general = kappa * psi ** (depth - 1) * (psi**depth - 1) / (psi - 1)
        return (
            general
            if psi.is_number
            else sp.Piecewise((kappa * depth, sp.Eq(psi, 1)), (general, True))
        )

    @property
    def c_map(self) -> sp.Expr:
        """The C map C_f(c), if it has a closed form.

        The map is c^(n^L) for C = c^n (Hermite polynomials), and 1 - (1 - c) s^L for C = 1 - (1 -
        c) s (affine activations).

        Raises: KcalcError for other activations; the message names alternatives.
        """
        phi = self._known("C map")
        level = self._level()
        local: Any = phi.c_expr(symbols.c, level, level)
        local = None if local is None else sp.expand(local)
        if local is not None and local.is_polynomial(symbols.c):
            poly = sp.Poly(local, symbols.c)
            if len(poly.terms()) == 1 and poly.degree() > 1:
                return symbols.c ** (sp.Integer(poly.degree()) ** self.depth)
            if poly.degree() == 1:
                return 1 - (1 - symbols.c) * poly.LC() ** self.depth
        instead = "flow(c, depth), its limit" if phi.degree == 1 else "slope and curvature at c = 1"
        raise KcalcError(
            f"the C map of symbolic depth has no closed form for {phi.name}; use {instead}, or "
            "kc.c_map(kc.architectures.vanilla(depth))"
        )

    @property
    def gap(self) -> sp.Expr:
        """The gap 1 - C_f(c) to leading order as L -> oo, for any c < 1 that converges to 1.

        The gap is 9/(2 k^2 L^2) with k = C(0) of a layer for piecewise linear activations, and
        2/(kappa L) for other activations with psi = 1.

        Raises: KcalcError if psi is not 1.
        """
        phi = self._known("limit")
        if phi.degree == 1:
            rate = self.flow_rate
            if rate == 0:
                raise KcalcError(f"{phi.name} is linear: its C map is the identity at every depth")
            return sp.Rational(9, 2) / (rate * self.depth) ** 2
        psi, kappa = self.psi, self.kappa
        if abs(float(psi) - 1) > AGREED or kappa == sp.oo:
            raise KcalcError(
                f"1 - C of {phi.name} decays as a power of depth only if C'(1) = 1 (here "
                f"{float(psi):.6g}) and C''(1) is finite; kc.depth_limit returns c* and the rate"
            )
        return 2 / (kappa * self.depth)

    @property
    def flow_rate(self) -> sp.Expr:
        """The factor k in C(c) = c + k (sqrt(1 - c^2) - c arccos c); 1/pi for relu.

        Every activation of degree one has this C map.
        """
        phi = self._known("flow")
        if phi.degree != 1:
            raise KcalcError(
                "the flow of arc-cosine maps is defined only for piecewise linear activations "
                f"(relu, leaky_relu, abs), not for {phi.name}"
            )
        return _local_c(phi, sp.Integer(0))

    def flow(self, c: float, depth: int) -> float:
        """Return psi(c, k L), the limit of C_f(c) for many layers with small k.

        Parameters
        ----------
        c
            The cosine between the two inputs, in [-1, 1].
        depth
            The total depth k L, a number.

        Returns
        -------
        float
            The limit of the cosine.

        References
        ----------
        [TAT Prop. 3]

        """
        return flow(c, float(self.flow_rate) * whole(depth, "depth"))

    def _known(self, what: str) -> Activation:
        if self.activation is None:
            raise KcalcError(
                f"without an activation there is no {what}, only slope and curvature as "
                "functions of psi and kappa; pass an activation"
            )
        return self.activation

    def _level(self) -> sp.Expr:
        """Return q of the pre-activations.

        Raises: KcalcError if layers do not preserve it.
        """
        phi = self._known("C map")
        if phi.degree is not None:
            return sp.Integer(1)  # the C map is the same at every q
        level = self.sigma_w**2 * self.q
        if level.free_symbols:
            raise KcalcError(
                f"{phi.name} has a different C map at every q, so sigma_w and q must be numbers"
            )
        after = float(self.sigma_w) ** 2 * float(phi.second_moment(float(level)))
        if not math.isclose(after, float(level), rel_tol=1e-10):
            raise KcalcError(
                f"layers of {phi.name} change the q of pre-activations from {float(level):.6g} to "
                f"{after:.6g}, so every layer has a different C map; choose sigma_w and q so that "
                "sigma_w^2 Q(sigma_w^2 q) = sigma_w^2 q, or shape the activation"
            )
        return level


def vanilla_maps(
    activation: Any = None, depth: Any = None, sigma_w: Any = 1, q: Any = 1, readout: bool = True
) -> VanillaMaps:
    """Return the maps of a plain network whose depth is a SymPy expression (default: the symbol L).

    Parameters
    ----------
    activation
        The activation. None keeps C'(1) and C''(1) of a layer as the symbols ``kc.symbols.psi`` and
        ``kc.symbols.kappa``.
    depth
        The number of layers, an integer or a SymPy expression.
    sigma_w
        The square root of fan_in times the weight variance, > 0.
    q
        The mean square of the inputs. It matters only for activations that are not positively
        homogeneous; their layers must preserve it.
    readout
        Whether an Affine layer ends the network.

    Returns
    -------
    VanillaMaps
        The maps, as functions of c and the depth.

    Raises
    ------
    KcalcError
        If a numerical depth is not an integer >= 1, or sigma_w or q is invalid.

    """
    layers: Any = (
        sp.Symbol("L", positive=True, integer=True)
        if depth is None
        else sp.sympify(as_number(depth, "depth"), strict=True)
    )
    if not isinstance(layers, sp.Expr) or (
        layers.is_number and not (layers.is_integer and layers.is_positive)
    ):
        raise KcalcError(
            f"depth must be a SymPy expression or an integer >= 1, got {glimpse(depth)}"
        )
    numbers: dict[str, Any] = {
        name: sp.sympify(as_number(value, name), strict=True)
        for name, value in (("sigma_w", sigma_w), ("q", q))
    }
    for name, value in numbers.items():
        if value.is_number and not value > 0:
            raise KcalcError(f"{name} must be > 0, got {value}")
    symbolic_q(numbers["q"], "q", "vanilla_maps(activation, depth, sigma_w, q)")
    return VanillaMaps(
        None if activation is None else resolve(activation),
        layers,
        numbers["sigma_w"],
        numbers["q"],
        truth(readout, "readout"),
    )


# -- local quantities in symbols -------------------------------------------------------------------


def _second_moment(phi: Activation) -> sp.Expr:
    """Return E phi(z)^2, exactly if there is a closed form."""
    closed = phi.q_map.expr.closed_form
    return (
        sp.Float(float(phi.second_moment(1.0)))
        if closed is None
        else sp.simplify(closed.subs(symbols.q, 1))
    )


def _local_c(phi: Activation, c: sp.Expr) -> sp.Expr:
    one = sp.Integer(1)
    closed: Any = phi.c_expr(symbols.c, one, one)
    return (
        sp.Float(float(phi.c_map(float(c), 1.0)))
        if closed is None
        else sp.simplify(closed.subs(symbols.c, c))
    )


def _at_one(phi: Activation, level: sp.Expr, order: int) -> sp.Expr:
    """Return C'(1) or C''(1) at uniform q.

    The result is the limit of the closed form if it agrees with the numerical value, otherwise the
    numerical value.
    """
    number = float(phi.c_map.derivative(order)(1.0, float(level)))
    closed: Any = phi.c_expr(symbols.c, level, level)
    if math.isinf(number):
        return sp.oo
    if closed is not None:
        found = sp.simplify(sp.limit(sp.diff(closed, symbols.c, order), symbols.c, 1, "-"))
        if found.is_number and abs(float(found) - number) <= AGREED * (1 + abs(number)):
            return found
    return sp.Float(number)
