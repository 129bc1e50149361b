"""Attention scores measured on random numbers.

This gives their scale, masks, rotary angles and biases.
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
MASKED = 1e3  # scores this far below the greatest of their row have weight 0 in double precision
NOTHING = -1e9  # rows whose scores are all below this see no token
CLOSE = 1e-5
# channels that rotary embeddings do not rotate are multiples of the original ones; the slowest
# pairs rotate by 1e-6 per token
STILL = 1e-9
HALF = 4e-3  # sizes of pairs rotated by tables in half precision
UNLIKE = 0.02  # their frequencies
NONE_SEEN = (
    "token {} sees no token at all: every entry in its row of the mask is masked, and a softmax "
    "of nothing has no value; let it see a token, for instance itself"
)
OTHER_MASK = (
    f"its mask is none of the known ones ({', '.join(MASKS)}): token {{}} sees {{}} of {{}} tokens"
)
BIASES = "its scores have biases by head and position of tokens (root mean square {:.3g}); left out"
SLOPES = (
    "its scores have linear biases by head (ALiBi) with slopes from {:.4g} to {:.4g}, which are "
    "not the released ones for {} heads; left out"
)
UNLIKELY = 200  # random biases rise or fall with the distance in fewer than one of this many cases
BUCKETS = (32, 16, 64, 128, 8, 256, 4, *range(6, 64, 2))  # those of T5 first
FURTHEST = (128, *range(2, 1025))


class NoAttentionError(Exception):
    """The reason why an attention is not read as one."""


class EmptyRowError(Exception):
    """A mask that lets a token see none, an error of the model or of its example inputs."""


@dataclass(frozen=True, eq=False)
class Turn:
    """Rotary embeddings: ``angles`` (tokens, pairs) by which pairs of channels are rotated.

    ``pairs`` (2, pairs): the channels of the result that are rotated together; ``width``: the
    number of channels of a head; ``size``: an additional factor.
    """

    angles: Array
    pairs: Array
    width: int
    size: float = 1.0

    @property
    def channels(self) -> int:
        """Return how many channels of a head are rotated."""
        return self.pairs.size

    def like(self, other: Turn) -> bool:
        """Whether two turns rotate the same channels by the same angles."""
        same = self.angles.shape == other.angles.shape and np.array_equal(self.pairs, other.pairs)
        return same and bool(
            np.abs(np.exp(1j * self.angles) - np.exp(1j * other.angles)).max() < 1e-4
        )

    def base(self) -> tuple[float, tuple[str, ...]]:
        """Return the base of the angles ``t base^(-2 f / width)``, and how others differ."""
        if len(self.angles) < 2:
            raise NoAttentionError(
                "one token does not show the angles of rotary embeddings; give several"
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
                "head; read as if they rotated all",
            )
        # slow pairs hardly rotate within a few tokens, but do over a whole sequence
        mean = (places * np.unwrap(turned, axis=0)).sum(axis=0) / np.square(places).sum()
        slow = np.abs(np.abs(mean) / base**powers - 1)[turning].max(initial=0) > UNLIKE
        if slow or _apart(np.sign(speeds) * turned, places * base**powers) > 1e-2:
            base = float(np.exp(np.mean(ratio)))
            uneven = _apart(turned, places * speeds) > 1e-2
            told = "not multiples of a token's position" if uneven else "not those of one base"
            texts += (
                f"the angles of its rotary embeddings are {told}; read as those of the base "
                f"{base:.4g}",
            )
        return base, texts


def _apart(angles: Array, others: Array) -> float:
    """Return the greatest distance between points on the circle at two sets of angles."""
    return float(np.abs(np.exp(1j * angles) - np.exp(1j * others)).max())


@dataclass(frozen=True, eq=False)
class ModelScores:
    """The scores of a model and the products of its queries and keys.

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
    """Scores as ``scale raw + bias`` with a mask, (heads, queries, keys)."""

    scales: Array
    bias: Array
    masked: Array
    turn: Turn | None

    @property
    def scale(self) -> float:
        """Return the mean scale of all heads.

        Its last digits, which depend on the draws, are dropped.
        """
        return float(f"{np.abs(self.scales).mean():.9g}")


def measured(draws: Sequence[ModelScores]) -> Measured:
    """Return scale, biases and mask of scores on two draws.

    Raises: NoAttentionError for scores that are not multiples of q . k; EmptyRowError.
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
    """Return the masks that give some scores weight 0, (heads, queries, keys).

    Raises: NoAttentionError for masks that no Attend has.
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
    """Differences from the scores of an Attend, as texts, and its fields.

    False if there are no biases.
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
        texts = ("every head has a different scale; read with their mean",)
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
        # heads are exchangeable, so their order does not matter
        if np.allclose(np.sort(slopes), np.sort(released), rtol=1e-3, atol=1e-4):
            return Biases(texts, masks, True)
        text = SLOPES.format(slopes.min(), slopes.max(), len(slopes))
        return Biases((*texts, text), masks)
    fixed = _slopes(bias, seen, apart) is not None or _steady(bias, seen)  # no random biases
    if not fixed and (relative := _relative(found, seen, one_sided(masks))) is not None:
        return Biases(texts, masks, relative=relative)
    text = BIASES.format(float(np.sqrt(np.square(bias[seen]).mean())))
    return Biases((*texts, text), masks)


def _slopes(bias: Array, seen: Array, apart: Array) -> Array | None:
    """Return the slopes, by head, of biases that are ``-slope apart``; None for other biases.

    ``apart``: a distance of tokens, (queries, keys).
    """
    if len(apart) != apart.shape[1]:
        return None
    by = np.where(seen, apart, 0)
    slopes = -(bias * by).sum(axis=(1, 2)) / np.maximum(np.square(by).sum(axis=(1, 2)), 1)
    linear = np.allclose(bias, -slopes[:, None, None] * by, rtol=1e-3, atol=1e-4)
    return slopes if linear else None


def _steady(bias: Array, seen: Array) -> bool:
    """Whether the biases of all heads rise or fall with the distance, as random ones do not."""
    rows = [bias[:, i, seen[0, i]] for i in (0, -1)]
    steps = [np.diff(row, axis=1) for row in rows]
    each = [((step >= -CLOSE).all(axis=1) | (step <= CLOSE).all(axis=1)).all() for step in steps]
    longest = max(row.shape[1] for row in rows)
    return all(each) and len(bias) * (lgamma(longest + 1) - log(2)) > log(UNLIKELY)


def _relative(found: Measured, seen: Array, sided: bool) -> tuple[float, int, int] | None:
    """Return ``relative`` of the Attend whose scores have these biases, as in T5.

    None for others.
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
    """Return the buckets and the largest distance for which as many distances share biases.

    ``groups``: the place of the first distance with the same bias; ``sided``: no token sees a later
    one. The numbers of T5 are tried first.
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
    """Return the heads of which an operand is a multiple, and their rotary embeddings.

    ``part``: the operand. The heads have shape (examples, heads, tokens, width); the second entry
    is None without rotary embeddings.

    ``channels``: (examples, tokens, channels), from which it is made. Raises: NoAttentionError if
    it is made in another way.
    """
    width = part.shape[-1]
    examples, tokens, total = channels.shape
    if total % width or part.shape[1] % (total // width) or tokens != part.shape[2]:
        raise NoAttentionError(
            f"its {what} have {part.shape[1]} heads of {width} channels, made from {total} channels"
        )
    heads = total // width
    plain = part.reshape(examples, heads, -1, tokens, width)
    if np.abs(plain - plain[:, :, :1]).max() > CLOSE:
        raise NoAttentionError(f"its heads share {what} in an order that kcalc does not follow")
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
        f"its {what} are computed from whole feature maps in a way that kcalc does not follow"
    )


def _turn(found: Array, base: Array) -> Turn | None:
    """Return the rotation of pairs of channels that turns ``base`` into ``found``, by token."""
    width = base.shape[-1]
    factor = float(np.sqrt((found**2).sum() / (base**2).sum()))
    along = (found * base).sum(axis=(0, 1, 2)) / (base**2).sum(axis=(0, 1, 2))
    turning = np.abs(found - along * base).max(axis=(0, 1, 2)) > STILL
    channels = np.flatnonzero(turning)
    if len(channels) % 2 or not turning.any():
        return None
    if not np.allclose(np.abs(along[~turning]), factor, rtol=1e-3):  # others keep their size
        return None
    half = len(channels) // 2
    pairs = (channels[:half], channels[half:]), (channels[::2], channels[1::2])
    # DeepSeek: adjacent pairs become two halves
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
