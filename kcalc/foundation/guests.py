"""Registries through which optional modules of kcalc (*guests*) provide functions to its core.

The core does not import these modules. It looks up a key, such as the type of a result, in a
:class:`Registry`, which imports the registered function. ``kcalc/wiring.py`` fills the registries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from .errors import KcalcError
from .extras import imported
from .printing import text_table


class MissingGuest(KcalcError):
    """A call needs a part of kcalc that is not installed."""


class Registry:
    """A mapping from keys to functions in optional modules, which are imported on first use.

    Each function is stored as its location ``"package.module:name"`` below ``kcalc``. ``what`` is a
    plural noun for the contents ("drawings"), used in messages and as the heading of the printed
    table. ``library`` is an optional library that all registered functions need.
    """

    def __init__(self, what: str, library: str | None = None) -> None:
        self.what, self.library = what, library
        self.places: dict[Hashable, str] = {}

    def register(self, key: Hashable, place: str) -> None:
        """Register the location of a function.

        Raises KcalcError if another location is registered for the key.
        """
        known = self.places.setdefault(key, place)
        if known != place:
            raise KcalcError(f"{self.what}: both {known} and {place} claim {key!r}")

    def __contains__(self, key: object) -> bool:
        return key in self.places

    def __getitem__(self, key: Hashable) -> Any:
        """Import and return the function for a key.

        Raises MissingGuest if the key is not registered or the function's package is missing, and
        MissingExtra if the optional library of the registry is missing.
        """
        place = self.places.get(key)
        if place is None:
            raise MissingGuest(f"{self.what}: nothing is registered for {key!r}")
        found = brought(place)
        if self.library is not None:
            imported(self.library)
        return found

    def of(self, value: Any) -> Any:
        """Return the function for the type of ``value`` or a base class, or None if there is none.

        The key of a kcalc class is "package.Class".
        """
        for cls in type(value).__mro__:
            parts = cls.__module__.split(".")
            key = f"{parts[1]}.{cls.__name__}" if len(parts) > 1 else ""
            if parts[0] == "kcalc" and key in self:
                return self[key]
        return None

    def rows(self) -> list[tuple[str, str]]:
        """Return the registry as rows of (key, location)."""
        return [(str(key), place) for key, place in self.places.items()]

    def __repr__(self) -> str:
        return text_table([(self.what, "brought by"), *self.rows()])


@lru_cache(maxsize=512)
def brought(place: str) -> Any:
    """Import and return the object at ``"package.module:name"``, a location below ``kcalc``.

    Without a name, return the module. Raises MissingGuest if that part of kcalc is not installed.
    """
    module, _, name = place.partition(":")
    full = f"kcalc.{module}"
    try:
        found = import_module(full)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kcalc":
            raise
        folder = error.name.replace(".", "/")
        raise MissingGuest(
            f"this needs {folder}, a part of kcalc that is not installed; reinstall kcalc"
        ) from None
    return getattr(found, name) if name else found


def door(room: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package that imports its modules on first use of their names.

    ``room`` is the package's ``__name__``. ``homes`` is {module: names that the package exports
    from it}. If a module is missing, only the names from this module are unavailable.
    """
    own = room.partition(".")[2]
    places = {
        name: f"{own}.{module}:{name}" for module, names in homes.items() for name in names.split()
    }

    def opened(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return brought(places[name])

    return opened


@dataclass(frozen=True)
class Reading:
    """An alternative calculus for networks, selected by options of a call.

    ``options`` is {option: default}; any value other than the default selects this calculus.
    ``answers`` is {question: location of the function that answers it}.
    """

    name: str
    options: Mapping[str, Any]
    answers: Mapping[str, str]

    def given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of this calculus whose values differ from their defaults."""
        return {
            name: value
            for name, usual in self.options.items()
            if (value := options.get(name, usual)) is not usual
            and not (isinstance(value, str) and value == usual)
        }


class Readings:
    """The alternative calculi (*readings*), one of which may be selected by the options of a call.

    The first one with an option that differs from its default is selected. If there is none, the
    call uses the plain calculus.
    """

    what = "readings"

    def __init__(self) -> None:
        self.known: dict[str, Reading] = {}

    def register(
        self, name: str, options: Mapping[str, Any], places: Iterable[tuple[str, str]]
    ) -> None:
        """Add an alternative calculus.

        ``places`` contains pairs (module, names of the questions that the module answers). Raises
        KcalcError if another calculus has the same name or one of the options.
        """
        answers = {q: f"{module}:{q}" for module, asked in places for q in asked.split()}
        made = Reading(name, options, answers)
        for other in self.known.values():
            for option in options.keys() & other.options.keys() if other != made else ():
                raise KcalcError(f"readings: both {other.name} and {name} claim {option}=")
        if self.known.setdefault(name, made) != made:
            raise KcalcError(f"readings: two readings are named {name}")

    def answering(self, question: str, **options: Any) -> Callable[..., Any] | None:
        """Return the function that answers a question under the given options.

        The function takes the remaining arguments. The result is None if the options select the
        plain calculus. Raises KcalcError if the selected calculus does not answer the question, and
        MissingGuest if its package is missing.
        """
        for reading in self.known.values():
            if asking := reading.given(options):
                place = reading.answers.get(question)
                if place is None:
                    raise KcalcError(f"{question} has no option {next(iter(asking))}=")
                given = [one.given(options) for one in self.known.values()]
                return partial(brought(place), **{k: v for one in given for k, v in one.items()})
        return None

    def rows(self) -> list[tuple[str, ...]]:
        """Return the alternative calculi as rows of (options, question, location)."""
        return [
            (", ".join(f"{option}=" for option in one.options), question, place)
            for one in self.known.values()
            for question, place in one.answers.items()
        ]

    def __repr__(self) -> str:
        return text_table([(self.what, "question", "answered by"), *self.rows()])


READINGS = Readings()
"""The readings that options such as ``tokens=`` select, in the order in which they are tried."""

DRAWINGS = Registry("drawings", "matplotlib")
"""{"Class" or "Class.method" of a result: the function that draws it}."""

KERNELS = Registry("kernels by number system")
"""{(question, name of a number system): the function that answers it in that system}."""

SHAPED = Registry("things that are shaped")
"""{"room.Class": the function that shapes objects of a class that is not a network}."""

MODELS = Registry("models of other frameworks")
"""{question about a shaping and a model: the function that answers it}."""

RULES = Registry("rules of primitives")
"""{(calculus, primitive): the rule of a calculus for a primitive}."""

LAYERS = Registry("layers")
"""{class name: location of the layer}, for ``kcalc.layers``."""
ARCHITECTURES = Registry("architectures")
"""{builder name: location of the function that builds the network}."""
METHODS = Registry("shaping methods")
"""{name: the shaping method}."""

SHAPING = Registry("parts of shaping")
"""{name: function for a part of shaping}, such as "tokens" or "depth trace"."""


class FormerNames(Registry):
    """The new locations of renamed public names, as {(package, former name): new location}.

    Entries are kept for one minor release. A location without a module, ``":name"``, is a public
    name of kcalc itself.
    """

    def __getitem__(self, key: Hashable) -> Any:
        place = self.places[key]
        return getattr(import_module("kcalc"), place[1:]) if place[0] == ":" else brought(place)

    def public(self, room: str, name: str) -> str:
        """Return the current path, below kcalc, of the object with a former name."""
        return self.places[room, name].lstrip(":").replace(":", ".")


FORMER = FormerNames("former names")
"""{(room, former name): current location}."""

REGISTRIES: tuple[Registry | Readings, ...] = (
    READINGS,
    DRAWINGS,
    KERNELS,
    RULES,
    LAYERS,
    ARCHITECTURES,
    METHODS,
    SHAPING,
    SHAPED,
    MODELS,
)
