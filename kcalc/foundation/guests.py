"""Registries through which guest modules provide functions to the spine.

The spine does not import guests. It asks a :class:`Registry` for a key, such as the type of a
result, and the registry imports the guest's function. ``kcalc/wiring.py`` fills the registries.
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
    """{key: location ``"room.module:name"`` of the guest's function}.

    ``what`` is a plural noun for the contents ("drawings"), used in messages and as the heading of
    the printed table. ``library`` is an optional library that all guests of the registry need.
    """

    def __init__(self, what: str, library: str | None = None) -> None:
        self.what, self.library = what, library
        self.places: dict[Hashable, str] = {}

    def register(self, key: Hashable, place: str) -> None:
        """Register a location.

        Raises KcalcError if another location has the key.
        """
        known = self.places.setdefault(key, place)
        if known != place:
            raise KcalcError(f"{self.what}: both {known} and {place} claim {key!r}")

    def __contains__(self, key: object) -> bool:
        return key in self.places

    def __getitem__(self, key: Hashable) -> Any:
        """Import and return the guest's function for a key.

        Raises MissingGuest if no guest claims the key or the guest's folder is missing,
        MissingExtra if the library of the guests is missing.
        """
        place = self.places.get(key)
        if place is None:
            raise MissingGuest(f"{self.what}: nothing is registered for {key!r}")
        found = brought(place)
        if self.library is not None:
            imported(self.library)
        return found

    def of(self, value: Any) -> Any:
        """Return the guest's function for the type of ``value``, or None if there is none.

        The key of a kcalc class is "room.Class".
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
    """Import the object at ``"room.module:name"``, a location below ``kcalc``.

    Without a name, return the module. Raises MissingGuest if a part of kcalc is missing.
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
    """Make the ``__getattr__`` of a room, which imports modules on first use of their names.

    ``room`` is its ``__name__``; ``homes`` is {module: names that the room exports from it}. A
    missing guest then affects only the modules that need it.
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

    ``options`` is {option: default}; any other value selects this reading. ``answers`` is
    {question: location of the function that answers it}.
    """

    name: str
    options: Mapping[str, Any]
    answers: Mapping[str, str]

    def given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of this reading that differ from their defaults."""
        return {
            name: value
            for name, usual in self.options.items()
            if (value := options.get(name, usual)) is not usual
            and not (isinstance(value, str) and value == usual)
        }


class Readings:
    """Select the calculus for a call: the first reading with a given option, if any.

    If no reading is selected, the call uses the plain calculus.
    """

    what = "readings"

    def __init__(self) -> None:
        self.known: dict[str, Reading] = {}

    def register(
        self, name: str, options: Mapping[str, Any], places: Iterable[tuple[str, str]]
    ) -> None:
        """Add a reading; ``places`` maps each module to the questions it answers.

        Raises KcalcError if another reading has the name or claims one of the options.
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

        Call it with the remaining arguments. Return None if the plain calculus answers. Raises
        MissingGuest if the folder of the reading is missing, KcalcError if the reading has no
        answer.
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
        """Return the readings as rows of (options, question, location)."""
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
    """{(room, former name): new location}, kept for one minor release.

    A location without a module, ``":name"``, is a public name of kcalc itself.
    """

    def __getitem__(self, key: Hashable) -> Any:
        place = self.places[key]
        return getattr(import_module("kcalc"), place[1:]) if place[0] == ":" else brought(place)

    def public(self, room: str, name: str) -> str:
        """Return the current path of a former name, below kcalc."""
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
