"""Flax NNX and Linen modules read as networks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
import wide_models
from flax import nnx
from refusals import refused

import kcalc as kc
from kcalc.interchange.read import read
from kcalc.network import layers as kl


def hand(steps, outputs=None):
    return kc.Network.from_steps(
        [(n, layer, tuple(p)) for n, layer, p in steps], outputs or [steps[-1][0]]
    )


def kinds(reading):
    return [type(layer).__name__ for _, layer, _ in reading.network.steps()]


# -- NNX -------------------------------------------------------------------------------------------


class Block(nnx.Module):
    """A pre-activation residual block."""

    def __init__(self, inputs, outputs, stride, rngs):
        self.bn1 = nnx.BatchNorm(inputs, rngs=rngs)
        self.conv1 = nnx.Conv(inputs, outputs, (3, 3), strides=stride, use_bias=False, rngs=rngs)
        self.bn2 = nnx.BatchNorm(outputs, rngs=rngs)
        self.conv2 = nnx.Conv(outputs, outputs, (3, 3), use_bias=False, rngs=rngs)
        self.proj = (
            nnx.Conv(inputs, outputs, (1, 1), strides=stride, use_bias=False, rngs=rngs)
            if stride != 1 or inputs != outputs
            else None
        )
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        h = nnx.relu(self.bn1(x))
        shortcut = x if self.proj is None else self.proj(h)
        h = self.conv1(h)
        return shortcut + self.conv2(self.drop(nnx.relu(self.bn2(h))))


class ResNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.blocks = nnx.List([Block(8, 8, 1, rngs), Block(8, 16, 2, rngs)])
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.head = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = nnx.max_pool(nnx.relu(self.norm(x)), (2, 2), strides=(2, 2))
        return self.head(x.mean((1, 2)))


def conv(features, kernel=3, stride=1, bias=False):
    return kl.Affine(features, kernel, stride, bias=bias)


RELU, NORM = kl.Nonlinear("relu"), kl.BatchNorm()
RESNET = hand(
    [
        ("x", kl.Input(3, (16, 16)), ()),
        ("stem", conv(8, bias=True), ["x"]),
        ("n1", NORM, ["stem"]),
        ("r1", RELU, ["n1"]),
        ("c1", conv(8), ["r1"]),
        ("n2", NORM, ["c1"]),
        ("r2", RELU, ["n2"]),
        ("d1", kl.Dropout(0.1), ["r2"]),
        ("c2", conv(8), ["d1"]),
        ("s1", kl.Sum(), ["stem", "c2"]),
        ("n3", NORM, ["s1"]),
        ("r3", RELU, ["n3"]),
        ("p", conv(16, 1, 2), ["r3"]),
        ("c3", conv(16, 3, 2), ["r3"]),
        ("n4", NORM, ["c3"]),
        ("r4", RELU, ["n4"]),
        ("d2", kl.Dropout(0.1), ["r4"]),
        ("c4", conv(16), ["d2"]),
        ("s2", kl.Sum(), ["p", "c4"]),
        ("n5", NORM, ["s2"]),
        ("r5", RELU, ["n5"]),
        ("m", kl.Pool("max", 2), ["r5"]),
        ("g", kl.Pool("mean"), ["m"]),
        ("head", kl.Affine(10), ["g"]),
    ]
)


@pytest.fixture(scope="module")
def resnet():
    return ResNet(nnx.Rngs(0))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_resnet_v2_with_batchnorm(resnet, mode):
    x = jnp.ones((2, 16, 16, 3))
    if mode == "eval":
        resnet = nnx.view(resnet, deterministic=True, use_running_average=True)
    r = read(resnet, x, sigmas=False)
    assert r.network.isomorphic(RESNET), str(r)
    assert r.framework == "flax"
    assert {
        "stem",
        "blocks.0.conv1",
        "blocks.1.bn2",
        "blocks.1.proj",
        "blocks.0.relu",
        "blocks.0.drop",
        "norm",
        "head",
    } <= set(r.network)
    assert r.fidelity.level == "pooling"


class ConvNeXt(nnx.Module):
    """One block: depthwise convolution, LayerNorm, inverted bottleneck, layer scale."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 8, (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.depth = nnx.Conv(8, 8, (7, 7), feature_group_count=8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.up, self.down = nnx.Linear(8, 32, rngs=rngs), nnx.Linear(32, 8, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        return x + 0.5 * self.down(nnx.gelu(self.up(self.norm(self.depth(x))), approximate=False))


def test_convnext_block():
    r = read(ConvNeXt(nnx.Rngs(0)), jnp.ones((2, 32, 32, 3)), sigmas=False)
    assert r.network.isomorphic(
        hand(
            [
                ("x", kl.Input(3, (32, 32)), ()),
                ("stem", kl.Affine(8, 4, 4, padding="same"), ["x"]),
                ("d", kl.Affine(8, 7, groups=8), ["stem"]),
                ("n", kl.LayerNorm(), "d"),
                ("u", kl.Affine(32), "n"),
                ("g", kl.Nonlinear("gelu"), "u"),
                ("o", kl.Affine(8), "g"),
                ("s", kl.Sum((1, 0.5)), ["stem", "o"]),
            ]
        )
    )


class DenseNet(nnx.Module):
    def __init__(self, rngs):
        self.convs = nnx.List(
            [nnx.Conv(4 + 4 * k, 4, (3, 3), use_bias=False, rngs=rngs) for k in range(3)]
        )
        self.norms = nnx.List([nnx.BatchNorm(4 + 4 * k, rngs=rngs) for k in range(3)])

    def __call__(self, x):
        for norm, layer in zip(self.norms, self.convs, strict=True):
            x = jnp.concatenate([x, layer(nnx.silu(norm(x)))], axis=-1)
        return x


def test_densenet():
    steps = [("x", kl.Input(4, (8, 8)), ())]
    last = "x"
    for k in range(3):
        steps += [
            (f"n{k}", NORM, [last]),
            (f"f{k}", kl.Nonlinear("swish"), [f"n{k}"]),
            (f"c{k}", conv(4), [f"f{k}"]),
        ]
        steps += [(f"j{k}", kl.Concat(), [last, f"c{k}"])]
        last = f"j{k}"
    assert read(DenseNet(nnx.Rngs(0)), jnp.ones((2, 8, 8, 4)), sigmas=False).network.isomorphic(
        hand(steps)
    )


def test_other_norms_and_a_transformer_block():
    class Norms(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
            self.group, self.rms = (
                nnx.GroupNorm(8, num_groups=2, rngs=rngs),
                nnx.RMSNorm(8, rngs=rngs),
            )

        def __call__(self, x):
            return self.rms(nnx.tanh(self.group(self.conv(x))))

    r = read(Norms(nnx.Rngs(0)), jnp.ones((2, 8, 8, 3)), sigmas=False)
    assert kinds(r) == ["Input", "Affine", "GroupNorm", "Nonlinear", "RMSNorm"]

    class Transformer(nnx.Module):
        def __init__(self, rngs):
            self.norm1, self.norm2 = nnx.LayerNorm(8, rngs=rngs), nnx.LayerNorm(8, rngs=rngs)
            self.attend = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(8, 32, rngs=rngs), nnx.Linear(32, 8, rngs=rngs)

        def __call__(self, x):
            x = x + self.attend(self.norm1(x))
            return x + self.down(nnx.gelu(self.up(self.norm2(x))))

    r = read(Transformer(nnx.Rngs(0)), jnp.ones((2, 6, 8)), sigmas=False)
    assert r.fidelity.level == "exact" and "Attend" in kinds(r)
    assert {"norm1", "norm2", "up", "down"} <= set(r.network)


# -- Linen -----------------------------------------------------------------------------------------


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(8, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.avg_pool(nn.gelu(x), (2, 2), (2, 2))
        x = nn.GroupNorm(4)(x)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        x = nn.Dense(16)(x.reshape((x.shape[0], -1)))
        return nn.Dense(4)(nn.tanh(nn.LayerNorm()(x)))


LINEN = hand(
    [
        ("x", kl.Input(3, (8, 8)), ()),
        ("c", kl.Affine(8, 3), "x"),
        ("b", NORM, "c"),
        ("g", kl.Nonlinear("gelu_tanh"), "b"),
        ("p", kl.Pool("mean", 2), "g"),
        ("n", kl.GroupNorm(4), "p"),
        ("d", kl.Dropout(0.5), "n"),
        ("f", kl.Flatten(), "d"),
        ("e", kl.Affine(16), "f"),
        ("l", kl.LayerNorm(), "e"),
        ("t", kl.Nonlinear("tanh"), "l"),
        ("o", kl.Affine(4), "t"),
    ]
)


def test_linen():
    x, model = jnp.ones((2, 8, 8, 3)), CNN()
    variables = model.init(jax.random.key(0), x, False)
    for r in (
        read((model, variables), x, sigmas=False),
        read(model, variables, x, sigmas=False),
        read(model, variables, x, False, sigmas=False),
    ):
        assert r.network.isomorphic(LINEN), str(r)
    assert {"Conv_0", "BatchNorm_0", "Dropout_0", "Dense_1"} <= set(r.network)
    with refused("variables"):
        read(model, x)


def test_shapes_serve_as_examples(resnet):
    assert read(resnet, (2, 16, 16, 3)).network == read(resnet, jnp.ones((2, 16, 16, 3))).network
    dense = nn.Dense(4)
    variables = dense.init(jax.random.key(0), jnp.ones((2, 3)))
    assert (
        read((dense, variables), (2, 3)).network == read(dense, variables, jnp.ones((2, 3))).network
    )
    for bad, words in (
        ((2, 0), "positive"),
        ((10**12, 3), "example input 1: an array of shape .* too large"),
        ((2, 5), "be traced"),
    ):
        with refused(words):
            read(dense, variables, bad)


def test_linen_scan_over_layers():
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return nn.relu(nn.Dense(5)(nn.LayerNorm()(x))), None

    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x):
            scanned = nn.scan(
                Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            return scanned()(x, None)[0]

    model, x = Deep(), jnp.ones((2, 5))
    r = read((model, model.init(jax.random.key(0), x)), x, sigmas=False)
    assert kinds(r) == ["Input", *["LayerNorm", "Affine", "Nonlinear"] * 3], str(r)
    assert r.fidelity.level == "exact"


@pytest.mark.slow
def test_predicted_q_and_c_values_of_a_wide_model(every: int):
    """Dense layers as flax draws them.

    LeCun normal (truncated) weights, biases 0, 20 models of width 1024 (512 where --every thins).
    """
    u = wide_models.inputs(every)
    width = u.shape[1]

    class Wide(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(3)])

        def __call__(self, x):
            for layer in self.layers:
                x = nnx.gelu(layer(x), approximate=False)
            return x

    network = read(Wide(nnx.Rngs(0)), u, sigmas=False).network
    wide_models.check_maps(network, [Wide(nnx.Rngs(seed))(u) for seed in range(20)])
