"""Wrap the function of a shaped model in the user's module class."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .execution_plan import Plan


def function(plan: Plan, leaves: dict[str, Any]) -> tuple[Any, Any]:
    """(function of (parameters, inputs), parameters)."""

    def shaped(params: Any, *inputs: Any) -> Any:
        """The shaped network, from parameters with the tree of the model's."""
        return plan.run(plan.model.arrays(params), inputs)

    return shaped, plan.model.params(leaves)


def linen(plan: Plan, leaves: dict[str, Any], model: Any) -> tuple[Any, Any]:
    """(module, variables)."""
    return _linen()(plan), plan.model.params(leaves)


@cache
def _linen() -> Any:
    import flax.linen as nn

    class Shaped(nn.Module):
        """A shaped network; its variables have the tree of the model's."""

        plan: Any

        @nn.compact
        def __call__(self, *inputs: Any, **_: Any) -> Any:
            return self.plan.run(self.plan.model.arrays(dict(self.variables)), inputs)

    return Shaped


def nnx(plan: Plan, leaves: dict[str, Any], model: Any) -> Any:
    """A module that holds one of the model's structure with the new parameters."""
    from flax import nnx as library

    return _nnx()(plan, library.merge(plan.model.extra, plan.model.params(leaves)))


@cache
def _nnx() -> Any:
    from flax import nnx as library

    class Shaped(library.Module):
        """A shaped network as a module of the framework.

        ``model`` holds its parameters where the model that was read has them.
        """

        def __init__(self, plan: Any, model: Any) -> None:
            self.plan, self.model = plan, model

        def __call__(self, *inputs: Any, **_: Any) -> Any:
            return self.plan.run(self.plan.model.arrays(library.split(self.model)[1]), inputs)

    return Shaped


def equinox(plan: Plan, leaves: dict[str, Any], model: Any) -> Any:
    """A module that holds one of the model's structure with the new parameters."""
    return _equinox()(plan, plan.model.params(leaves))


@cache
def _equinox() -> Any:
    import equinox as eqx

    class Shaped(eqx.Module):
        """A shaped network of one example.

        ``model`` holds its parameters where the model that was read has them.
        """

        plan: Any = eqx.field(static=True)
        model: Any

        def __call__(self, *inputs: Any, **_: Any) -> Any:
            given = tuple(x for x in inputs if not isinstance(x, eqx.nn.State))
            return self.plan.run(self.plan.model.arrays(self.model), given)

    return Shaped


def keras(plan: Plan, leaves: dict[str, Any], model: Any) -> Any:
    """A Keras model with the parameters that the network uses.

    They are under the paths that they have in the model.
    """
    built = _keras()(
        plan, {name: np.asarray(leaves[name]) for name in plan.model.extra if name in plan.used}
    )
    built.built = True
    return built


@cache
def _keras() -> Any:
    import keras as library

    class Shaped(library.Model):
        """A shaped network."""

        def __init__(self, plan: Any, leaves: dict[str, Any]) -> None:
            super().__init__(name="shaped")
            self._plan, self._own = plan, {}
            for name, leaf in leaves.items():
                variable = self.add_weight(
                    shape=leaf.shape,
                    dtype=str(leaf.dtype),
                    name=name.replace(".", "_"),
                    trainable=True,
                )
                variable.assign(leaf)
                self._own[name] = variable

        def call(self, *inputs: Any, training: bool | None = None) -> Any:
            del training
            return self._plan.run(
                {name: variable.value for name, variable in self._own.items()}, inputs
            )

    return Shaped
