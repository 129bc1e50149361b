"""Steps common to all shaping methods, and the remedies that their errors suggest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from ..foundation.errors import FreshnessError, KcalcError, NoRule, Remedy, UnreachableTarget
from ..foundation.plain_arguments import truth
from ..network.layers import Attend, Layer
from ..network.network import Network, require_network
from .hypotheses import check_fresh
from .needs import plain_network, suggestion
from .records import DEPENDENT, OPTION, OPTION_ABOUT, MethodCall, Record, assuming
from .unseen_kinks import unseen_kinks

Result = TypeVar("Result")
P = ParamSpec("P")
AT_LEAST = DEPENDENT.replace(" to continue", " and zeta={zeta:g} to continue")


def shaping_method(
    name: str,
    about: Record | None = None,
    attention: bool = False,
    whole: type[Layer] | None = None,
) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Turn a function (network, activation, targets) into a shaping method.

    ``about`` is the :func:`record` of the method. Errors suggest other methods whose hypotheses
    hold.

    If the function has a parameter ``assume_independent``, this decorator handles it: the Shaping
    records it, and errors suggest this option if it helps. If no target suits a network, the error
    names the structure of the network instead of the target. Composite layers are expanded first,
    except layers of the class ``whole``. ``attention`` states whether the method accepts networks
    with attention.
    """

    def decorated(function: Callable[P, Result]) -> Callable[P, Result]:
        takes_option = OPTION in signature(function).parameters

        @wraps(function)
        def shaped(*args: P.args, **kwargs: P.kwargs) -> Result:
            assume = truth(kwargs.pop(OPTION, False), OPTION) if takes_option else False
            bound = signature(function).bind(*args, **kwargs)
            given = bound.arguments
            require_network(given["network"])
            given["network"] = network = given["network"].written_out(whole)
            if not attention:
                _refuse_attention(network)
            targets = {k: v for k, v in given.items() if k not in ("network", "activation")}
            call = MethodCall(network, given.get("activation"), targets)
            with assuming(assume):
                result: Any = _refusing(
                    call, name, shaped, lambda: function(*bound.args, **bound.kwargs)
                )
                notes = tuple(unseen_kinks(result.network, result.constants))
            result = replace(result, warnings=(*result.warnings, *notes)) if notes else result
            return replace(result, independent=True) if assume else result

        setattr(shaped, "attention", attention)  # noqa: B010
        if about is not None:
            option = {OPTION: OPTION_ABOUT} if takes_option else {}
            own_record = replace(about, targets={**about.targets, **option})
            setattr(shaped, "record", own_record)  # noqa: B010
        return shaped

    return decorated


def _refuse_attention(network: Network) -> None:
    """Reject a network with attention, because its maps involve all tokens together."""
    attending = network.nodes_of(Attend)
    if attending:
        refusal = NoRule(
            f"node {attending[0]!r} attends over tokens, and only method='edge' shapes "
            "networks with attention; use kc.node_values(net, tokens=...) and "
            "kc.gradients(net, tokens=...) to see the effect of its initialisation"
        )
        refusal.remedies = (Remedy("edge"),)
        raise refusal


def _refusing(
    call: MethodCall, name: str, method: Callable[..., Any], shaped: Callable[[], Result]
) -> Result:
    """Call a method, and remove from its errors the remedies that cannot work.

    If no target suits the network, raise FreshnessError instead of UnreachableTarget.
    """
    serves = partial(suggestion, call=call, name=name, method=method)
    takes_option = OPTION in signature(method).parameters
    own = Remedy(name, {OPTION: True}, DEPENDENT)
    at_least = (Remedy(name, {OPTION: True, "zeta": ...}, AT_LEAST),) if name == "dks" else ()
    try:
        return shaped()
    except FreshnessError as error:
        raise _stale(error, serves, (own, *at_least) if takes_option else ()) from None
    except UnreachableTarget as unreachable:
        try:
            check_fresh(plain_network(call))
        except FreshnessError as error:
            raise _stale(error, serves, at_least) from None
        except KcalcError:
            pass
        raise unreachable.keeping(serves) from None
    except KcalcError as error:
        raise error.keeping(serves) from None


def _stale(
    error: FreshnessError,
    serves: Callable[[Remedy], Remedy | None],
    options: tuple[Remedy, ...],
) -> FreshnessError:
    """Return the error, suggesting ``assume_independent=True`` if that option may work."""
    found = next((remedy for option in options if (remedy := serves(option))), None)
    refusal = FreshnessError(error.message, "" if found is None else found.words).at(error.node)
    refusal.remedies = () if found is None else (found,)
    return refusal
