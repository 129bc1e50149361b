"""Read a product of a feature map and an array of weights as a dense layer.

The axes are named as in einsum. If the weights have more than two axes, reshapes and transposes
surround the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from .trace import Reshape, Transpose

Words = tuple[str, str, str]  # the axes of the feature map, the weights and the result


def summed_and_new(words: Words) -> tuple[str, str] | None:
    """Return the axes that a product sums over, and the axes that it creates.

    Returns None if the weights differ along an axis that the feature map and the result share. The
    product is then not a dense layer.
    """
    data, weights, out = words
    gone = "".join(c for c in data if c not in out)
    new = "".join(c for c in out if c not in data)
    distinct = all(len(set(word)) == len(word) for word in words)
    return (gone, new) if gone and new and distinct and set(weights) == {*gone, *new} else None


def dense_product(
    words: Words,
    sizes: dict[str, int],
    x: Any,
    move: Callable[..., Any],
    dense: Callable[..., Any],
) -> Any:
    """Add the operations of a dense layer, and return its output.

    ``sizes``: {axis: size}; ``x``: the feature map. ``move(kind, shape, x, **fields)`` adds an
    operation that rearranges entries. ``dense(x, order, axis, out_axis, shape)`` adds the layer;
    ``order`` is the order of the weights' axes that puts new axes before summed axes.
    """
    (data, weights, out), (gone, new) = words, summed_and_new(words) or ("", "")

    def shape(word: Sequence[str]) -> tuple[int, ...]:
        return tuple(prod(map(sizes.__getitem__, group)) for group in word)

    def parts(word: str, group: str) -> list[str]:
        before, _, after = word.partition(group)
        return [*before, group, *after]

    if gone not in data:
        apart, data = data, "".join(c for c in data if c not in gone) + gone
        x = move(Transpose, shape(data), x, order=tuple(map(apart.index, data)))
    if len(gone) > 1:
        x = move(Reshape, shape(parts(data, gone)), x)
    axis = data.index(gone)
    there = out if new in out and out.replace(new, "") == data.replace(gone, "") else ""
    made = there or data.replace(gone, new)
    order = tuple(weights.index(c) for c in new + gone)
    y = dense(x, order, axis, made.index(new), shape(parts(made, new)))
    if len(new) > 1:
        y = move(Reshape, shape(made), y)
    return y if made == out else move(Transpose, shape(out), y, order=tuple(map(made.index, out)))
