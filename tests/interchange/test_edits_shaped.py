"""Shaped models compute their shaped networks, whatever they are made of."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
from edit_oracle import gap  # noqa: E402

import kcalc as kc  # noqa: E402

N = 16


def apply(net: Any, *inputs: Any, **options: Any) -> tuple[Any, Any]:
    net.eval()
    torch.manual_seed(0)
    s = kc.shape(kc.read(net, *inputs), **options)
    return s, s.apply_to(net, *inputs, generator=torch.Generator().manual_seed(0))


def by_order(net: Any, made: Any, rule: Any, *inputs: Any) -> Any:
    """The output of the model as built, with the weights of the edited one and a rule of calls."""
    from torch.overrides import TorchFunctionMode

    class Rule(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            found = rule(func, args, kwargs or {})
            return func(*args, **(kwargs or {})) if found is None else found

    twin = copy.deepcopy(net)
    twin.load_state_dict(made.state_dict(), strict=False)
    with torch.no_grad(), Rule():
        return twin(*inputs)


class NeRF(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(3, N), *(nn.Linear(N, N) for _ in range(3))])
        self.density, self.colour = nn.Linear(N, 1), nn.Linear(N, 3)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = F.relu(layer(x))
        return torch.cat([torch.sigmoid(self.colour(x)), self.density(x)], -1)


def test_the_kernel_of_the_edited_model_is_that_of_the_shaping():
    net = nn.Sequential(
        *(m for _ in range(4) for m in (nn.Linear(N, N), nn.Tanh())), nn.Linear(N, 2)
    )
    x = torch.randn(4, N)
    s, made = apply(net, x, method="dks", zeta=1.4)
    read = kc.read(made, x).network
    assert float(kc.c_map(read)(0.3)) == pytest.approx(float(kc.c_map(s.network)(0.3)), abs=1e-5)


def test_quantised_layers_beside_edits():
    quantise = pytest.importorskip("torch.ao.quantization").quantize_dynamic
    net = nn.Sequential(nn.Linear(N, N), nn.ReLU(), nn.Linear(N, 2))
    try:
        small = quantise(net, {nn.Linear}, dtype=torch.qint8)
        small(torch.randn(2, N))
    except Exception as error:  # builds without a quantised engine
        pytest.skip(str(error))
    edits = kc.shape(kc.read(net, torch.randn(2, N))).edits
    with pytest.raises(kc.KcalcError):
        kc.apply_edits(small, edits)


def test_frozen_original_and_copy_apart():
    net, x = NeRF(), torch.randn(5, 3)
    before = copy.deepcopy(net.state_dict())
    _, made = apply(net, x, method="tat", eta=0.4)
    made(x).sum().backward()
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert type(net) is NeRF and type(net.layers) is nn.ModuleList


class Shaped:
    """Activations and sums of shaped networks, in the order in which the model runs them."""

    def __init__(self, s: Any) -> None:
        networks = getattr(s, "networks", None) or (s.network,)
        steps = {str(node): layer for n in networks for node, layer, _ in n.steps()}
        layers = [steps.get(str(node)) for node in s.reading.unmerged]
        self.activations = [
            each.activation for each in layers if isinstance(each, kc.layers.Nonlinear)
        ]
        self.sums = [each.weights for each in layers if isinstance(each, kc.layers.Sum)]
        self.used = [0, 0]

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.__name__
        if name == "batch_norm":
            return args[0]
        if name in ("relu", "gelu"):
            phi = self.activations[self.used[0]]
            self.used[0] += 1
            options = {key: value for key, value in kwargs.items() if key != "inplace"}
            y = changed(phi, args[0], lambda u: func(u, **options))
            return args[0].copy_(y) if kwargs.get("inplace") else y
        tensors = all(isinstance(arg, torch.Tensor) and arg.ndim == 4 for arg in args[:2])
        if name in ("add_", "__iadd__", "add", "__add__") and tensors:
            first, second = (float(w) for w in self.sums[self.used[1]])
            self.used[1] += 1
            return first * args[0] + second * args[1]
        return None


def changed(phi: Any, x: Any, function: Any) -> Any:
    """The transformed activation, a leaky rectifier by its two halves."""
    change = phi.transformation
    a, b, scale, shift = (1.0, 0.0, 1.0, 0.0)
    if change is not None:
        names = ("input_scale", "input_shift", "output_scale", "output_shift")
        a, b, scale, shift = (float(getattr(change, name)) for name in names)
    u = a * x + b
    slope = getattr(phi if change is None else phi.base, "negative_slope", None)
    y = function(u) if slope is None else torch.where(u > 0, u, float(slope) * u)
    return scale * (y + shift)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("house", "name", "options"),
    [
        ("torchvision.models", "resnet18", {"method": "tat", "eta": 0.9}),
        ("torchvision.models", "resnet18", {"method": "dks", "zeta": 1.5}),
        ("torchvision.models", "densenet121", {"method": "dks", "zeta": 1.5}),
        ("timm", "convnext_atto", {"method": "dks", "zeta": 1.5}),
    ],
)
def test_models_of_images_compute_their_shaped_networks(house, name, options):
    home = pytest.importorskip(house)
    torch.manual_seed(0)
    x = torch.randn(2, 3, 64, 64)
    given = {"num_classes": 5}
    net = home.create_model(name, **given) if house == "timm" else getattr(home, name)(**given)
    s, made = apply(net, x, assume_independent=True, **options)
    rule = Shaped(s)
    assert gap(made(x), by_order(net, made, rule, x)) < 1e-4
    assert rule.used == [len(rule.activations), len(rule.sums)]
    assert gap(made(x), net(x)) > 1e-2
