"""Copy, save and load Keras models with their edits."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from ...foundation.errors import KcalcError
from ..edits import Action, CallEdit, Edit, Edits, Place, edits_from_dict
from .interpreter import edited_call
from .keras import variables_of
from .modules import Gone, subclass, with_bias
from .sites import by_place

NAME = "kcalc>Edited"


def copied(model: Any, params: Mapping[str, Any], calls: Any, gone: Gone) -> Any:
    """Return an edited copy of a model with new parameters.

    ``calls``: {place: action}; ``gone``: {removed layer: whether its bias stays}. Raises:
    KcalcError for models that Keras cannot copy.
    """
    try:
        new = copy.deepcopy(model)
    except Exception as error:  # the user's classes may raise anything
        lines = str(error).splitlines() or [""]
        raise KcalcError(
            f"keras: {model.name!r} cannot be copied ({type(error).__name__}: {lines[0][:160]}); "
            f"register its classes with keras.saving.register_keras_serializable() and define "
            f"get_config() for them"
        ) from error
    # Keras gives the layers of a copy new names
    for name, variable in zip(variables_of(model), variables_of(new).values(), strict=True):
        if name in params:
            variable.assign(params[name])
    names = enumerate(layer.name for layer in _layers(model))
    return _performed(new, calls, {place: gone[name] for place, name in names if name in gone})


def _performed(model: Any, calls: Mapping[Place, Action], gone: Mapping[int, bool]) -> Any:
    """Apply edits to a model; ``gone``: {index of a removed layer: whether its bias stays}."""
    layers = _layers(model)
    for place, serves in gone.items():
        layers[place].__class__ = _gone(type(layers[place]), serves)
    if calls or gone:
        model.__class__ = _edited(type(model), tuple(calls.items()), tuple(gone.items()))
    return model


def _layers(model: Any) -> list[Any]:
    return list(model._flatten_layers(include_self=False))


@lru_cache(maxsize=1000)
def _gone(cls: type, serves: bool) -> type:
    def call(self: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        bias = getattr(self, "beta", None) if serves else None
        axis = getattr(self, "axis", -1)
        axis = axis[0] if isinstance(axis, list | tuple) else axis
        return with_bias(inputs, None if bias is None else bias.value, axis)

    return subclass(cls, call=functools.wraps(cls.call)(call), kcalc_base=cls)  # pyright: ignore


@lru_cache(maxsize=1000)
def _edited(cls: Any, edits: tuple[Any, ...], gone: tuple[tuple[int, bool], ...]) -> type:
    import keras

    calls = dict(edits)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        variables = self.variables

        def run(values: Any, args: Any, kwargs: Any) -> Any:
            known = list(zip(variables, values, strict=True))
            with keras.StatelessScope(state_mapping=known, collect_losses=True) as scope:
                made = cls.call(self, *args, **kwargs)
            after = [scope.get_current_value(variable) for variable in variables]
            return made, after, list(scope.losses)

        before = [variable.value for variable in variables]
        made, after, losses = edited_call(run, calls, (before, args, kwargs), {})
        for variable, old, new in zip(variables, before, after, strict=True):
            if new is not old:
                variable.assign(new)
        for loss in losses:
            self.add_loss(loss)
        return made

    def get_config(self: Any) -> dict[str, Any]:
        with _as_it_was(self):
            own: Any = keras.saving.serialize_keras_object(self)
        for entry in ("build_config", "compile_config"):
            own.pop(entry, None)
        return {"model": own, "edits": _document(calls, gone)}

    methods = {"get_config": get_config, "from_config": classmethod(_loaded), "kcalc_base": cls}
    if calls:
        methods["call"] = functools.wraps(cls.call)(call)
    return keras.saving.register_keras_serializable("kcalc", "Edited")(subclass(cls, **methods))


@contextmanager
def _as_it_was(model: Any) -> Iterator[None]:
    """Return a context in which an edited model and its layers have their original classes."""
    edited = [part for part in (model, *_layers(model)) if hasattr(type(part), "kcalc_base")]
    classes = [type(part) for part in edited]
    for part in edited:
        part.__class__ = type(part).kcalc_base
    try:
        yield
    finally:
        for part, cls in zip(edited, classes, strict=True):
            part.__class__ = cls


def _document(calls: Mapping[Place, Action], gone: tuple[tuple[int, bool], ...]) -> str:
    found = [CallEdit(place, action) for place, action in calls.items()]
    edit = Edit("", "activation", "", calls=tuple(found))
    return json.dumps([Edits("keras", "", (edit,)).to_dict(), gone])


def _loaded(_: Any, config: Any, custom_objects: Any = None) -> Any:
    """Return the edited model that a configuration describes."""
    import keras

    found, gone = json.loads(config["edits"])
    calls = [call for edit in edits_from_dict(found) for call in edit.calls]
    model = keras.saving.deserialize_keras_object(config["model"], custom_objects)
    layers = range(len(_layers(model)))
    if any(place not in layers for place, _ in gone):
        raise KcalcError("the configuration does not describe an edited Keras model")
    return _performed(model, by_place(calls), {place: bool(serves) for place, serves in gone})


class Loader:
    """Loads edited models in a new process; Keras finds it by its registered name."""

    from_config = classmethod(_loaded)


def register() -> None:
    """Let ``keras.models.load_model`` find edited models."""
    import keras

    with suppress(AttributeError):  # of Keras before version 3
        keras.saving.get_custom_objects().setdefault(NAME, Loader)
