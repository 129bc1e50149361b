"""Prepare example inputs, call models, and protect the process state while tracing."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.process_state import READING
from ..example_shapes import ExampleIds, example_shape, is_shape, too_large
from ..named_inputs import Call, by_name, signature_of
from .padding import unpadded


def example_arguments(model: Any, examples: Sequence[Any]) -> Call:
    """Convert example inputs to positional and keyword arguments of ``model``.

    Tensors stay unchanged, arrays become tensors, and shapes (including the batch) become random
    tensors.

    Raises: KcalcError if there are no inputs, a shape is invalid, or a batch is empty.
    """
    if not examples:
        raise KcalcError(
            "kcalc reads a PyTorch model by running it; pass example inputs or their "
            "shapes, as in kc.read(model, (2, 3, 32, 32)) or kc.report(model, "
            "example_inputs=[(2, 3, 32, 32)])"
        )
    positional, named = by_name(model.forward, examples)
    given = tuple(
        argument(model, example, f"example input {i + 1}") for i, example in enumerate(positional)
    )
    others = {name: argument(model, one, f"example input {name}") for name, one in named.items()}
    _check_count(model, given, others)
    return given, others


def called(model: Any, arguments: Call) -> Any:
    """Call a model with positional and keyword arguments."""
    positional, named = arguments
    return model(*positional, **named)


def _check_count(model: Any, given: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise a KcalcError that shows the correct call if the model takes different inputs."""
    signature = signature_of(model.forward)
    if signature is None or _binds(signature, given, named):
        return
    required = [p for p in signature.parameters.values() if p.default is p.empty]
    for name in (p.name for p in required if p.kind is p.KEYWORD_ONLY and p.name not in named):
        raise KcalcError(
            f"the model takes its input {name!r} only by keyword; pass it in a dictionary "
            f"after the other inputs, as in kc.read(model, {{{name!r}: {name}}})"
        )
    names = [p.name for p in required if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    call = f"kc.read(model, {', '.join(names)})"
    packed = given[0] if len(given) == 1 and not named else None
    unpacked = list(packed.values()) if isinstance(packed, Mapping) else packed
    if isinstance(unpacked, list | tuple) and _binds(signature, unpacked, {}):
        raise KcalcError(
            f"the example inputs are packed into one object; pass the inputs as {call}"
            + (f", or by name: {', '.join(names)}" if isinstance(packed, Mapping) else "")
        )
    missing = [name for name in names[len(given) :] if name not in named]
    if missing:
        raise KcalcError(
            f"the input {missing[0]!r} of the model is missing; pass the inputs as {call}"
        )
    raise KcalcError(f"the model does not take {len(given)} inputs; pass the inputs as {call}")


def _binds(signature: inspect.Signature, given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*given, **named)
    except TypeError:
        return False
    return True


def argument(model: Any, example: Any, where: str) -> object:
    """Convert one example input to an argument of ``model``; ``where``: its name in errors."""
    try:
        return _argument(model, example, where)
    except RecursionError:
        raise KcalcError(
            "the example inputs are nested too deeply, or contain themselves"
        ) from None


def _argument(model: Any, example: Any, where: str) -> Any:
    import torch

    if isinstance(example, torch.Tensor):
        return _checked(example.detach(), where)
    if isinstance(example, np.ndarray) or type(example).__module__.split(".")[0] in (
        "jax",
        "jaxlib",
    ):
        made = _checked(_tensor(model, np.asarray(example), where), where)
        return unpadded(model, made) if isinstance(example, ExampleIds) else made
    if isinstance(example, Mapping):
        return {key: _argument(model, value, f"{where}[{key!r}]") for key, value in example.items()}
    if is_shape(example):
        return _from_shape(model, example_shape(example, where), where)
    if isinstance(example, list | tuple):
        return type(example)(
            _argument(model, value, f"{where}[{i}]") for i, value in enumerate(example)
        )
    if example is None or isinstance(example, bool | int | float | str):
        return example
    raise KcalcError(f"{where} must be a tensor, an array or a shape, got {type(example).__name__}")


def _checked(tensor: Any, where: str) -> Any:
    if tensor.ndim and tensor.shape[0] == 0:
        raise KcalcError(
            f"{where} of shape {tuple(tensor.shape)} contains no examples; axis 0 is the batch axis"
        )
    return tensor


def _habits(model: Any) -> tuple[Any, Any]:
    """Return the dtype and device of the model's parameters."""
    import torch

    numbers = (
        chain(model.parameters(), model.buffers())
        if isinstance(model, torch.nn.Module)
        else iter(())
    )
    found = next((t for t in numbers if t.is_floating_point()), None)
    return (
        (torch.get_default_dtype(), torch.device("cpu"))
        if found is None
        else (found.dtype, found.device)
    )


def _tensor(model: Any, array: np.ndarray, where: str) -> Any:
    import torch

    dtype, device = _habits(model)
    try:
        tensor = torch.from_numpy(np.ascontiguousarray(array).copy())
    except TypeError:
        raise KcalcError(
            f"{where} must contain numbers, got an array of dtype {array.dtype}"
        ) from None
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def _from_shape(model: Any, shape: tuple[int, ...], where: str) -> Any:
    import torch

    dtype, device = _habits(model)
    try:
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    except RuntimeError:  # not enough memory
        raise too_large(shape, where) from None
    return drawn.to(device, dtype)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Return a context that restores random states and suppresses messages and warnings.

    The state is shared by the whole process, so only one thread at a time can enter the context.
    """
    import torch

    with READING, _quiet(torch):
        yield


@contextlib.contextmanager
def _quiet(torch: Any) -> Iterator[None]:
    state, numpy_state = random.getstate(), np.random.get_state()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            torch.random.fork_rng(devices=[]),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            # optimised TorchScript would run other operators after the first run
            with contextlib.redirect_stderr(io.StringIO()), torch.jit.optimized_execution(False):
                yield
    finally:
        logging.disable(before)
        random.setstate(state)
        np.random.set_state(numpy_state)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


def place(error: BaseException) -> str:
    """Return the innermost line of the user's code in the traceback of an error.

    The result has the form " at file:line in function", or is "" if there is no such line.
    """
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not is_library(file):
            found = (
                f" at {file.rsplit('/', 1)[-1]}:{trace.tb_lineno} in "
                f"{trace.tb_frame.f_code.co_name}"
            )
        trace = trace.tb_next
    return found


def is_library(file: str) -> bool:
    """Whether a source file belongs to PyTorch, Python or kcalc."""
    return (
        file.startswith("<frozen")
        or "site-packages" in file
        or "/kcalc/interchange/" in file
        or "/kcalc/lab/audit/" in file
        or "/lib/python3" in file
    )
