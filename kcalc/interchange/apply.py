"""A model edited so that it computes a shaped network."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.plain_arguments import truth
from .editing_plan import Target
from .edits import Edits
from .frameworks import FRAMEWORKS, JAX, OPTIONS, require_patches
from .geometry import checked_law
from .model_reading import Reading
from .read import last_reading, read

if TYPE_CHECKING:
    import torch

Path = str | os.PathLike[str]
Model = TypeVar("Model")
Module = TypeVar("Module", bound="torch.nn.Module")

Node = Hashable
SHAPE_FIRST = (
    "the edits of a model belong to a shaping of its reading: kc.shape(kc.read(model, x)).edits"
)


def edits_of(reading: Reading | None, shaping: Any) -> Edits:
    """The edits that make the model of a reading compute a shaping.

    Nodes without a place in the model's code are in ``left_alone``. Raises: KcalcError for readings
    without the operations of the model, and frameworks without edits.
    """
    if reading is None:
        raise KcalcError(SHAPE_FIRST)
    if reading.trace is None:
        raise KcalcError(
            "the reading has no operations of the model (it is a copy from a pickle, or a network "
            "of kcalc's own); read the model again, kc.read(model, example)"
        )
    if reading.framework not in OPTIONS:
        raise _no_twin(reading, shaping)
    target = target_of(reading, shaping)
    constants = getattr(getattr(shaping, "constants", None), "by_node", {})
    return FRAMEWORKS["edits", reading.framework](target, constants)


def scaled_edits_of(reading: Reading, factors: Mapping[Node, float]) -> Edits:
    """The edits that multiply the initial weights of some layers.

    ``factors``: {node: factor}. Raises: KcalcError for frameworks without such edits.
    """
    asked = ("scaled edits", reading.framework)
    if asked not in FRAMEWORKS:
        raise KcalcError(
            f"edits scale the weights of PyTorch models, and this model is of "
            f"{reading.framework}; multiply its weights by the factors in .weights and "
            f".query_key_scale"
        )
    return FRAMEWORKS[asked](reading, factors)


def target_of(reading: Reading, shaping: Any) -> Target:
    """What a shaping, or anything that has a ``network``, wants of a model."""
    networks = getattr(shaping, "networks", None)
    left = dict(getattr(shaping, "left_alone", {}))
    return Target(reading, (shaping.network,) if networks is None else networks, left)


def unplaced(reading: Reading, shaping: Any) -> tuple[Mapping[Node, str], Mapping[str, str]]:
    """What else is left alone: {shaped node that a model's code has no place for: reason}.

    Then {what in words: reason} of the model's code that did not run at reading.
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
    """A copy of ``model`` that computes ``shaping.network``; ``model`` is left as it is.

    ``example_inputs`` may be left out if this very object has been read before in this process.
    ``options``: ``weights``, and the source of randomness, which is ``generator`` for PyTorch
    (None, the default: PyTorch's own) and ``key`` for JAX, Flax, Equinox and Keras (0, so that the
    weights are the same every time, see :func:`kcalc.apply_edits`).

    Raises: KcalcError for models that cannot be read or edited, and networks that are not made of
    the model's nodes.
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
    model: Model,
    edits: Edits,
    *,
    weights: str = "orthogonal_delta",
    generator: Any = None,
    key: Any = None,
    inplace: bool = False,
) -> Model:
    """A model with edits: a copy of it, or the model itself with ``inplace=True``.

    The result has the class, the methods and the training code of ``model``; only the calls that
    are edited do something else. The edits may come from a file, ``kc.load_edits(path)``.

    Parameters
    ----------
    model : torch.nn.Module, or a model of JAX, Flax, Equinox or Keras
        A model built by the code that was read, as it was built: not edited before. Functions and
        Linen modules come with their parameters, ``(function, params)``, ``(module, variables)``.
    edits : Edits
        ``s.edits`` of a shaping, or what was loaded from a file.
    weights : str
        ``"orthogonal_delta"`` and ``"gaussian_delta"`` draw new weights on the central tap of every
        kernel; ``"keep"`` leaves those of the model, for which the conditions of the shaping need
        not hold. Use it before you load trained weights.
    generator : torch.Generator, optional
        The source of the draws for PyTorch; its own by default.
    key : int or jax.random.key, optional
        The source of the draws for JAX, Flax, Equinox and Keras, 0 by default; equal keys give
        equal weights.
    inplace : bool
        Whether to change ``model`` itself, for PyTorch.

    Returns
    -------
    torch.nn.Module, or what was given
        The edited model, an instance of a subclass of its own class with the same name.

    Raises
    ------
    KcalcError
        If the model or its source is not the one that was shaped. Nothing is changed then.

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
        raise KcalcError(f"edits of {edits.framework!r} models cannot be performed")
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
    model: type[Model], path: Path, edits: Path | Edits | None = None, **options: Any
) -> Model: ...
@overload
def load_edited(
    model: Module, path: Path, edits: Path | Edits | None = None, **options: Any
) -> Module: ...
@overload
def load_edited(
    model: Callable[..., Model], path: Path, edits: Path | Edits | None = None, **options: Any
) -> Model: ...
def load_edited(model: Any, path: Path, edits: Any = None, **options: Any) -> object:
    """An edited model with its saved weights.

    Of transformers: ``kc.load_edited(cls, folder)`` loads what ``save_pretrained(folder)`` of an
    edited model wrote, its weights and ``edits.json``. Of other PyTorch code:
    ``kc.load_edited(Net, "weights.pt", "edits.json")`` loads what
    ``torch.save(model.state_dict(), "weights.pt")`` and ``s.edits.save("edits.json")`` wrote.

    Parameters
    ----------
    model : type, callable or torch.nn.Module
        A class with ``from_pretrained``, also ``AutoModel...``; or what builds the model that was
        shaped; or such a model, of which the result is an edited copy.
    path : path-like
        The folder, or the name of the model on the hub; or the file of the weights.
    edits : path-like or Edits, optional
        The edits, by default ``edits.json`` in the folder.
    **options
        What ``from_pretrained`` takes, or what builds the model.

    Returns
    -------
    torch.nn.Module
        The edited model.

    Raises
    ------
    KcalcError
        If there are no edits, or the model's source or its weights are not those that were saved.

    """
    if not isinstance(path, str | os.PathLike):
        raise KcalcError(f"path names a folder or a file of weights, got {glimpse(path)}")
    if not callable(model):
        raise KcalcError(
            f"model must be a class, a torch.nn.Module or what builds it, got {glimpse(model)}"
        )
    return FRAMEWORKS["loaded", "torch"](model, path, edits, options)


def patch_of(shaping: Any, path: Any, root: Any) -> str:
    """The patch of the model that was read and shaped."""
    edits = shaping.edits
    require_patches(edits.framework)
    model = FRAMEWORKS["model that was read", edits.framework](shaping.reading)
    return edits.patch(model, path, root=root)


def _no_twin(reading: Reading, shaping: Any) -> KcalcError:
    regions = getattr(shaping, "regions", None)
    export = "shaping.export(...)" if regions is None else "shaping.regions[name].export(...)"
    return KcalcError(
        f"a model of {reading.framework} is not edited; write the constants with {export} instead"
    )
