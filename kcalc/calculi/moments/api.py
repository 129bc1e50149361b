"""``kc.moments``: exact moments of feature maps and Jacobians at finite width.

The moments are means, fourth moments and variances.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import sympy as sp

from ...fields.arguments import one_number
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import truth
from ...maps.maps import Assumption
from ...network.compose import require_network
from ...network.layers import Affine, Dropout, StopGradient
from ...network.network import Network, chosen_output
from ..widths import with_widths
from .closed import Found, closed_moments
from .evaluation import InputMoments, MomentAdjoints, VectorMoments, jacobian_moments, node_moments
from .laws import WeightLaw, laws_by_node
from .moment import Moment
from .numbers import Numeric, is_symbolic
from .reading import Compiled, compiled
from .result import InputSize, Moments, input_size, law_names
from .vectors import Rectified

Node = Hashable


def moments(
    network: Network,
    features: Any = None,
    weights: Any = "gaussian",
    jacobian: bool = True,
    output: Node = None,
    input_fourth: Any = None,
    q: Any = None,
) -> Moments:
    """Compute exact moments of |y|^2 at every node and of |J|^2 for every weight matrix.

    The Jacobians are J = d y_out / d W.

    Means are over independent symmetric weights with variance sigma_w^2 / fan_in (He weights are
    ``sigma_w=sqrt(2)``), at the widths defined by the network and ``features`` (one width, or
    {node: width}).

    With SymPy symbols in layers or features, the results are expressions; for Gaussian weights,
    they contain powers where the network repeats. With numbers, the results are computed with 38
    digits, without overflow or cancellation. The time is linear in the depth of a chain, a ResNet
    or a DenseNet (each Concat extends the previous one), even with 10^4 layers. Other graphs take
    longer the more feature maps are in use at once.

    The function supports dense Affine layers without random biases, and identity, relu, leaky_relu,
    abs and abrelu directly after weights. It supports Sum if all but one of its addends end in
    separate Affine layers. Concat, Scale, Identity, Flatten of vectors, and Dropout in evaluation
    are also supported.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    features
        The width of layers that do not specify one, or {node: width}.
    weights
        The weight distribution: "gaussian", "uniform", "laplace", "logistic", "truncated normal",
        "rademacher" or "sparse ternary", an excess kurtosis E w^4 / (E w^2)^2 - 3, or {node: one of
        these}.
    jacobian
        Whether to compute the moments of the Jacobians.
    output
        The output that J differentiates, required if there are several.
    input_fourth
        ``sum_i x_i^4 / |x|^4``, relevant for non-Gaussian weights. By default it is 1 / channels,
        for an input with all |x_i| equal.
    q
        The mean square of the input, a number or a SymPy expression: |x|^2 = q * channels. The
        default is |x|^2 = 1, q = 1 / channels; maps and kernels use q = 1. Means of squared norms
        are proportional to |x|^2, and their variances to |x|^4.

    Returns
    -------
    Moments
        The moments, with their relative variances.

    Raises
    ------
    KcalcError
        For missing widths, for q values that are not positive, and for unsupported layers (NoRule,
        naming node and reason).

    References
    ----------
    [Per-layer gradient, Theorems 1-3, Lemmas 2-4, corrected; the exact recursion for the fourth
    moment of J is new]

    Examples
    --------
    >>> import kcalc as kc
    >>> m = kc.moments(kc.architectures.vanilla(2, "relu", features=64))
    >>> m.nodes["affine_1"].mean
    1.0

    """
    require_network(network)
    for width in features.values() if isinstance(features, Mapping) else (features,):
        if isinstance(width, sp.Expr) and not width.is_number and not width.is_integer:
            raise KcalcError(
                f"the width {width} must be an integer; declare it as sp.Symbol({str(width)!r}, "
                "integer=True, positive=True)"
            )
    sized = with_widths(network, features, symbols=True)
    laws = laws_by_node(sized, weights)
    chosen = chosen_output(sized, output)
    read = compiled(sized, laws)
    size = input_size(sized, q, "moments(..., q=None)")
    entry = InputMoments(size.square, _input_fourth(sized, input_fourth))
    refusal = _refusal(read, laws, jacobian)
    excesses = (law.excess for law in laws.values())
    symbolic = bool(sized.free_symbols) or is_symbolic(size.square, entry.fourth, *excesses)
    nodes, jacobians = (closed_moments if symbolic else _measured)(read, chosen, entry, not refusal)
    options = {"given": network, "features": features, "weights": weights, "output": output}
    options |= {"input_fourth": input_fourth, "q": q}
    how = "all |x_i| equal" if input_fourth is None else "as given"
    notes = _about_input(sized, laws, size, f"{entry.fourth} ({how})")
    notes += _assumptions(read, laws, nodes, jacobians)
    return Moments(sized, chosen, nodes, tuple(notes), jacobians, size, refusal, options, moments)


def _measured(read: Compiled, output: Node, entry: InputMoments, jacobian: bool) -> Found:
    field = Numeric()
    with field.working():
        balls = InputMoments(field.number(entry.square), field.number(entry.fourth))
        forward = VectorMoments(read, field, balls)
        nodes = {node: Moment.of_balls(*two) for node, two in node_moments(read, forward).items()}
        if not jacobian:
            return nodes, None
        out = read.features[output]
        found = jacobian_moments(read, forward, MomentAdjoints(read, field, out.vector), out)
        return nodes, {node: Moment.of_balls(*two) for node, two in found.items()}


def _input_fourth(network: Network, given: Any) -> Any:
    layer: Any = network.layer(network.inputs[0])
    width: Any = sp.sympify(layer.features, strict=True)
    if given is None:
        return 1 / width
    if isinstance(given, sp.Basic) and given.free_symbols:
        return given
    size = one_number(given, "input_fourth")
    low = 1 / float(width) if not width.free_symbols else 0.0
    if not low * (1 - 1e-12) <= size <= 1 + 1e-12:
        bounds = f"[1/channels, 1] = [{low:.6g}, 1]"
        raise KcalcError(
            f"input_fourth is sum x_i^4 / |x|^4 for the input and must lie in {bounds}, got "
            f"{given}",
        )
    return given if isinstance(given, sp.Basic) else size


def _refusal(read: Compiled, laws: Mapping[Node, WeightLaw], jacobian: bool) -> str:
    """The reason why Jacobian moments do not exist; an empty string if they exist."""
    if not truth(jacobian, "jacobian"):
        return "the moments of Jacobians were not requested; use jacobian=True"
    for node in read.network.nodes_of(StopGradient):
        return (
            f"node {node!r} has a custom gradient (a stop of gradients), but the formulas hold "
            "for the function itself; use kc.gradients(net) for infinite width"
        )
    if any(isinstance(v, Rectified) for v in read.vectors.all):
        for node, law in laws.items():
            if law.atoms:
                return (
                    f"node {node!r} has {law.name} weights, whose distribution has atoms: a "
                    "pre-activation is then exactly 0 with positive probability, the slope of an "
                    "activation there is undefined, and the formulas for the moments of Jacobians "
                    "fail. The moments of feature maps (.nodes) remain valid; use weights without "
                    "atoms for .weights"
                )
    return ""


def _about_input(
    network: Network, laws: Mapping[Node, WeightLaw], size: InputSize, fourth: str
) -> list[Assumption]:
    """Return the assumptions about the input's size and fourth moment and about the weights."""
    exact = f"exact at these widths, for independent symmetric weights; the input has {size}"
    notes = [Assumption("network", exact, "exact"), *network.assumptions]
    notes += [
        Assumption(node, f"weights are {name}", "convention")
        for node, name in law_names(network, laws)
    ]
    if any(law.excess != 0 for law in laws.values()):
        why = "which matters for non-Gaussian weights"
        text = f"the input has sum x_i^4 / |x|^4 = {fourth}, {why}"
        notes.append(Assumption(network.inputs[0], text))
    return notes


def _assumptions(
    read: Compiled, laws: Mapping[Node, WeightLaw], nodes: Any, jacobians: Any
) -> list[Assumption]:
    network, notes = read.network, list[Assumption]()
    if any(not law.stated for law in laws.values()) and jacobians is not None:
        notes.append(
            Assumption(
                "network",
                "a weight distribution specified by its kurtosis is assumed to have no atoms",
            )
        )
    notes += [
        Assumption(node, "dropout is the identity, as in evaluation")
        for node in network.nodes_of(Dropout)
    ]
    biased = [
        node for node in network.nodes_of(Affine) if getattr(network.layer(node), "bias", False)
    ]
    if biased and jacobians is not None:
        notes.append(Assumption("network", "biases start at 0, and |J|^2 includes only weights"))
    far = [
        node
        for table in (nodes, jacobians or {})
        for node, moment in table.items()
        if not moment.in_range
    ]
    if far:
        text = (
            "numbers beyond double precision appear as inf or 0: use log10_mean, log10_fourth and "
            "log10_variance"
        )
        notes.append(
            Assumption(
                far[0],
                text if len(far) == 1 else f"{text} (here and at {len(far) - 1} other nodes)",
                "convention",
            )
        )
    return notes
