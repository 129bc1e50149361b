"""Text in and next to the nodes of a drawn network.

The text uses matplotlib's mathtext or plain characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from .layered import Node

LONGEST = 24


def number_text(value: Any, plain: bool = False) -> str:
    """Format a number with three digits, or a symbolic expression.

    The result is mathtext, or ordinary characters if ``plain``. If the text would be too long, the
    result is empty.
    """
    if not getattr(value, "free_symbols", None):
        return f"{float(value):.3g}"
    if plain:
        text = _plain_expression(value)
        return text if len(text) <= LONGEST else ""
    import sympy as sp

    text = f"${sp.latex(value)}$"
    return text if len(text) <= LONGEST + 2 and is_mathtext(text) else ""


def _plain_expression(value: Any) -> str:
    """Format an expression on one line in ordinary characters.

    ``sqrt(1 - w**2)`` becomes ``√(1 - w^2)``, ``sigma_w`` becomes ``σ_w``.
    """
    from sympy.printing.pretty.pretty_symbology import greek_unicode

    text = str(value).replace("**", "^").replace("*", "·")
    return re.sub(
        r"[A-Za-z]+",
        lambda word: {"sqrt": "√", **greek_unicode}.get(word.group(), word.group()),
        text,
    )


def layer_text(layer: Any, node: Node = "", plain: bool = False) -> str:
    """Return the text for a layer: "Affine 64", "3×3, 64, /2", "tanh", "+", "LayerNorm".

    ``plain=False`` is for matplotlib: symbols are in mathtext, and dollar signs in names are
    escaped. ``plain=True`` uses ordinary characters only.
    """
    kind = type(layer).__name__
    if kind == "Affine":
        return _affine_text(layer)
    if kind == "Input":
        shape = [
            str(k)
            for k in (
                *(layer.image_shape or ()),
                *((layer.features,) if layer.features is not None else ()),
            )
        ]
        return " ".join([shortened(str(node), plain), "×".join(shape)]).strip()
    if kind == "Pool":
        window = "" if layer.window is None else " " + _extent(layer.window)
        stride = "" if layer.stride in (None, 1) else f" /{_sizes(layer.stride)}"
        return f"{layer.kind.replace('_', ' ')} pool{window}{stride}"
    if kind == "StopGradient":
        return "own gradient" if layer.unknown else "stop gradient"
    if kind in ("Nonlinear", "GatedUnit", "SurrogateGradient"):
        return "× " * (kind == "GatedUnit") + shortened(
            str(getattr(layer.activation, "name", layer.activation)), plain
        )
    if kind == "Attend":
        heads = [] if layer.heads is None else [f"{layer.heads} heads"]
        masks = (mask.label.format(mask.value) for mask in layer.masks)
        return ", ".join(["attention", *heads, *filter(None, masks)])
    if kind == "Embedding":
        return "embedding" if layer.features is None else f"embedding {layer.features}"
    if kind == "Positions":
        return "+ constant" if layer.kind == "constant" else "+ positions"
    if kind == "ClassToken":
        return "class token" if layer.count == 1 else f"{layer.count} class tokens"
    if kind == "Resize":
        return f"resize {_sizes(layer.factor)} {layer.kind}"
    if kind == "PixelShuffle":
        return f"pixel {'un' if layer.back else ''}shuffle {_sizes(layer.factor)}"
    if kind == "Scale":
        return f"× {number_text(layer.factor, plain) or 'factor'}"
    if kind == "Dropout":
        on = "active " if layer.active else ""
        return f"{on}dropout {number_text(layer.rate, plain)}".strip()
    if kind == "Opaque":
        return shortened(f"? {layer.name}", plain)
    return {
        "Sum": "+",
        "Product": "×",
        "Concat": "concat",
        "Flatten": "flatten",
        "Identity": "identity",
    }.get(kind) or shortened(kind, plain)


def _affine_text(layer: Any) -> str:
    features = [] if layer.features is None else [str(layer.features)]
    if layer.kernel == 1 and layer.stride == 1 and layer.groups == 1:
        return " ".join(["Affine", *features])
    stride = [] if layer.stride == 1 else [f"/{_sizes(layer.stride)}"]
    groups = [] if layer.groups == 1 else [f"{layer.groups} groups"]
    return ", ".join([_extent(layer.kernel), *features, *stride, *groups])


def _sizes(size: Any) -> str:
    return "×".join(map(str, size)) if isinstance(size, tuple) else str(size)


def _extent(size: Any) -> str:
    return _sizes(size) if isinstance(size, tuple) else f"{size}×{size}"


def shortened(text: str, plain: bool = False, most: int = 20) -> str:
    """Shorten a name to ``most`` characters.

    Without ``plain``, dollar signs are escaped to keep mathtext from interpreting them.
    """
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short if plain else short.replace("$", r"\$")


def weights_text(layer: Any, slots: Sequence[int], plain: bool = False) -> str:
    """Return the text at an edge into a layer.

    The text shows the weights of a Sum's addends, or how many slots the edge fills.
    """
    weights = getattr(layer, "weights", None)
    if weights is None:
        return "" if len(slots) == 1 else f"{len(slots)}×"
    return ", ".join(filter(None, (number_text(weights[i], plain) for i in slots)))


@lru_cache(maxsize=4096)
def is_mathtext(text: str) -> bool:
    """Return whether matplotlib can parse a text as mathtext."""
    from matplotlib.textpath import TextPath

    if not text.strip():
        return True
    try:
        TextPath((0, 0), text, size=7.0)
    except ValueError:
        return False
    return True
