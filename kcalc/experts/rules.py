"""Rules of the calculi for mixtures of experts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calculi.atoms import Atom, Pair, disjoint
from ..calculi.channels import Channels
from ..calculi.second_moments import Moments, is_zero
from ..calculi.tape import recordable
from ..fields import NUMPY
from ..fields.jets import Jet
from ..foundation.errors import FreshnessError, NoRule
from .cosine_table import RouterMoments, router_moments
from .primitives import Route
from .scores import check_variance

if TYPE_CHECKING:
    from ..calculi.backward import Backward, Groups
    from ..calculi.kernel import Kernel
    from ..calculi.tangent import Tangent

Node = Hashable
TEXT = (
    "random router and experts: independent weights with mean 0, no capacity limits, no "
    "load-balancing biases; the {} experts are identically distributed"
)


def mixed(kernel: Kernel, op: Route, node: Node, inputs: Sequence[Channels]) -> Channels:
    """Return a non-Gaussian atom with ``q = scale^2 S_2 q_e`` and kernel ``scale^2 W kappa_e``."""
    logits, expert = (state.pairs[0].moments for state in inputs)
    square = _square(kernel, op)
    if kernel.statistics.follow_c:
        moments = _checked(kernel, op, node, inputs)
        factor = square * moments.second
    else:  # q value of one input, or an array for several inputs
        variances = _variances(kernel, op, node, inputs)
        factor = square * np.vectorize(lambda v: _moments(op, node, float(v)).second)(variances)
    q1 = factor * expert.q1
    q2 = q1 if kernel.uniform else factor * expert.q2
    kernel.statistics.check(kernel.field, q1, node)
    gap = 0
    if kernel.statistics.follow_c:
        gap = _joined_gap(logits.gap, expert.gap, moments)
    kernel.note(node, TEXT.format(op.experts), "convention")
    # correlated with other mixtures of this expert, but independent of the logits
    support = kernel.ledger.bit() | inputs[1].pairs[0].support
    return Channels.one(Pair.of(Atom(node, Moments(q1, q2, gap), support, gaussian=False)))


@recordable
def _joined_gap(logits: Any, expert: Any, moments: RouterMoments) -> Any:
    """Return 1 - c for the mixture, with ``c = W / S_2 c_e``."""
    lost = moments.lost(logits)
    return expert + lost * (1 - expert)


def with_tangent(tangent: Tangent, op: Route, node: Node, inputs: Sequence[Channels]) -> Channels:
    """Return ``Theta = scale^2 (W Theta_e + R kappa_e Theta_l)``, together with the kernel maps."""
    kernel = tangent.kernel
    moments = _checked(kernel, op, node, inputs)
    still = [
        state.map(lambda pair: _with_gap(pair, Jet((pair.moments.gap.value,)))) for state in inputs
    ]
    made = mixed(kernel, op, node, still).pairs[0]
    logits, expert = (state.pairs[0].moments for state in inputs)
    geometric = kernel.algebra.moments.geometric
    norm_e, norm_l = geometric(expert.q1, expert.q2), geometric(logits.q1, logits.q2)
    cross = moments.second * (1 - moments.lost(Jet((logits.gap.value,))).value)
    through_expert = cross * norm_e * expert.gap.coefficients[1]
    rate = logits.gap.coefficients[1]
    total = through_expert
    if not is_zero(rate):
        slopes = moments.slopes_at(logits.gap.value)
        total = total + slopes * norm_e * (1 - expert.gap.value) * norm_l * rate
    m = made.moments
    moved = total * _square(kernel, op) / geometric(m.q1, m.q2)
    return Channels.one(_with_gap(made, Jet((m.gap.value, moved))))


def sent_back(
    backward: Backward, op: Route, node: Node, message: Groups, reads: Sequence[Node]
) -> list[Groups]:
    """Return the messages to the logits and to the expert.

    They are the incoming message, multiplied by ``scale^2 kappa_e R`` and by ``scale^2 W``.
    """
    states = [backward.states[read] for read in reads]
    kernel = backward.kernel
    moments = _checked(kernel, op, node, states)
    logits, expert = (state.pairs[0].moments for state in states)
    sent = float(_square(kernel, op)) * sum(message)
    gap, apart = np.asarray(logits.gap.value), np.asarray(expert.gap.value)
    if not backward.apart:
        gap, apart = 0 * gap, 0 * apart
    cross = moments.second * (1 - moments.lost(Jet((gap,))).value)
    covariance = kernel.algebra.moments.geometric(expert.q1, expert.q2) * (1 - apart)
    return [[sent * covariance * moments.slopes_at(gap)], [sent * cross]]


def _with_gap(pair: Pair, gap: Jet) -> Pair:
    """Replace the gap 1 - c of a feature map that consists of one atom."""
    moments = replace(pair.moments, gap=gap)
    terms = tuple(replace(term, atom=replace(term.atom, moments=moments)) for term in pair.terms)
    return replace(pair, moments=moments, terms=terms)


def _square(kernel: Kernel, op: Route) -> Any:
    scale = kernel.field.number(op.scale)
    return scale * scale


def _checked(kernel: Kernel, op: Route, node: Node, inputs: Sequence[Channels]) -> RouterMoments:
    """Check the hypotheses and return the moments of the router's weights."""
    variances = _variances(kernel, op, node, inputs)
    low, high = float(variances.min()), float(variances.max())
    if high - low > 1e-10 * high:
        raise NoRule(
            f"node {node!r}: the logits of the two inputs have different variances ({low:.6g} and "
            f"{high:.6g}), which is not supported; put an RMSNorm before the router"
        )
    return _moments(op, node, high)


def _moments(op: Route, node: Node, variance: float) -> RouterMoments:
    check_variance(variance, f"node {node!r}: ")
    return router_moments(op.experts, op.k, variance, op.score, op.normalise)


def _variances(kernel: Kernel, op: Route, node: Node, inputs: Sequence[Channels]) -> np.ndarray:
    """Check the hypotheses and return the variances of the logits of both inputs."""
    if kernel.field is not NUMPY:
        raise NoRule(
            f"node {node!r}: mixtures of experts support only double precision, not formulas, "
            "enclosures or JAX functions"
        )
    for what, state in zip(("logits", "expert"), inputs, strict=True):
        if len(state.groups) > 1 or not state.pairs[0].gaussian:
            raise FreshnessError(
                f"node {node!r}: its {what} must be a fresh Gaussian feature map; end this path "
                "with an Affine"
            )
    if not disjoint(state.pairs[0].support for state in inputs):
        raise FreshnessError(
            f"node {node!r}: the logits and the expert use the same weights; use a separate "
            "Affine for each"
        )
    given = (inputs[0].pairs[0].moments.q1, inputs[0].pairs[0].moments.q2)
    if any(isinstance(q, Jet) and not all(map(is_zero, q.coefficients[1:])) for q in given):
        raise NoRule(
            f"node {node!r}: the router weights cannot be differentiated with respect to the q "
            "value of the logits; put an RMSNorm before the router"
        )
    known = [np.asarray(q.value if isinstance(q, Jet) else q, dtype=float) for q in given]
    return np.stack(np.broadcast_arrays(*known)) if kernel.statistics.follow_c else known[0]
