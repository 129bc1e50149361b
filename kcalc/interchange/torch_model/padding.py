"""Find token ids that a PyTorch model treats as padding, and avoid them in example ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PARTS = ("text_config", "encoder", "decoder", "generator")


def padding_ids(model: Any) -> frozenset[int]:
    """Return the padding ids in the configurations and embeddings of a model.

    Negative numbers are left out, because they are not ids.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        return frozenset()
    tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    found = [m.padding_idx for m in model.modules() if isinstance(m, tables)]
    for config in _configurations(model):
        found.append(_field(config, "pad_token_id"))
    return frozenset(n for n in found if isinstance(n, int) and not isinstance(n, bool) and n >= 0)


def _configurations(model: Any) -> Iterator[Any]:
    """Yield the configurations of a model and its modules, including nested ones."""
    held = {id(c): c for m in model.modules() if (c := vars(m).get("config")) is not None}
    for config in held.values():
        yield config
        for name in PARTS:
            if (part := _field(config, name)) is not None:
                yield part


def _field(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def drawn_ids(model: Any, count: int, shape: tuple[int, ...], random: Any) -> Tensor:
    """Return random ids below ``count``.

    Padding ids are avoided if at least two other ids are left.
    """
    import torch

    allowed = torch.tensor([i for i in range(count) if i not in padding_ids(model)])
    if len(allowed) < min(count, 2):
        allowed = torch.arange(count)
    return allowed[torch.randint(len(allowed), shape, generator=random)]


def unpadded(model: Any, ids: Tensor, others: Tensor | None = None) -> Tensor:
    """Replace padding ids with other ids from the array or from ``others``.

    If there are no other ids, return the array unchanged.
    """
    import torch

    padding = torch.tensor(sorted(padding_ids(model)), dtype=torch.long, device=ids.device)
    known = (ids if others is None else others).long().unique()
    allowed, padded = known[~torch.isin(known, padding)], torch.isin(ids.long(), padding)
    if not len(allowed) or not bool(padded.any()):
        return ids
    order = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
    return torch.where(padded, allowed[order % len(allowed)].to(ids.dtype), ids)
