"""Locks for process-wide precision and warning filters.

The working precisions of mpmath (which SymPy sets during evaluation) and of python-flint are global
to the process. SymPy's tables of compiled names, Python's warning filters and the standard streams
are global too. If two threads set and restore one of these settings concurrently, the setting can
keep a wrong value, and either thread may compute with the other's precision in the meantime.
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
"""The lock that is held while the precision or another global setting is changed."""

READING = threading.RLock()
"""The lock that is held while a model is traced with replaced layers or warnings are filtered.

If both are needed, it is acquired before :data:`ALONE`.
"""

# a forked process starts with both locks free and with the default precision
if hasattr(os, "register_at_fork"):
    for _lock in (ALONE, READING):
        os.register_at_fork(
            before=_lock.acquire, after_in_child=_lock.release, after_in_parent=_lock.release
        )


def alone(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate ``function`` so that only one thread at a time runs it.

    All decorated functions exclude each other across threads, but may call each other.
    """

    @functools.wraps(function)
    def guarded(*arguments: P.args, **options: P.kwargs) -> T:
        with ALONE:
            return function(*arguments, **options)

    return guarded


_SHARED_BITS = 2000
# mpmath extends a constant in two steps, and another thread may read it in between
for _constant in (
    pi_fixed,
    ln2_fixed,
):
    _constant(_SHARED_BITS)


@contextmanager
def decimal_digits(count: int) -> Iterator[None]:
    """Set the precision of mpmath to ``count`` decimal digits within the context.

    The previous precision is restored afterwards.
    """
    with ALONE, mpmath.workdps(count):
        yield


lambdify = alone(sp.lambdify)
"""``sympy.lambdify`` under the lock, because it fills global tables on first use of a library."""

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 - the name of the original
        """``functools.cached_property`` without the lock of Python 3.11.

        Python 3.11 holds one lock for all objects of a class. With that lock, two threads that need
        each other's properties wait forever. Without it, two threads may compute a value twice;
        both get the value that was stored first.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            # called through super(): the override caches its own value
            if getattr(type(instance), self.attrname) is not self:
                return self.func(instance)
            known = instance.__dict__
            if self.attrname in known:
                return known[self.attrname]
            return known.setdefault(self.attrname, self.func(instance))
