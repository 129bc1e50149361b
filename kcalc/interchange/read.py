"""Read a model of any supported framework."""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import mapping, truth
from ..foundation.process_state import READING
from ..network.network import Network
from .example_shapes import listed
from .internal_errors import internal_error
from .json_format import load_json
from .model_reading import Reading
from .recognise import recognise
from .trace import Trace

_KNOWN: dict[
    int, tuple[weakref.ref[Any], Reading]
] = {}  # keyed by id(), because models may be unhashable or compare equal
FORMATS = (".onnx", ".json")
FRONT_ENDS = {"torch_model": "torch", "onnx_model": "onnx", "jax_model": ""}
"""{package: library of the models that it reads}; "" for any object, tried last."""


def read(
    model: Any,
    *inputs: Any,
    example_inputs: Any = (),
    sigmas: bool = True,
    shapes: Mapping[str, Any] | None = None,
) -> Reading:
    """Return the network of a model from another framework.

    Parameters
    ----------
    model
        A ``torch.nn.Module``, an Equinox or Flax module (for Flax Linen, a pair of module and
        variables), a Keras 3 model, or a network. It may also be a JAX function with its parameters
        as the first example input, the path of an ONNX or kcalc JSON file, or an
        ``onnx.ModelProto``.
    *inputs
        For every input of the model, an array or a shape. A shape is a tuple of integers that
        starts with the number of examples. For JAX models, pass shapes for all inputs or for none,
        because a tuple next to an array is read as a setting.
    example_inputs
        ``example_inputs=[x, y]`` is equivalent to passing x and y after the model. The last input
        may be a dictionary of inputs by argument name, ``{"idx": ids}``. If its keys are not names
        of arguments that are still missing, the dictionary is passed as one argument. An Equinox
        module takes a single example, so pass an array of shape (3, 32, 32), for example, or the
        shape of a batch, such as (2, 3, 32, 32). Keras models and files declare their inputs.
    sigmas
        Whether to read standard deviations from the weights and biases: ``sigma_w = sqrt(fan_in
        mean W^2)`` and ``sigma_b = sqrt(mean b^2)``. These are the standard deviations about 0 that
        the calculi use. With False, sigma_w is 1 and sigma_b is 0 everywhere, so that only the
        architecture is read.
    shapes
        Shapes for inputs of an ONNX file with open dimensions, {input name: shape}.

    Returns
    -------
    Reading
        A :class:`Reading` with ``.network``, ``.fidelity`` (exact, locations, pooling, approximate
        or not read, for each node), ``.notes`` and ``.parts`` (the parts between unread
        operations). ``.network.name`` is the name of the model's class or function, or of its file
        without the suffix. The model does not change, and nothing in a file is evaluated.

    Raises
    ------
    KcalcError
        If the model cannot be traced (the message states where and why), the framework is not
        installed, shapes are dynamic, the model is empty, or a file is not a model.

    Examples
    --------
    >>> import torch
    >>> import kcalc as kc
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    >>> r = kc.read(model, (4, 8))
    >>> len(r.network), r.network.outputs
    (4, ('2',))

    """
    truth(sigmas, "sigmas")
    if isinstance(model, type):
        raise KcalcError(
            f"{model.__name__} is a class, not a model; create an instance first, as in "
            f"kc.read({model.__name__}(...), *inputs)"
        )
    given = listed(example_inputs)
    if inputs and given:
        raise KcalcError("pass the inputs after the model or as example_inputs=, not both")
    inputs = inputs or given
    if shapes is not None:
        mapping(shapes, "shapes")
    if isinstance(model, Reading | Network):
        return model if isinstance(model, Reading) else native(model)
    if isinstance(model, str | os.PathLike):
        return _named(_file(Path(model), inputs, sigmas, shapes), Path(model).stem)
    trace = _traced(model, inputs, shapes)
    with _guarded(f"a {type(model).__name__}"):
        network = recognise(trace, sigmas)
    found = _named(network, getattr(model, "__name__", type(model).__name__))
    with suppress(TypeError):  # some objects cannot be weakly referenced
        # a local name, because at exit the module's globals may vanish before the last models
        place = id(model)
        known = _KNOWN
        known[place] = weakref.ref(model, lambda _: known.pop(place, None)), found
    return found


@contextmanager
def _guarded(what: str) -> Iterator[None]:
    """Return a context that replaces unexpected errors with a KcalcError that suggests a remedy.

    ``what``: the model that is read, for the message.
    """
    try:
        yield
    except KcalcError:
        raise
    except Exception as error:
        told = internal_error(error, f"the reading of {what} as a whole")
        raise KcalcError(
            f"{told}; until this is fixed, read the parts of the model before and after the layers "
            "named here, or build the network with kc.Network"
        ) from error


def _named(reading: Reading, name: str) -> Reading:
    """Name the network of a reading after the model's class, function or file.

    Lambdas have no usable name.
    """
    return reading if name == "<lambda>" else replace(reading, network=reading.network.named(name))


def native(network: Network) -> Reading:
    """Return a reading of a network that was built in kcalc."""
    return Reading("kcalc", network, network.notes, {})


def last_reading(model: Any) -> Reading | None:
    """Return the last reading of the same object, or None if it was not read before."""
    there, found = _KNOWN.get(id(model), (None, None))
    return found if there is not None and there() is model else None


def _file(
    path: Path, inputs: tuple[Any, ...], sigmas: bool, shapes: Mapping[str, Any] | None
) -> Reading:
    if path.suffix == ".json":
        return native(load_json(path))
    if path.suffix == ".onnx":
        from .onnx_model import trace_onnx

        with _guarded(str(path)):
            return recognise(trace_onnx(path, inputs, shapes), sigmas)
    raise KcalcError(
        f"{path}: kcalc reads only files that end in {' or '.join(FORMATS)}; pass other "
        "models as Python objects"
    )


def _traced(model: Any, inputs: tuple[Any, ...], shapes: Mapping[str, Any] | None) -> Trace:
    for front, library in FRONT_ENDS.items():
        if library and library not in sys.modules:  # then the model cannot belong to this library
            continue
        reader = importlib.import_module(f".{front}", __package__)
        more = (shapes,) if front == "onnx_model" else ()
        with READING, _guarded(f"a {type(model).__name__}"):
            trace = reader.trace_model(model, inputs, *more)
        if trace is not None:
            return trace
    raise KcalcError(
        f"kcalc cannot read a {type(model).__name__}; pass a torch.nn.Module, an Equinox, "
        "Flax or Keras model, a JAX function with its parameters, kc.read(f, params, x), a "
        "path that ends in .onnx or .json, or a kcalc.Network. If you have a function that "
        "builds a model, call it first, as in kc.read(build(), *inputs)"
    )
