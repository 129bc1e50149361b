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
    "only a model that kcalc has read can have edits; use kc.shape(kc.read(model, x)).edits"
)


def edits_of(reading: Reading | None, shaping: Any) -> Edits:
    """Return the edits that make the model compute the shaped network.

    Nodes that cannot be located in the model's code are listed in ``left_alone`` of the result.
    Raises: KcalcError if the reading does not contain the model's operations, or if kcalc cannot
    edit models of the framework.
    """
    if reading is None:
        raise KcalcError(SHAPE_FIRST)
    if reading.trace is None:
        raise KcalcError(
            "the reading does not contain the operations of the model, because it was unpickled "
            "or its network was built in kcalc; read the model again with kc.read(model, example)"
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
            "edits can scale only the weights of PyTorch models, but this is a "
            f"{reading.framework} model; multiply its weights by the factors in .weights and "
            ".query_key_scale"
        )
    return FRAMEWORKS[asked](reading, factors)


def target_of(reading: Reading, shaping: Any) -> Target:
    """Return the edit target for a shaping, or for another object with a ``network``."""
    networks = getattr(shaping, "networks", None)
    left = dict(getattr(shaping, "left_alone", {}))
    return Target(reading, (shaping.network,) if networks is None else networks, left)


def unplaced(reading: Reading, shaping: Any) -> tuple[Mapping[Node, str], Mapping[str, str]]:
    """Return the shaped nodes that cannot be edited, and parts of the model that did not run.

    Returns: {shaped node that cannot be located in the model's code: reason}, and {description:
    reason} for parts of the model's code that did not run while the model was read.
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

    You may omit ``example_inputs`` if this process has already read the same model object.
    ``options`` are ``weights`` and the source of randomness: ``generator`` for PyTorch (by default
    PyTorch's global generator), ``key`` for JAX, Flax, Equinox and Keras (by default 0, which gives
    the same weights every time). See :func:`kcalc.apply_edits`.

    Raises: KcalcError for models that cannot be read or edited, and for networks with nodes that
    the model does not have.
    """
    reading = None if example_inputs else last_reading(model)
    if reading is None and not example_inputs and not isinstance(model, str):
        try:
            reading = read(model)
        except KcalcError as error:
            raise KcalcError(
                "kcalc has not read this model object yet; pass example inputs, as in "
                "s.apply_to(model, x)"
            ) from error
    reading = reading or read(model, *example_inputs)
    known = OPTIONS.get(reading.framework)
    for option in options:
        if known is not None and option not in known:
            raise unknown("option of apply_to", option, known)
    if reading.framework in JAX and reading.trace is not None:
        model = reading.trace.model.subject
    shaped = getattr(shaping, "reading", None)
    nodes = reading.unmerged if shaped is None else shaped.unmerged
    for node in reading.unmerged:
        if node not in nodes:
            raise KcalcError(
                f"node {node!r} of this model is not in the model that was shaped; shape this "
                "model with kc.shape(kc.read(model, x))"
            )
    edits = (
        shaping.edits_on(reading) if hasattr(shaping, "edits_on") else edits_of(reading, shaping)
    )
    _check_values(reading, model, edits, example_inputs)
    nodes = {str(node) for node in reading.unmerged} - _left(shaping)
    left = {node: why for node, why in edits.left_alone.items() if node in nodes}
    for node, why in left.items():
        raise KcalcError(
            f"node {node!r} of the shaped network cannot be edited in the model: {why}. Instead, "
            "shape the reading itself with kc.shape(kc.read(model, x)), which leaves such nodes "
            "unchanged"
        )
    return apply_edits(model, edits, **options)


def _check_values(reading: Reading, model: Any, edits: Edits, example_inputs: Any) -> None:
    """Raise KcalcError if numbers in the network have changed since the model was read."""
    asked = ("changed", reading.framework)
    if example_inputs or reading.trace is None or asked not in FRAMEWORKS:
        return
    name = FRAMEWORKS[asked](reading, model, edits)
    if name:
        raise KcalcError(
            f"the parameter {name!r} has changed since kcalc read the model, so the edits do not "
            "fit its value; shape the model again with kc.shape(kc.read(model, x))"
        )


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
    model : torch.nn.Module, or a JAX, Flax, Equinox or Keras model
        An unedited model, built by the same code as the model that was read. Pass functions and
        Linen modules together with their parameters: ``(function, params)`` or ``(module,
        variables)``.
    edits : Edits
        The ``edits`` of a shaping, or edits loaded from a file.
    weights : str
        ``"orthogonal_delta"`` and ``"gaussian_delta"`` draw new weights for the central tap of
        every kernel. ``"keep"`` keeps the weights of the model, which may not meet the conditions
        of the shaping. Use ``"keep"`` if you load trained weights afterwards.
    generator : torch.Generator, optional
        The source of random numbers for PyTorch, by default its global generator.
    key : int or jax.random.key, optional
        The source of random numbers for JAX, Flax, Equinox and Keras, by default 0. The same key
        gives the same weights.
    inplace : bool
        Whether to change ``model`` itself. PyTorch only.

    Returns
    -------
    torch.nn.Module, or the type of ``model``
        The edited model, an instance of a subclass of its class with the same name.

    Raises
    ------
    KcalcError
        If the model or its source code differs from the model that was shaped. The model then
        stays unchanged.

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
        raise KcalcError(
            f"edits must be the .edits of a shaped network, got {type(edits).__name__}"
        )
    law = checked_law(weights)
    truth(inplace, "inplace")
    asked = ("edited", edits.framework)
    if asked not in FRAMEWORKS:
        raise KcalcError(f"edits of {edits.framework!r} models are not supported")
    perform = FRAMEWORKS[asked]
    if edits.framework in JAX:
        for name, given in (("inplace", inplace), ("generator", generator)):
            if given:
                raise KcalcError(f"{name}= is for PyTorch models; omit it for a JAX model")
        return perform(model, edits, law, 0 if key is None else key)
    if key is not None:
        raise KcalcError("key= is for JAX models; use generator= for a PyTorch model")
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

    For transformers, ``kc.load_edited(cls, folder)`` loads the weights and ``edits.json`` that an
    edited model saved with ``save_pretrained(folder)``. For other PyTorch models,
    ``kc.load_edited(Net, "weights.pt", "edits.json")`` loads the files saved by
    ``torch.save(model.state_dict(), "weights.pt")`` and ``s.edits.save("edits.json")``.

    Parameters
    ----------
    model : type, callable or torch.nn.Module
        A class with ``from_pretrained`` (including ``AutoModel...``), a callable that builds the
        model that was shaped, or a model that was built in the same way. A model is copied before
        it is edited.
    path : path-like
        The folder, the name of the model on the hub, or the file with the weights.
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
        If there are no edits, or if the model's source code or weights do not match the saved
        files.

    """
    if not isinstance(path, str | os.PathLike):
        raise KcalcError(f"path must be a folder or a weights file, got {glimpse(path)}")
    if not callable(model):
        raise KcalcError(
            "model must be a class, a torch.nn.Module or a callable that builds one, got "
            f"{glimpse(model)}"
        )
    return FRAMEWORKS["loaded", "torch"](model, path, edits, options)


def patch_of(shaping: Any, path: Any, root: Any) -> str:
    """Return the patch for the model that was read and shaped."""
    edits = shaping.edits
    require_patches(edits.framework)
    model = FRAMEWORKS["model that was read", edits.framework](shaping.reading)
    return edits.patch(model, path, root=root)


def _no_twin(reading: Reading, shaping: Any) -> KcalcError:
    regions = getattr(shaping, "regions", None)
    export = "shaping.export(...)" if regions is None else "shaping.regions[name].export(...)"
    return KcalcError(
        f"{reading.framework} models cannot be edited; write the constants with {export} instead"
    )
