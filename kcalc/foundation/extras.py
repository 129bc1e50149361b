"""Optional libraries, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import KcalcError

PIP = {
    "jax": "jax",
    "matplotlib": "matplotlib",
    "pandas": "pandas",
    "shtab": "'kcalc[completion]'",
    "dask": "'kcalc[dask]'",
    "distributed": "'kcalc[dask]'",
    "equinox": "'kcalc[equinox]'",
    "flax": "'kcalc[flax]'",
    "ipywidgets": "'kcalc[widgets]'",
    "jinja2": "'kcalc[report]'",
    "keras": "'kcalc[keras]'",
    "kfac_jax": "'kcalc[kfac]'",
    "latex2mathml": "'kcalc[report]'",
    "markupsafe": "'kcalc[report]'",
    "onnx": "'kcalc[onnx]'",
    "optax": "'kcalc[train]'",
    "sklearn": "'kcalc[train]'",
    "torch": "'kcalc[torch]'",
}
"""{library: package that pip installs}."""

NAMES = {"kfac_jax": "kfac-jax", "sklearn": "scikit-learn", "torch": "PyTorch"}


class MissingExtra(KcalcError):
    """A call needs a library that is not installed, or that fails to import."""


def imported(module: str) -> Any:
    """Import a module of an optional library.

    Raises
    ------
    MissingExtra
        If the library is missing or fails to import; the message contains the pip command.

    """
    try:
        return import_module(module)
    except Exception as error:  # a broken library may raise anything
        library = module.partition(".")[0]
        own = isinstance(error, ModuleNotFoundError) and error.name == library
        why = "is not installed" if own else f"fails to import ({' '.join(str(error).split())})"
        raise MissingExtra(
            f"this needs {NAMES.get(library, library)}, which {why}; run pip install {PIP[library]}"
        ) from (None if own else error)
