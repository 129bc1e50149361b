"""Shaping: choose constants that make a network trainable."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from ..foundation.errors import KcalcError, Remedy, glimpse, unknown
from ..foundation.guests import SHAPED
from ..foundation.moved import former
from ..network.network import Network, require_network
from .base import Shaping, replace_activations
from .comparison import Comparison
from .constants import Constants, ConstantsTable
from .critical_points import CriticalPoint, critical_point
from .dks import constants_for, dks
from .eoc import Edge, EdgeShaping, edge, edge_curve, eoc
from .equivalent import EquivalentParameters, equivalent_arrays, equivalent_parameters
from .limits import DepthLimit, depth_limit, flow, flow_slope, flow_time
from .looks_linear import LooksLinear, looks_linear
from .normaliser_free import NormaliserFree, normaliser_free
from .phases import PhaseDiagram, phase_diagram
from .records import OPTION, Record, record
from .regional import RegionalShaping
from .registry import METHODS
from .residual_blocks import ResidualBlock, residual_blocks, with_residual_weights
from .residual_weights import SCHEMES, ResidualShaping, residual_weights
from .scales import RULES, Consequences, normalisation
from .self_normalising import SelfNormalising, self_normalising
from .solutions import Solutions, mirrors
from .symbolic_depth import VanillaMaps, vanilla_maps
from .targets import (
    DksTargets,
    EdgeTargets,
    EocTargets,
    GeometricTargets,
    NormaliserFreeTargets,
    ResidualWeightsTargets,
    Rule,
    RuleTargets,
    SelfNormalisingTargets,
    TatTargets,
)
from .tat import tat

if TYPE_CHECKING:
    from ..interchange import Edits as Edits
    from ..interchange import Reading

__all__ = [
    "METHODS",
    "OPTION",
    "RULES",
    "SCHEMES",
    "Comparison",
    "Consequences",
    "Constants",
    "ConstantsTable",
    "CriticalPoint",
    "DepthLimit",
    "Edge",
    "EdgeShaping",
    "EquivalentParameters",
    "LooksLinear",
    "NormaliserFree",
    "PhaseDiagram",
    "Record",
    "RegionalShaping",
    "Remedy",
    "ResidualBlock",
    "ResidualShaping",
    "SelfNormalising",
    "Shaping",
    "Solutions",
    "VanillaMaps",
    "constants_for",
    "critical_point",
    "depth_limit",
    "dks",
    "edge",
    "edge_curve",
    "eoc",
    "equivalent_arrays",
    "equivalent_parameters",
    "flow",
    "flow_slope",
    "flow_time",
    "looks_linear",
    "mirrors",
    "normalisation",
    "normaliser_free",
    "phase_diagram",
    "record",
    "replace_activations",
    "residual_blocks",
    "residual_weights",
    "self_normalising",
    "shape",
    "tat",
    "vanilla_maps",
    "with_residual_weights",
    "works",
]


@overload
def shape(
    network: Network,
    activation: Any = None,
    method: Literal["dks"] = "dks",
    **targets: Unpack[DksTargets],
) -> Shaping: ...
@overload
def shape(
    network: Network,
    activation: Any = None,
    *,
    method: Literal["tat"],
    **targets: Unpack[TatTargets],
) -> Shaping: ...
@overload
def shape(
    network: Network,
    activation: Any = None,
    *,
    method: Literal["eoc"],
    **targets: Unpack[EocTargets],
) -> EdgeShaping: ...
@overload
def shape(
    network: Network,
    activation: Any = None,
    *,
    method: Literal["self_normalising"],
    **targets: Unpack[SelfNormalisingTargets],
) -> SelfNormalising: ...
@overload
def shape(
    network: Network,
    activation: Any = None,
    *,
    method: Literal["residual_weights"],
    **targets: Unpack[ResidualWeightsTargets],
) -> ResidualShaping: ...
@overload
def shape(
    network: Network,
    activation: Any = None,
    *,
    method: Literal["nf"],
    **targets: Unpack[NormaliserFreeTargets],
) -> NormaliserFree: ...
@overload
def shape(
    network: Network,
    activation: Any = None,
    *,
    method: Literal["geometric"],
    **targets: Unpack[GeometricTargets],
) -> Shaping: ...
@overload
def shape(
    network: Network,
    activation: Any = None,
    *,
    method: Literal["edge"],
    **targets: Unpack[EdgeTargets],
) -> Shaping: ...
@overload
def shape(
    network: Network, activation: Any = None, *, method: Rule, **targets: Unpack[RuleTargets]
) -> Shaping: ...
@overload
def shape(
    network: Reading,
    activation: Any = None,
    method: Literal["dks"] = "dks",
    **targets: Unpack[DksTargets],
) -> Shaping | RegionalShaping: ...
@overload
def shape(
    network: Reading,
    activation: Any = None,
    *,
    method: Literal["tat"],
    **targets: Unpack[TatTargets],
) -> Shaping | RegionalShaping: ...
@overload
def shape(
    network: Reading,
    activation: Any = None,
    *,
    method: Literal["eoc"],
    **targets: Unpack[EocTargets],
) -> Shaping | RegionalShaping: ...
@overload
def shape(
    network: Reading,
    activation: Any = None,
    *,
    method: Literal["self_normalising"],
    **targets: Unpack[SelfNormalisingTargets],
) -> Shaping | RegionalShaping: ...
@overload
def shape(
    network: Reading,
    activation: Any = None,
    *,
    method: Literal["residual_weights"],
    **targets: Unpack[ResidualWeightsTargets],
) -> Shaping | RegionalShaping: ...
@overload
def shape(
    network: Reading,
    activation: Any = None,
    *,
    method: Literal["nf"],
    **targets: Unpack[NormaliserFreeTargets],
) -> Shaping | RegionalShaping: ...
@overload
def shape(
    network: Reading,
    activation: Any = None,
    *,
    method: Literal["geometric"],
    **targets: Unpack[GeometricTargets],
) -> Shaping | RegionalShaping: ...
@overload
def shape(
    network: Reading,
    activation: Any = None,
    *,
    method: Literal["edge"],
    **targets: Unpack[EdgeTargets],
) -> Shaping | RegionalShaping: ...
@overload
def shape(
    network: Reading, activation: Any = None, *, method: Rule, **targets: Unpack[RuleTargets]
) -> Shaping | RegionalShaping: ...
def shape(
    network: Network | Reading, activation: Any = None, method: str = "dks", **targets: Any
) -> Shaping | RegionalShaping:
    """Shape a network: find constants that meet the conditions of a method.

    The constants belong to the activations or the weights of the network.

    - ``"dks"``: ``zeta=1.5`` bounds the slopes of all subnetworks' C maps at 1. Options are
      ``subnetworks="strict"`` or ``"forward"``, and ``q_slope=1``, another value, ``"minimize"`` or
      None (no condition). ``free_slope=True`` also adjusts the negative slope of leaky_relu.
      ``gates="normalise"`` keeps the activations of gates, scaled to Q(1) = 1. See :func:`dks`.
    - ``"tat"``: ``eta=.9`` (relu, leaky_relu: the largest c value that orthogonal inputs reach) or
      ``tau=.3`` (smooth activations: the largest curvature). See :func:`tat`.
    - ``"dks"`` and ``"tat"`` for networks with TokenMix: ``tokens`` is the (T, T) array of cosines
      between the tokens of an input, for which q = 1 must hold at every activation.
      ``token_rows="rescale"`` divides the rows of the matrices to achieve this.
    - ``"normalisation"``: Q(1) = 1 only. ``"he"``, ``"lecun"``, ``"glorot"`` and ``"fan_out"`` set
      weight variances, and ``values`` lists the consequences for q and c. No targets.
    - ``"self_normalising"``: mean 0 and variance 1, as in SELU; ``parameters="shift"`` or
      ``"halves"`` (elu gives SELU), ``input_scale=1``. See :func:`self_normalising`.
    - ``"looks_linear"``: mirrored weights, which make the network linear at initialisation. No
      targets.
    - ``"eoc"``: the edge of chaos, at a point chosen by ``sigma_b``, ``sigma_w`` or ``q``. This
      changes the scales of the weights. See :func:`eoc`.
    - ``"residual_weights"``: weights of residual blocks from ``scheme="layernorm_equivalent"``,
      ``"de_smith"``, ``"inverse_sqrt"``, ``"power"`` (``power``), ``"common"`` (``shortcut_weight``
      or ``residual_weight``) or ``"slope"`` (``slope``, ``local_slope=None``). See
      :func:`residual_weights`.
    - ``"nf"``: normaliser-free networks; ``alpha=.2``, ``standardise=True``. See
      :func:`normaliser_free`.
    - ``"geometric"``: Var W from the geometric mean of fan-in and fan-out, so all weights learn at
      the same relative rate. It needs widths. Options are ``features``, ``image_shape``,
      ``typical``, ``input_moment``, ``input_scaling``, ``output_std`` and ``balance``. See
      :func:`kcalc.finite_width.geometric`.
    - ``"edge"``: transformers with ``L.Attend``. Residual weights, value gains, the query-key scale
      and shaped attention follow from ``growth``, ``token_slope``, ``gradient_mean``,
      ``gradient_difference`` and ``score_variance``. Options are ``centre``, ``mlp``, ``zeta``, the
      number of tokens ``tokens=128`` and the cosine between two tokens ``token_cosine=0``. See
      :func:`kcalc.shaping.transformer_edge.edge`.
    - All methods except ``"geometric"`` and ``"edge"``: ``assume_independent=True`` continues if a
      hypothesis of the kernel calculus fails. This happens at activations after depthwise
      convolutions, and at products and sums of feature maps that share weights. Correlated
      quantities are then treated as independent, a heuristic that ``assumptions`` lists per node.
    - Methods that you added to ``METHODS``: their own targets.

    You can also shape a :class:`kcalc.Reading` from :func:`kcalc.read`. If the method requires it,
    BatchNorm is then removed and sums are normalised; gates keep their activations unless you pass
    ``gates``. Some parts of a model cannot be shaped: operations that were not read, activations
    whose range the model relies on (before a logarithm, root, exponential, division, scale or
    output), and nodes at which a hypothesis of the method fails. kcalc shapes every connected part
    around them separately, with its own slopes and inputs with q = 1, and leaves the rest
    unchanged.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        The activation that replaces every activation; None keeps the existing activations.
    method
        The name of a method, listed above.
    **targets
        The targets and options of the method. Targets that the method does not accept raise an
        error.

    Returns
    -------
    Shaping | RegionalShaping
        A :class:`Shaping`, or a :class:`RegionalShaping` for a reading if some nodes stay
        unchanged.

    Raises
    ------
    KcalcError
        If the method or a target is unknown, or the method raises an error. For a reading, the
        errors of the method are raised only if no part can be shaped.

    Examples
    --------
    >>> import kcalc as kc
    >>> s = kc.shape(kc.architectures.vanilla(100, "tanh"), method="dks", zeta=1.5)
    >>> k = s.constants["tanh"]
    >>> round(k.beta, 4), round(k.delta, 4)
    (0.5601, -0.505)
    >>> max(s.residuals.values()) < 1e-12
    True

    """
    shape_other = SHAPED.of(network)
    if shape_other is None:
        require_network(network)
    if not isinstance(method, str) or method not in METHODS:
        raise unknown("shaping method", method, METHODS)
    allowed = set(signature(METHODS[method]).parameters) - {"network", "activation"}
    for name in targets:
        if name not in allowed:
            if not allowed - {OPTION}:
                raise KcalcError(
                    f"method {glimpse(method)} takes no targets, but {name!r} was passed"
                )
            owners = ", ".join(
                repr(other) for other in METHODS if name in signature(METHODS[other]).parameters
            )
            if owners:
                own = f"{glimpse(method)} takes {', '.join(sorted(allowed))}"
                raise KcalcError(
                    f"unknown target of method {glimpse(method)}: {name!r} is a target of "
                    f"{owners}, while {own}"
                )
            raise unknown("argument of kc.shape", name, {*allowed, "activation", "method"})
    if shape_other is not None:
        return shape_other(network, METHODS[method], method, {"activation": activation, **targets})
    return METHODS[method](network, activation, **targets)


def works(remedy: Remedy, network: Network | Reading, activation: Any = None) -> bool:
    """Return whether a remedy suggested by an error shapes the network.

    The result is False if the remedy has a target that only you know (``...``), such as the cosines
    between tokens.

    Parameters
    ----------
    remedy
        One of the ``remedies`` of an error.
    network
        The :class:`kcalc.Network`.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.

    Returns
    -------
    bool
        True if the remedy shapes the network.

    """
    if any(value is ... for value in remedy.options.values()):
        return False
    by_name: Any = shape  # type checkers accept only literal method names
    try:
        by_name(network, activation, remedy.method, **remedy.options)
    except KcalcError:
        return False
    return True


def __dir__() -> list[str]:
    return __all__


__getattr__ = former(__name__)
