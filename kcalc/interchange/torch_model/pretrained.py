"""Save and load edited models: transformers models in folders, other models as state dicts.

Saved weights do not contain the edits, so the edits are stored next to them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...foundation.errors import KcalcError, glimpse
from ..edits import CallEdit, Edit, Edits, load_edits
from ..unedited import MARK
from .copies import duplicate
from .edited import NUMBERS, set_constants
from .examples import first_line
from .performing import perform, require_module

FILE = "edits.json"
LONGEST = 300  # maximum length of PyTorch's message about weights that do not fit


# -- saving ----------------------------------------------------------------------------------------


def keep(model: nn.Module, edits: Edits) -> None:
    """Make ``save_pretrained`` of a model, and of models inside it, save the edits too."""
    for path, module in model.named_modules():
        own = within(edits, path, type(module).__name__)
        if own and _is_pretrained(type(module)):
            # set on the object; copies and unpickled models set their own
            vars(module)["save_pretrained"] = functools.partial(_save, module, own)
            vars(module)["_get_files_timestamps"] = functools.partial(_timestamps, module)


def _is_pretrained(kind: type) -> bool:
    return all(callable(getattr(kind, n, None)) for n in ("save_pretrained", "from_pretrained"))


def within(edits: Edits, path: str, name: str) -> Edits:
    """Return the edits inside a module as edits of a model of class ``name``."""
    if not path:
        return edits
    head = f"{path}."

    def moved(call: CallEdit) -> CallEdit:
        return replace(call, place=(call.place[0][len(head) :], *call.place[1:]))

    def own(edit: Edit) -> Edit:
        calls = tuple(moved(call) for call in edit.calls if f"{call.place[0]}.".startswith(head))
        weights = tuple(
            replace(w, parameter=w.parameter[len(head) :])
            for w in edit.weights
            if w.parameter.startswith(head)
        )
        return replace(edit, calls=calls, weights=weights)

    found = (own(edit) for edit in edits)
    items = tuple(edit for edit in found if edit.calls or edit.weights)
    inside = {
        found[len(head) :]: what
        for found, what in edits.modules.items()
        if f"{found}.".startswith(head)
    }
    return replace(edits, model=name, items=items, modules=inside)


def _save(module: Any, edits: Edits, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``save_pretrained`` of a module; save the edits, and mark the weights as edited."""
    usual = type(module).save_pretrained
    given = inspect.signature(usual).bind(module, save_directory, *args, **kwargs)
    if given.arguments.get("is_main_process", True):
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        edits.save(Path(save_directory) / FILE)
    if "state_dict" in inspect.signature(usual).parameters:
        state = given.arguments.get("state_dict")
        state = module.state_dict() if state is None else state
        given.arguments["state_dict"] = {**state, MARK: torch.zeros(1)} if state else state
    return usual(*given.args, **given.kwargs)


def _timestamps(module: Any, folder: Any) -> Any:
    """Return the timestamps of the files in a folder, without the file of edits.

    transformers uploads files that have no timestamp, so the edits are always uploaded.
    """
    found = type(module)._get_files_timestamps(module, folder)
    return {name: time for name, time in found.items() if name != FILE}


# -- loading ---------------------------------------------------------------------------------------


def loaded(model: Any, path: Any, edits: Any, options: dict[str, Any]) -> Any:
    """Return an edited model with the weights in a folder or file.

    Raises: KcalcError if the edits or weights are missing, or do not fit the model.
    """
    if isinstance(model, type) and not isinstance(model, nn.Module):
        kind = _class(model, path, options)
        if _is_pretrained(kind) and (edits is None or Path(path).is_dir()):
            return _pretrained(kind, path, _edits_of(path, edits, options), options)
    if edits is None:
        raise KcalcError(
            "a weights file does not contain the edits; pass them too, as in "
            "kc.load_edited(model, 'weights.pt', 'edits.json')"
        )
    found = _edits_of(path, edits, options)
    if found.framework != "torch":
        raise KcalcError(
            f"load_edited is for PyTorch models, but these edits are for {found.framework}; edit "
            "a new model with kc.apply_edits(model, edits) and load its parameters as usual"
        )
    return _with_weights(model, path, found, options)


def _class(kind: type, path: Any, options: dict[str, Any]) -> type:
    """Return the model class to which a class such as ``AutoModel`` resolves."""
    mapping = getattr(kind, "_model_mapping", None)
    if mapping is None or issubclass(kind, nn.Module):
        return kind
    from transformers import AutoConfig  # pyright: ignore[reportMissingImports]

    config = options.get("config") or _from_hub(AutoConfig.from_pretrained, path)
    found = mapping[type(config)]
    return found[0] if isinstance(found, tuple | list) else found


def _from_hub(function: Any, path: Any, *args: Any, **options: Any) -> Any:
    try:
        return function(path, *args, **options)
    except OSError as error:
        raise KcalcError(
            f"{path} is not a local folder or hub repository with an edited model: "
            f"{first_line(error)}"
        ) from None


def _edits_of(path: Any, edits: Any, options: Mapping[str, Any]) -> Edits:
    if isinstance(edits, Edits):
        return edits
    if edits is not None:
        return load_edits(edits)
    place: Any = Path(path) / FILE
    if not Path(path).is_dir():  # a name on the hub
        try:
            from transformers.utils.hub import cached_file  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise KcalcError(f"{path} is not a folder with an edited model") from None
        names = ("cache_dir", "token", "revision", "subfolder", "local_files_only")
        given = {n: options[n] for n in names if n in options}
        place = _from_hub(cached_file, path, FILE, **given)
    if place is None or not Path(place).is_file():
        raise KcalcError(
            f"{path} contains no {FILE}; pass edits=, or use from_pretrained if the model "
            "has no edits"
        )
    return load_edits(place)


def structure(edits: Edits) -> Edits:
    """Return the edits without the weight changes, which saved weights already include."""
    items = (replace(edit, weights=tuple(w for w in edit.weights if w.added)) for edit in edits)
    return replace(edits, items=tuple(items))


def _pretrained(cls: Any, path: Any, edits: Edits, options: dict[str, Any]) -> Any:
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, *args, **kwargs)
        self.__class__ = cls
        perform(self, structure(edits), "keep", None)
        for module in self.modules():  # modules without parameters are not initialised
            plan = getattr(type(module), "kcalc_plan", None)
            for part in module.modules() if plan and plan.dropped else ():
                part._is_hf_initialized = True

    functools.update_wrapper(begin, cls.__init__)
    ignored = getattr(cls, "_keys_to_ignore_on_load_unexpected", None) or ()
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    names |= {"__init__": begin, "_keys_to_ignore_on_load_unexpected": [*ignored, MARK]}
    found = type(cls)(cls.__name__, (cls,), names).from_pretrained(path, **options)
    model = found[0] if isinstance(found, tuple) else found
    for module in model.modules():  # a model built on the meta device needs its constants
        if NUMBERS in vars(module):
            set_constants(module, vars(module)[NUMBERS])
    keep(model, edits)
    return found


def _with_weights(model: Any, path: Any, edits: Edits, options: dict[str, Any]) -> nn.Module:
    fresh = not isinstance(model, nn.Module)
    built = _built(model, options) if fresh else model
    if not fresh and options:
        raise KcalcError(f"kc.load_edited has no option {next(iter(options))!r}")
    require_module(built)
    made = built if fresh else duplicate(built)
    perform(made, structure(edits), "keep", None)
    state = _state(path)
    try:
        made.load_state_dict(state)
    except RuntimeError as error:
        text = " ".join(str(error).split())
        text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
        raise KcalcError(
            f"{path} does not contain the weights of the edited model: {text}"
        ) from None
    keep(made, edits)
    return made


def _built(model: Any, options: dict[str, Any]) -> Any:
    try:
        return model(**options)
    except Exception as error:
        raise KcalcError(
            f"{glimpse(model)} failed to build a model: {first_line(error)}"
        ) from error


def _state(path: Any) -> Mapping[str, torch.Tensor]:
    """Return the state dict in a file."""
    found: Any = None
    try:
        if str(path).endswith(".safetensors"):
            from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise KcalcError(f"cannot read the weights in {path}: {first_line(error)}") from None
    except Exception:  # not a file of weights
        pass
    good = isinstance(found, Mapping) and all(isinstance(t, torch.Tensor) for t in found.values())
    if not good:
        raise KcalcError(
            f"{path} must be a file written by torch.save(model.state_dict(), path), or a "
            ".safetensors file"
        )
    return {name: tensor for name, tensor in found.items() if name != MARK}
