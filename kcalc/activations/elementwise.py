"""Python and JAX callables as functions of float64 arrays, and checks that they are elementwise.

An elementwise callable treats each entry of an array separately.

JAX callables run in float64 inside the ``jax.enable_x64(True)`` context, on blocks of one fixed
shape, so each is compiled only once. Results are NumPy arrays. This module never imports JAX,
because a callable that needs JAX has already imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np

from kcalc.fields.jax_field import is_jax
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.quadrature import Array

_BLOCK = 2048
_SAME = 1e-10  # relative: vectorised code may round differently at another position of an array
_TORCH = (
    "wrap it as lambda x: f(torch.from_numpy(x)).numpy(), with the module in evaluation mode and "
    "double precision"
)
_ALONE = (
    "an activation must act elementwise; softmax, sorting, sums, norms, batch statistics and "
    "pooling do not"
)


def in_double_precision() -> Any:
    """Return a context in which JAX computes in float64, or a null context if JAX is not imported.

    The context leaves JAX's global flag unchanged.
    """
    jax = sys.modules.get("jax")
    return nullcontext() if jax is None else jax.enable_x64(True)


@dataclass(frozen=True, eq=False)
class Elementwise:
    """A callable as a function of float64 arrays of any shape.

    Two instances are equal if they wrap the same callable.

    ``kind`` is the argument that the callable takes: "array" (a NumPy array), "scalar" (one Python
    float), "jax" (a JAX array) or "jax scalar" (one JAX number, mapped by ``jax.vmap``).
    """

    function: Callable[..., Any]
    name: str
    kind: str

    def _identity(self) -> tuple[int, ...]:
        f = self.function
        return (id(f.__self__), id(f.__func__)) if isinstance(f, MethodType) else (id(f),)

    def __hash__(self) -> int:
        return hash(self._identity())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Elementwise) and self._identity() == other._identity()

    @property
    def is_jax(self) -> bool:
        """Whether JAX can trace the callable."""
        return self.kind.startswith("jax")

    def __call__(self, x: Any) -> Array:
        """Evaluate phi(x).

        Raises KcalcError for exceptions, nan and results that are not float64; the message names
        the callable and x.
        """
        if not isinstance(x, np.ndarray | float | int):
            raise KcalcError(
                f"activation {self.name!r} is a callable and accepts only numbers in double "
                f"precision, got {type(x).__name__}"
            )
        x = np.asarray(x, dtype=float)
        if x.size == 0:
            return np.zeros_like(x)
        values = self.raw(x.ravel())
        if np.isnan(values).any():
            where = x.ravel()[np.isnan(values)][0]
            raise KcalcError(
                f"activation {self.name!r} has no real value at x = {where:.8g} (the callable "
                f"returned nan)"
            )
        return values.reshape(x.shape)

    def raw(self, x: Array) -> Array:
        """Return the values at a flat array; they may be nan."""
        if self.kind == "scalar":
            return np.array([self._scalar(value) for value in x.tolist()])
        if self.is_jax:
            return in_blocks(self._compiled, x, self.name)
        return _called(self.function, x.copy(), self.name)

    def _scalar(self, value: float) -> float:
        try:
            return float(_floats(_outcome(self.function, value), (), self.name))
        except KcalcError:
            raise
        except OverflowError:  # NumPy would return infinity
            return float("inf")
        except Exception as error:
            raise failure(error, self.function, value, self.name) from error

    @cached_property
    def mapped(self) -> Callable[[Any], Any]:
        """The callable as a function of JAX arrays."""
        function, jax = self.function, sys.modules["jax"]
        return (
            jax.vmap(lambda x: function(x)) if self.kind == "jax scalar" else lambda x: function(x)
        )

    @cached_property
    def _compiled(self) -> Callable[[Any], Any]:
        return compiled(self.mapped)


def compiled(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compile ``function`` with ``jax.jit``; return it unchanged if tracing one block fails."""
    jax = sys.modules["jax"]
    fast = jax.jit(function)
    try:
        with in_double_precision():
            fast(jax.numpy.ones(_BLOCK))
    except Exception:  # user code: it then runs untraced or fails later
        return function
    return fast


def in_blocks(function: Callable[[Any], Any], x: Array, name: str) -> Array:
    """Evaluate a function of JAX arrays at a flat array, in blocks of equal shape.

    The last block is padded with copies of the last entry of ``x``.
    """
    jax = sys.modules["jax"]
    padded = np.concatenate([x, np.full(-x.size % _BLOCK, x[-1])]).reshape(-1, _BLOCK)
    out = [
        _called(lambda block: function(jax.numpy.asarray(block)), block, name) for block in padded
    ]
    return np.concatenate(out)[: x.size]


def _called(function: Callable[..., Any], argument: Any, name: str) -> Array:
    """Return the result of one call, as a float64 array with the shape of the argument."""
    try:
        result = _outcome(function, argument)
    except KcalcError:
        raise
    except Exception as error:
        raise failure(error, function, argument, name) from error
    return _floats(result, np.shape(argument), name)


def _outcome(function: Callable[..., Any], argument: Any) -> Any:
    """Return the function's result, with a JAX array converted inside the float64 context."""
    with np.errstate(all="ignore"), in_double_precision():
        result = function(argument)
        return np.asarray(result) if is_jax(result) else result


def failure(error: Exception, function: Callable[..., Any], argument: Any, name: str) -> KcalcError:
    """Return the error for an exception inside the callable, naming the first x that raises it."""
    text = (
        f"{type(error).__name__}: "
        f"{str(error).splitlines()[0][:120] if str(error) else 'no message'}"
    )
    if "Tensor" in text:
        return KcalcError(
            f"activation {name!r} raised {text}, because torch functions do not take NumPy "
            f"arrays; {_TORCH}"
        )
    points = np.ravel(argument)
    where = next(
        (
            value
            for value in points[:500]
            if points.size > 1 and _fails(function, np.array([value]))
        ),
        points[0],
    )
    return KcalcError(f"activation {name!r} raised {text} at x = {float(where):.8g}")


def _fails(function: Callable[..., Any], value: Any) -> bool:
    try:
        _outcome(function, value)
    except Exception:  # any exception is a failure
        return True
    return False


def _floats(result: Any, shape: tuple[int, ...], name: str) -> Array:
    """Convert a result to float64.

    Raises KcalcError for other shapes, complex numbers, Booleans, single precision and objects.
    """
    if type(result).__module__.split(".")[0] == "torch":
        raise KcalcError(f"activation {name!r} returned a torch tensor; {_TORCH}")
    if result is None or isinstance(result, str | bytes | dict | set | np.ma.MaskedArray):
        raise KcalcError(
            f"activation {name!r} returned {type(result).__name__}, but it must return real numbers"
        )
    try:
        values = np.asarray(result)
    except Exception as error:
        raise KcalcError(
            f"activation {name!r} returned {type(result).__name__}, which is not an array of real "
            "numbers"
        ) from error
    if values.shape != shape:
        raise KcalcError(
            f"activation {name!r} returned an array of shape {values.shape} for an input of "
            f"shape {shape}, but {_ALONE}"
        )
    return _real_numbers(values, name)


def _real_numbers(values: np.ndarray, name: str) -> Array:
    kind, width = values.dtype.kind, values.dtype.itemsize
    if kind == "O":
        try:
            values = np.array([float(value) for value in values.ravel()]).reshape(values.shape)
        except (TypeError, ValueError) as error:
            raise KcalcError(
                f"activation {name!r} returned objects that are not real numbers"
            ) from error
    elif kind == "c":
        raise KcalcError(
            f"activation {name!r} returned complex numbers, but it must return real numbers; "
            "select the real or imaginary part with .real or .imag"
        )
    elif kind == "b":
        raise KcalcError(
            f"activation {name!r} returned Booleans; multiply them by 1.0 to get a step function"
        )
    elif kind == "f" and width < 8:
        raise KcalcError(
            f"activation {name!r} returned {values.dtype} for a float64 input; it must compute "
            "in double precision throughout"
        )
    elif kind not in "fiu":
        raise KcalcError(
            f"activation {name!r} returned {values.dtype}, but it must return real numbers"
        )
    return np.array(values, dtype=np.float64)


# --- kinds of callables ---------------------------------------------------------------------------


def elementwise(function: Callable[..., Any], name: str) -> Elementwise:
    """Wrap a callable as a function of arrays, after checking that it is elementwise.

    Raises KcalcError for classes, torch functions, several arguments, exceptions, randomness, and
    values that depend on the rest of the array.
    """
    _refuse_foreign(function, name)
    rule = Elementwise(function, name, _kind(function, name))
    _check_alone(rule)
    return rule


def _refuse_foreign(function: Any, name: str) -> None:
    if isinstance(function, type):
        raise KcalcError(
            f"{name!r} is a class; pass an instance or a function (for SymPy, pass an expression "
            "such as tanh(x))"
        )
    inner = getattr(function, "func", function)
    owner = getattr(inner, "__self__", None)
    modules = [
        str(getattr(part, "__module__", "") or "")
        for part in (inner, owner, *type(inner).__mro__, *type(owner).__mro__)
    ]
    if any(module.split(".")[0] == "torch" for module in modules):
        raise KcalcError(f"{name!r} is a torch function, which takes tensors; {_TORCH}")
    if isinstance(function, np.ufunc) and (function.nin, function.nout) != (1, 1):
        raise KcalcError(
            f"the ufunc {name!r} takes {function.nin} arguments and returns {function.nout} "
            "results, but an activation takes one argument and returns one result"
        )


def _kind(function: Callable[..., Any], name: str) -> str:
    """Find the kind of argument that the callable takes.

    The callable is tried with a NumPy array, then (if JAX is imported) with a JAX array, then with
    a number.
    """
    probe = np.array([0.3, -1.2, 2.1, 0.7, -0.4])
    first: Exception | None = None
    for attempt in (lambda: probe.copy(), lambda: sys.modules["jax"].numpy.asarray(probe)):
        try:
            with in_double_precision(), np.errstate(all="ignore"):
                result = function(attempt())
                values = np.asarray(result) if is_jax(result) else result
        except Exception as error:
            first = first or error
            continue
        if is_jax(result):
            return "jax"  # this call may have imported JAX, so the precision is checked later
        _floats(values, probe.shape, name)
        return "array"
    assert first is not None
    return _scalar_kind(function, name, probe, first)


def _scalar_kind(function: Callable[..., Any], name: str, probe: Array, first: Exception) -> str:
    try:
        results = [_outcome(function, value) for value in probe.tolist()]
        with in_double_precision():
            traced = is_jax(function(float(probe[0])))
    except Exception as second:
        if isinstance(second, TypeError | AttributeError | IndexError):  # takes only arrays
            raise failure(first, function, probe, name) from first
        where = next(value for value in probe.tolist() if _fails(function, value))
        raise failure(second, function, where, name) from second
    for value in results:
        _floats(value, (), name)
    if not traced:
        return "scalar"
    try:
        Elementwise(function, name, "jax scalar").raw(probe)
    except KcalcError:  # it branches on values, so JAX cannot map it
        return "scalar"
    return "jax scalar"


def _check_alone(rule: Elementwise) -> None:
    """Check that the value at x depends neither on the rest of the array nor on earlier calls."""
    random = np.random.default_rng(0)
    x = random.uniform(-6, 6, 64)
    x[5] = x[40]
    others = np.where(np.arange(64) % 2 == 0, x, random.uniform(-20, 20, 64))
    raw = (
        rule.raw if rule.kind == "scalar" else lambda part: _called(_direct(rule), part, rule.name)
    )
    values = raw(x.copy())
    size = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))

    def compare(got: Array, expected: Array, at: Array, reason: str) -> None:
        with np.errstate(invalid="ignore"):
            off = np.abs(got - expected) > _SAME * np.abs(expected) + 1e-13 * size
        off |= np.isnan(got) != np.isnan(expected)
        if off.any():
            raise KcalcError(
                f"activation {rule.name!r} {reason} (seen at x = {at[off][0]:.6g}: "
                f"{expected[off][0]:.6g}, then {got[off][0]:.6g})"
            )

    for _ in range(2):
        compare(
            raw(x.copy()),
            values,
            x,
            "is not deterministic, but dropout and noise have no C map; use the callable's "
            "evaluation mode",
        )
    alone = f"is not elementwise, because its value changes with the rest of the array; {_ALONE}"
    compare(raw(x[::-1].copy())[::-1], values, x, alone)
    compare(raw(others)[::2], values[::2], x[::2], alone)
    compare(np.concatenate([raw(x[i : i + 1].copy()) for i in range(4)]), values[:4], x[:4], alone)
    compare(raw(x[:17].copy()), values[:17], x[:17], alone)
    if rule.kind != "scalar":
        compare(raw(np.tile(x, 40))[-64:], values, x, alone)


def _direct(rule: Elementwise) -> Callable[[Any], Any]:
    """Return a version of the callable that runs on whole arrays, without compilation.

    Blocks and compilation would hide how the callable behaves on arrays of other lengths.
    """
    if not rule.is_jax:
        return rule.function
    return lambda x: rule.mapped(sys.modules["jax"].numpy.asarray(x))
