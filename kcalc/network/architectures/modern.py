"""Builders of modern networks.

The networks are gated MLPs, ConvNeXt-like stacks, and transformers with fixed token mixing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError, unknown
from ...foundation.plain_arguments import truth, whole
from .. import layers as L
from ..combinators import DEEPEST, Piece, chain, repeat, residual
from ..network import Network
from .papers import HALF
from .titles import titled

NORMS: dict[str | None, tuple[Piece, ...]] = {
    None: (),
    "rms": (L.RMSNorm(),),
    "layer": (L.LayerNorm(),),
}


def gated_mlp(
    blocks: int,
    activation: Any = "swish",
    shortcut_weight: Any = HALF,
    norm: str | None = None,
    features: int | None = None,
    hidden: int | None = None,
) -> Network:
    """Build a network of gated residual blocks.

    It consists of an Affine, ``blocks`` residual blocks ``W (phi(U h) * V h)``, where h is the
    normalised input, and a readout Affine.

    The slope of a gate is the sum of the slopes of its factors. For B blocks, this gives the slope
    ``(1 + (1 - w^2) psi)^B`` at c = 1, where psi = C'(1) of the activation. ``shortcut_weight =
    sqrt(B/(B + 1))`` keeps this slope below e^psi.

    Parameters
    ----------
    blocks
        The number of blocks, >= 1.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    shortcut_weight
        The amplitude of the identity in normalised sums; None uses plain sums.
    norm
        None, "rms" or "layer", applied before every branch and before the readout.
    features
        The width of layers that do not specify one, or {node: width}.
    hidden
        The width inside a branch; by default ``features``.

    Returns
    -------
    Network
        The network, with one input and one output.

    Raises
    ------
    KcalcError
        If the norm is unknown, or ``blocks`` is not a positive integer.

    References
    ----------
    [Shazeer 2020, "GLU variants"]

    """
    branch = chain(
        *_norm(norm), _gate(activation, features if hidden is None else hidden), L.Affine(features)
    )
    return titled(
        "gated-mlp",
        chain(
            L.Input(features),
            L.Affine(features),
            repeat(residual(branch, shortcut_weight), _blocks(blocks)),
            *_norm(norm),
            L.Affine(features),
        ),
        blocks,
    )


def convnext(
    blocks: int,
    activation: Any = "gelu",
    shortcut_weight: Any = HALF,
    features: int = 384,
    kernel: int = 7,
    expansion: int = 4,
    classes: int = 1000,
    image_shape: tuple[int, int] | None = (224, 224),
    patch: int = 16,
) -> Network:
    """Build a ConvNeXt at a single resolution.

    Its layers are a convolution over patches, ``blocks`` residual blocks, a global mean, a
    LayerNorm and a readout.

    A branch is a depthwise ``kernel x kernel`` convolution, a LayerNorm, an Affine to ``expansion *
    features`` channels, the activation, and an Affine back. A depthwise convolution reads one
    channel, so its output is not Gaussian. The LayerNorm and dense Affine after it restore a
    Gaussian feature map.

    LayerScale is omitted. A patch of even size has no centre tap, so Delta initialisation does not
    apply to it; use ``kc.to_jax(net, weights={"affine_1": "gaussian"})``.

    Parameters
    ----------
    blocks
        The number of blocks, >= 1.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    shortcut_weight
        As in :func:`gated_mlp`; None uses plain sums.
    features
        The number of channels of the residual stream.
    kernel
        The kernel side of the depthwise convolution.
    expansion
        The number of channels inside a branch, divided by ``features``.
    classes
        The number of outputs.
    image_shape
        (height, width) of the images.
    patch
        The side of a patch in pixels.

    Returns
    -------
    Network
        The network, from images to class logits.

    Raises
    ------
    KcalcError
        If a size is not an integer >= 1.

    References
    ----------
    [Liu et al. 2022, sec. 3.3 (isotropic)]

    """
    features, expansion = whole(features, "features", 1), whole(expansion, "expansion", 1)
    branch = chain(
        L.Affine(features, kernel=kernel, groups=features),
        L.LayerNorm(),
        L.Affine(expansion * features),
        L.Nonlinear(activation),
        L.Affine(features),
    )
    return titled(
        "convnext",
        chain(
            L.Input(3, image_shape),
            L.Affine(features, kernel=patch, stride=patch),
            repeat(residual(branch, shortcut_weight), _blocks(blocks)),
            L.Pool("mean"),
            L.Flatten(),
            L.LayerNorm(),
            L.Affine(classes),
        ),
    )


def transformer(
    blocks: int,
    mixing: Any,
    activation: Any = "gelu",
    gated: bool = False,
    shortcut_weight: Any = 0,
    norm: str | None = None,
    features: int | None = None,
    hidden: int | None = None,
) -> Network:
    """Build a transformer at initialisation, with a fixed ``TokenMix`` as its attention.

    Its layers are an Affine (embedding), ``blocks`` blocks and a readout Affine.

    A block consists of attention (Affine for values, TokenMix, Affine for the output) and an MLP
    (Affine, activation, Affine, or with ``gated`` the MLP of :func:`gated_mlp`). Both read the
    output of a ``norm`` and have a shortcut of amplitude ``shortcut_weight``.

    Parameters
    ----------
    blocks
        The number of blocks, >= 1.
    mixing
        A matrix (T, T), or one per block, for example from :mod:`kcalc.network.token_mixing`.
        Attention with one head and zero query weights applies such a matrix to all inputs.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    gated
        Whether the MLP is gated.
    shortcut_weight
        The amplitude of the shortcut; 0 removes it, and None uses a plain sum.
    norm
        None, "rms" or "layer".
    features
        The width of layers that do not specify one, or {node: width}.
    hidden
        The width inside a branch.

    Returns
    -------
    Network
        The network, which reads sequences of tokens.

    Raises
    ------
    KcalcError
        If ``mixing`` is neither a single matrix nor a list of ``blocks`` matrices.

    References
    ----------
    [He et al. 2023, "Deep Transformers without Shortcuts"]

    """
    inside = features if hidden is None else hidden
    inner: tuple[Piece, ...] = (
        (_gate(activation, inside),)
        if truth(gated, "gated")
        else (L.Affine(inside), L.Nonlinear(activation))
    )
    mlp = residual(chain(*_norm(norm), *inner, L.Affine(features)), shortcut_weight)

    def block(matrix: Any) -> Network:
        attention = chain(*_norm(norm), L.Affine(features), L.TokenMix(matrix), L.Affine(features))
        return chain(residual(attention, shortcut_weight), mlp)

    return titled(
        "transformer",
        chain(
            L.Input(features),
            L.Affine(features),
            *map(block, _matrices(mixing, _blocks(blocks))),
            *_norm(norm),
            L.Affine(features),
        ),
        blocks,
    )


def _matrices(mixing: Any, blocks: int) -> Sequence[Any]:
    if isinstance(mixing, list | tuple) and len(mixing) and _is_matrix(mixing[0]):
        if len(mixing) != blocks:
            raise KcalcError(
                f"mixing has {len(mixing)} matrices for {blocks} blocks; pass one matrix per "
                "block, or a single matrix"
            )
        return mixing
    return [mixing] * blocks


def _is_matrix(value: Any) -> bool:
    try:
        return np.ndim(value) == 2
    except ValueError:  # rows of different lengths, which TokenMix rejects
        return False


def _gate(activation: Any, hidden: int | None) -> Network:
    """Return ``phi(U x) * V x``."""
    return Network.from_steps(
        [
            ("x", L.Input(), ()),
            ("u", L.Affine(hidden), ("x",)),
            ("phi", L.Nonlinear(activation), ("u",)),
            ("v", L.Affine(hidden), ("x",)),
            ("gate", L.Product(), ("phi", "v")),
        ]
    )


def _norm(norm: str | None) -> tuple[Piece, ...]:
    if norm is not None and (not isinstance(norm, str) or norm not in NORMS):
        raise unknown("norm", norm, [name for name in NORMS if name])
    return NORMS[norm]


def _blocks(value: Any) -> int:
    return whole(value, "blocks", 1, DEEPEST)
