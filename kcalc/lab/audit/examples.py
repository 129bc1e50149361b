"""Example inputs for a model: as given, from shapes, or from the model's configuration."""

from __future__ import annotations

from typing import Any

from ...foundation.errors import KcalcError

BATCH, TOKENS = 4, 64
ADVICE = (
    "pass example inputs, as in kc.audit(builder, example_inputs=(4, 64)). They can be a shape, a "
    "tensor, a tuple of shapes or tensors, or a dictionary with argument names as keys"
)


def arguments(model: Any, examples: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments of one call.

    A shape becomes an array of token ids if the model looks them up in a table. Otherwise, it
    becomes an array of normal random numbers.

    Raises: KcalcError if there are no examples and no configuration that describes them.
    """
    from ...interchange import by_name, listed

    device = next((p.device for p in model.parameters()), None)
    if examples is None:
        return (), {name: value.to(device) for name, value in _configured(model).items()}
    given, named = by_name(model.forward, listed(examples))
    return (
        tuple(_tensor(model, e, f"example input {i}") for i, e in enumerate(given, 1)),
        {name: _tensor(model, value, name) for name, value in named.items()},
    )


def _tensor(model: Any, value: Any, where: Any) -> Any:
    import torch

    from ...interchange import example_shape, is_shape
    from ...interchange.torch_model import argument, drawn_ids

    if is_shape(value):
        shape = example_shape(value, str(where))
        count = _vocabulary(model)
        if count is not None and len(shape) < 3:
            ids = drawn_ids(model, count, shape, torch.Generator().manual_seed(0))
            return ids.to(next(model.parameters()).device)
    return argument(model, value, str(where))


def _vocabulary(model: Any) -> int | None:
    """Return the number of rows in the table that the inputs index, or None if there is no table.

    The number is ``vocab_size`` in the configuration, or the size of the first ``nn.Embedding``. A
    model has no table if its configuration names a main input other than ids.
    """
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        return None
    config = getattr(model, "config", None)
    known = getattr(getattr(config, "text_config", config), "vocab_size", None)
    if isinstance(known, int):
        return known
    return next(iter(embedding_rows(model)), None)


def embedding_rows(model: Any) -> list[int]:
    """Return the number of rows of each embedding table in a PyTorch model."""
    import torch

    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return [m.num_embeddings for m in model.modules() if isinstance(m, kinds)]


def _configured(model: Any) -> dict[str, Any]:
    """Return inputs from the configuration of a transformers model."""
    import torch

    from ...interchange.torch_model import drawn_ids

    config = getattr(model, "config", None)
    main = getattr(model, "main_input_name", None)
    random = torch.Generator().manual_seed(0)
    text = getattr(config, "text_config", config)
    count = getattr(text, "vocab_size", None)
    if main == "input_ids" and isinstance(count, int):
        longest = int(getattr(text, "max_position_embeddings", None) or 2 * TOKENS)
        longest = longest if longest > 0 else 2 * TOKENS  # XLNet uses -1 for no maximum
        padding = getattr(text, "pad_token_id", None)
        if isinstance(padding, int) and 0 <= padding < longest - 2:
            longest -= padding + 1  # RoBERTa's positions start after the padding id
        shape = (BATCH, min(TOKENS, longest))
        ids = {"input_ids": drawn_ids(model, count, shape, random)}
        vision = getattr(config, "vision_config", None)
        side = getattr(vision, "image_size", None)
        if isinstance(side, int):
            ids["pixel_values"] = _pixels(vision, side, random)
        if getattr(config, "is_encoder_decoder", False):
            ids["decoder_input_ids"] = drawn_ids(model, count, shape, random)
        return ids
    size = getattr(config, "image_size", None)
    if main == "pixel_values" and size:
        return {"pixel_values": _pixels(config, size, random)}
    raise KcalcError(f"the inputs of a {type(model).__name__} are unknown; {ADVICE}")


def _pixels(config: Any, size: Any, random: Any) -> Any:
    import torch

    sides = (size, size) if isinstance(size, int) else tuple(size)
    channels = int(getattr(config, "num_channels", None) or 3)
    return torch.randn(BATCH, channels, *sides, generator=random)


def redrawn(inputs: Any, seed: int) -> Any:
    """Permute the rows of every tensor in the inputs, and redraw the real numbers.

    Token ids are permuted over all positions. Other integers do not change.
    """
    import torch
    from torch.utils import _pytree as pytree

    random = torch.Generator().manual_seed(seed)

    def anew(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.numel() == 0:
            return leaf
        if leaf.is_floating_point():
            drawn = torch.randn(leaf.shape, generator=random).to(leaf)
            spread = float(leaf.float().std()) if leaf.numel() > 1 else 1.0
            return drawn * spread + leaf.float().mean().to(leaf)
        if leaf.dtype == torch.int64 and int(leaf.max()) > 2:
            order = torch.randperm(leaf.numel(), generator=random).to(leaf.device)
            return leaf.flatten()[order].view(leaf.shape)
        return leaf

    return pytree.tree_map(anew, inputs)
