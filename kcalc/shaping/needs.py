"""Hypotheses of shaping methods, checked without running the method.

Each check raises a KcalcError if it fails. The :class:`Record` of a method lists its checks, so
errors of other methods suggest it only if it may work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any

from ..activations import activation
from ..foundation.errors import KcalcError, Remedy
from ..foundation.guests import METHODS
from ..network.layers import Affine, Attend, Nonlinear
from ..network.network import Network
from .base import LARGEST_ZETA, least_zeta, prepared, replace_activations
from .choose_branch import check_shapeable
from .hypotheses import check_fresh, check_sums
from .mixing import refuse_mixing, unmixed
from .norms import refuse_means
from .records import OPTION, MethodCall, assuming, independent, record

OF_TOKENS = "token"  # prefix of targets with the same meaning in all methods


def plain_network(call: MethodCall) -> Network:
    """Bring the network into the form that shaping needs, without token mixing."""
    return prepared(unmixed(call.network), call.activation, products=True)[0]


def fresh(call: MethodCall) -> None:
    """Require fresh Gaussian activation inputs, and independent addends and factors."""
    check_fresh(plain_network(call))


def no_products(call: MethodCall) -> None:
    """Require a network without Products; most methods have no rule for them."""
    prepared(unmixed(call.network), call.activation)


def known_tokens(call: MethodCall) -> None:
    """Reject token mixing if the cosines between tokens are unknown."""
    if call.targets.get("tokens") is None:
        refuse_mixing(call.network)


def shapeable(call: MethodCall) -> None:
    """Require activations that are continuous and not linear."""
    for phi in plain_network(call).activations:
        check_shapeable(phi)


def no_meeting_means(call: MethodCall) -> None:
    """Reject a Sum that adds the means of several activations."""
    check_sums(plain_network(call), "")


def means_unread(call: MethodCall) -> None:
    """Reject norms that would subtract nonzero means, and Sums that would add them."""
    plain = plain_network(call)
    with_means = dict.fromkeys(plain.nodes_of(Nonlinear), activation("relu"))
    network = replace_activations(plain, with_means)
    check_sums(network, "")
    refuse_means(network, "")


def one_group(call: MethodCall) -> None:
    """Reject grouped Affine layers."""
    if any(call.network.layer(node).groups != 1 for node in call.network.nodes_of(Affine)):
        raise KcalcError("an Affine has groups")


def suggestion(
    remedy: Remedy, call: MethodCall, name: str, method: Callable[..., Any]
) -> Remedy | None:
    """Complete a remedy for a failed call with all its targets.

    Return None if a hypothesis of the suggested method fails. ``name`` and ``method`` belong to the
    failed call. If the remedy suggests the same method, it keeps the targets of the call;
    otherwise, it keeps only the targets about tokens. ``zeta=...`` is a placeholder for a value
    that the slopes of products allow.
    """
    options = dict(remedy.options)
    if options.get("zeta") is ...:
        least = least_zeta(call.network, call.activation)
        if least >= LARGEST_ZETA:
            return None
        options["zeta"] = float(f"{1.5 * least:.4g}")
    words = remedy.words or str(replace(remedy, options=options))
    try:
        tried = method if remedy.method == name else METHODS[remedy.method]
        known = signature(tried).parameters
        kept = {
            target: value
            for target, value in call.targets.items()
            if remedy.method == name or target.startswith(OF_TOKENS)
        }
        kept |= {OPTION: True} if independent() else {}
        given = {k: v for k, v in (kept | options).items() if k in known}
        if not getattr(tried, "attention", False) and call.network.nodes_of(Attend):
            return None
        with assuming(bool(given.get(OPTION))):
            for holds in record(tried).needs:
                holds(MethodCall(call.network, call.activation, given))
    except KcalcError:
        return None
    return replace(remedy, options=given, words=words.format(**options))
