"""Hypotheses of theorems about descent on a network's loss, and whether they hold."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ...network.network import Network
from .logs import NONE, Gain
from .losses import Loss
from .upper import Upper

Node = Hashable

REFUTED = (
    "descent from every initialisation (Theorem 5.1 of MacDonald et al. 2023, as printed) is "
    "refuted: for one feature, one example, two residual blocks and the logistic loss, all "
    "hypotheses hold, yet the loss of descent from one start stays above the loss at another "
    "point. The proof confuses the smallest singular value of DF with its square, lambda(DF). "
    "Nothing here relies on the theorem"
)


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis of a theorem, and whether it holds.

    ``holds`` is True if it is proven, False if not, and None if the trajectory must be checked.
    """

    name: str
    holds: bool | None
    text: str

    def __str__(self) -> str:
        return f"[{ {True: 'yes', False: 'no', None: '?'}[self.holds] }] {self.name}: {self.text}"


def hypotheses(
    network: Network,
    rules: Upper,
    layers: Mapping[Node, Any],
    gains: Mapping[Node, Gain],
    loss: Loss,
    data: Mapping[Node, Any],
) -> tuple[Hypothesis, ...]:
    """Return the hypotheses about step sizes, lambda(DF), the PL inequality and convergence."""
    return (
        _smooth(rules),
        _trajectory(rules),
        _positive(network, layers, gains, data),
        _uniform(layers),
        Hypothesis("PL inequality of the loss", loss.pl is not None, f"{loss.name}: {loss.remark}"),
        Hypothesis("global convergence", False, REFUTED),
    )


def _smooth(rules: Upper) -> Hypothesis:
    name = "Lipschitz gradient"
    if rules.rough:
        node, why = next(iter(rules.rough.items()))
        return Hypothesis(name, False, f"node {node!r}: {why}")
    return Hypothesis(
        name, True, "every layer has a locally Lipschitz derivative (C^1 is not enough)"
    )


def _trajectory(rules: Upper) -> Hypothesis:
    name = "iterates stay in the parameter set"
    if all(p.whole for p in rules.sets.values()):
        return Hypothesis(name, True, "the set is all of parameter space")
    text = (
        "the step size provably decreases the loss while the parameters of every layer stay "
        "within radius= of weights= (or of 0 if none were passed) in the Frobenius norm; check "
        "this for your iterates"
    )
    return Hypothesis(name, None, text)


def _positive(
    network: Network,
    layers: Mapping[Node, Any],
    gains: Mapping[Node, Gain],
    data: Mapping[Node, Any],
) -> Hypothesis:
    """Return the hypothesis of Theorem 4.7: lambda(DF) is positive at every point of the set.

    The infimum of lambda(DF) over the set may be 0.
    """
    name = "lambda(DF) > 0 at every point"
    found = [
        layer
        for layer in layers.values()
        if layer.part > NONE or (layer.sigma > NONE and layer.gain.smallest > NONE)
    ]
    if found:
        how = (
            "its data are linearly independent, its parameterisation has full rank, and the "
            "Jacobians after it are bounded away from 0"
        )
        return Hypothesis(name, True, f"because of layer {found[0].node!r}: {how} (Theorem 4.7)")
    if any(array is None for _, _, array in data.values()):
        return Hypothesis(
            name, False, "not shown: the singular values of the data are needed, X=(N, features)"
        )
    if not any(layer.sigma > NONE for layer in layers.values()):
        return Hypothesis(
            name,
            False,
            "not shown: no dense layer reads N <= d linearly independent examples, as Theorem "
            "4.7 requires",
        )
    blocked = next((node for node in network if gains[node].smallest == NONE), None)
    return Hypothesis(
        name,
        False,
        f"not shown: no positive lower bound on the singular values of d output / d {blocked!r} "
        "is known; |Jg| < 1 would imply one",
    )


def _uniform(layers: Mapping[Node, Any]) -> Hypothesis:
    name = "lambda(DF) bounded away from 0"
    total = max((layer.part for layer in layers.values()), default=NONE)
    if total > NONE:
        return Hypothesis(
            name,
            True,
            "over the whole parameter set; together with the PL inequality, this implies that "
            "gradient descent inside the set converges linearly",
        )
    if any(layer.sigma > NONE and layer.set.whole for layer in layers.values()):
        return Hypothesis(
            name,
            False,
            "its infimum over all parameters is 0, because |DP| vanishes as normalised weights "
            "grow; pass radius=",
        )
    return Hypothesis(name, False, "no layer's contribution is shown to be positive")
