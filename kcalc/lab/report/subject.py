"""The subject of the report: a network, or a model that is read into one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import sympy as sp

from ... import Network, Reading, read
from ... import layers as L
from ...activations import Activation, Leaky
from ...fields.arguments import as_number
from ...foundation.errors import KcalcError, glimpse, unknown
from ...shaping import METHODS, Shaping, replace_activations, shape

DOMAINS = {"zeta": (1.0, math.inf), "eta": (0.0, 1.0), "tau": (0.0, math.inf)}


@dataclass(frozen=True)
class Subject:
    """A network, its name, a one-line description and its origin."""

    network: Network
    name: str
    title: str
    reading: Reading | None

    @property
    def activations(self) -> tuple[Activation, ...]:
        """Return the distinct activations in network order."""
        return self.network.activations


def subject(
    given: Any,
    example_inputs: Sequence[Any] = (),
    name: str | None = None,
    title: str | None = None,
    phi: Any = None,
) -> Subject:
    """Return the subject of a report.

    Raises: KcalcError if ``given`` is neither a network nor a model that can be read.
    """
    for what, text in (("name", name), ("title", title)):
        if text is not None and not isinstance(text, str):
            raise KcalcError(f"{what} must be a string, got {glimpse(text)}")
    if isinstance(given, Shaping):
        given = given.original
    if isinstance(given, Network):
        reading, network = None, given.written_out()
    else:
        reading = read(given, *example_inputs)
        network = reading.network
    if phi is not None and not isinstance(phi, str | Activation) and not callable(phi):
        raise KcalcError(
            "activation must be a name or an activation, such as 'tanh' or "
            f"kc.activation('gelu'), got {glimpse(phi)}"
        )
    if phi is not None:
        chosen = L.Nonlinear(phi).activation  # pyright: ignore[reportArgumentType]
        network = replace_activations(network, dict.fromkeys(network.nodes_of(L.Nonlinear), chosen))
    called = (
        name
        or network.name
        or (
            f"Network of {len(network)} nodes"
            if reading is None
            else f"{reading.framework} model of {len(network)} nodes"
        )
    )
    return Subject(network, called, title or described(network), reading)


def described(network: Network) -> str:
    """Describe a network in one line."""
    joins = any(len(network.parents(node)) > 1 for node in network.nodes_of(L.Sum))
    normed = {type(network.layer(node)) for node in network.nodes_of(L.Normalisation)}
    norms = sorted(kind.__name__ for kind in normed)
    concatenates = network.nodes_of(L.Concat)
    shape_ = (
        "A network with sums of branches"
        if joins
        else "A network with concatenations"
        if concatenates
        else "A chain of layers"
    )
    names = dict.fromkeys(phi.name for phi in network.activations)
    words = f"{shape_}, activation {', '.join(names)}" if names else f"{shape_} without activations"
    return words + (f", with {' and '.join(norms)}" if norms else "")


def in_floats(network: Network) -> Network:
    """Convert the SymPy numbers in a network to floats, so that later computations need not do so.

    Networks with symbols are returned unchanged.
    """
    if network.free_symbols:
        return network
    return network.map_layers(
        lambda _, x: x.mapped(lambda value: float(value) if isinstance(value, sp.Expr) else value)
    )


# -- shaping ---------------------------------------------------------------------------------------

REWRITES: tuple[tuple[str, Callable[[Network], Network]], ...] = (
    ("", lambda network: network),
    ("after its sums were normalised", lambda network: network.normalised()),
    (
        "after its normalisation layers were removed and its sums were normalised",
        lambda network: network.without_normalization().normalised(),
    ),
    (
        "after it was rewritten in pre-activation form, its normalisation layers were removed and "
        "its sums were normalised",
        lambda network: network.without_normalization().preactivated().normalised(),
    ),
)


@dataclass(frozen=True)
class Shaped:
    """The result of shaping a network, or the reason why there is none.

    ``rewrite`` describes changes that were made to the network before shaping. ``note`` explains
    the target.
    """

    method: str
    shaping: Shaping | None
    rewrite: str = ""
    reason: str = ""
    note: str = ""
    targets: dict[str, float] = field(default_factory=dict)


def default_method(network: Network, targets: Iterable[str] = ()) -> str:
    """Return the default method that accepts the given targets.

    It is "edge" for transformers, "tat" for ReLU networks and "dks" for all others. Transformers
    use TAT or DKS if the targets belong to these methods.
    """
    if network.nodes_of(L.Attend) and set(targets) <= set(signature(METHODS["edge"]).parameters):
        return "edge"
    relus = all(isinstance(phi, Leaky) for phi in network.activations)
    return "tat" if network.activations and relus else "dks"


def checked_targets(method: str, targets: Mapping[str, Any]) -> None:
    """Check a method and its targets.

    Raises: KcalcError if they are invalid for every network.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise unknown("shaping method", method, METHODS)
    allowed = set(signature(METHODS[method]).parameters) - {"network", "activation"}
    for name, value in targets.items():
        if name not in allowed:
            raise unknown(
                f"target of method {glimpse(method)}", name, allowed or ["(it takes none)"]
            )
        low, high = DOMAINS.get(name, (-math.inf, math.inf))
        if name in DOMAINS and not (low < as_number(value, name) < high):
            above = "" if high == math.inf else f" and < {high:g}"
            raise KcalcError(f"{name} must be > {low:g}{above}, got {value}")


def shaped_by(network: Network, method: str, **targets: Any) -> Shaped:
    """Return the network shaped by a method, rewritten first if the method needs it."""
    reason = ""
    shape_by_name: Any = shape  # type checkers know only literal method names
    for words, rewrite in REWRITES:
        try:
            return Shaped(
                method,
                shape_by_name(rewrite(network), method=method, **targets),
                words,
                targets=dict(targets),
            )
        except KcalcError as error:
            reason = reason or str(error)
    return Shaped(method, None, reason=reason, targets=dict(targets))
