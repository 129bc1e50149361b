"""Locks for process-wide precision and warning filters.

The working precisions of mpmath (which SymPy sets while it evaluates) and of python-flint belong to
the whole process, and so do SymPy's tables of compiled names, Python's warning filters and standard
streams. Two threads that set one and put it back in turn leave it wrong, for good, and compute with
each other's digits in between.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import mpmath
import sympy as sp
from mpmath.libmp import ln2_fixed, pi_fixed

P = ParamSpec("P")
T = TypeVar("T")

ALONE = threading.RLock()
"""Held while precision, or another setting of the whole process, is other than it was found."""

READING = threading.RLock()
"""Held while a model is traced with its library's layers replaced or warnings are filtered.

It is taken before :data:`ALONE` where both are.
"""

# a forked process starts with both free, and with the precision nobody is about to put back
if hasattr(os, "register_at_fork"):
    for _lock in (ALONE, READING):
        os.register_at_fork(
            before=_lock.acquire, after_in_child=_lock.release, after_in_parent=_lock.release
        )


def alone(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, run by one thread at a time.

    All such functions exclude each other, but may call each other.
    """

    @functools.wraps(function)
    def guarded(*arguments: P.args, **options: P.kwargs) -> T:
        with ALONE:
            return function(*arguments, **options)

    return guarded


_SHARED_BITS = 2000
# mpmath extends its digits of a constant in two steps, between which other threads misread it
for _constant in (
    pi_fixed,
    ln2_fixed,
):
    _constant(_SHARED_BITS)


@contextmanager
def decimal_digits(count: int) -> Iterator[None]:
    """Context in which mpmath computes with ``count`` decimal digits.

    The precision changes in this thread alone, and is as before afterwards.
    """
    with ALONE, mpmath.workdps(count):
        yield


lambdify = alone(sp.lambdify)
"""``sympy.lambdify``, which fills tables of the process when it first meets a library."""

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 - as the original
        """``functools.cached_property`` without the lock of Python 3.11.

        Python 3.11 takes that lock for all objects of a class.

        With that lock, two threads that need each other's properties wait forever. Two threads may
        compute a value twice; both get the one that was finished first.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            # an override asks by super(): its own value is kept
            if getattr(type(instance), self.attrname) is not self:
                return self.func(instance)
            known = instance.__dict__
            if self.attrname in known:
                return known[self.attrname]
            return known.setdefault(self.attrname, self.func(instance))
