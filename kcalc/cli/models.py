"""User models on the command line: ONNX, JSON, and Python objects ``module:attribute``."""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np

from .. import Reading, read
from ..foundation.errors import KcalcError, glimpse
from ..interchange import FORMATS, example_ids, example_shape
from .command import Option

PYTHON = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
SOURCE = re.compile(r"(.*)\.py(?::([^:]*))?")  # a file and perhaps an attribute
LONGEST = 40  # maximum number of digits in a size; no real size has this many
MODEL_HELP = (
    "an .onnx file, a network .json file, or module:attribute, a model (or a function that "
    "returns one) in a Python module"
)


def sizes(text: str) -> tuple[int, ...]:
    """Parse a shape such as ``1,3,224,224``.

    Raises: an argparse.ArgumentTypeError that quotes the text.
    """
    parts = [part.strip().lstrip("0") for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(
            f"{glimpse(text)} is not a shape; write positive integers separated by commas, "
            "starting with the number of examples, as in 1,3,224,224"
        )
    try:
        return example_shape([int(part[:LONGEST]) for part in parts], "--input")
    except KcalcError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--input: ")) from None


def token_ids(text: str) -> np.ndarray:
    """Parse a shape such as ``2,12`` and return token ids of this shape.

    The ids are small integers other than 0. For a PyTorch model, ids that it treats as padding
    are replaced.

    Raises: an argparse.ArgumentTypeError that quotes the text.
    """
    return example_ids(sizes(text))


def by_name(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Extend a parser of ``SIZES`` to ``NAME=SIZES``, which becomes {name: parsed sizes}.

    Raises: an argparse.ArgumentTypeError that quotes the text.
    """

    def read_one(text: str) -> Any:
        name, named, rest = text.rpartition("=")
        found = parse(rest.strip())
        if named and not name.strip().isidentifier():
            raise argparse.ArgumentTypeError(f"{glimpse(name)} is not a valid argument name")
        return {name.strip(): found} if named else found

    return read_one


def assembled(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the inputs of a model: positional inputs, then a dictionary of named inputs."""
    named = {name: one for part in inputs if isinstance(part, dict) for name, one in part.items()}
    places = tuple(part for part in inputs if not isinstance(part, dict))
    return (*places, named) if named else places


def input_words(inputs: Sequence[Any]) -> list[str]:
    """Return the words --input SIZES and --ids SIZES of a command line with these inputs."""
    words = []
    for part in inputs:
        for name, one in part.items() if isinstance(part, dict) else [("", part)]:
            ids = isinstance(one, np.ndarray)
            text = ",".join(map(str, one.shape if ids else one))
            words += ["--ids" if ids else "--input", f"{name}={text}" if name else text]
    return words


Inputs: TypeAlias = Annotated[
    tuple[Any, ...],
    Option(
        "like --input, but for token ids; 2,16 means 2 sequences of 16 tokens. The model receives "
        "its inputs in the order of --input and --ids",
        "--ids",
        type=by_name(token_ids),
        metavar="SIZES",
    ),
    Option(
        "shape of an example input, starting with the number of examples, as in 1,3,224,224; "
        "repeat the option for each input of the model, or add the input's name, as in mask=2,16",
        type=by_name(sizes),
        metavar="SIZES",
    ),
]


def is_model(text: str) -> bool:
    """Return whether a command-line word names a model rather than a built-in network."""
    return is_python(text) or text.endswith(FORMATS) or _is_file(text)


def is_python(text: str) -> bool:
    """Return whether a command-line word has the form module:attribute.

    Raises: KcalcError for the name of a Python file; the message shows what to write instead.
    """
    source = SOURCE.fullmatch(text)
    if source is None:
        return PYTHON.fullmatch(text) is not None
    path, attribute = Path(source[1]), source[2] or "ATTRIBUTE"
    if all(part.isidentifier() for part in path.parts):
        where, name = "", ".".join(path.parts)
    else:
        where, name = f" and run kcalc in the folder {path.parent}", path.name
    raise KcalcError(
        f"{glimpse(text)} names a Python file, but kcalc needs module:attribute; "
        f"write {name}:{attribute}{where}"
    )


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # a name that is too long
        return False


def model_named(text: str, inputs: Sequence[Any] = (), sigmas: bool = True) -> Reading:
    """Read the model that a command-line word names.

    A Python module is imported, and its code run, only if the word has the form module:attribute.

    Raises: KcalcError for files and modules that are missing or that are not models.
    """
    given = assembled(inputs)
    if is_python(text) and not _is_file(text):
        return read(python_object(text), *given, sigmas=sigmas)
    return read(Path(text), *given, sigmas=sigmas)


def python_object(text: str) -> Any:
    """Return the object that ``module:attribute`` names.

    A function or class without required arguments is called. The working folder is searched first.
    """
    return python_attribute(text, lambda found: found() if _is_maker(found) else found)


def python_attribute(text: str, use: Callable[[Any], Any] = lambda found: found) -> Any:
    """Return the object that ``module:attribute`` names, passed through ``use`` if given.

    The working folder is searched too.
    """
    name, _, path = text.partition(":")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(name)
        for part in path.split("."):
            found = getattr(found, part)
        return use(found)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise KcalcError(
                f"there is no Python module {name!r}; it is neither installed nor in {folder}"
            ) from None
        raise KcalcError(
            f"{text}: importing {name} needs the module {error.name!r}, which is not installed; "
            f"install it, for example with pip install {error.name}"
        ) from error
    except AttributeError as error:
        if getattr(error, "obj", None) is None or not str(error).startswith(f"module {name!r}"):
            raise KcalcError(f"{text}: {type(error).__name__}: {_short(error)}") from error
        near = _nearest(error.name or path, error.obj)
        raise KcalcError(f"the module {name!r} has no attribute {path!r}{near}") from None
    except KcalcError:
        raise
    except Exception as error:
        raise KcalcError(
            f"{text}: {type(error).__name__} while importing the module or building the model: "
            f"{_short(error)}"
        ) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _nearest(name: str, module: Any) -> str:
    """Return the public names of a module that are similar to a name, as the end of a message."""
    known = [known for known in dir(module) if not known.startswith("_")]
    near = difflib.get_close_matches(name, known)
    return f"; the nearest: {', '.join(near)}" if near else ""


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _is_maker(found: Any) -> bool:
    """Return whether an object is a function or class that can be called without arguments."""
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        return False
    try:
        needed = [
            p
            for p in inspect.signature(found).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return False
    return not needed
