"""The results shown on the page, computed once, and the reasons for missing results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ... import Network, slope_polynomial
from ... import layers as L
from ...calculi import open_nodes
from ...calculi.fluctuations import fluctuations
from ...calculi.scaling import scaling
from ...calculi.subnetworks import maximal_slope, subnetworks
from ...foundation.errors import KcalcError
from ...foundation.printing import plain
from ...maps import Approximable
from ...shaping import METHODS, Shaping, record
from .explorer import Explorer, explorer
from .kernels import Kernel, kernel
from .over_tokens import OverTokens, over_tokens, usual_tokens
from .replay import shortened
from .subject import (
    REWRITES,
    Shaped,
    Subject,
    checked_targets,
    default_method,
    in_floats,
    shaped_by,
)
from .traces import Trace, ends, local_slopes, trace

Found = TypeVar("Found")
WIDTHS = (16, 64, 256, 1024)
COMPARED = tuple(name for name, method in METHODS.items() if record(method).compared)
EXPORTS = ("torch", "jax", "flax", "keras", "numpy", "json", "latex")
# for more nodes, the scaling calculus uses two repetitions of each repeated block
LONG = 120
# for more nodes, finite-width results are computed for one width only, or are left out
LONGER, LONGEST = 300, 700
MOST_JOINTS = (
    # for more concatenations, they are left out, as their cost grows with the fourth power
    12
)


@dataclass
class Facts(Approximable):
    """The results on the page. ``refused`` is {result: reason} for missing results."""

    subject: Subject
    refused: dict[str, str] = field(default_factory=dict)
    main: Shaped | None = None
    explorer: Explorer | None = None
    before: Trace | None = None
    after: Trace | None = None
    slopes: dict[Any, float] = field(default_factory=dict)
    others: list[tuple[Shaped, float | None, float | None]] = field(default_factory=list)
    polynomial: Any = None
    mu: Any = None
    slope_note: str = ""
    parts: Any = None
    kernels: tuple[Kernel | None, Kernel | None] = (None, None)
    widths: list[tuple[str, float, float | None, bool]] = field(default_factory=list)
    scaling: Any = None
    scaling_note: str = ""
    residuals: dict[str, float] = field(default_factory=dict)
    exports: dict[str, str] = field(default_factory=dict)
    assumptions: Sequence[Any] = ()
    tokens: OverTokens | None = None

    def attempt(self, what: str, make: Callable[[], Found]) -> Found | None:
        """Return the result of ``make``. If it fails, record the reason and return None."""
        try:
            with np.errstate(all="ignore"):
                return make()
        except KcalcError as error:
            self.refused[what] = str(error)
        except (ArithmeticError, RecursionError) as error:
            self.refused[what] = (
                "the values in this network exceed the range of double precision "
                f"({type(error).__name__})"
            )
        return None

    def numbers(self) -> dict[str, Any]:
        """Return the numbers on the page as plain data."""
        return plain(
            {
                "title": self.subject.title,
                "shaping": self.shaping,
                "before": self.before,
                "after": self.after,
                "slope_polynomial": self.polynomial,
                "maximal_slope": self.mu,
                "local_slopes": self.slopes,
                "kernels": dict(zip(("before", "after"), self.kernels, strict=True)),
                "log_variances": [
                    dict(zip(("width", "before", "after", "exact"), row, strict=True))
                    for row in self.widths
                ],
                "methods": [
                    {"method": shaped.method, "slope": slope, "orthogonal": level}
                    for shaped, slope, level in self.others
                ],
                "tokens": self.tokens,
                "assumptions": tuple(self.assumptions),
            }
        )

    @property
    def shaping(self) -> Shaping | None:
        """Return the main shaping result."""
        return self.main.shaping if self.main else None


def gathered(
    subject: Subject,
    method: str | None = None,
    targets: dict[str, float] | None = None,
    given: Shaping | None = None,
    tokens: Mapping[str, Any] | None = None,
) -> Facts:
    """Compute all facts about a network that is shaped as ``given`` or by a method.

    ``tokens`` contains the keyword arguments for maps over tokens.

    Raises: KcalcError for unknown methods and targets, and for tokens that do not fit the network.
    """
    facts, network = Facts(subject), in_floats(subject.network)
    facts.tokens, over = _over_tokens(facts, network, dict(tokens or {}))
    chosen = default_method(network, targets or ()) if method is None else method
    checked_targets(chosen, targets or {})
    facts.main = (
        shaped_by(network, chosen, **{**_edge_tokens(chosen, over), **(targets or {})})
        if given is None
        else Shaped(given.method, given)
    )
    # for example, the network is too shallow for TAT or has a kink that DKS cannot shape
    if facts.main.shaping is None and method is None and not targets and chosen != "edge":
        other = shaped_by(network, "dks" if chosen == "tat" else "tat")
        facts.main = facts.main if other.shaping is None else other
    if facts.main.shaping is None and not targets and facts.main.method == "dks":
        facts.main = _nearest(facts.main, network)
    if facts.main.shaping is None:
        facts.refused["shaping"] = facts.main.reason
    after = facts.shaping.network if facts.shaping else None
    zeta = facts.shaping.options.get("zeta") if facts.shaping else None
    facts.explorer = explorer(network, after, subject.activations, facts.main.method, zeta)
    if facts.tokens is None or not facts.tokens.sampled:
        facts.before = facts.attempt("before", lambda: trace(network, **over))
    if after is not None:
        facts.after = facts.attempt("after", lambda: trace(after, **_for(after, over)))
    if facts.before is not None:
        before = facts.before
        facts.slopes = facts.attempt("slopes", lambda: local_slopes(network, before)) or {}
    _structure(facts, subject.network, after)
    _kernels(facts, network, after, over)
    _finite(facts, network)
    if facts.shaping is not None:
        _shaped(facts, facts.shaping)
    _others(facts, network)
    if facts.tokens is not None:
        facts.assumptions = facts.tokens.assumptions
    else:
        facts.assumptions = facts.attempt("assumptions", lambda: _assumptions(network)) or ()
    return facts


def _over_tokens(
    facts: Facts, network: Network, given: dict[str, Any]
) -> tuple[OverTokens | None, dict[str, Any]]:
    """Return the facts about tokens, and the arguments for maps over exchangeable tokens.

    The facts are None if each token is followed separately.
    """
    asked = any(value is not None for value in given.values())
    make = lambda: over_tokens(network, given.get("tokens"), given.get("token_cosine"))  # noqa: E731
    found = make() if asked else facts.attempt("tokens", make)
    if found is None:
        return None, {}
    return found, {
        **given,
        "tokens": usual_tokens(network) if given.get("tokens") is None else given["tokens"],
    }


def _edge_tokens(method: str, over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments about tokens for the method "edge", or {} to use its defaults."""
    tokens = over.get("tokens")
    if method != "edge" or isinstance(tokens, bool) or not isinstance(tokens, int | np.integer):
        return {}
    cosine = over.get("token_cosine")
    return {"tokens": tokens} | ({} if cosine is None else {"token_cosine": cosine})


def _for(network: Network, over: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments for maps over tokens of a shaped network.

    They are empty if the network has no attention.
    """
    return over if network.nodes_of(L.Attend) else {}


def _nearest(refused: Shaped, network: Network) -> Shaped:
    """Return the network shaped by DKS with a zeta close to the smallest reachable one.

    This replaces ``refused``, a shaping that failed because slopes add in products, so that the
    usual zeta cannot be reached. If no zeta works, the result is ``refused`` itself.
    """
    if not network.nodes_of(L.Product):
        return refused
    for _, rewrite in REWRITES:
        try:
            mu = maximal_slope(rewrite(network))
            least = float(mu({str(mu.symbols[0]): 1.0})) if len(mu.symbols) == 1 else 1.0
        except KcalcError:
            continue
        for factor in (1.5, 1.2, 1.05) if least > 1 else ():
            done = shaped_by(network, "dks", zeta=float(f"{factor * least:.6g}"))
            if done.shaping is not None:
                return replace(
                    done,
                    note=(
                        f"zeta is {done.targets['zeta']:g} here, because the usual value cannot be "
                        f"reached: {refused.reason}"
                    ),
                )
        return refused
    return refused


def _structure(facts: Facts, network: Network, after: Network | None) -> None:
    facts.parts = facts.attempt("subnetworks", lambda: subnetworks(network))
    for of, what in ((network, ""), (after, "These values describe the shaped network.")):
        if of is None or facts.mu is not None:
            continue
        facts.polynomial = facts.attempt("polynomial", lambda of=of: slope_polynomial(of))
        facts.mu = facts.attempt("maximal slope", lambda of=of: maximal_slope(of))
        facts.slope_note = what


def _kernels(
    facts: Facts, network: Network, after: Network | None, over: Mapping[str, Any]
) -> None:
    if facts.tokens is not None and facts.tokens.own:
        facts.refused["kernel before"] = (
            "tangent kernels need exchangeable tokens; pass the number of tokens, such as "
            "tokens=128"
        )
        return
    before = facts.attempt("kernel before", lambda: kernel(network, **over))
    then = (
        facts.attempt("kernel after", lambda: kernel(after, **_for(after, over)))
        if after is not None
        else None
    )
    facts.kernels = (before, then)


def _finite(facts: Facts, network: Network) -> None:
    open_ = bool(open_nodes(network))
    joints = len(network.nodes_of(L.Concat))
    if len(network) > LONGEST or joints > MOST_JOINTS:
        size = f"{len(network)} nodes" if len(network) > LONGEST else f"{joints} concatenations"
        facts.refused["fluctuations"] = (
            f"they are left out because they take a long time for a network with {size}; use "
            "kc.fluctuations to compute them"
        )
    widths = (
        () if "fluctuations" in facts.refused else WIDTHS if len(network) <= LONGER else WIDTHS[2:3]
    )
    for width in widths if open_ or not widths else (None,):
        found = facts.attempt("fluctuations", lambda width=width: fluctuations(network, width))
        if found is None:
            break
        after = facts.shaping.network if facts.shaping else None
        then = (
            facts.attempt(
                "fluctuations after", lambda net=after, width=width: fluctuations(net, width)
            )
            if after is not None
            else None
        )
        label = "as stated" if width is None else str(width)
        facts.widths.append(
            (label, found.out.log_variance, then.out.log_variance if then else None, found.exact)
        )
    small = network if len(network) <= LONG else shortened(network)
    if small is not network:
        facts.scaling_note = "Computed with two repetitions of every repeated block."
    facts.scaling = facts.attempt("scaling", lambda: scaling(small, WIDTHS[2] if open_ else None))


def _shaped(facts: Facts, shaping: Shaping) -> None:
    facts.residuals = facts.attempt("residuals", lambda: shaping.residuals) or {}
    for target in EXPORTS:
        text = facts.attempt(f"export {target}", lambda target=target: shaping.export(target))
        if text is not None:
            facts.exports[target] = text


def _others(facts: Facts, network: Network) -> None:
    own = (facts.main.method,) if facts.main else ()
    for method in own if len(network) > LONGEST or own == ("edge",) else COMPARED:
        shaped = (
            facts.main if facts.main and facts.main.method == method else shaped_by(network, method)
        )
        slope = level = None
        if shaped.shaping is not None:
            done = (
                facts.after
                if shaped is facts.main
                else facts.attempt(f"trace {method}", lambda net=shaped.shaping.network: ends(net))
            )
            if isinstance(done, Trace):
                slope, level = done.slope, done.level
            elif done is not None:
                slope, level = done
        facts.others.append((shaped, slope, level))


def _assumptions(network: Network) -> Sequence[Any]:
    from ... import c_map

    if len(network) <= LONGEST:
        return c_map(network).assumptions
    short = shortened(network)
    return c_map(short if len(short) < len(network) else network).assumptions
