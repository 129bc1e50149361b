"""The catalogue: names, aliases, sources, and registration of user-defined activations."""

from __future__ import annotations

from dataclasses import dataclass

from kcalc.activations.base import Activation, checked
from kcalc.foundation.errors import KcalcError, unknown
from kcalc.foundation.plain_arguments import text


@dataclass(frozen=True)
class CatalogueEntry:
    """The entry of an activation in the catalogue.

    ``source`` cites who introduced it or its kernel.
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
        Who introduced it, or its kernel.

    Returns
    -------
    Activation
        The same activation, now registered.

    Raises
    ------
    KcalcError
        For a name that is taken.

    """
    text(source, "source")
    for name in (checked(activation).name, *aliases):
        if text(name, "an alias") in _BY_NAME or name in _ALIASES:
            raise KcalcError(f"an activation called {name!r} is already registered")
    _BY_NAME[activation.name] = CatalogueEntry(activation, aliases, source)
    _ALIASES.update(dict.fromkeys(aliases, activation.name))
    return activation


def names() -> tuple[str, ...]:
    """The registered names, sorted, without aliases.

    Returns
    -------
    tuple[str, ...]
        All names that :func:`kcalc.activation` accepts, except aliases and formulas.

    """
    return tuple(sorted(_BY_NAME))


def catalogue() -> tuple[CatalogueEntry, ...]:
    """The entries, sorted by name: each with its activation, aliases and source.

    Returns
    -------
    tuple[CatalogueEntry, ...]
        One entry per registered activation.

    """
    return tuple(_BY_NAME[name] for name in names())


def aliases() -> dict[str, str]:
    """The registered name of every alias.

    Returns
    -------
    dict[str, str]
        {alias: registered name}.

    """
    return dict(_ALIASES)


def by_name(name: str) -> Activation:
    """The registered activation of that name or alias, in any case.

    Raises KcalcError listing similar names.
    """
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key not in _BY_NAME:
        raise unknown("activation", name, [*_BY_NAME, *_ALIASES])
    return _BY_NAME[key].activation


def entered() -> tuple[Activation, ...]:
    """The registered activations in order of registration.

    If two are the same function (elu and celu), the first has the usual name.
    """
    return tuple(entry.activation for entry in _BY_NAME.values())


def same_function(activation: Activation) -> Activation | None:
    """The registered activation equal to ``activation``, if there is one.

    It may have closed forms.
    """
    return next((phi for phi in entered() if phi == activation), None)
