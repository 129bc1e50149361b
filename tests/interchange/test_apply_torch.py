"""PyTorch models edited by shapings: they compute exactly what was analysed."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refused
from thinning import mostly_slow

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_zoo import ZOO, ResNetV2  # noqa: E402

from kcalc.activations import names  # noqa: E402
from kcalc.calculi.global_maps import node_values  # noqa: E402
from kcalc.interchange.apply import apply_to  # noqa: E402
from kcalc.interchange.read import read  # noqa: E402
from kcalc.interchange.torch_model.activation import torch_function  # noqa: E402
from kcalc.network.layers import Affine, BatchNorm, Flatten  # noqa: E402

SEEN_BY_JAX = (
    "mlp_modules",
    "mlp_functional",
    "hand_written_activations",
    "scalar_weighted_residuals",
    "crelu",
    "two_inputs_two_outputs",
    "lenet",
    "resnet_v1_basic",
    "resnet_v2_bottleneck",
    "densenet",
    "squeezenet",
    "mobilenet",
    "resnext_groupnorm",
)
QUICK = SEEN_BY_JAX[:8]
FRESH = (
    "mlp_functional",
    "scalar_weighted_residuals",
    "crelu",
    "two_inputs_two_outputs",
    "resnet_v2_bottleneck",
    "densenet",
    "squeezenet",
    "unet",
)
HEURISTIC = ("resnet_v1_basic", "mobilenet")  # q and c of their networks are no exact ones
SMOOTH = ("lenet", "scalar_weighted_residuals")  # their own activations can be shaped


def seed(number: int) -> Any:
    return torch.Generator().manual_seed(number)


def shaped(
    name: str, dtype: Any = None, phi: str | None = "tanh", times: int = 1
) -> tuple[Any, Any, Any, Any]:
    """(model, examples, reading, shaping) of a zoo entry, its activations made ``phi``.

    ``times``: how often it has its channels.
    """
    torch.manual_seed(0)
    model, examples, _ = ZOO[name]()
    model, examples = widened(model, examples, times)
    model = model.to(dtype or torch.float64)
    reading = read(model, *examples, sigmas=False)
    net = reading.network.without_normalization().normalised()
    return model, examples, reading, kc.shape(net, phi, "dks", assume_independent=name in HEURISTIC)


def widened(model: Any, examples: Any, times: int) -> tuple[Any, Any]:
    """A model with ``times`` as many channels everywhere, in its inputs too, and such examples."""
    widths = ("in_features", "out_features", "in_channels", "out_channels", "num_features")
    for module in model.modules() if times > 1 else ():
        for width in widths:
            if hasattr(module, width):
                setattr(module, width, times * getattr(module, width))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.ndim:
                both = min(tensor.ndim, 2)
                many = tensor.detach().repeat(*(times,) * both, *(1,) * (tensor.ndim - both))
                kept = name in module._parameters
                setattr(module, name, nn.Parameter(many) if kept else many)

    def more(given: Any) -> Any:
        if isinstance(given, dict):
            return {name: more(value) for name, value in given.items()}
        if isinstance(given, torch.Tensor):
            return given.repeat(1, times, *(1,) * (given.ndim - 2))
        return (given[0], times * given[1], *given[2:])

    return model, tuple(map(more, examples))


def inputs(examples: Any, dtype: Any) -> list[Any]:
    """Random inputs of the shapes of the examples, one by one."""
    flat = [
        tensor
        for e in examples
        for tensor in (list(e.values()) if isinstance(e, dict) else [torch.zeros(e)])
    ]
    return [torch.randn(tensor.shape, dtype=dtype, generator=seed(5)) for tensor in flat]


def given(examples: Any, xs: list[Any]) -> list[Any]:
    """Arrays in the dictionaries in which the examples have them."""
    rest = iter(xs)
    return [
        {name: next(rest) for name in e} if isinstance(e, dict) else next(rest) for e in examples
    ]


def weights_for_jax(new: Any, reading: Any, network: Any, wanted: Any) -> dict[Any, Any]:
    """The new model's weights in the layout of kc.to_jax."""
    ops, held = {op.name: op for op in reading.trace.ops}, dict(new.named_parameters())
    own = {}
    for node in network.nodes_of(Affine):
        op = ops[node]
        name = op.parameter if op.parameter in held else f"{node}.weight"
        weight = held[name].detach().double().numpy()
        weight = weight.T if reading.trace.model.stored[op.parameter][1] else weight
        parent = network.parents(node)[0]
        if isinstance(network.layer(parent), Flatten):  # JAX keeps channels last
            channels, *places = ops[ops[str(parent)].reads[0]].shape[1:]
            weight = np.moveaxis(weight.reshape(len(weight), channels, *places), 1, -1).reshape(
                len(weight), -1
            )
        own[node] = {
            "weight": np.moveaxis(weight, (0, 1), (-1, -2)).reshape(wanted[node]["weight"].shape)
        }
        if network.layer(node).bias:
            own[node]["bias"] = held[f"{node}.bias"].detach().double().numpy()
    return own


def agreement(name: str, dtype: Any, phi: str | None = "tanh") -> float:
    """The largest difference between the new model and kc.to_jax of the shaped network, relative to
    the largest output.
    """
    model, examples, reading, s = shaped(name, dtype, phi)
    new = apply_to(model, s, generator=seed(1)).eval()
    for path, parameter in new.named_parameters():
        node = path.rpartition(".")[0]
        if parameter.ndim == 1 and node in s.network and s.network.layer(node).bias:
            nn.init.normal_(parameter)
    xs = inputs(examples, dtype)
    arrays = {node: x.movedim(1, -1).numpy() for node, x in zip(s.network.inputs, xs, strict=True)}
    there = kc.to_jax(s.network, parameterization="standard", dtype=str(dtype)[6:], rolled=False)
    fed = arrays if len(arrays) > 1 else next(iter(arrays.values()))
    own = weights_for_jax(new, reading, s.network, there.unstack(there.init(0, fed), fed))
    theirs = there.apply(there.stack(own, fed), fed)
    theirs = list(theirs.values()) if isinstance(theirs, dict) else [theirs]
    gaps = []
    for a, b in zip(leaves(new(*given(examples, xs))), theirs, strict=True):
        b = np.asarray(b)
        gaps.append(np.abs(a.detach().movedim(1, -1).numpy() - b).max() / np.abs(b).max())
    return float(max(gaps))


@pytest.mark.parametrize("name", mostly_slow(QUICK, 8))
def test_same_outputs_as_the_shaped_network_in_jax(name: str) -> None:
    assert agreement(name, torch.float64) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SEEN_BY_JAX if n not in QUICK])
def test_same_outputs_as_the_shaped_network_in_jax_larger(name: str) -> None:
    assert agreement(name, torch.float64) < 1e-12


@pytest.mark.parametrize("name", mostly_slow(SMOOTH))
def test_same_outputs_where_the_activations_are_the_models(name: str) -> None:
    assert agreement(name, torch.float64, None) < 1e-12


@pytest.mark.parametrize("name", ["crelu", "scalar_weighted_residuals"])
def test_same_outputs_in_single_precision(name: str) -> None:
    assert agreement(name, torch.float32) < 1e-5


# -- q and c values of every node ------------------------------------------------------------------


def pair(channels: int, c: float, generator: Any) -> Any:
    """Two vectors of q = 1 and cosine c."""
    u, v = torch.randn(2, channels, dtype=torch.float64, generator=generator)
    u = u / u.norm()
    v = v - (v @ u) * u
    return math.sqrt(channels) * torch.stack([u, c * u + math.sqrt(1 - c * c) * v / v.norm()])


def values(new: Any, network: kc.Network, *xs: Any) -> dict[Any, Any]:
    """What the modules return that are nodes of a network, and its outputs."""
    out: dict[Any, Any] = {}
    handles = [
        module.register_forward_hook(lambda _, args, value, name=name: out.update({name: value}))
        for name, module in new.named_modules()
        if name in network
    ]
    with torch.no_grad():
        found = leaves(new(*xs))
    for handle in handles:
        handle.remove()
    return out | dict(zip(network.outputs, found, strict=True))


def leaves(found: Any) -> list[Any]:
    """The tensors that a model returns."""
    return torch.utils._pytree.tree_leaves(found)


def deviations(name: str, times: int, draws: int, c: float = 0.3) -> dict[Any, tuple[float, float]]:
    """{node: standard errors by which (q, c) miss the prediction}.

    Features ``times`` as many, inputs equal at all locations.

    Orthogonal Delta weights, biases 0. Equal locations make pooling and resizing the identity that
    the theory takes them for.
    """
    model, examples, _, s = shaped(name, times=times)
    expected = node_values(s.network, np.array([c]), 1.0)
    generator, found = seed(3), {}
    single = inputs(examples, torch.float64)
    for _ in range(draws):
        new = apply_to(model, s, generator=generator).eval()
        xs = []
        for x in single:
            point = pair(x.shape[1], c, generator)
            xs.append(
                point.reshape(2, -1, *(1,) * (x.ndim - 2)).expand(2, *x.shape[1:]).contiguous()
            )
        for node, value in values(new, s.network, *given(examples, xs)).items():
            value = value.flatten(1)
            q = value.square().mean(1)
            found.setdefault(node, []).append(
                (float(q.mean()), float((value[0] * value[1]).mean() / q.prod().sqrt()))
            )
    out = {}
    for node, rows in found.items():
        theory = np.array([np.ravel(expected[node][0])[0], np.ravel(expected[node][2])[0]])
        table = np.array(rows)
        gap, error = np.abs(table.mean(0) - theory), table.std(0, ddof=1) / math.sqrt(draws)
        out[node] = tuple(np.where(gap < 1e-9, 0.0, gap / np.maximum(error, 1e-12)))
    return out


@pytest.mark.parametrize("name", ["mlp_functional", "two_inputs_two_outputs"])
def test_q_and_c_values_are_those_predicted(name: str) -> None:
    worst = deviations(name, 12, 20)
    assert max(max(z) for z in worst.values()) < 5, worst


@pytest.mark.slow
@pytest.mark.parametrize("name", FRESH)
def test_q_and_c_values_are_those_predicted_in_wide_models(name: str) -> None:
    worst = deviations(
        name,
        24
        if name in ("mlp_functional", "two_inputs_two_outputs", "scalar_weighted_residuals")
        else 16,
        20,
    )
    assert max(max(z) for z in worst.values()) < 5, worst


# -- what the new model is -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = ResNetV2((1, 1), 4, 10)
    s = kc.shape(read(model, (2, 3, 33, 33)), "tanh", "dks")
    return model, s, apply_to(model, s, generator=seed(0))


def test_original_is_untouched(made: Any) -> None:
    model, s, _ = made
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, mode = torch.get_rng_state(), model.training
    x = torch.randn(2, 3, 33, 33, generator=seed(1))
    read(model, x)
    apply_to(model, s, x, generator=seed(0))
    assert model.training is mode and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_edits_are_listed(made: Any) -> None:
    model, s, new = made
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert not s.edits.left_alone
    assert {edit.node for edit in s.edits.only("norm")} == set(norms)
    kept = {**dict(new.named_parameters()), **dict(new.named_buffers())}
    assert not any(name.startswith(norm) for name in kept for norm in norms)
    (bias,) = (edit for edit in s.edits["blocks.0.conv1"] if edit.kind == "bias")
    assert "zeros" in bias.what and bias.weights[0].added
    assert "0.707107, 0.707107" in s.edits["blocks.0.add"][0].what
    phis = s.edits.only("activation")
    assert len(phis) == 7 and all("relu -> " in edit.what and edit.where for edit in phis)
    assert type(new).__name__ == "ResNetV2" and isinstance(new, ResNetV2)
    assert not s.network.nodes_of(BatchNorm)


def test_parameters_keep_names_and_shapes(made: Any) -> None:
    model, _, new = made
    old, now = dict(model.named_parameters()), dict(new.named_parameters())
    assert all(
        now[name].shape == old[name].shape and now[name].requires_grad
        for name in now
        if name in old
    )
    assert set(now) - set(old) == {
        "blocks.0.conv1.bias",
        "blocks.0.conv2.bias",
        "blocks.1.conv1.bias",
        "blocks.1.conv2.bias",
    }
    assert all(not now[name].detach().any() for name in now if name.endswith("bias"))


def test_weights_are_orthogonal_on_the_central_tap(made: Any) -> None:
    weight = dict(made[2].named_parameters())["blocks.0.conv2.weight"].detach()
    centre = weight[:, :, 1, 1]
    assert torch.allclose(centre @ centre.T, torch.eye(4), atol=1e-5)
    assert float(weight.square().sum()) == pytest.approx(float(centre.square().sum()))
    tall = dict(made[2].named_parameters())["blocks.0.conv3.weight"].detach()[:, :, 0, 0]
    assert torch.allclose(tall.T @ tall, 4 * torch.eye(4), atol=1e-5)


def test_kept_weights_give_the_model_itself() -> None:
    """Nothing to shape: the network as read, the weights as they are."""
    for name in (
        "mlp_modules",
        "lenet",
        "crelu",
        "scalar_weighted_residuals",
        "densenet",
        "squeezenet",
        "unet",
        "audio_conv1d",
        "highway",
    ):
        torch.manual_seed(1)
        model, examples, _ = ZOO[name]()
        model = model.double().eval()
        reading = read(model, *examples)
        network = reading.network.without_normalization()
        new = apply_to(model, SimpleNamespace(network=network), weights="keep")
        x = inputs(examples, torch.float64)[0]
        assert torch.allclose(new(x), _without_batch_norm(model)(x), rtol=1e-12, atol=1e-13), name


def _without_batch_norm(model: Any) -> Any:
    twin = copy.deepcopy(model)
    for module in list(twin.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())
    return twin


# -- activations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_activations_are_kcalcs(name: str) -> None:
    x = torch.linspace(-30, 30, 2001, dtype=torch.float64)
    if name in ("exp", "cube", "hermite4", "relu5", "relu4"):
        x = x / 10
    for phi in (
        kc.activation(name),
        kc.activation(name).transformed(0.7312345678901234, 0.3, 1.7, -0.2),
    ):
        want = np.asarray(phi(x.numpy()))
        got = torch_function(phi)(x).numpy()
        assert np.abs(got - want).max() <= 4e-14 * max(1.0, np.abs(want).max())


# -- errors ----------------------------------------------------------------------------------------


def test_errors_name_what_is_wrong(made: Any) -> None:
    model, s, _ = made
    stranger = SimpleNamespace(
        network=kc.Network.from_steps([*s.network.steps(), ("new", Affine(5), s.network.outputs)])
    )
    with refused("'new'.*operation"):
        apply_to(model, stranger)
    with refused("law of initial weights"):
        apply_to(model, s, weights="he")
    with refused(r"torch\.Generator"):
        apply_to(model, s, generator=3)
    with refused("has not read this model object"):
        apply_to(ResNetV2((1, 1), 4, 10), s)


def test_sums_within_sums_of_several_blocks_and_options() -> None:
    """Labels like add_2 are those that a graph gives by itself."""

    class Nested(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Linear(8, 8)
            self.a = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
            self.b = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for a, b in zip(self.a, self.b, strict=True):
                h = a(torch.tanh(x))
                x = x + (h + b(torch.tanh(h)))
            return x

    model = Nested()
    network = kc.read(model, (2, 8)).network.normalised()
    shaped = kc.shape(network, "tanh")
    assert shaped.apply_to(model)(torch.randn(3, 8)).shape == (3, 8)
    kept = shaped.apply_to(model, weights="keep")
    assert torch.equal(kept.stem.weight, model.stem.weight)
    assert not torch.equal(shaped.apply_to(model).stem.weight, model.stem.weight)
    with refused("foo"):
        shaped.apply_to(model, foo=1)
    with refused("apply_to"):
        shaped.apply_to(Nested())
