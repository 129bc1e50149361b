"""Evaluate attention scores on random numbers to find their structure.

The structure consists of the scale, masks, rotary angles and biases of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import lgamma, log

import numpy as np

from ...network.masks import MASKS, Masks, one_sided, recognised
from ...network.score_biases import alibi_slopes, buckets_of
from ..trace import Normalise
from .numbers import normed

Array = np.ndarray
MASKED = 1e3  # scores this far below the row's largest have weight 0 in double precision
NOTHING = -1e9  # if all scores of a row are below this value, the token sees no token
CLOSE = 1e-5
# tolerance for channels that are not rotated; the slowest pairs rotate by 1e-6 per token
STILL = 1e-9
HALF = 4e-3  # relative error of rotations that use tables in half precision
UNLIKE = 0.02  # relative error of the frequencies in such tables
NONE_SEEN = (
    "token {} sees no token: all entries in its row of the mask are masked, so the softmax is "
    "undefined; let it see a token, for instance itself"
)
OTHER_MASK = f"its mask is not one of {', '.join(MASKS)}: token {{}} sees {{}} of {{}} tokens"
BIASES = (
    "its scores have biases that depend on the head and the tokens (root mean square {:.3g}); "
    "they are left out"
)
SLOPES = (
    "its scores have linear biases (ALiBi) with slopes from {:.4g} to {:.4g}, which are not the "
    "published slopes for {} heads; they are left out"
)
UNLIKELY = 200  # random biases are monotonic in the distance in fewer than 1 of this many cases
BUCKETS = (32, 16, 64, 128, 8, 256, 4, *range(6, 64, 2))  # T5 uses 32
FURTHEST = (128, *range(2, 1025))


class NoAttentionError(Exception):
    """Raised if operations are not read as attention. The message is the reason."""


class EmptyRowError(Exception):
    """Raised if some token sees no token. The error is in the model or the examples."""


@dataclass(frozen=True, eq=False)
class Turn:
    """Rotary embeddings, which rotate pairs of channels by ``angles`` (tokens, pairs).

    ``pairs`` (2, pairs): the indices of the two channels in each pair; ``width``: the number of
    channels of a head; ``size``: a factor that multiplies the result.
    """

    angles: Array
    pairs: Array
    width: int
    size: float = 1.0

    @property
    def channels(self) -> int:
        """Return the number of channels of a head that are rotated."""
        return self.pairs.size

    def like(self, other: Turn) -> bool:
        """Whether two rotary embeddings rotate the same channels by the same angles."""
        same = self.angles.shape == other.angles.shape and np.array_equal(self.pairs, other.pairs)
        return same and bool(
            np.abs(np.exp(1j * self.angles) - np.exp(1j * other.angles)).max() < 1e-4
        )

    def base(self) -> tuple[float, tuple[str, ...]]:
        """Fit the angles by t base^(-2 f / width); return the base, and notes on differences."""
        if len(self.angles) < 2:
            raise NoAttentionError(
                "the angles of rotary embeddings cannot be read from a single token; pass "
                "example inputs with several tokens"
            )
        speeds = np.angle(np.exp(1j * (self.angles[1] - self.angles[0])))
        pairs = len(speeds)
        powers = -2.0 * np.arange(pairs) / self.channels
        turning = (np.abs(speeds) > 1e-12) & (powers < 0)
        ratio = (
            np.log(np.abs(speeds[turning])) / powers[turning] if turning.any() else np.log([1e4])
        )
        base = float(f"{np.exp(ratio[0]):.9g}")
        digits = 4 - len(str(int(base)))
        near = float(round(base, digits))
        base = near if abs(near / base - 1) < 1e-4 else base
        places, turned = np.arange(len(self.angles))[:, None], self.angles - self.angles[0]
        texts = ()
        if self.channels < self.width:
            texts = (
                f"its rotary embeddings rotate {self.channels} of the {self.width} channels of a "
                "head; they are read as if they rotated all channels",
            )
        # slow pairs hardly rotate within a few tokens, but they do over a long sequence
        mean = (places * np.unwrap(turned, axis=0)).sum(axis=0) / np.square(places).sum()
        slow = np.abs(np.abs(mean) / base**powers - 1)[turning].max(initial=0) > UNLIKE
        if slow or _apart(np.sign(speeds) * turned, places * base**powers) > 1e-2:
            base = float(np.exp(np.mean(ratio)))
            uneven = _apart(turned, places * speeds) > 1e-2
            told = "proportional to the position of a token" if uneven else "powers of one base"
            texts += (
                f"the angles of its rotary embeddings are not {told}; they are read as the angles "
                f"for base {base:.4g}",
            )
        return base, texts


def _apart(angles: Array, others: Array) -> float:
    """Return the largest distance between points on the unit circle at two sets of angles."""
    return float(np.abs(np.exp(1j * angles) - np.exp(1j * others)).max())


@dataclass(frozen=True, eq=False)
class ModelScores:
    """The attention scores of a model, and the products of its queries and keys.

    ``actual``: the scores; ``raw``: the products. Both have shape (examples, heads, queries, keys).
    """

    actual: Array
    raw: Array
    heads: int
    key_heads: int
    turn: Turn | None
    width: int


@dataclass(frozen=True, eq=False)
class Measured:
    """A fit ``scale * raw + bias`` of the scores, and a mask.

    Each array has shape (heads, queries, keys).
    """

    scales: Array
    bias: Array
    masked: Array
    turn: Turn | None

    @property
    def scale(self) -> float:
        """Return the mean scale of the heads.

        The mean is rounded, because its last digits depend on the random numbers.
        """
        return float(f"{np.abs(self.scales).mean():.9g}")


def measured(draws: Sequence[ModelScores]) -> Measured:
    """Find the scale, biases and mask of scores from two draws.

    Raises: NoAttentionError if the scores are not multiples of q . k; EmptyRowError if a token sees
    no token.
    """
    masks = []
    for draw in draws:
        if (empty := (~(draw.actual > NOTHING)).all(axis=-1)).any():
            raise EmptyRowError(NONE_SEEN.format(int(np.argwhere(empty)[0][-1])))
        masks.append(~(draw.actual > draw.actual.max(axis=-1, keepdims=True) - MASKED))
    mask = masks[0][0]
    if any((other != mask).any() for other in masks):
        raise NoAttentionError("its mask differs between examples")
    seen = np.broadcast_to(~mask, draws[0].raw.shape)
    raws = [np.where(seen, draw.raw, 0) for draw in draws]
    actual = [np.where(seen, draw.actual, 0) for draw in draws]
    change, by = (b - a for a, b in (raws, actual))
    scales = (change * by).sum(axis=(0, 2, 3)) / (change**2).sum(axis=(0, 2, 3))
    biases = [
        np.where(seen, a - scales[:, None, None] * r, 0) for a, r in zip(actual, raws, strict=True)
    ]
    size = 1 + np.abs(actual[0]).max()
    if any(np.abs(bias - biases[0][:1]).max() > CLOSE * size for bias in biases):
        raise NoAttentionError("its scores are not multiples of the products of queries and keys")
    if not scales.all():
        raise NoAttentionError("its scores do not depend on queries and keys")
    return Measured(scales, biases[0][0], mask, draws[0].turn)


def masks_of(masked: Array) -> Masks:
    """Return the masks of an Attend for an array (heads, queries, keys) of masked scores.

    Raises: NoAttentionError if Attend has no such masks.
    """
    rows, columns = masked.shape[1:]
    found = recognised(~masked[0]) if (masked == masked[0]).all() else None
    if found is not None:
        return found
    causal = not np.triu(~masked[0], 1).any()
    future = np.triu(np.ones((rows, columns), dtype=bool), 1)
    unlike = (masked != (future & causal)).any(axis=-1)
    head, token = np.argwhere(unlike if unlike.any() else masked.any(axis=-1))[0]
    raise NoAttentionError(OTHER_MASK.format(token, int((~masked[head, token]).sum()), columns))


@dataclass(frozen=True)
class Biases:
    """The masks and biases as fields of an Attend, and notes on differences from the model.

    The object is falsy if there are no biases.
    """

    texts: tuple[str, ...]
    masks: Masks
    alibi: bool = False
    relative: tuple[float, int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self.texts) or self.alibi or self.relative is not None


def biases_of(found: Measured) -> Biases:
    """Return the masks and the biases of measured scores."""
    rows, columns = found.masked.shape[1:]
    masks = masks_of(found.masked)
    texts: tuple[str, ...] = ()
    if not np.allclose(found.scales, found.scales[0], rtol=1e-4):
        texts = ("the scales of its heads differ; every head is read with the mean scale",)
    seen = ~found.masked
    first = (
        found.bias[:, :, :1]
        if rows != columns
        else found.bias[:, np.arange(rows), np.arange(rows)][..., None]
    )
    bias = np.where(seen, found.bias - first, 0)
    if np.abs(bias).max() < 10 * CLOSE * (1 + np.abs(found.bias).max()):
        return Biases(texts, masks)
    apart = np.arange(columns) - np.arange(rows)[:, None]
    if (slopes := _slopes(bias, seen, np.abs(apart))) is not None:
        released = alibi_slopes(len(slopes))
        # the order of heads does not matter, because they are exchangeable
        if np.allclose(np.sort(slopes), np.sort(released), rtol=1e-3, atol=1e-4):
            return Biases(texts, masks, True)
        text = SLOPES.format(slopes.min(), slopes.max(), len(slopes))
        return Biases((*texts, text), masks)
    fixed = _slopes(bias, seen, apart) is not None or _steady(bias, seen)  # not random
    if not fixed and (relative := _relative(found, seen, one_sided(masks))) is not None:
        return Biases(texts, masks, relative=relative)
    text = BIASES.format(float(np.sqrt(np.square(bias[seen]).mean())))
    return Biases((*texts, text), masks)


def _slopes(bias: Array, seen: Array, apart: Array) -> Array | None:
    """Return the slope of every head if its biases are ``-slope * apart``, else None.

    ``apart``: the distances between tokens, (queries, keys).
    """
    if len(apart) != apart.shape[1]:
        return None
    by = np.where(seen, apart, 0)
    slopes = -(bias * by).sum(axis=(1, 2)) / np.maximum(np.square(by).sum(axis=(1, 2)), 1)
    linear = np.allclose(bias, -slopes[:, None, None] * by, rtol=1e-3, atol=1e-4)
    return slopes if linear else None


def _steady(bias: Array, seen: Array) -> bool:
    """Whether the biases of all heads are monotonic in the distance, unlike random biases."""
    rows = [bias[:, i, seen[0, i]] for i in (0, -1)]
    steps = [np.diff(row, axis=1) for row in rows]
    each = [((step >= -CLOSE).all(axis=1) | (step <= CLOSE).all(axis=1)).all() for step in steps]
    longest = max(row.shape[1] for row in rows)
    return all(each) and len(bias) * (lgamma(longest + 1) - log(2)) > log(UNLIKELY)


def _relative(found: Measured, seen: Array, sided: bool) -> tuple[float, int, int] | None:
    """Return the field ``relative`` of an Attend if the biases are as in T5, else None.

    ``sided``: whether no token sees a later token.
    """
    rows, columns = seen.shape[1:]
    apart = np.arange(columns) - np.arange(rows)[:, None]
    places = seen.all(axis=0)
    distances, first = np.unique(apart[places], return_index=True)
    table = found.bias[:, places]
    near = CLOSE * (1 + np.abs(table).max())
    by_distance = table[:, first]  # (heads, distances)
    same = by_distance[:, np.searchsorted(distances, apart[places])]
    if rows != columns or np.abs(table - same).max() > near:
        return None
    alike = (np.abs(by_distance[:, :, None] - by_distance[:, None]) <= near).all(axis=0)
    fits = _bucketed(tuple(distances.tolist()), tuple(alike.argmax(axis=1).tolist()), sided)
    if fits is None:
        return None
    values = by_distance[:, np.unique(alike.argmax(axis=1))]
    return float(f"{np.sqrt(np.square(values).mean()):.9g}"), *fits


@lru_cache
def _bucketed(
    distances: tuple[int, ...], groups: tuple[int, ...], sided: bool
) -> tuple[int, int] | None:
    """Return the number of buckets and the largest distance that are consistent with equal biases.

    ``groups``: for each distance, the index of the first distance with the same bias; ``sided``:
    whether no token sees a later token. The values used by T5 are tried first.
    """
    apart = np.array(distances)
    for buckets, furthest in product(BUCKETS, FURTHEST):
        if furthest > buckets // (2 if sided else 4):
            made = buckets_of(apart, buckets, furthest, sided)
            if (np.array(groups) == (made[:, None] == made).argmax(axis=1)).all():
                return buckets, furthest
    return None


def turned(
    part: Array, channels: Array, norm: Normalise | None, what: str
) -> tuple[Array, Turn | None]:
    """Find the heads of an operand, and the rotary embedding that was applied to them.

    ``part``: the queries, keys or values of the model, up to a factor; ``channels``: the array
    (examples, tokens, channels) from which they are made; ``norm``: the norm over each head, if
    any; ``what``: a description for messages.

    Returns: the heads (examples, heads, tokens, width), and the rotary embedding or None. Raises:
    NoAttentionError if the operand is not computed in this way.
    """
    width = part.shape[-1]
    examples, tokens, total = channels.shape
    if tokens != part.shape[2]:
        raise NoAttentionError(
            f"its {what} have {part.shape[2]} tokens, but are computed from {tokens} tokens"
        )
    if total % width or part.shape[1] % (total // width):
        raise NoAttentionError(
            f"its {what} have {part.shape[1]} heads of {width} channels, but are computed "
            f"from {total} channels"
        )
    heads = total // width
    plain = part.reshape(examples, heads, -1, tokens, width)
    if np.abs(plain - plain[:, :, :1]).max() > CLOSE:
        raise NoAttentionError(f"its heads share {what} in an order that kcalc does not recognise")
    found = plain[:, :, 0]
    for split in (
        channels.reshape(examples, tokens, heads, width).transpose(0, 2, 1, 3),
        channels.reshape(examples, tokens, width, heads).transpose(0, 3, 1, 2),
    ):
        base = split if norm is None else normed(norm, split, -1)
        factor = float((found * base).sum() / (base * base).sum())
        if np.allclose(found, factor * base, rtol=1e-4, atol=1e-5):
            return base, None
        if (turn := _turn(found, base)) is not None:
            return found / turn.size, turn
    raise NoAttentionError(
        f"its {what} are computed from feature maps in a way that kcalc does not recognise"
    )


def _turn(found: Array, base: Array) -> Turn | None:
    """Return the rotations of channel pairs, per token, that turn ``base`` into ``found``."""
    width = base.shape[-1]
    factor = float(np.sqrt((found**2).sum() / (base**2).sum()))
    along = (found * base).sum(axis=(0, 1, 2)) / (base**2).sum(axis=(0, 1, 2))
    turning = np.abs(found - along * base).max(axis=(0, 1, 2)) > STILL
    channels = np.flatnonzero(turning)
    if len(channels) % 2 or not turning.any():
        return None
    if not np.allclose(np.abs(along[~turning]), factor, rtol=1e-3):  # not rotated, only scaled
        return None
    half = len(channels) // 2
    pairs = (channels[:half], channels[half:]), (channels[::2], channels[1::2])
    # DeepSeek moves adjacent pairs to two halves
    for (one, two), (first, second) in product(pairs, pairs):
        before = base[..., one] + 1j * base[..., two]
        after = found[..., first] + 1j * found[..., second]
        ratio = (after * before.conj()).sum(axis=(0, 1)) / (np.abs(before) ** 2).sum(axis=(0, 1))
        if np.abs(after - ratio * before).max() < 1e-3 and np.allclose(
            np.abs(ratio), factor, rtol=HALF
        ):
            size = float(np.sqrt(np.square(np.abs(ratio)).mean()))
            return Turn(np.angle(ratio), np.array([first, second]), width, size)
    return None
