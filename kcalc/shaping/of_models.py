"""Apply a shaping to the model that was read: edits, a patch, an edited copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from ..foundation.guests import MODELS
from ..foundation.process_state import cached_property

if TYPE_CHECKING:
    from . import Edits

Model = TypeVar("Model")


class OfModel:
    """Base class for shapings, of the whole network or of regions, of a model that was read.

    ``reading`` is the reading of the model; it is None for a network built with kcalc.
    """

    reading: Any

    @cached_property
    def edits(self) -> Edits:
        """The changes to the model that was read, as :class:`kcalc.Edits`.

        ``kc.apply_edits(model, s.edits)`` applies them, and ``s.edits.save(path)`` saves them.

        Raises: KcalcError if the network was not read from a model.
        """
        return self.edits_on(self.reading)

    def edits_on(self, reading: Any) -> Edits:
        """Return the edits for the model of a reading, given a shaping of its network."""
        return MODELS["edits"](reading, self)

    def patch(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
    ) -> str:
        """Return the edits as a patch of the model's source; see :meth:`kcalc.Edits.patch`.

        ``path`` is a file to write the patch to, and ``root`` is the folder in which to apply it.

        Raises: KcalcError if the network was not read from a PyTorch model, or if
        :meth:`kcalc.Edits.patch` fails.
        """
        return MODELS["patch"](self, path, root)

    def apply_to(self, model: Model, *example_inputs: Any, **options: Any) -> Model:
        """Return a copy of a model that computes exactly the shaped network.

        ``model`` is not changed. The copy keeps its class, methods and training code.

        The copy uses the transformed activations and the normalised weights of sums. Normalisations
        that the shaped network lacks are removed, and weights are redrawn; see :attr:`edits`.
        ``model`` must be the model that :func:`kcalc.read` read as the network (with the same node
        labels). ``example_inputs`` may be omitted if this model object was already read in this
        process. Parts outside the network do not change.

        The option ``weights`` is "orthogonal_delta" (default), "gaussian_delta" or "keep". "keep"
        uses the weights of the model, for which the conditions of the shaping need not hold. For
        PyTorch, ``generator`` is a ``torch.Generator``; the default None uses PyTorch's global
        generator, which ``torch.manual_seed`` seeds. For JAX, Flax, Equinox and Keras, ``key`` is
        an integer or ``jax.random.key(seed)`` (default 0).

        Raises: KcalcError for models that cannot be read, and for networks that do not consist of
        the model's nodes and edges.
        """
        return MODELS["apply"](model, self, *example_inputs, **options)
