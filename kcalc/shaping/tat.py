"""Tailored activation transformations [TAT].

The transformed activations are leaky ReLUs with a slope tailored to the network, or smooth
activations with a given curvature.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from ..activations import Activation
from ..activations.rectifiers import Leaky
from ..calculi.subnetworks import maximal_c_value, maximal_curvature
from ..fields.arguments import as_number
from ..foundation.errors import KcalcError, Remedy, UnreachableTarget
from ..maps.maps import Assumption
from ..network.combinators import DEEPEST
from ..network.network import Network
from .base import Shaping, prepared, replace_activations
from .choose_branch import check_shapeable, default_end, solve
from .conditions import CurvatureSystem, OutOfReach, inwards
from .constants import Constants, ConstantsTable, constants_of
from .hypotheses import CENTRED, check_fresh, check_sums
from .limits import flow_speed
from .methods import shaping_method
from .mixing import (
    AT_TOKENS,
    TOKEN_TARGETS,
    read_tokens,
    token_options,
    unmixed,
    with_tokens,
)
from .needs import fresh, known_tokens, means_unread, no_products, plain_network
from .norms import refuse_means
from .records import MethodCall, Record

ETA, TAU = 0.9, 0.3
NEARLY_RELU = 0.05  # a note reports smaller negative slopes
DKS = Remedy("dks")


def tailored(call: MethodCall) -> None:
    """Check that a network meets the requirements of TAT.

    If ``eta`` applies, the activations must be relu or leaky_relu, and the network must be deep
    enough. Otherwise, every activation must pass :func:`check_curvature`.

    Raises: KcalcError if a requirement is not met.
    """
    plain, eta, tau = plain_network(call), call.targets.get("eta"), call.targets.get("tau")
    kinds = plain.activations
    if tau is None and (eta is not None or all(_is_leaky(phi) for phi in kinds)):
        _check_tailored(kinds)
        negative_slope(plain, ETA if eta is None else float(eta))
        return
    for phi in kinds:
        check_curvature(phi)


@shaping_method(
    "tat",
    Record(
        "Tailored activations: relu becomes a leaky ReLU with a slope tailored to the network "
        "(eta); smooth activations get a small curvature (tau). All slopes at c = 1 are 1.",
        {
            "eta": "relu and leaky_relu: the largest c value for orthogonal inputs, in (0, 1); "
            "default 0.9",
            "tau": "smooth activations, instead of eta: the largest curvature C''(1), > 0; "
            "default 0.3",
            **TOKEN_TARGETS,
        },
        compared=True,
        needs=(known_tokens, no_products, fresh, means_unread, tailored),
    ),
)
def tat(
    network: Network,
    activation: Any = None,
    eta: float | None = None,
    tau: float | None = None,
    tokens: Any = None,
    token_rows: Literal["keep", "rescale"] = "keep",
    *,
    assume_independent: bool = False,
) -> Shaping:
    """Give all C maps slope 1 at c = 1 and a target curvature.

    The activations have nonzero means. A LayerNorm or GroupNorm may therefore read only an Affine,
    or sums and pools of Affine outputs. A norm that reads an activation raises an error, because
    its slope q / (q - mean^2) is above 1. An RMSNorm may be anywhere. A Sum also raises an error if
    more than one addend ends in an activation, because the means of these addends would add up.

    If you pass neither ``eta`` nor ``tau``, the network's activations determine which of the two is
    used. In shallow networks and ResNets, ``eta=.9`` may leave activations that are nearly plain
    ReLUs; a note reports negative slopes below .05.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        The activation that replaces every activation; None keeps the existing activations.
    eta
        For relu and leaky_relu, .9 by default: the largest c value that any subnetwork gives to
        orthogonal inputs, in (0, 1). Every such activation becomes a leaky ReLU, multiplied by
        sqrt(2/(1 + slope^2)), with a common negative slope in [0, 1). The closed form is exact for
        every q.
    tau
        For smooth activations, .3 by default: the largest curvature C_f''(1) of any subnetwork, >
        0. Then Q(1) = Q'(1) = C'(1) = 1 and C''(1) = tau / multiplier at every layer.
    tokens, token_rows
        For networks with TokenMix, as in :func:`dks`.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.

    Returns
    -------
    Shaping
        The constants, the shaped network and its residuals.

    Raises
    ------
    KcalcError
        If a target is invalid, an activation is unsuitable, or a norm reads means.
    UnreachableTarget
        If the network is too shallow for ``eta`` or no constants give ``tau``; the message names
        the nearest target.

    References
    ----------
    [TAT sec. 4]

    Examples
    --------
    >>> import kcalc as kc
    >>> s = kc.shaping.tat(kc.architectures.vanilla(50, "relu"), eta=0.9)
    >>> print(round(kc.c_map(s.network)(0.0), 6))
    0.9

    """
    eta, tau = _target(eta, "eta"), _target(tau, "tau")
    if eta is not None and tau is not None:
        raise KcalcError(
            "eta (leaky ReLUs) and tau (smooth activations) are mutually exclusive; pass only one"
        )
    known = read_tokens(network, tokens, token_rows)
    plain, changes = prepared(network, activation, tokens=known)
    kinds = plain.activations
    if tau is None and (eta is not None or all(_is_leaky(phi) for phi in kinds)):
        return _tailored(network, plain, changes, kinds, ETA if eta is None else eta, known)
    return _smooth(network, plain, changes, kinds, TAU if tau is None else tau, known)


def _target(value: Any, name: str) -> float | None:
    if value is None:
        return None
    number = as_number(value, name)
    if (
        getattr(number, "free_symbols", None)
        or not number > 0
        or (name == "eta" and not number < 1)
    ):
        raise KcalcError(
            f"{name} must be {'a number between 0 and 1' if name == 'eta' else 'a number > 0'}, "
            f"got {value}"
        )
    return float(number)


def _is_leaky(phi: Activation) -> bool:
    phi.refuse_symbols("TAT")
    return isinstance(phi, Leaky) and phi.positive_slope == 1 and 0 <= phi.negative_slope < 1


# -- leaky ReLUs -----------------------------------------------------------------------------------


def _tailored(
    network: Network,
    plain: Network,
    changes: tuple[str, ...],
    kinds: tuple[Activation, ...],
    eta: float,
    tokens: Any,
) -> Shaping:
    _check_tailored(kinds)
    alone = unmixed(plain)
    slope = negative_slope(alone, eta)
    scale = math.sqrt(2 / (1 + slope**2))
    table = constants_of(
        plain, lambda phi: Constants(phi, output_scale=scale, negative_slope=slope)
    )
    shaped, edited = _applied(plain, table, f"eta = {eta:g}", tokens)
    edits = [
        f"{node}: {k.activation.name} -> {scale:.6g}*leaky_relu(x, negative slope {slope:.6g})"
        for node, k in table.by_node.items()
    ]
    return Shaping(
        "tat",
        {"eta": eta} | token_options(tokens),
        network,
        shaped,
        table,
        {"Q(1)": 1.0, "Q'(1)": 1.0, "C'(1)": 1.0},
        {"max C_f(0)": eta} | _whole(plain, tokens),
        (*changes, *edits, *edited),
        warnings=tuple(_about_slope(alone, slope, eta)),
        tokens=tokens,
    )


def _about_slope(network: Network, slope: float, eta: float) -> Iterator[Assumption]:
    """Yield notes on the negative slope that results from ``eta``."""
    yield Assumption(
        "network",
        "eta bounds the c value of orthogonal inputs after any subnetwork; every activation "
        f"has the negative slope {slope:.10g}",
    )
    if slope < NEARLY_RELU:
        smaller = 0.5 if eta > 0.5 else float(f"{eta / 2:.2g}")
        yield Assumption(
            "network",
            f"with eta={eta:g} the activations are nearly plain ReLUs (negative slope "
            f"{slope:.3g}, below {NEARLY_RELU:g}), so shaping changes little; a smaller eta "
            f"changes more: eta={smaller:g} gives a negative slope of "
            f"{negative_slope(network, smaller):.3g}",
        )


def _check_tailored(kinds: tuple[Activation, ...]) -> None:
    for phi in kinds:
        if not _is_leaky(phi):
            raise KcalcError(
                f"eta applies only to relu and leaky_relu, not to {phi.name}; use tau for "
                "smooth activations, or activation='leaky_relu'"
            )


def negative_slope(network: Network, eta: float) -> float:
    """Return the negative slope in [0, 1) at which the maximal c value is ``eta``.

    The maximal c value is that of the network with leaky ReLUs of this slope.

    Raises: UnreachableTarget if even ReLUs (slope 0) do not reach ``eta``.
    """
    most = maximal_c_value(network)
    reached = float(most(0.0))
    if eta > reached:
        nearest = math.floor(reached * 1e6) / 1e6
        words = f"the nearest that can be reached is eta = {nearest:.6g}"
        raise UnreachableTarget(
            f"eta = {eta!r} is not reachable, because the network is too shallow (a plain network "
            f"needs {plain_depth(eta)} layers). Even with ReLUs, its largest c value is "
            f"{reached:.6g}"
        ).advising(Remedy("tat", {"eta": nearest}, words))
    return max(float(most.inverse(eta)), 0.0)


def plain_depth(eta: float) -> str:
    """Return the minimal depth of a plain ReLU network for the c value ``eta``, as text.

    The depth is the smallest number of layers after which orthogonal inputs have the c value
    ``eta``.

    The computation uses ``1 - C(c) = u - (sin t - t cos t) / pi`` with ``u = 1 - c = 2
    sin^2(t/2)``. Networks deeper than ``DEEPEST`` cannot be built.
    """
    u, depth = 1.0, 0
    while u > 1 - eta and depth <= DEEPEST:
        u, depth = u - flow_speed(2 * math.asin(math.sqrt(u / 2))) / math.pi, depth + 1
    return f"more than {DEEPEST}" if depth > DEEPEST else str(depth)


# -- smooth activations ----------------------------------------------------------------------------


def _smooth(
    network: Network,
    plain: Network,
    changes: tuple[str, ...],
    kinds: tuple[Activation, ...],
    tau: float,
    tokens: Any,
) -> Shaping:
    for phi in kinds:
        check_curvature(phi)
    curvature = float(maximal_curvature(unmixed(plain)).inverse(tau))
    try:
        table = constants_of(plain, lambda phi: solve(curvature_systems(phi, curvature)))
    except OutOfReach as error:
        near = inwards(float(maximal_curvature(unmixed(plain))(error.nearest)), error.above)
        exactly = (Remedy("tat", {"tau": float(near)}, f"tau = {near}"),) if error.exact else ()
        raise UnreachableTarget(f"{error}, which is ").advising(
            (*exactly, f"about tau = {near}"),
            joint="",
            then=f" in this network (the target is {tau:.9g})",
        ) from None
    shaped, edited = _applied(plain, table, f"tau = {tau:g}", tokens)
    targets = {"Q(1)": 1.0, "Q'(1)": 1.0, "C'(1)": 1.0, "C''(1)": curvature}
    systems = {phi.name: curvature_systems(phi, curvature) for phi in kinds}
    jumps = (text for each in systems.values() if (text := default_end(each)) is not None)
    return Shaping(
        "tat",
        {"tau": tau} | token_options(tokens),
        network,
        shaped,
        table,
        targets,
        {"max C_f''(1)": tau} | _whole(plain, tokens),
        (*changes, *table.edits, *edited),
        systems=dict(systems),
        warnings=tuple(Assumption("network", text) for text in jumps),
        tokens=tokens,
    )


def check_curvature(phi: Activation) -> None:
    """Reject activations that have too few constants, or no second derivative of C at 1.

    Raises: KcalcError with the reason.
    """
    check_shapeable(phi)
    if any(phi.jump_sizes(1)):
        kinks = ", ".join(
            f"{k:g}" for k, jump in zip(phi.kink_points, phi.jump_sizes(1), strict=True) if jump
        )
        hints = (
            ("pass eta (tailored ReLU)",) if _is_leaky(phi) else ("use a smooth activation", DKS)
        )
        raise KcalcError(
            f"{phi.name} has a kink at {kinks}, so C''(1) is infinite and cannot be tau / "
            "multiplier"
        ).advising(*hints, joint=": ")
    if phi.degree is not None:
        raise KcalcError(
            f"{phi.name} is positively homogeneous: its input scale and shift act as one "
            "constant, but Q'(1), C'(1) and C''(1) need two"
        ).advising("use another activation", DKS)


def curvature_systems(phi: Activation, curvature: float) -> tuple[CurvatureSystem, CurvatureSystem]:
    """Return the conditions for both signs of the mean."""
    return CurvatureSystem(phi, curvature, 1), CurvatureSystem(phi, curvature, -1)


def _applied(
    plain: Network, table: ConstantsTable, target: str, tokens: Any
) -> tuple[Network, tuple[str, ...]]:
    """Check the network with these constants; return it and the edits of its token mixing."""
    shaped, edited = with_tokens(replace_activations(plain, table.activations), tokens)
    promise = f"C'(1) = 1 and {target}"
    check_fresh(shaped)
    check_sums(shaped, promise, CENTRED)
    refuse_means(shaped, promise, CENTRED)
    return shaped, edited


def _whole(network: Network, tokens: Any) -> dict[str, float]:
    if tokens is not None:
        return {AT_TOKENS: 1.0}
    return {"Q_f(1)": 1.0} | ({"C_f'(1)": 1.0} if len(network.outputs) == 1 else {})
