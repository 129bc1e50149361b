"""The catalogue: names, aliases, sources, and registration of user-defined activations."""

from __future__ import annotations

from dataclasses import dataclass

from kcalc.activations.base import Activation, checked
from kcalc.foundation.errors import KcalcError, unknown
from kcalc.foundation.plain_arguments import text


@dataclass(frozen=True)
class CatalogueEntry:
    """The entry of an activation in the catalogue.

    ``source`` cites the work that introduced the activation or its kernel.
    """

    activation: Activation
    aliases: tuple[str, ...]
    source: str

    @property
    def name(self) -> str:
        return self.activation.name


_BY_NAME: dict[str, CatalogueEntry] = {}
_ALIASES: dict[str, str] = {}


def register(activation: Activation, *aliases: str, source: str) -> Activation:
    """Add ``activation`` to the catalogue under its name and ``aliases`` (all lower case).

    Parameters
    ----------
    activation
        The :class:`kcalc.Activation` to register.
    *aliases
        Further names, in lower case.
    source
        A citation of the work that introduced the activation or its kernel.

    Returns
    -------
    Activation
        The same activation, now registered.

    Raises
    ------
    KcalcError
        If a name is already taken.

    """
    text(source, "source")
    for name in (checked(activation).name, *aliases):
        if text(name, "an alias") in _BY_NAME or name in _ALIASES:
            raise KcalcError(f"an activation called {name!r} is already registered")
    _BY_NAME[activation.name] = CatalogueEntry(activation, aliases, source)
    _ALIASES.update(dict.fromkeys(aliases, activation.name))
    return activation


def names() -> tuple[str, ...]:
    """Return the registered names, sorted, without aliases.

    Returns
    -------
    tuple[str, ...]
        All names that :func:`kcalc.activation` accepts, except aliases and formulas.

    """
    return tuple(sorted(_BY_NAME))


def catalogue() -> tuple[CatalogueEntry, ...]:
    """Return the catalogue entries, sorted by name, with activation, aliases and source.

    Returns
    -------
    tuple[CatalogueEntry, ...]
        One entry per registered activation.

    """
    return tuple(_BY_NAME[name] for name in names())


def aliases() -> dict[str, str]:
    """Return the registered name for every alias.

    Returns
    -------
    dict[str, str]
        {alias: registered name}.

    """
    return dict(_ALIASES)


def by_name(name: str) -> Activation:
    """Look up a registered activation by name or alias, ignoring case.

    Raises KcalcError, listing similar names, if no activation has this name.
    """
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key not in _BY_NAME:
        raise unknown("activation", name, [*_BY_NAME, *_ALIASES])
    return _BY_NAME[key].activation


def entered() -> tuple[Activation, ...]:
    """Return the registered activations in order of registration.

    If two of them are the same function (elu and celu), the usual name comes first.
    """
    return tuple(entry.activation for entry in _BY_NAME.values())


def same_function(activation: Activation) -> Activation | None:
    """Return the registered activation that equals ``activation``, or None.

    The registered activation may have closed forms that ``activation`` lacks.
    """
    return next((phi for phi in entered() if phi == activation), None)
