"""Find attention windows of transformers models that are longer than the example.

If a window contains more tokens than the example, the trace shows attention over all tokens. The
window is then taken from the attention module or the model's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...network.masks import Causal, Chunk, Masks, Window, one_sided
from ..trace import Attention

SLIDING, CHUNKED = "sliding_attention", "chunked_attention"  # values in ``layer_types``
UNKNOWN = (
    "the model's configuration sets attention windows ({}), but they do not restrict attention in "
    "an example with {} tokens; kcalc assumes attention over all tokens"
)


def with_window(op: Attention, model: Any) -> Attention:
    """Return the attention with the window of its module in the model.

    If the configuration has windows but does not specify the layers, a note says so. For
    transformers models, the mask counts as known for any number of tokens.
    """
    tokens = op.shape[3 - op.axis]
    modules = list(_around(model, op.source.partition(" (")[0]))
    known = any(type(module).__module__.startswith("transformers.") for module in modules)
    op = replace(op, masked_at=None) if known else op
    config = next((c for m in modules if (c := getattr(m, "config", None)) is not None), None)
    if config is None or any(not isinstance(mask, Causal) for mask in op.masks):
        return op
    found = _told(modules, config, op.masks)
    if found is None:
        named = [n for n in ("sliding_window", "attention_chunk_size") if _size(config, n)]
        text = UNKNOWN.format(f"{named[0]} = {getattr(config, named[0])}", tokens) if named else ""
        return replace(op, texts=(*op.texts, text)) if text else op
    # the trace does not show a window that contains all tokens
    return op if any(mask.hides(tokens) for mask in found) else replace(op, masks=op.masks + found)


def _around(model: Any, path: str) -> Iterator[Any]:
    """Yield the module at a path and the modules around it, innermost first."""
    names = path.split(".") if path else []
    for count in range(len(names), -1, -1):
        try:
            yield model.get_submodule(".".join(names[:count]))
        except AttributeError:  # an ExportedProgram, or the path is the name of a class
            continue


def _told(modules: list[Any], config: Any, masks: Masks) -> Masks | None:
    """Return the masks with the window from modules or configuration, or None if it is unknown.

    ``masks``: the masks that the trace shows.
    """
    local = next((k for m in modules if (k := getattr(m, "attention_type", None))), None)
    if local in ("local", "global") and _size(config, "window_size"):  # GPT-Neo
        return () if local == "global" else (Window(config.window_size),)
    kind = _kind(modules, config)
    own = next((m for m in modules if hasattr(m, "sliding_window")), None)
    if kind == SLIDING and own is not None and _size(own, "sliding_window"):
        return (Window(own.sliding_window),)
    size = _size(config, "sliding_window")
    if kind == SLIDING and size:  # without a causal mask, the window extends to both sides
        return (Window(size + (not one_sided(masks))),)
    if kind == CHUNKED and (size := _size(config, "attention_chunk_size")):
        return (Chunk(size),)
    return None if kind is None else ()


def _kind(modules: list[Any], config: Any) -> str | None:
    """Return the kind of attention in a layer: "" if it covers all tokens, None if unknown."""
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list | tuple) and kinds:
        indices = (getattr(m, name, None) for m in modules for name in ("layer_idx", "layer_id"))
        index = next((n for n in indices if type(n) is int and 0 <= n < len(kinds)), None)
        return kinds[index] if index is not None else kinds[0] if len({*kinds}) == 1 else None
    told = ((SLIDING, "sliding_window"), (CHUNKED, "attention_chunk_size"))  # for all layers
    return next((kind for kind, name in told if _size(config, name)), "")


def _size(holder: Any, name: str) -> int:
    """Return the attribute ``name`` if it is a number of tokens, else 0."""
    size = getattr(holder, name, None)
    return size if type(size) is int and size > 0 else 0
