"""The catalogue: names, aliases, and the way in for activations of the user's own."""

from __future__ import annotations

from kcalc.activations.base import Activation
from kcalc.errors import KcalcError, unknown

_BY_NAME: dict[str, Activation] = {}
_ALIASES: dict[str, str] = {}


def register(activation: Activation, *aliases: str) -> Activation:
    """Enter ``activation`` into the catalogue under its name and ``aliases`` (all lower case); returns it."""
    for name in (activation.name, *aliases):
        if name in _BY_NAME or name in _ALIASES:
            raise KcalcError(f"an activation called {name!r} is registered already")
    _BY_NAME[activation.name] = activation
    _ALIASES.update(dict.fromkeys(aliases, activation.name))
    return activation


def names() -> tuple[str, ...]:
    """The registered names, sorted, without aliases."""
    return tuple(sorted(_BY_NAME))


def aliases() -> dict[str, str]:
    """alias -> registered name."""
    return dict(_ALIASES)


def by_name(name: str) -> Activation:
    """The registered activation of that name or alias, in any case.  Raises KcalcError listing the nearest names."""
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key not in _BY_NAME:
        raise unknown("activation", name, [*_BY_NAME, *_ALIASES])
    return _BY_NAME[key]


def same_function(activation: Activation) -> Activation | None:
    """The registered activation equal to ``activation``, if there is one: it may know closed forms."""
    return next((known for known in _BY_NAME.values() if known == activation), None)
