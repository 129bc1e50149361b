"""Builders of the architectures in the source papers.

All builders use ``sigma_w = 1`` and leave gains to the activations unless the docstring says
otherwise. No gain is hidden. ``sigma_w`` and ``sigma_b`` apply to all Affine layers: Var W =
sigma_w^2/fan_in and Var b = sigma_b^2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import sympy as sp

from ...fields.arguments import as_number
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import truth, whole
from .. import layers as L
from ..combinators import DEEPEST, Piece, chain, repeat, residual, residual_weights
from ..network import Network, Step
from .titles import titled

HALF = sp.sqrt(2) / 2
STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def _depth(value: Any, least: int = 1, name: str = "depth") -> int:
    return whole(value, name, least, DEEPEST)


def _stages(depth: Any) -> tuple[int, ...]:
    if _depth(depth) not in STAGES:
        raise KcalcError(f"depth must be 50, 101 or 152 for a ResNet, got {depth}")
    return STAGES[depth]


def vanilla(
    depth: int,
    activation: Any = "relu",
    features: int | None = None,
    sigma_w: Any = 1,
    readout: bool = True,
    sigma_b: Any = 0,
) -> Network:
    """Build ``depth`` combined layers (Affine, activation) and an optional readout Affine.

    All Affine layers, including the readout, have Var W = sigma_w^2 / fan_in and Var b = sigma_b^2.

    Parameters
    ----------
    depth
        The number of combined layers.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    features
        The width of layers that do not specify one, or {node: width}.
    sigma_w
        The weight scale, > 0: ``Var W = sigma_w^2 / fan_in``.
    readout
        Whether an Affine layer ends the network.
    sigma_b
        The standard deviation of biases, >= 0.

    Returns
    -------
    Network
        The network, with one input and one output.

    """
    if getattr(depth, "free_symbols", None):
        raise KcalcError(
            f"a graph needs an integer number of layers, but {depth} is a symbol; use "
            f"kc.vanilla_maps(activation, {depth})"
        )
    affine = L.Affine(features, sigma_w=sigma_w, sigma_b=sigma_b)
    body = repeat(chain(affine, L.Nonlinear(activation)), _depth(depth))
    return titled(
        "vanilla",
        chain(L.Input(features), body, *([affine] if truth(readout, "readout") else [])),
        depth,
    )


def rescaled_resnet(
    blocks: int,
    branch_depth: int = 3,
    shortcut_weight: Any = HALF,
    activation: Any = "relu",
    features: int | None = None,
    sigma_w: Any = 1,
    sigma_b: Any = 0,
) -> Network:
    """Build an Affine and ``blocks`` residual blocks with identity shortcuts and normalised sums.

    A branch consists of ``branch_depth`` pairs (activation, Affine).

    Parameters
    ----------
    blocks
        The number of blocks, >= 1.
    branch_depth
        The number of (activation, Affine) pairs in a branch.
    shortcut_weight
        The amplitude of the shortcut, ``w`` in TAT.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    features
        The width of layers that do not specify one, or {node: width}.
    sigma_w
        The weight scale, > 0: ``Var W = sigma_w^2 / fan_in``.
    sigma_b
        The standard deviation of biases, >= 0.

    Returns
    -------
    Network
        The network, with one input and one output.

    References
    ----------
    [TAT App. B.5]

    """
    affine = L.Affine(features, sigma_w=sigma_w, sigma_b=sigma_b)
    layer = chain(L.Nonlinear(activation), affine)
    length = _depth(branch_depth, name="branch_depth")
    block = residual(repeat(layer, length), shortcut_weight)
    return titled(
        "rescaled-resnet",
        chain(L.Input(features), affine, repeat(block, _depth(blocks, name="blocks"))),
        blocks,
    )


def resnet_v2(
    depth: int = 101,
    shortcut_weight: Any = HALF,
    activation: Any = "relu",
    residual_weight: Any = None,
    classes: int = 1000,
    image_shape: tuple[int, int] | None = (224, 224),
) -> Network:
    """Build the BatchNorm-free ResNet-V2 with bottleneck branches, of depth 50, 101 or 152.

    It has ``depth - 1`` nonlinear layers, not counting one on each of the four transition
    shortcuts. Sums are ``shortcut_weight * shortcut + residual_weight * branch``. Pass either
    weight; the other is chosen such that the squares sum to one.

    Parameters
    ----------
    depth
        50, 101 or 152.
    shortcut_weight
        The amplitude of the shortcut; 0 gives the skip-free network.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    residual_weight
        The amplitude of the branch. If only one weight is given, the squares of the two sum to 1.
    classes
        The number of outputs.
    image_shape
        (height, width) of the images.

    Returns
    -------
    Network
        The network, from images to class logits.

    References
    ----------
    [DKS sec. 23]

    """
    weights = _weights(shortcut_weight, residual_weight)
    stages: list[Piece] = []
    for number, blocks in enumerate(_stages(depth)):
        width, out, stride = 64 * 2**number, 256 * 2**number, 1 if number == 0 else 2
        transition = _bottleneck(activation, width, out, stride)
        shortcut = _combined(activation, L.Affine(out, stride=stride))
        stages.append(residual(transition, *weights, shortcut=shortcut))
        stages.append(
            repeat(residual(_bottleneck(activation, width, out, 1), *weights), blocks - 1)
        )
    return titled(
        "resnet-v2",
        chain(
            L.Input(3, image_shape),
            L.Affine(64, kernel=7, stride=2),
            L.Pool("max", 3, 2, "same"),
            *stages,
            L.Nonlinear(activation),
            L.Pool("mean"),
            L.Flatten(),
            L.Affine(classes),
        ),
        depth,
    )


def _weights(shortcut_weight: Any, residual_weight: Any) -> tuple[Any, Any]:
    """Return both weights; a given residual weight replaces the default shortcut weight."""
    return (None, residual_weight) if residual_weight is not None else (shortcut_weight, None)


def _combined(activation: Any, affine: L.Affine) -> Network:
    return chain(L.Nonlinear(activation), affine)


def _bottleneck(activation: Any, width: int, out: int, stride: int) -> Network:
    return chain(
        _combined(activation, L.Affine(width)),
        _combined(activation, L.Affine(width, kernel=3, stride=stride)),
        _combined(activation, L.Affine(out)),
    )


def wide_resnet(
    depth: int = 250,
    shortcut_weight: Any = HALF,
    activation: Any = "relu",
    residual_weight: Any = None,
    width: int = 2,
    classes: int = 10,
    image_shape: tuple[int, int] | None = (32, 32),
) -> Network:
    """Build the BatchNorm-free Wide-ResNet for small images.

    It has ``depth - 3`` nonlinear layers in ``(depth - 4) / 2`` blocks of two, not counting one on
    each of the three transition shortcuts. The weights are as in :func:`resnet_v2`.

    Parameters
    ----------
    depth
        An integer such that ``depth - 4`` is divisible by 6.
    shortcut_weight
        The amplitude of the shortcut. If only one weight is given, the squares of the two sum to 1.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    residual_weight
        The amplitude of the branch. If only one weight is given, the squares of the two sum to 1.
    width
        The multiplier of the channel counts.
    classes
        The number of outputs.
    image_shape
        (height, width) of the images.

    Returns
    -------
    Network
        The network, from images to class logits.

    References
    ----------
    [DKS sec. 23.6]

    """
    if _depth(depth, 10) % 6 != 4:
        near = max(10, depth - (depth - 4) % 6)
        raise KcalcError(
            f"depth - 4 must be divisible by 6, got depth = {depth}; the nearest depths are "
            f"{near} and {near + 6}"
        )
    weights, width = _weights(shortcut_weight, residual_weight), whole(width, "width", 1)
    stages: list[Piece] = []
    for number in range(3):
        out, stride = 16 * width * 2**number, 1 if number == 0 else 2
        shortcut = _combined(activation, L.Affine(out, stride=stride))
        stages.append(residual(_basic(activation, out, stride), *weights, shortcut=shortcut))
        if depth > 10:
            stages.append(
                repeat(residual(_basic(activation, out, 1), *weights), (depth - 4) // 6 - 1)
            )
    return titled(
        "wide-resnet",
        chain(
            L.Input(3, image_shape),
            L.Affine(16, kernel=3),
            *stages,
            L.Nonlinear(activation),
            L.Pool("mean"),
            L.Flatten(),
            L.Affine(classes),
        ),
        depth,
    )


def _basic(activation: Any, out: int, stride: int) -> Network:
    return chain(
        _combined(activation, L.Affine(out, kernel=3, stride=stride)),
        _combined(activation, L.Affine(out, kernel=3)),
    )


def layernorm_resnet(
    depth: int = 101,
    activation: Any = "relu",
    classes: int = 1000,
    image_shape: tuple[int, int] | None = (224, 224),
) -> Network:
    """Build a ResNet-V2 with LayerNorm instead of BatchNorm.

    Its sums are plain, and its weights use ``sigma_w = sqrt 2``.

    q grows by one per block and returns to 2 at each transition. The C map does not depend on the
    unnormalised sums, because a LayerNorm precedes every activation.

    Parameters
    ----------
    depth
        50, 101 or 152.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    classes
        The number of outputs.
    image_shape
        (height, width) of the images.

    Returns
    -------
    Network
        The network, from images to class logits.

    References
    ----------
    [DKS App. J]

    """
    gain = sp.sqrt(2)

    def combined(affine: L.Affine) -> Network:
        return chain(L.LayerNorm(), L.Nonlinear(activation), affine)

    def branch(width: int, out: int, stride: int) -> Network:
        return chain(
            combined(L.Affine(width, sigma_w=gain)),
            combined(L.Affine(width, kernel=3, stride=stride, sigma_w=gain)),
            combined(L.Affine(out, sigma_w=gain)),
        )

    stages: list[Piece] = []
    for number, blocks in enumerate(_stages(depth)):
        width, out, stride = 64 * 2**number, 256 * 2**number, 1 if number == 0 else 2
        stages.append(
            residual(
                branch(width, out, stride),
                shortcut=combined(L.Affine(out, stride=stride, sigma_w=gain)),
            )
        )
        stages.append(repeat(residual(branch(width, out, 1)), blocks - 1))
    return titled(
        "layernorm-resnet",
        chain(
            L.Input(3, image_shape),
            L.Affine(64, kernel=7, stride=2),
            L.Pool("max", 3, 2, "same"),
            *stages,
            L.LayerNorm(),
            L.Nonlinear(activation),
            L.Pool("mean"),
            L.Flatten(),
            L.Affine(classes, sigma_w=gain),
        ),
        depth,
    )


def densenet(
    layers: int, activation: Any = "relu", growth: int | None = 32, readout: bool = True
) -> Network:
    """Build a dense block of ``layers`` layers.

    Layer ``i`` reads the concatenation of the outputs of the stem and of all earlier layers.

    Each layer is (activation, Affine with ``growth`` channels), and the stem has ``2 * growth``
    channels. Concatenation is incremental, so the graph has O(layers) edges.

    Parameters
    ----------
    layers
        The number of layers.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    growth
        The number of channels that each layer adds; None leaves it unspecified.
    readout
        Whether an Affine layer ends the network.

    Returns
    -------
    Network
        The network, with one input and one output.

    """
    stem = None if growth is None else 2 * whole(growth, "growth", 1)
    channels = None if growth is None else stem
    steps: list[Step] = [("input", L.Input(), ()), ("stem", L.Affine(stem), ("input",))]
    tail = "stem"
    for i in range(1, _depth(layers, name="layers") + 1):
        steps.append((f"phi_{i}", L.Nonlinear(activation), (tail,)))
        steps.append((f"new_{i}", L.Affine(growth), (f"phi_{i}",)))
        counts = (i + 1, 1) if channels is None or growth is None else (channels, growth)
        channels = None if channels is None or growth is None else channels + growth
        steps.append((f"concat_{i}", L.Concat(counts), (tail, f"new_{i}")))
        tail = f"concat_{i}"
    steps.append(("phi_out", L.Nonlinear(activation), (tail,)))
    if truth(readout, "readout"):
        steps.append(("readout", L.Affine(), ("phi_out",)))
    return titled("densenet", Network.from_steps(steps), layers)


# -- strided and preconditioned networks of the scaling calculus -----------------------------------


def lenet(
    activation: Any = "relu",
    classes: int = 10,
    channels: int = 1,
    image_shape: tuple[int, int] | None = (32, 32),
    sigma_w: Any = 1,
    sigma_b: Any = 0,
) -> Network:
    """Build LeNet-5 with strides instead of pooling.

    It has two 5 x 5 convolutions of stride 2 and dense layers of 120 and 84 features [Scaling sec.
    5].

    Parameters
    ----------
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    classes
        The number of outputs.
    channels
        The number of channels of the images.
    image_shape
        (height, width) of the images.
    sigma_w
        The weight scale, > 0: ``Var W = sigma_w^2 / fan_in``.
    sigma_b
        The standard deviation of biases, >= 0.

    Returns
    -------
    Network
        The network, from images to class logits.

    """
    affine = partial(L.Affine, sigma_w=sigma_w, sigma_b=sigma_b)
    layers = [affine(features, kernel=5, stride=2, padding="valid") for features in (6, 16)]
    dense = [affine(features) for features in (120, 84, classes)]
    return titled("lenet", _alternating(L.Input(channels, image_shape), activation, layers, dense))


def alexnet(
    activation: Any = "relu",
    classes: int = 1000,
    image_shape: tuple[int, int] | None = (224, 224),
    hidden: int = 4096,
    sigma_w: Any = 1,
    sigma_b: Any = 0,
) -> Network:
    """Build AlexNet with strided convolutions instead of pooling.

    Each convolution (kernels 11, 5, 3, 3, 3) takes over the stride of the pooling layer after it.

    Parameters
    ----------
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    classes
        The number of outputs.
    image_shape
        (height, width) of the images.
    hidden
        The width of the dense layers.
    sigma_w
        The weight scale, > 0: ``Var W = sigma_w^2 / fan_in``.
    sigma_b
        The standard deviation of biases, >= 0.

    Returns
    -------
    Network
        The network, from images to class logits.

    References
    ----------
    [Scaling sec. 10]

    """
    affine = partial(L.Affine, sigma_w=sigma_w, sigma_b=sigma_b)
    sizes = ((64, 11, 8), (192, 5, 2), (384, 3, 1), (256, 3, 1), (256, 3, 2))
    layers = [affine(k, kernel=side, stride=stride, padding=side // 2) for k, side, stride in sizes]
    dense = [affine(features) for features in (hidden, hidden, classes)]
    return titled("alexnet", _alternating(L.Input(3, image_shape), activation, layers, dense))


def _alternating(
    entry: L.Input, activation: Any, convolutions: list[L.Affine], dense: list[L.Affine]
) -> Network:
    pieces: list[Piece] = [entry]
    for layer in convolutions:
        pieces += [layer, L.Nonlinear(activation)]
    pieces += [L.Flatten(), dense[0]]
    for layer in dense[1:]:
        pieces += [L.Nonlinear(activation), layer]
    return chain(*pieces)


def _geometric(
    inputs: Any, outputs: Any, kernel: int, constant: Any, stride: int = 1, padding: Any = "same"
) -> L.Affine:
    """Return an Affine with E[W^2] = c / (k sqrt(n m)), where c is ``constant`` [Scaling eq. 3]."""
    source, target = (_channels(count) for count in (inputs, outputs))
    sigma = sp.sqrt(constant * kernel * sp.sqrt(source / target))
    return L.Affine(outputs, kernel=kernel, stride=stride, padding=padding, sigma_w=sigma)


def _channels(count: Any) -> sp.Expr:
    """Convert a number of channels to a SymPy number or expression.

    Raises: KcalcError unless the number is an integer >= 1 or an expression.
    """
    if count is None:
        raise KcalcError(
            "geometric weights need channel counts; pass integers >= 1 or SymPy symbols"
        )
    L.Affine(count)
    return sp.sympify(count, strict=True)


def preconditioned_block(
    inputs: Any,
    outputs: Any,
    width: Any,
    shortcut_weight: Any = HALF,
    residual_weight: Any = None,
    downsample: bool = False,
    padding: Any = "same",
    pool_correlation: Any = 0,
) -> Network:
    """Build the pre-activation bottleneck block in geometric initialisation.

    Weights have ``E[W^2] = c / (k sqrt(n m))`` for a ``k x k`` kernel and n input and m output
    channels of the layer. With the constants c below, they have the same scaling gamma
    (:func:`kcalc.scaling`) as weights with c = 1 outside the block. Some constants of the source
    are corrected.

    The block computes ``alpha S(x) + beta F(x)`` with n input channels, m output channels and
    ``width`` channels inside. alpha and beta are the weights of the sum; their squares add up to
    one.

    - S is the identity if n = m and there is no downsampling. Otherwise it is [2 x 2 mean pooling
      and] a 1 x 1 convolution with c = alpha, followed by the multiplier 1/sqrt(alpha) [and, for
      the pooling, 2/sqrt(1 + 3 r) with r = ``pool_correlation`` within its windows].
    - F multiplies by sqrt(beta), then repeats three times: relu, multiply by sqrt(2/(k beta)),
      k x k convolution with c = beta (k = 1, 3, 1, with the stride at the 3 x 3). It ends with a
      learnable factor v = sqrt(beta) and the multiplier 1/beta.

    S and F multiply the mean square of their input by sqrt(n/m). The source prints c = alpha/4 for
    the pooled shortcut and sqrt(m/(beta n)) for the last multiplier; both give a wrong gamma and a
    wrong second moment. Here, biases are added after the convolutions.

    Parameters
    ----------
    inputs
        The number of input channels, n.
    outputs
        The number of output channels, m.
    width
        The number of channels inside the block.
    shortcut_weight
        The amplitude of the shortcut. If only one weight is given, the squares of the two sum to 1.
    residual_weight
        The amplitude of the branch. If only one weight is given, the squares of the two sum to 1.
    downsample
        Whether the block halves both image axes.
    padding
        As in :class:`kcalc.layers.Affine`.
    pool_correlation
        The correlation of the pixels within a pooling window.

    Returns
    -------
    Network
        The block, with one input and one output.

    References
    ----------
    [Scaling sec. 11.1]

    """
    for count in (inputs, outputs, width):
        _channels(count)
    pooled = sp.sympify(as_number(pool_correlation, "pool_correlation"), strict=True)
    alpha, beta = (
        sp.sympify(w, strict=True)
        for w in residual_weights(shortcut_weight, residual_weight) or (HALF, HALF)
    )
    if alpha == 0:
        raise KcalcError(
            "a block without a shortcut is not a residual block; pass shortcut_weight > 0"
        )

    relu: Any = "relu"

    def layer(source: Any, target: Any, kernel: int, stride: int = 1) -> list[Piece]:
        scale = L.Scale(sp.sqrt(2 / (kernel * beta)))
        return [L.Nonlinear(relu), scale, _geometric(source, target, kernel, beta, stride, padding)]

    stride = 2 if truth(downsample, "downsample") else 1
    inner = [*layer(inputs, width, 1), *layer(width, width, 3, stride), *layer(width, outputs, 1)]
    branch = chain(L.Scale(sp.sqrt(beta)), *inner, L.Scale(sp.sqrt(beta)), L.Scale(1 / beta))
    if inputs == outputs and not downsample:
        return residual(branch, alpha, beta)
    along: list[Piece] = [_geometric(inputs, outputs, 1, alpha), L.Scale(1 / sp.sqrt(alpha))]
    if downsample:
        lost = (1 + 3 * pooled) / 4
        window = "valid" if isinstance(padding, str) and padding == "valid" else "same"
        along = [L.Pool("mean", 2, 2, window), along[0], L.Scale(1 / sp.sqrt(alpha * lost))]
    return titled("preconditioned-block", residual(branch, alpha, beta, shortcut=chain(*along)))


def preactivation_resnet50(
    classes: int = 1000,
    image_shape: tuple[int, int] | None = (224, 224),
    width: int = 64,
    shortcut_weight: Any = HALF,
    padding: Any = "same",
    pool_correlation: Any = 0,
    output_scale: Any = None,
) -> Network:
    """Build the unnormalised pre-activation ResNet-50 in geometric initialisation.

    Its blocks come from :func:`preconditioned_block`; all other weights have c = 1.

    The stem is a 7 x 7 convolution of stride 4, without pooling. It multiplies inputs of mean
    square 1 by (3 * 49)^(-1/4). The four stages have 3, 4, 6 and 3 blocks. They have ``width``, 2
    ``width``, ... channels inside the blocks and four times as many outside. The last layers are
    relu times sqrt(2), the mean over all locations, and a dense layer times ``output_scale``. Mean
    pooling after relu changes the activation scaling: see ``kc.scaling(network).violations``.

    Parameters
    ----------
    classes
        The number of outputs.
    image_shape
        (height, width) of the images.
    width
        The number of channels inside the blocks of the first stage.
    shortcut_weight
        The amplitude of the shortcut. If only one weight is given, the squares of the two sum to 1.
    padding
        As in :class:`kcalc.layers.Affine`.
    pool_correlation
        The correlation of the pixels within a pooling window.
    output_scale
        A fixed multiplier of the output; None omits it.

    Returns
    -------
    Network
        The network, from images to class logits.

    References
    ----------
    [Scaling sec. 11]

    """
    stem = [L.Scale(sp.Integer(147) ** sp.Rational(-1, 4)), _geometric(3, width, 7, 1, 4, padding)]
    pieces: list[Piece] = [L.Input(3, image_shape), *stem]
    inputs = width
    for number, blocks in enumerate(STAGES[50]):
        inside = _depth(width, name="width") * 2**number
        weights = {"shortcut_weight": shortcut_weight, "padding": padding}
        first = preconditioned_block(
            inputs,
            4 * inside,
            inside,
            downsample=number > 0,
            pool_correlation=pool_correlation,
            **weights,
        )
        pieces += [
            first,
            repeat(preconditioned_block(4 * inside, 4 * inside, inside, **weights), blocks - 1),
        ]
        inputs = 4 * inside
    relu: Any = "relu"
    ends = [
        L.Nonlinear(relu),
        L.Scale(sp.sqrt(2)),
        L.Pool("mean"),
        L.Flatten(),
        _geometric(inputs, classes, 1, 1),
    ]
    return titled(
        "preactivation-resnet50",
        chain(*pieces, *ends, *([] if output_scale is None else [L.Scale(output_scale)])),
    )
