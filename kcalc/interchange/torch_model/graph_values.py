"""The values of a captured graph's nodes while kcalc reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..internal_errors import ModelError

Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class TensorRef:
    """An array that depends on the inputs: the output of the operation ``name``."""

    name: str
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, eq=False)
class PaddedTensor:
    """The array ``source`` with padding of the given ``mode``.

    ``pads``: (low, high) for every axis. A convolution absorbs the padding.
    """

    source: TensorRef
    pads: Pads
    shape: tuple[int, ...]
    dtype: Any
    mode: str = "constant"


@dataclass(frozen=True, eq=False)
class Const:
    """A tensor that depends on no input.

    ``origins``: the parameters from which it was computed. ``parameter``: the parameter that the
    tensor equals, up to a transpose if ``transposed``. ``of_ids``: whether the model computes the
    same tensor for almost any token ids. ``trained``: as in
    :class:`kcalc.interchange.trace.Linear`.
    """

    tensor: Any
    origins: tuple[str, ...] = ()
    parameter: str | None = None
    transposed: bool = False
    of_ids: bool = False
    trained: bool | str = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> Any:
        """Return the dtype of the tensor."""
        return self.tensor.dtype


@dataclass(frozen=True, eq=False)
class Stale:
    """An out-of-date array: the model wrote into its memory through another view."""

    source: TensorRef | PaddedTensor
    reason: str


@dataclass(frozen=True, eq=False)
class Ragged:
    """A value whose size depends on the data, or an array that could not be read.

    ``sources``: the arrays from which the value is computed; ``reason``: why it is not read.
    """

    sources: tuple[TensorRef | PaddedTensor | Stale, ...]
    reason: str


def is_traced(value: Any) -> bool:
    """Whether a value depends on the inputs."""
    return isinstance(value, TensorRef | PaddedTensor | Stale | Ragged)


def numbers_of(tensor: Any) -> Any:
    """Convert a tensor to a NumPy array; half precision becomes float32.

    Raises: KcalcError if the tensor is on the meta device.
    """
    import torch

    plain = tensor.detach()
    if plain.device.type == "meta":
        raise ModelError(
            "torch: the model's parameters are on the meta device and have no values; materialise "
            "them first with model.to_empty"
        )
    if plain.is_sparse or plain.layout != torch.strided:
        plain = plain.to_dense()
    if plain.dtype in (torch.bfloat16, torch.float16):
        plain = plain.float()
    return plain.resolve_conj().cpu().numpy()
