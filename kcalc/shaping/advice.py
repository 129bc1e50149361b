"""Remedies that refusals recommend.

Methods and options are tried on the network in question before they are named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from ..calculi.subnetworks import maximal_slope
from ..foundation.errors import (
    FreshnessError,
    KcalcError,
    NoRule,
    UnreachableTarget,
)
from ..foundation.plain_arguments import truth
from ..network.layers import Attend
from ..network.network import Network, require_network
from .unseen_kinks import unseen_kinks

Result = TypeVar("Result")

LARGEST_ZETA = 100.0  # of those that another method's refusal names


@dataclass(frozen=True, eq=False)
class Request:
    """A call of a shaping method: its name, network, activation and targets.

    ``method`` is "" while another method is tried.
    """

    method: str
    network: Any = None
    activation: Any = None
    targets: Any = None


_REQUEST: ContextVar[Request | None] = ContextVar("request", default=None)
_TRIAL = Request("")
_INDEPENDENT: ContextVar[bool] = ContextVar("assume_independent", default=False)
OPTION = "assume_independent"
DEPENDENT = ", or pass assume_independent=True to go on as if it were, a heuristic"
OPTION_ABOUT = (
    "go on where activations, products or sums read correlated feature maps (depthwise "
    "convolutions, squeeze and excitation), as if they were independent; the result says so"
)
ALONE: Any = Parameter(OPTION, Parameter.KEYWORD_ONLY, default=False, annotation="bool")


def independent() -> bool:
    """Whether the running method was given ``assume_independent=True``."""
    return _INDEPENDENT.get()


@contextmanager
def assuming(independent: bool) -> Iterator[None]:
    """Run with or without ``assume_independent``, as :func:`independent` tells."""
    token = _INDEPENDENT.set(independent)
    try:
        yield
    finally:
        _INDEPENDENT.reset(token)


@dataclass(frozen=True)
class Record:
    """A shaping method in words, for the command line, reports and the documentation.

    ``about``: what the method does, for which networks; ``targets``: {parameter: its meaning,
    domain and default}; ``compared``: whether reports show its result beside other methods'.
    """

    about: str
    targets: Mapping[str, str] = field(default_factory=dict)
    compared: bool = False


def record(method: Callable[..., Any]) -> Record:
    """The record of a method; of a function without one, the first line of its docstring."""
    first = (method.__doc__ or "").strip().partition("\n")[0]
    return getattr(method, "record", Record(first))


def shaping_method(
    name: str,
    about: Record | None = None,
    takes_option: bool = True,
    attention: bool = False,
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Make a function (network, activation, targets) a shaping method.

    The refusals of a shaping method may advise other methods. ``about``: its :func:`record`.

    ``takes_option``: whether the method has the option ``assume_independent``, which its Shaping
    then records; refusals advise it where it helps. A network that no target suits is refused for
    its structure, and not for the target given. Layers of several primitives are written out first.
    ``attention``: whether the method is for networks with attention, which others refuse.
    """

    def decorated(function: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(function)
        def shaped(*args: Any, **kwargs: Any) -> Result:
            assume = truth(kwargs.pop(OPTION, False), OPTION) if takes_option else False
            with assuming(assume):
                result: Any = _shaped(args, kwargs)
            return replace(result, independent=True) if assume else result

        def _shaped(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
            if _REQUEST.get() is not None:
                return function(*args, **kwargs)
            bound = signature(function).bind(*args, **kwargs)
            require_network(bound.arguments["network"])
            bound.arguments["network"] = bound.arguments["network"].written_out()
            if not attention:
                _refuse_attention(bound.arguments["network"])
            given = dict(bound.arguments)
            request = Request(name, given.pop("network"), given.pop("activation", None), given)
            token = _REQUEST.set(request)
            try:
                result: Any = _structure_first(
                    request, lambda: function(*bound.args, **bound.kwargs)
                )
            except FreshnessError as error:
                advice = _of_option(name) if takes_option else ""
                raise FreshnessError(error.message, advice).at(error.node) from None
            finally:
                _REQUEST.reset(token)
            notes = tuple(unseen_kinks(result.network, result.constants))
            return replace(result, warnings=(*result.warnings, *notes)) if notes else result

        if takes_option:
            own = signature(function)
            parameters = [*own.parameters.values(), ALONE]
            setattr(shaped, "__signature__", own.replace(parameters=parameters))  # noqa: B010
        setattr(shaped, "attention", attention)  # noqa: B010
        if about is not None:
            option = {OPTION: OPTION_ABOUT} if takes_option else {}
            own_record = replace(about, targets={**about.targets, **option})
            setattr(shaped, "record", own_record)  # noqa: B010
        return shaped

    return decorated


def _refuse_attention(network: Network) -> None:
    """Refuse a network with attention, whose maps are those of all tokens together."""
    attending = network.nodes_of(Attend)
    if attending:
        raise NoRule(
            f"node {attending[0]!r} attends over tokens: method='edge' shapes networks with "
            "attention, other shaping methods those without; "
            "kc.node_values(net, tokens=...) and kc.gradients(net, tokens=...) tell what its "
            "initialisation does"
        )


def advised(words: str, method: str, network: Network | None = None, **targets: Any) -> str:
    """``words`` if a method shapes the network of the running request, else ``""``.

    The method is tried with the targets given here.

    The request's targets are kept where the method is the same; otherwise, the cosines between
    tokens. ``network``: another one to try.
    """
    from . import METHODS

    request = _REQUEST.get()
    if request is None or not request.method:
        return ""
    known = signature(METHODS[method]).parameters
    shared = (
        request.targets
        if method == request.method
        else {k: v for k, v in request.targets.items() if k.startswith("token")}
    )
    if independent():
        shared = shared | {OPTION: True}
    given = {name: value for name, value in (shared | targets).items() if name in known}
    token = _REQUEST.set(_TRIAL)
    try:
        METHODS[method](
            request.network if network is None else network, request.activation, **given
        )
    except KcalcError:
        return ""
    finally:
        _REQUEST.reset(token)
    return words


def either(*remedies: str) -> str:
    """Remedies as one list: "a", "a, or b", "a, b, or c"; empty ones are left out."""
    *first, last = [remedy for remedy in remedies if remedy]
    return f"{', '.join(first)}, or {last}" if first else last


def for_products() -> str:
    """A method that shapes a network with products.

    DKS, with a zeta that their slopes allow, or normalisation.

    Returns: ``""`` if none does.
    """
    least = least_zeta()
    zeta = float(f"{1.5 * least:.4g}") if least < LARGEST_ZETA else None
    options: list[dict[str, Any]] = [{}, {OPTION: True}] if _takes_option() else [{}]
    for option in options:
        last = f" with {OPTION}=True" if option else ""
        found = advised(f"use method='dks'{last}", "dks", **option)
        if not found and zeta is not None:
            last = f"{last} and" if last else " with"
            found = advised(f"use method='dks'{last} zeta={zeta:g}", "dks", zeta=zeta, **option)
        if found or independent():
            break
    return found or advised("use method='normalisation'", "normalisation")


def _takes_option() -> bool:
    """Whether the method of the running request has the option ``assume_independent``."""
    from . import METHODS

    request = _REQUEST.get()
    known = METHODS.get(request.method) if request is not None else None
    return known is not None and OPTION in signature(known).parameters


def _of_option(method: str) -> str:
    """That ``assume_independent=True`` helps, where it does, with the target that it then needs."""
    found = advised(DEPENDENT, method, assume_independent=True)
    if found or method != "dks" or (least := least_zeta()) >= LARGEST_ZETA:
        return found
    zeta = float(f"{1.5 * least:.4g}")
    words = DEPENDENT.replace(" to go", f" and zeta={zeta:g} to go")
    return advised(words, "dks", zeta=zeta, assume_independent=True)


def least_zeta() -> float:
    """The slope that products give some subnetwork of the network, for any activations.

    Infinite where it is not known.
    """
    from .base import prepared
    from .tokens import unmixed

    request = _REQUEST.get()
    if request is None or not request.method:
        return math.inf
    try:
        network, *_ = prepared(unmixed(request.network), request.activation, products=True)
        return float(maximal_slope(network)(1.0))
    except KcalcError:
        return math.inf


def _structure_first(request: Request, shaped: Callable[[], Result]) -> Result:
    """The result of ``shaped``, with refusals for structure before refusals of targets.

    FreshnessError is raised before UnreachableTarget where no target suits the network.
    """
    from .base import prepared
    from .hypotheses import check_fresh
    from .tokens import unmixed

    try:
        return shaped()
    except UnreachableTarget as unreachable:
        try:
            check_fresh(prepared(unmixed(request.network), request.activation, products=True)[0])
        except FreshnessError:
            raise
        except KcalcError:
            pass
        raise unreachable from None
