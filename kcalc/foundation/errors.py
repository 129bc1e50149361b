"""Exceptions of kcalc: every error that a user can cause is a :class:`KcalcError`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

LISTED = 6  # number of names that an error lists if no name is similar
MANY = 1000  # number of names that are compared regardless of their length


@dataclass(frozen=True)
class Remedy:
    """Another shaping to try after one has failed: a suggestion, not a guarantee.

    Attributes
    ----------
    words
        The text for messages.
    method
        The method of :func:`kcalc.shape`; :func:`kcalc.shaping.works` checks whether it succeeds.
    options
        The targets and options of the method.

    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    words: str = field(default="", compare=False)

    def __str__(self) -> str:
        if self.words:
            return self.words
        options = " and ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value!r}"
            for name, value in self.options.items()
        )
        return f"try method={self.method!r}" + (f" with {options}" if options else "")


Advice = str | Remedy | tuple[str | Remedy, ...]
"""A remedy: a described edit, a :class:`Remedy`, or several in order of preference."""


def either(*remedies: Advice) -> str:
    """Join remedies into one text, such as "a, b, or c"; empty remedies are omitted."""
    firsts = (advice[0] if isinstance(advice, tuple) else advice for advice in remedies if advice)
    texts = list(map(str, firsts))
    *others, last = texts or [""]
    return f"{', '.join(others)}, or {last}" if others else last


class KcalcError(ValueError):
    """An invalid argument or network; the message names the problem and a remedy.

    Attributes
    ----------
    node
        The node of a network that the message is about, if any.
    remedies
        Other shapings that the message suggests.

    """

    node: Hashable | None = None
    remedies: tuple[Remedy, ...] = ()
    _parts: tuple[str, str, str] = ("", "", "")  # the text before, between and after the remedies
    _advice: tuple[Advice, ...] = ()

    def at(self, node: Hashable) -> Self:
        """Attach a node and return the error; an error that already has a node keeps it.

        Parameters
        ----------
        node
            The label of a node.

        Returns
        -------
        Self

        """
        self.node = node if self.node is None else self.node
        return self

    def advising(self, *remedies: Advice, joint: str = "; ", then: str = "") -> Self:
        """Append remedies, and then the text ``then``, to the message.

        Parameters
        ----------
        *remedies
            The remedies, in the order to print them.
        joint
            The text between remedies.
        then
            The text after the remedies.

        Returns
        -------
        Self

        """
        self._parts = (str(self), joint, then)
        return self._said(remedies)

    def keeping(self, serves: Callable[[Remedy], Remedy | None]) -> Self:
        """Drop the remedies that ``serves`` rejects.

        Parameters
        ----------
        serves
            A function that receives a remedy and returns it, possibly completed, or None.

        Returns
        -------
        Self

        """
        kept: list[Advice] = []
        for advice in self._advice:
            several = advice if isinstance(advice, tuple) else (advice,)
            found = (each if isinstance(each, str) else serves(each) for each in several)
            kept += [next((each for each in found if each), "")]
        return self._said(tuple(kept)) if self._advice else self

    def _said(self, remedies: tuple[Advice, ...]) -> Self:
        text, joint, then = self._parts
        told = either(*remedies)
        self.args = (f"{text}{joint if told else ''}{told}{then}",)
        firsts = (advice[0] if isinstance(advice, tuple) else advice for advice in remedies)
        self._advice, self.remedies = remedies, tuple(r for r in firsts if isinstance(r, Remedy))
        return self


class GraphError(KcalcError):
    """The graph is not a network: it has a cycle, a dangling node, a wrong arity or a bad slot."""


class NoRule(KcalcError):
    """A calculus has no rule for a layer.

    The message names the node, the layer, the calculus and the closest rewrite that has a rule.
    """


class FreshnessError(KcalcError):
    """A hypothesis of a kernel rule does not hold.

    The hypotheses are that pre-activations are Gaussian and independent of earlier layers, and that
    the terms of a sum are independent.

    Attributes
    ----------
    option
        A sentence about ``assume_independent=True``, appended by functions that accept it.
    message
        The text without that sentence.

    """

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(f"{message}{option}")
        self.message, self.option = message, option


@contextmanager
def without_option() -> Iterator[None]:
    """Omit ``assume_independent`` from freshness errors, for callers without this option."""
    try:
        yield
    except FreshnessError as error:
        raise FreshnessError(error.message).at(error.node) from None


class UnreachableTarget(KcalcError):
    """The conditions of a shaping method have no solution."""


def unknown(kind: str, name: object, known: Iterable[str]) -> KcalcError:
    """Return a :class:`KcalcError` that lists known names similar to an unknown name.

    ``kind`` is the kind of name ("activation"), ``name`` is the unknown name, and ``known`` lists
    the valid names.
    """
    names = sorted(set(known))
    text = name if isinstance(name, str) else glimpse(name)
    near = difflib.get_close_matches(text[:80].lower(), names, n=3, cutoff=0.4)
    if not near and len(names) > LISTED:
        near = difflib.get_close_matches(text[:80].lower(), names[:MANY], n=LISTED, cutoff=0.0)
    rest = f" ({len(names)} in all)" if len(near) < len(names) and len(names) > LISTED else ""
    given = repr(text[:80]) if isinstance(name, str) else text
    return KcalcError(
        f"unknown {kind} {given}; the nearest known: {', '.join(near or names)}{rest}"
    )


def glimpse(value: object, length: int = 60) -> str:
    """Shorten ``repr(value)`` to one line for a message.

    If ``repr`` fails, name the class of the object instead.
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # the repr of a user object may raise anything
        return f"an object of class {type(value).__name__}"
    return text if len(text) <= length else f"{text[: length - 3]}..."
