"""Deep Kernel Shaping [DKS sec. 18, 21].

DKS imposes Q(1) = 1, Q'(1) = 1, C(0) = 0 and C'(1) = mu^{-1}(zeta) at every activation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from ..activations import Activation
from ..activations.rectifiers import Leaky
from ..activations.registry import same_function
from ..calculi.subnetworks import maximal_slope
from ..calculi.subnetworks.forward import ForwardSlope
from ..calculi.subnetworks.slope_maxima import MaximalSlope
from ..fields.arguments import number_within
from ..foundation.errors import Advice, KcalcError, Remedy, UnreachableTarget, glimpse, unknown
from ..foundation.plain_arguments import truth
from ..maps.maps import Assumption
from ..network.layers import Nonlinear, Product
from ..network.network import Network
from .base import LARGEST_ZETA, Shaping, prepared, replace_activations
from .choose_branch import check_shapeable, default_end, solve, solve_least, solve_scale
from .conditions import EquationPair, OutOfReach, SlopeSystem, slope_text
from .constants import Constants, ConstantsTable, constants_of
from .gates import gates_of, with_slopes
from .hypotheses import check_fresh
from .methods import shaping_method
from .mixing import (
    AT_TOKENS,
    TOKEN_TARGETS,
    read_tokens,
    token_options,
    unmixed,
    with_tokens,
)
from .needs import fresh, known_tokens, plain_network, shapeable
from .records import MethodCall, Record
from .residual_blocks import residual_blocks, with_residual_weights
from .solver import ACCEPTED
from .thirty_digits import local_values

ZETA = 1.5
READINGS = {
    "strict": "zeta bounds the slopes of the strict subnetworks",
    "forward": "zeta bounds the slope from the inputs to every node, through all taps, heads and "
    "inputs (the forward bound)",
}
SHIFTS = (
    0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    2.0,
    -2.0,
)  # shifts to try if only the input scale is free, best first
STEEPEST_LEAKY = 1 / (1 - 1 / math.pi)  # C'(1) of a centred ReLU
MISSED = 1e-9
KEPT = Remedy(
    "dks",
    {"gates": "normalise"},
    "use gates='normalise', which leaves the activations of gates unchanged and gives smaller "
    "slopes",
)
FACTORS = (
    "q values of factors multiply, so Q' of a Product is the sum of the Q' of its factors, and "
    "errors in q double at a Product of two factors"
)
GATES = (
    "gates are scaled to Q(1) = 1 and keep their means, so a Product adds C'(1) of its gate to "
    "the slope of its other factor, which has C(0) = 0"
)


def slopes_within_zeta(call: MethodCall) -> None:
    """Require a zeta between the slope forced by products and the slope of leaky ReLUs.

    Raises: KcalcError for any other zeta.
    """
    gated = gates_of(call.network, call.targets.get("gates", "shape"))
    plain = plain_network(call)
    mu = maximal_slope(with_slopes(plain, gated))
    reading = mu.forward if call.targets.get("subnetworks") == "forward" else mu
    zeta = float(call.targets.get("zeta", ZETA))
    _check_reach(call.network, reading, zeta, bool(gated))
    chosen = call.targets.get("free_slope", True) and call.targets.get("q_slope", 1) == 1
    if chosen and any(map(has_free_slope, plain.activations)):
        _check_leaky(float(reading.inverse(zeta)))


@shaping_method(
    "dks",
    Record(
        "Deep Kernel Shaping: chooses the input and output scales and shifts of every activation "
        "so that no C map of a subnetwork is steeper than zeta at c = 1. It works at any depth "
        "for nearly all continuous activations that are not affine.",
        {
            "zeta": "bound on the slopes of all C maps at c = 1, a number > 1; default 1.5",
            "subnetworks": "which slopes zeta bounds: strict (the subnetworks of the papers; "
            "default) or forward (from the inputs to every node)",
            "q_slope": "target for Q'(1): a number (default 1), 'minimize' or 'none'",
            "free_slope": "whether to choose the negative slope of leaky_relu as well; default yes",
            **TOKEN_TARGETS,
            "gates": "what to do with activations that gate a product: shape (shape them) or "
            "normalise (keep them, but scale them to Q(1) = 1); default shape, but normalise for "
            "models that are edited or shaped in parts",
        },
        compared=True,
        needs=(known_tokens, fresh, shapeable, slopes_within_zeta),
    ),
)
def dks(
    network: Network,
    activation: Any = None,
    zeta: float = ZETA,
    subnetworks: Literal["strict", "forward"] = "strict",
    q_slope: float | Literal["minimize"] | None = 1.0,
    free_slope: bool = True,
    tokens: Any = None,
    token_rows: Literal["keep", "rescale"] = "keep",
    gates: Literal["shape", "normalise"] = "shape",
    *,
    assume_independent: bool = False,
) -> Shaping:
    """Bound the slopes at 1 of the C maps of all subnetworks by ``zeta``.

    For leaky_relu, the negative slope is an additional constant (unless ``free_slope=False``), and
    a closed form meets all four conditions. Other positively homogeneous activations (relu), and
    leaky_relu with a fixed slope, have one constant fewer; the condition Q'(1) = 1 is dropped for
    them.

    A gate is an activation with C(0) >= 1/2 that only Products read, such as the sigmoids of gated
    units and of squeeze-and-excite blocks. With ``gates="normalise"``, a Product of x and a gate
    has the slope C_x'(1) + C_g'(1) (C_g'(1) = .15 for a sigmoid) instead of the sum of two shaped
    slopes, and errors in q do not double.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        The activation that replaces every activation; None keeps the existing activations.
    zeta
        The bound on the slopes at 1, > 1.
    subnetworks
        "strict" uses the subnetworks of the papers. These do not extend across taps, heads and
        additional inputs; a warning names them. "forward" bounds the slopes from the inputs to
        every node instead, even if maps in between have other readers.
    q_slope
        The target for Q'(1). With the default 1, errors in q neither grow nor shrink with depth.
        "minimize" takes the smallest value compatible with the slope. None drops the condition and
        solves only for the input scale, with the smallest possible shift.
    free_slope
        Whether the negative slope of leaky_relu is an additional constant.
    tokens
        For networks with TokenMix: the (T, T) cosines between the tokens of an input. Every
        activation must have q = 1 at every token for these cosines.
    token_rows
        "keep", or "rescale", which divides the rows of the matrices so that q = 1 at every token.
        zeta then bounds only the slopes of the activations.
    gates
        "shape", or "normalise", which keeps the activations of gates, scaled to Q(1) = 1.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.

    Returns
    -------
    Shaping
        The constants, the shaped network and its residuals.

    Raises
    ------
    KcalcError
        If an argument is invalid.
    UnreachableTarget
        If an activation cannot meet the conditions.
    FreshnessError
        If the kernel calculus does not apply to the network.

    References
    ----------
    [DKS sec. 18.6]

    Examples
    --------
    >>> import kcalc as kc
    >>> s = kc.shaping.dks(kc.architectures.vanilla(100, "tanh"), zeta=1.5)
    >>> print(round(kc.c_map(s.network).derivative()(1.0), 6))
    1.5

    """
    refusal = "zeta bounds the slope of the C map and must be > 1"
    zeta = number_within(zeta, "zeta", lambda z: z > 1, refusal)
    if not isinstance(subnetworks, str) or subnetworks not in READINGS:
        raise unknown("reading of subnetworks", subnetworks, READINGS)
    wanted, free_slope = _q_slope(q_slope), truth(free_slope, "free_slope")
    known = read_tokens(network, tokens, token_rows)
    gated = gates_of(network, gates)
    plain, changes = prepared(network, activation, products=True, tokens=known, keeping=gated)
    alone = with_slopes(unmixed(plain), gated)
    if not alone.nodes_of(Nonlinear):
        raise KcalcError("all activations are gates, so there is nothing to shape")
    mu = maximal_slope(alone)
    reading = mu if subnetworks == "strict" else mu.forward
    _check_reach(plain, reading, zeta, bool(gated))
    slope = float(reading.inverse(zeta))
    try:
        table = constants_of(alone, lambda phi: constants_for(phi, slope, wanted, free_slope))
    except OutOfReach as error:
        raise _beyond_reach(error, reading, zeta) from None
    kept_gates = ConstantsTable(gated)
    shaped, rows = with_tokens(
        replace_activations(plain, table.activations | kept_gates.activations), known
    )
    check_fresh(shaped)
    dropped = [
        k.activation
        for k in table.distinct
        if k.negative_slope is None and (wanted is None or k.activation.degree is not None)
    ]
    kept = {"Q'(1)": wanted} if not dropped and isinstance(wanted, float) else {}
    targets = {"Q(1)": 1.0, **kept, "C(0)": 0.0, "C'(1)": slope}
    whole = {"Q_f(1)": 1.0} | (
        {"C_f'(1)": float(mu.slope_to(plain.outputs[0], slope))} if len(plain.outputs) == 1 else {}
    )
    whole = whole if known is None else {AT_TOKENS: 1.0}
    systems = _systems(alone.activations, slope, wanted)
    jumps = (text for each in systems.values() if (text := default_end(each)) is not None)
    products = (alone.layer(node) for node in alone.nodes_of(Product))
    notes = [FACTORS] if any(type(layer) is Product for layer in products) else []
    notes += [GATES] if gated else []
    notes += [*_dropped(dropped, wanted), *jumps, *_missed(table.distinct, targets)]
    warnings = [Assumption("network", text) for text in notes] + _about_reading(mu, subnetworks)
    edits = [*table.edits, *(f"{text}, a gate" for text in kept_gates.edits)]
    options = {"zeta": zeta, "subnetworks": subnetworks} | (
        {} if q_slope == 1 else {"q_slope": q_slope}
    )
    options |= token_options(known) | ({"gates": gates} if gated else {})
    return Shaping(
        "dks",
        options | ({} if free_slope else {"free_slope": False}),
        network,
        shaped,
        table,
        targets,
        whole,
        (*changes, *edits, *rows),
        systems,
        tuple(warnings),
        known,
    )


def _beyond_reach(
    error: OutOfReach, reading: MaximalSlope | ForwardSlope, zeta: float
) -> UnreachableTarget:
    """Return the error for a slope that an activation does not reach.

    The error names the nearest zeta of the network.
    """
    near = slope_text(float(reading(error.nearest)) - 1, error.above)
    value = float(near.removeprefix("1 + ")) + near.startswith("1 + ")
    asked = f"the target is {slope_text(zeta - 1, digits=9)}"
    if _useless(value, zeta):
        return UnreachableTarget(
            f"DKS cannot shape this network with this activation: {error}, and a slope of "
            f"{error.nearest:.4g} at every layer gives a slope of {near} for this network "
            f"({asked})"
        ).advising(
            "use another activation",
            "use fewer nonlinear layers or shortcut weights closer to 1",
            Remedy("dks", {"q_slope": None}, "drop Q'(1) = 1 with q_slope=None"),
        )
    exactly = (Remedy("dks", {"zeta": value}, f"zeta = {near}"),) if error.exact else ()
    return UnreachableTarget(f"{error}, which is ").advising(
        (*exactly, f"about zeta = {near}"), joint="", then=f" in this network ({asked})"
    )


def _useless(nearest: float, zeta: float) -> bool:
    """Return whether the nearest zeta is too far above the target to have an effect."""
    return nearest > max(LARGEST_ZETA, 10 * zeta)


def _about_reading(mu: MaximalSlope, subnetworks: str) -> list[Assumption]:
    """Return the assumptions about the kind of subnetworks whose slopes were bounded."""
    if subnetworks == "forward":
        return [Assumption("network", READINGS["forward"])]
    if mu.warning is None:
        return []
    return [
        Assumption(
            "network",
            f'{mu.warning}; pass subnetworks="forward" to include the depth across them',
            "heuristic",
        )
    ]


def _check_reach(
    network: Network, reading: MaximalSlope | ForwardSlope, zeta: float, gated: bool
) -> None:
    """Raise UnreachableTarget if no local slopes give zeta, because products add slopes.

    The error names the minimal slope and remedies.
    """
    least = float(reading(1.0))
    if zeta > least:
        return
    node = next(iter(network.nodes_of(Product)), None)
    kept: tuple[Advice, ...] = () if gated else (KEPT,)
    each = "a gate contributes a part of its slope" if gated else "each is >= 1 if C(0) = 0"
    adding = (
        f"a Product (node {node!r}) adds the slopes of its factors ({each}), so some subnetwork "
        f"has a slope of at least {least:.6g} whatever the activations"
    )
    shortcuts = _about_shortcuts(network, least)
    if _useless(least, zeta):
        keeping = "try method='normalisation' and keep its norms"
        refusal = UnreachableTarget(
            f"DKS cannot shape this network: {adding}, and zeta = {zeta:.6g} is out of reach"
        )
        raise refusal.advising(
            "use fewer Products in sequence",
            Remedy("normalisation", words=keeping),
            *kept,
            then=shortcuts,
        ).at(node)
    larger = f"{1.5 * least:.4g}"
    words = f"choose zeta > {least:.6g}, e.g. zeta={larger}"
    refusal = UnreachableTarget(f"zeta = {zeta:.6g} is out of reach: {adding}")
    raise refusal.advising(
        (Remedy("dks", {"zeta": float(larger)}, words), "cut the network there"),
        *kept,
        then=shortcuts,
    ).at(node)


def _about_shortcuts(network: Network, least: float) -> str:
    """Hint that shortcut weights closer to 1 lower the minimal slope, if they do."""
    blocks = residual_blocks(network)
    if not blocks:
        return ""
    nearer = with_residual_weights(
        network, {block.node: (1 + float(block.weights[0])) / 2 for block in blocks}
    )
    return (
        "; shortcut weights closer to 1 lower this slope"
        if float(maximal_slope(unmixed(nearer))(1.0)) < least
        else ""
    )


def _q_slope(value: Any) -> float | str | None:
    if value is None or (isinstance(value, str) and value == "minimize"):
        return value
    if isinstance(value, str):
        raise KcalcError(f"q_slope must be a number, 'minimize' or None, got {glimpse(value)}")
    refusal = "q_slope is the target for Q'(1) and must be a number > 0"
    return number_within(value, "q_slope", lambda s: s > 0, refusal)


def constants_for(
    phi: Activation, slope: float, q_slope: float | str | None = 1.0, free_slope: bool = True
) -> Constants:
    """Return the default constants of one activation for C'(1) = slope.

    Raises: UnreachableTarget if there are none, and KcalcError for unsuitable activations.
    """
    check_shapeable(phi)
    if free_slope and has_free_slope(phi) and q_slope == 1:
        return leaky(phi, slope)
    if phi.degree is not None:
        return solve_scale(phi, slope - 1)
    if q_slope is None:
        return solve_scale(phi, slope - 1, SHIFTS)
    if q_slope == "minimize":
        return solve_least(phi, slope - 1)
    return solve([_system(phi, slope, float(q_slope))])


def _system(phi: Activation, slope: float, q_slope: float) -> SlopeSystem:
    return SlopeSystem(phi, slope - 1, (q_slope - 1) / (slope - 1))


def has_free_slope(phi: Activation) -> bool:
    """Whether the activation is a leaky ReLU with an adjustable negative slope.

    A negative slope of 0, which makes it a ReLU, does not count.
    """
    return isinstance(phi, Leaky) and phi.positive_slope == 1 and 0 < phi.negative_slope < 1


def leaky(phi: Activation, slope: float) -> Constants:
    """Return the leaky ReLU with Q(1) = Q'(1) = 1, C(0) = 0 and C'(1) = slope.

    It needs neither an input scale nor an input shift.

    With k = (1 - a)^2 / (pi (1 + a^2)), E f^2 = E f'^2 = (1 + a^2)/2 and (E f)^2 = (1 - a)^2 / (2
    pi), so C'(1) = 1/(1 - k), and Q'(1) = 1 at every a. Then a = (1 - w)/(1 + sqrt(w (2 - w))) with
    w = pi k = pi (1 - 1/slope).

    Raises: UnreachableTarget for slopes above the slope of a ReLU, 1/(1 - 1/pi) = 1.46694.
    """
    _check_leaky(slope, phi)
    w = math.pi * (slope - 1) / slope
    a = max((1 - w) / (1 + math.sqrt(w * (2 - w))), 0.0)
    mean = (1 - a) / math.sqrt(2 * math.pi)
    return Constants(
        phi, output_scale=((1 + a * a) / 2 - mean**2) ** -0.5, output_shift=-mean, negative_slope=a
    )


def _check_leaky(slope: float, phi: Activation | None = None) -> None:
    """Raise UnreachableTarget for a slope above a ReLU's slope, with remedies for ``phi``."""
    if slope > STEEPEST_LEAKY * (1 + ACCEPTED):
        raise UnreachableTarget(
            "a leaky ReLU with a negative slope in [0, 1) has C'(1) of at most "
            f"{STEEPEST_LEAKY:.6g} (the value for ReLU), so it cannot have C'(1) = {slope:.6g}"
        ).advising("choose a smaller zeta", "" if phi is None else _kept_slope(phi, slope))


def _kept_slope(phi: Activation, slope: float) -> Advice:
    """Suggest ``free_slope=False`` if the activation has a solution with its own negative slope."""
    try:
        solve_scale(phi, slope - 1)
    except KcalcError:
        return ""
    return Remedy("dks", {"free_slope": False}, "pass free_slope=False")


def _systems(
    phis: Iterable[Activation], slope: float, q_slope: float | str | None
) -> dict[str, tuple[EquationPair, ...]]:
    """Return the equations for which ``all_solutions`` finds further solutions."""
    if not isinstance(q_slope, float):
        return {}
    return {phi.name: (_system(phi, slope, q_slope),) for phi in phis if phi.degree is None}


def _dropped(dropped: list[Activation], q_slope: float | str | None) -> Iterator[str]:
    """Yield notes on activations without a condition on Q'(1)."""
    homogeneous = [phi.name for phi in dropped if phi.degree is not None]
    if homogeneous:
        yield (
            f"the condition Q'(1) = 1 is dropped for {', '.join(homogeneous)} (they are "
            "positively homogeneous, so they have one constant fewer)"
        )
    others = [phi.name for phi in dropped if phi.degree is None]
    if others:
        yield f"the condition on Q'(1) is dropped for {', '.join(others)} as requested"
    if q_slope == "minimize":
        yield "Q'(1) is the smallest value compatible with the slope"


def _missed(solved: Iterable[Constants], targets: dict[str, float]) -> Iterator[str]:
    """Yield the conditions that the constants of a user-defined activation miss.

    Built-in activations are known to have no feature that the solver's rules could miss.

    Raises: UnreachableTarget if a condition is clearly missed.
    """
    for k in solved:
        if same_function(k.activation) is not None:
            continue
        values = local_values(k.transformed)
        condition, miss = max(
            ((c, abs(float(values[c] - t))) for c, t in targets.items()), key=lambda pair: pair[1]
        )
        if not miss <= 1e-6 * max(1.0, abs(targets[condition])):
            raise UnreachableTarget(
                f"the constants found for {k.activation.name} miss {condition} by {miss:.1e}; "
                f"choose a smaller zeta"
            )
        if miss > MISSED:
            yield (
                f"{k.activation.name} meets {condition} only to within {miss:.1e}, because the "
                "target is at the edge of double precision"
            )
