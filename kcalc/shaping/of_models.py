"""Applying a shaping to the model that was read: edits, a patch, an edited copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from ..foundation.guests import MODELS
from ..foundation.process_state import cached_property

if TYPE_CHECKING:
    from . import Edits

Model = TypeVar("Model")


class OfModel:
    """Base of shapings of a model that was read, as a whole or in regions.

    ``reading``: the reading of the model; None for a network built with kcalc.
    """

    reading: Any

    @cached_property
    def edits(self) -> Edits:
        """Each change to the model that was read, as :class:`kcalc.Edits`.

        ``kc.apply_edits(model, s.edits)`` applies them, and ``s.edits.save(path)`` saves them.
        Raises: KcalcError for shapings of networks that were not read from a model.
        """
        return self.edits_on(self.reading)

    def edits_on(self, reading: Any) -> Edits:
        """The edits for the model of a reading, given a shaping of its network."""
        return MODELS["edits"](reading, self)

    def patch(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
    ) -> str:
        """The edits as a patch of the model's source: see :meth:`kcalc.Edits.patch`.

        ``path``: a file to write it to; ``root``: the folder in which to apply it. Raises:
        KcalcError for shapings of networks that were not read from a PyTorch model, and as
        :meth:`kcalc.Edits.patch` does.
        """
        return MODELS["patch"](self, path, root)

    def apply_to(self, model: Model, *example_inputs: Any, **options: Any) -> Model:
        """A copy of a model that computes exactly the shaped network.

        ``model`` is unchanged. The copy keeps its class, methods and training code.

        The copy uses the transformed activations and the normalised weights of sums. Normalisations
        that the shaped network lacks are removed, and weights are redrawn: see :attr:`edits`.
        ``model``: the model that :func:`kcalc.read` read as the network (same node labels).
        ``example_inputs`` may be omitted if this object was read before in this process. Parts
        outside the network are unchanged. ``options``: ``weights``, "orthogonal_delta" (default),
        "gaussian_delta" or "keep" (those of the model, for which the conditions of the shaping need
        not hold); for PyTorch ``generator``, a ``torch.Generator`` (default None: PyTorch's global
        one, which ``torch.manual_seed`` sets); for JAX, Flax, Equinox and Keras ``key``, an integer
        or ``jax.random.key(seed)`` (default 0). Raises: KcalcError for models that cannot be read,
        and for networks that do not consist of the model's nodes and edges.
        """
        return MODELS["apply"](model, self, *example_inputs, **options)
