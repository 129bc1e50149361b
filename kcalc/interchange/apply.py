"""Edit a model to compute a shaped network."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.plain_arguments import truth
from .edit_target import Target
from .edits import Edits
from .frameworks import FRAMEWORKS, JAX, OPTIONS, require_patches
from .geometry import checked_law
from .model_reading import Reading
from .read import last_reading, read

if TYPE_CHECKING:
    import torch

Path = str | os.PathLike[str]
AnyModel = TypeVar("AnyModel")
Module = TypeVar("Module", bound="torch.nn.Module")

Node = Hashable
SHAPE_FIRST = (
    "these edits need the shaping of a model that was read: kc.shape(kc.read(model, x)).edits"
)


def edits_of(reading: Reading | None, shaping: Any) -> Edits:
    """Return the edits that make the model of a reading compute a shaping.

    Nodes without a place in the model's code are in ``left_alone``. Raises: KcalcError for readings
    without the operations of the model, and frameworks without edits.
    """
    if reading is None:
        raise KcalcError(SHAPE_FIRST)
    if reading.trace is None:
        raise KcalcError(
            "the reading has lost the operations of the model (it is a copy from a pickle, or a "
            "network built in kcalc); read the model again, kc.read(model, example)"
        )
    if reading.framework not in OPTIONS:
        raise _no_twin(reading, shaping)
    target = target_of(reading, shaping)
    constants = getattr(getattr(shaping, "constants", None), "by_node", {})
    return FRAMEWORKS["edits", reading.framework](target, constants)


def scaled_edits_of(reading: Reading, factors: Mapping[Node, float]) -> Edits:
    """Return the edits that multiply the initial weights of some layers.

    ``factors``: {node: factor}. Raises: KcalcError for frameworks that do not support such edits.
    """
    asked = ("scaled edits", reading.framework)
    if asked not in FRAMEWORKS:
        raise KcalcError(
            "edits scale the weights of PyTorch models only, and this model is of "
            f"{reading.framework}; multiply its weights by the factors in .weights and "
            ".query_key_scale"
        )
    return FRAMEWORKS[asked](reading, factors)


def target_of(reading: Reading, shaping: Any) -> Target:
    """Return the target of a shaping, or of anything else with a ``network``."""
    networks = getattr(shaping, "networks", None)
    left = dict(getattr(shaping, "left_alone", {}))
    return Target(reading, (shaping.network,) if networks is None else networks, left)


def unplaced(reading: Reading, shaping: Any) -> tuple[Mapping[Node, str], Mapping[str, str]]:
    """List what else is left alone: {shaped node without a place in the model's code: reason}.

    Then {description: reason} for code of the model that did not run while it was read.
    """
    if reading.trace is None or reading.framework not in OPTIONS:
        return {}, {}
    asked = ("can be edited", reading.framework)
    if asked in FRAMEWORKS and not FRAMEWORKS[asked](reading):
        return {}, {}
    known = target_of(reading, shaping).left_alone
    found = edits_of(reading, shaping).left_alone
    by_name = {str(node): node for node in reading.unmerged}
    nodes = {by_name[name]: why for name, why in found.items() if name in by_name}
    further = {node: why for node, why in nodes.items() if node not in known}
    return further, {name: why for name, why in found.items() if name not in by_name}


def apply_to(model: Any, shaping: Any, *example_inputs: Any, **options: Any) -> Any:
    """Return a copy of ``model`` that computes ``shaping.network``; ``model`` does not change.

    You may omit ``example_inputs`` if this process has read this very object before. ``options``:
    ``weights`` and the source of randomness. This is ``generator`` for PyTorch (None, the default:
    PyTorch's global one) and ``key`` for JAX, Flax, Equinox and Keras (0 by default, so the weights
    are the same every time; see :func:`kcalc.apply_edits`).

    Raises: KcalcError for models that cannot be read or edited, and for networks with nodes that
    the model does not have.
    """
    reading = None if example_inputs else last_reading(model)
    if reading is None and not example_inputs and not isinstance(model, str):
        try:
            reading = read(model)
        except KcalcError as error:
            raise KcalcError(
                f"this very object was not read before: give example inputs, s.apply_to(model, x) "
                f"({error})"
            ) from None
    reading = reading or read(model, *example_inputs)
    known = OPTIONS.get(reading.framework)
    for option in options:
        if known is not None and option not in known:
            raise unknown("option of apply_to", option, known)
    if reading.framework in JAX and reading.trace is not None:
        model = reading.trace.model.subject
    edits = (
        shaping.edits_on(reading) if hasattr(shaping, "edits_on") else edits_of(reading, shaping)
    )
    nodes = {str(node) for node in reading.unmerged} - _left(shaping)
    left = {node: why for node, why in edits.left_alone.items() if node in nodes}
    for node, why in left.items():
        raise KcalcError(
            f"node {node!r} of the shaped network cannot be edited in the model: {why}; shape the "
            f"reading itself, kc.shape(kc.read(model, x)), which leaves such nodes alone"
        )
    return apply_edits(model, edits, **options)


def _left(shaping: Any) -> set[str]:
    return {str(node) for node in getattr(shaping, "left_alone", ())}


def apply_edits(
    model: AnyModel,
    edits: Edits,
    *,
    weights: str = "orthogonal_delta",
    generator: Any = None,
    key: Any = None,
    inplace: bool = False,
) -> AnyModel:
    """Apply edits to a copy of a model, or to the model itself with ``inplace=True``.

    The result keeps the class, the methods and the training code of ``model``; only the edited
    calls change. The edits may come from a file, ``kc.load_edits(path)``.

    Parameters
    ----------
    model : torch.nn.Module, or a model of JAX, Flax, Equinox or Keras
        A model built by the code that was read and not edited since. Pass functions and Linen
        modules with their parameters, ``(function, params)``, ``(module, variables)``.
    edits : Edits
        ``s.edits`` of a shaping, or edits loaded from a file.
    weights : str
        ``"orthogonal_delta"`` and ``"gaussian_delta"`` draw new weights on the central tap of every
        kernel. ``"keep"`` keeps the weights of the model, which need not meet the conditions of the
        shaping; use it before you load trained weights.
    generator : torch.Generator, optional
        The source of random numbers for PyTorch; its global one by default.
    key : int or jax.random.key, optional
        The source of random numbers for JAX, Flax, Equinox and Keras, 0 by default; equal keys give
        equal weights.
    inplace : bool
        Whether to change ``model`` itself, for PyTorch.

    Returns
    -------
    torch.nn.Module, or the type of ``model``
        The edited model, an instance of a subclass of its class with the same name.

    Raises
    ------
    KcalcError
        If the model or its source is not the one that was shaped. Nothing changes in this case.

    Examples
    --------
    >>> import torch
    >>> import kcalc as kc
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    >>> s = kc.shape(kc.read(model, (4, 8)), zeta=1.2)
    >>> shaped = kc.apply_edits(model, s.edits)
    >>> type(shaped).__name__
    'Sequential'

    """
    if not isinstance(edits, Edits):
        raise KcalcError(f"edits must be s.edits of a shaping, got {type(edits).__name__}")
    law = checked_law(weights)
    truth(inplace, "inplace")
    asked = ("edited", edits.framework)
    if asked not in FRAMEWORKS:
        raise KcalcError(f"edits of {edits.framework!r} models are not supported")
    perform = FRAMEWORKS[asked]
    if edits.framework in JAX:
        for name, given in (("inplace", inplace), ("generator", generator)):
            if given:
                raise KcalcError(f"{name}= is for PyTorch; leave it out for a JAX model")
        return perform(model, edits, law, 0 if key is None else key)
    if key is not None:
        raise KcalcError("key= is for JAX; give generator= for a PyTorch model")
    return perform(model, edits, law, generator, inplace)


@overload
def load_edited(
    model: type[AnyModel], path: Path, edits: Path | Edits | None = None, **options: Any
) -> AnyModel: ...
@overload
def load_edited(
    model: Module, path: Path, edits: Path | Edits | None = None, **options: Any
) -> Module: ...
@overload
def load_edited(
    model: Callable[..., AnyModel], path: Path, edits: Path | Edits | None = None, **options: Any
) -> AnyModel: ...
def load_edited(model: Any, path: Path, edits: Any = None, **options: Any) -> object:
    """Load an edited model with its saved weights.

    For transformers, ``kc.load_edited(cls, folder)`` loads what ``save_pretrained(folder)`` of an
    edited model wrote: its weights and ``edits.json``. For other PyTorch code,
    ``kc.load_edited(Net, "weights.pt", "edits.json")`` loads what ``torch.save(model.state_dict(),
    "weights.pt")`` and ``s.edits.save("edits.json")`` wrote.

    Parameters
    ----------
    model : type, callable or torch.nn.Module
        A class with ``from_pretrained``, also ``AutoModel...``; or a callable that builds the model
        that was shaped; or such a model, in which case the result is an edited copy.
    path : path-like
        The folder, or the name of the model on the hub; or the file with the weights.
    edits : path-like or Edits, optional
        The edits, by default ``edits.json`` in the folder.
    **options
        Keyword arguments for ``from_pretrained`` or for the callable that builds the model.

    Returns
    -------
    torch.nn.Module
        The edited model.

    Raises
    ------
    KcalcError
        If there are no edits, or the model's source or weights differ from those that were saved.

    """
    if not isinstance(path, str | os.PathLike):
        raise KcalcError(f"path must name a folder or a file of weights, got {glimpse(path)}")
    if not callable(model):
        raise KcalcError(
            "model must be a class, a torch.nn.Module or a callable that builds it, got "
            f"{glimpse(model)}"
        )
    return FRAMEWORKS["loaded", "torch"](model, path, edits, options)


def patch_of(shaping: Any, path: Any, root: Any) -> str:
    """Return the patch of the model that was read and shaped."""
    edits = shaping.edits
    require_patches(edits.framework)
    model = FRAMEWORKS["model that was read", edits.framework](shaping.reading)
    return edits.patch(model, path, root=root)


def _no_twin(reading: Reading, shaping: Any) -> KcalcError:
    regions = getattr(shaping, "regions", None)
    export = "shaping.export(...)" if regions is None else "shaping.regions[name].export(...)"
    return KcalcError(
        f"models of {reading.framework} cannot be edited; write the constants with {export} instead"
    )
