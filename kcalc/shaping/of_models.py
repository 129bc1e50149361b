"""What a shaping does to the model whose reading was shaped: edits, a patch, an edited copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from ..foundation.guests import MODELS
from ..foundation.process_state import cached_property

if TYPE_CHECKING:
    from . import Edits

Model = TypeVar("Model")


class OfModel:
    """The habit of shapings of a model that was read, whole or in regions.

    ``reading``: that of the model, None for a network of kcalc's own.
    """

    reading: Any

    @cached_property
    def edits(self) -> Edits:
        """The changes of the model that was read, place by place, as :class:`kcalc.Edits`.

        ``kc.apply_edits(model, s.edits)`` performs them, and ``s.edits.save(path)`` keeps them.
        Raises: KcalcError for shapings of networks that were not read from a model.
        """
        return self.edits_on(self.reading)

    def edits_on(self, reading: Any) -> Edits:
        """The edits of the model of a reading whose network this is a shaping of."""
        return MODELS["edits"](reading, self)

    def patch(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
    ) -> str:
        """The edits as a patch of the model's source: see :meth:`kcalc.Edits.patch`.

        ``path``: where it is written too; ``root``: the folder in which it is to be applied.
        Raises: KcalcError for shapings of networks that were not read from a PyTorch model, and as
        there.
        """
        return MODELS["patch"](self, path, root)

    def apply_to(self, model: Model, *example_inputs: Any, **options: Any) -> Model:
        """A copy of a model that computes exactly the shaped network.

        ``model`` is left as it is. The copy has its class, methods and training code.

        Activations are the transformed ones, sums carry the normalised weights, normalisations that
        the shaped network lacks are removed, weights are drawn anew: see :attr:`edits`. ``model``:
        the one that :func:`kcalc.read` read as the network (same node labels); ``example_inputs``
        may be left out if this very object was read before in this process. What is no part of the
        network stays as it is. ``options``: ``weights``,
        "orthogonal_delta" (default), "gaussian_delta" or "keep" (the model's own, for which the
        conditions of the shaping need not hold); for PyTorch ``generator``, a ``torch.Generator``
        (default None: PyTorch's global one, which ``torch.manual_seed`` sets); for JAX, Flax,
        Equinox and Keras ``key``, a whole number or ``jax.random.key(seed)`` (default 0).
        Raises: KcalcError for models that cannot be read, and networks that are not made of the
        model's nodes and edges.
        """
        return MODELS["apply"](model, self, *example_inputs, **options)
