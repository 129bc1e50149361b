"""Record a builder's run: the law and source line of every parameter, and overwritten values.

A dispatch mode intercepts each random fill of memory. The enclosing frames of ``torch.nn.init``, or
of a function with the same name in another library, show which initialiser made the fill and which
fan it used. Uninitialised memory is filled with NaN, which stays in parameters that nothing
initialises.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...foundation.errors import KcalcError, glimpse
from ...interchange.torch_model import memory
from .building import built, usable
from .held import held as held_by
from .laws import Law, estimated, truncated_moments
from .places import begins, drawn_at

UNINITIALISED = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
NORMAL, UNIFORM = ("normal", 1.0, 0.0), ("uniform", 12**-0.5, 0.5)
SOURCES = {"randn": NORMAL, "randn_like": NORMAL, "rand": UNIFORM, "rand_like": UNIFORM}
CONSTANT = {
    "zeros",
    "ones",
    "full",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
}
CARRIED = {"clone", "_to_copy", "detach", "alias", "t", "transpose", "permute", "view", "reshape"}
INITIALISERS = {
    "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "trunc_normal_",
    "orthogonal_", "sparse_", "eye_", "dirac_", "uniform_", "normal_", "constant_", "ones_",
    "zeros_",
}  # fmt: skip
SEED = 0


@dataclass
class Written:
    """The last distribution written to one piece of memory, and the initialiser that wrote it."""

    law: Law
    frame: Any
    size: int


def drawn(given: Any) -> tuple[Any, dict[str, Law], dict[str, str]]:
    """Return a module, as given or built by a builder, and the distribution of each parameter.

    Returns: (module, {parameter: law}, {path of a tensor in a plain attribute: line that wrote
    it}).
    """
    import torch

    if isinstance(given, torch.nn.Module):
        model = usable(given)
        return model, {name: estimated(p) for name, p in model.named_parameters()}, {}
    if callable(given):
        torch.manual_seed(SEED)
        return recorded(given)
    raise KcalcError(
        "expected a torch.nn.Module, or a function without arguments that returns one, got "
        f"{glimpse(given)}"
    )


def recorded(builder: Callable[[], Any]) -> tuple[Any, dict[str, Law], dict[str, str]]:
    """Return a builder's model, and the distribution of each of its parameters.

    Returns: (model, {parameter: law}, {path of another tensor: line}).

    Raises: KcalcError if the builder raises an error or returns no module.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    writes: dict[int | None, Written] = {}
    held: list[Any] = []  # keeps memory alive, so that no other tensor gets the same key

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.device.type != "meta":
                _note(func, args, out, writes, held)
            return out

    with Recorder():
        model = built(builder)
    laws = {name: _law_of(parameter, writes) for name, parameter in model.named_parameters()}
    others = held_by(model).items()
    places = {path: _law_of(tensor, writes).place for path, tensor in others if _floats(tensor)}
    for known in writes.values():
        known.frame = None
    return model, laws, places


def _floats(tensor: Any) -> bool:
    known = memory(tensor) is not None and not tensor.is_nested
    return known and tensor.is_floating_point() and tensor.device.type != "meta"


def _note(
    func: Any, args: Any, out: Any, writes: dict[int | None, Written], held: list[Any]
) -> None:
    """Update the recorded distributions after one operation."""
    name = func._schema.name.split("::")[-1]
    whole = out.is_floating_point()
    key = memory(out)
    if not whole or key is None:  # sparse tensors have no memory of their own
        return
    if name in UNINITIALISED:
        if key not in writes:
            out.fill_(math.nan)
            held.append(out)
            place = drawn_at(INITIALISERS)
            law = Law("uninitialised", place=place, made=place)
            writes[key] = Written(law, None, out.numel())
        return
    before = writes.get(memory(args[0])) if args else None
    if name.endswith("_") and not name.startswith("_"):
        if key not in writes:
            held.append(out)
        _overwrite(name, args, out, writes)
    elif key not in writes or name in SOURCES:
        law = _fresh(name, args, before)
        if law is not None:
            held.append(out)
            writes[key] = Written(law, None, out.numel())


def _fresh(name: str, args: Any, before: Written | None) -> Law | None:
    """Return the distribution of a new tensor, or None if it is unknown."""
    if name in SOURCES:
        kind, sigma, mean = SOURCES[name]
        return Law(kind, sigma, mean=mean, place=drawn_at(INITIALISERS))
    if name in CONSTANT:
        return Law("constant", 0.0, place=drawn_at(INITIALISERS))
    if before is None:
        return None
    if name in CARRIED:
        return before.law
    factor = _factor(name, args)
    if factor is not None:
        return before.law.scaled(factor, before.law.place or drawn_at(INITIALISERS))
    return Law("computed", place=drawn_at(INITIALISERS))


def _factor(name: str, args: Any) -> float | None:
    """Return the number by which an operation multiplies its first argument, or None."""
    if name.rstrip("_") not in ("mul", "div") or len(args) != 2:
        return None
    other = args[1]
    if hasattr(other, "numel"):
        if other.numel() != 1:
            return None
        other = float(other)
    if not isinstance(other, int | float) or (name.startswith("div") and other == 0):
        return None
    return float(other) if name.startswith("mul") else 1 / float(other)


def _overwrite(name: str, args: Any, out: Any, writes: dict[int | None, Written]) -> None:
    """Record an in-place operation on a whole piece of memory or on a part of it."""
    key, size = memory(out), out.numel()
    known = writes.get(key)
    before = known.law if known else Law("uninitialised")
    capacity = out.untyped_storage().nbytes() // out.element_size()
    frame, place = _initialiser(), drawn_at(INITIALISERS)
    same = known is not None and frame is not None and known.frame is frame
    law = _written(name, args, out, before, frame, place)
    if same and known is not None:
        before_all = known.law.replaced
    elif before.name == "uninitialised":
        before_all = ()
    else:
        before_all = (*before.replaced, replace(before, replaced=()))
    if size < capacity:
        if name in ("zero_", "fill_") and before.name != "uninitialised":
            return  # zeroing the row of a padding index does not count
        started = before.name not in ("uninitialised", law.name)
        fan = law.fan if before.fan in (None, law.fan) else None
        law = replace(law, name="several" if started else law.name, sigma=math.nan, fan=fan)
    writes[key] = Written(replace(law, replaced=before_all, made=before.made), frame, size)


def _written(name: str, args: Any, out: Any, before: Law, frame: Any, place: str) -> Law:
    """Return the distribution of a tensor after one in-place operation."""
    if frame is not None:
        law = _by_initialiser(frame, out)
        if law is not None:
            return replace(law, place=place)
    if name == "normal_":
        mean, std = _numbers(args, 0.0, 1.0)
        return Law("normal", std, mean=mean, place=place)
    if name == "uniform_":
        low, high = _numbers(args, 0.0, 1.0)
        return Law("uniform", (high - low) / 12**0.5, mean=(low + high) / 2, place=place)
    if name in ("zero_", "fill_"):
        return Law("constant", 0.0, place=place)
    factor = _factor(name, args)
    if factor is not None and before.name != "uninitialised":
        return before.scaled(factor, place)
    return Law("copied" if name == "copy_" else "computed", place=place)


def _numbers(args: Any, *defaults: float) -> tuple[float, ...]:
    given = [float(value) for value in args[1:3] if isinstance(value, int | float)]
    return (*given, *defaults[len(given) :])


def _by_initialiser(frame: Any, out: Any) -> Law | None:
    """Return the distribution from which a call of a ``torch.nn.init`` function draws."""
    name, local = frame.f_code.co_name, frame.f_locals
    short = name.rstrip("_").replace("no_grad_", "").lstrip("_")
    try:
        if short == "trunc_normal":
            std, mean = float(local["std"]), float(local["mean"])
            low, high = float(local["a"]) - mean, float(local["b"]) - mean
            cut = min(abs(low), abs(high)) / std if std > 0 else None
            shift, sigma = truncated_moments(std, low, high)
            return Law(short, sigma, mean=mean + shift, cut=cut)
        if short.startswith("kaiming"):
            fan, gain = float(local["fan"]), float(local["gain"])
            return Law(short, gain / math.sqrt(fan), fan=(str(local["mode"]), fan))
        if short.startswith("xavier"):
            fans = float(local["fan_in"]) + float(local["fan_out"])
            gain = float(local["gain"])
            return Law(short, gain * math.sqrt(2 / fans), fan=("fan_sum", fans))
        if short in ("orthogonal", "sparse", "eye", "dirac"):
            return Law(short)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return None


def _initialiser() -> Any:
    """Return the innermost enclosing frame of a function with a name from ``torch.nn.init``."""
    frame = sys._getframe(1)
    while frame is not None and not begins(frame):
        if frame.f_code.co_name in INITIALISERS:
            return frame
        frame = frame.f_back
    return None


def _law_of(parameter: Any, writes: dict[int | None, Written]) -> Law:
    """Return the distribution of a parameter, as recorded or else estimated from its entries."""
    measured = estimated(parameter)
    known = writes.get(memory(parameter))
    if known is None:
        return measured
    law = known.law
    if law.name == "uninitialised":
        unwritten = parameter.isnan()
        if bool(unwritten.all()):
            return law
        law = replace(law, name="computed")
    if known.size < parameter.numel() and not (
        parameter.ndim > 2 and known.size == parameter[0].numel()
    ):
        law = replace(law, fan=None)
    if measured.name == "not finite":
        mean = math.nan if bool(parameter.isnan().any()) else math.inf
        return replace(law, sigma=math.nan, mean=mean)
    if measured.name == "constant":
        return replace(law, name="constant", sigma=0.0, mean=measured.mean, error=0.0)
    off = 6 * measured.error + 0.02 * measured.sigma
    if not math.isfinite(law.sigma) or abs(law.sigma - measured.sigma) > off:
        return replace(law, sigma=measured.sigma, mean=measured.mean, error=measured.error)
    return law
