"""Shaped models compute their shaped networks, whatever they are made of."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
from edit_oracle import agrees, gap  # noqa: E402

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


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.inner = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.Conv2d(16, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Any) -> Any:
        skip = F.relu(self.down(x), inplace=True)
        low = F.relu(self.inner(F.max_pool2d(skip, 2)))
        high = F.interpolate(low, scale_factor=2.0)
        return self.last(F.relu(self.up(torch.cat([skip, high], 1))))


@pytest.mark.parametrize(("kind", "shape"), [(NeRF, (5, 3)), (UNet, (2, 3, 8, 8))])
def test_rectifiers_become_those_of_the_shaping(kind, shape):
    net, x = kind(), torch.randn(*shape)
    s, made = apply(net, x, method="tat", eta=0.4)
    constants = next(iter(s.constants.by_node.values()))
    slope = float(constants.negative_slope)

    def rule(func: Any, args: Any, kwargs: Any) -> Any:
        if func is F.relu:
            return torch.where(args[0] > 0, args[0], slope * args[0]) * (2 / (1 + slope**2)) ** 0.5
        return None

    assert gap(made(x), by_order(net, made, rule, x)) < 1e-5
    assert gap(made(x), net(x)) > 1e-3
    bigger = torch.randn(3, *shape[1:])
    assert gap(made(bigger), by_order(net, made, rule, bigger)) < 1e-5


def test_the_kernel_of_the_edited_model_is_that_of_the_shaping():
    net = nn.Sequential(
        *(m for _ in range(4) for m in (nn.Linear(N, N), nn.Tanh())), nn.Linear(N, 2)
    )
    x = torch.randn(4, N)
    s, made = apply(net, x, method="dks", zeta=1.4)
    read = kc.read(made, x).network
    assert float(kc.c_map(read)(0.3)) == pytest.approx(float(kc.c_map(s.network)(0.3)), abs=1e-5)


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.last = nn.Linear(N, N), nn.Linear(N, N), nn.Linear(N, 2)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.last(F.tanh(self.b(torch.tanh(self.a(x)))))

    x = torch.randn(3, N)
    made = agrees(Tied(), x)
    assert made.a.weight is made.b.weight
    assert copy.deepcopy(made).b.weight is not made.b.weight


@dataclass(eq=False)
class Plain(nn.Module):
    wide: int = N

    def __post_init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(self.wide, self.wide)

    def forward(self, x: Any) -> Any:
        return F.relu(self.layer(x))


def test_dataclasses():
    made = agrees(Plain(), torch.randn(2, N))
    assert made.wide == N and isinstance(made, Plain)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(N, 2, batch_first=True)
        self.norm = nn.LayerNorm(N)

    def forward(self, x: Any) -> Any:
        y, _ = self.attention(x, x, x, need_weights=False)
        return F.gelu(self.norm(x + y))


def test_attention_layers_inside():
    agrees(Attending().eval(), torch.randn(2, 5, N), norms=False)


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


def test_hooks_see_edited_values():
    net = nn.Sequential(nn.Linear(N, N), nn.ReLU(), nn.Linear(N, 2))
    seen: list[Any] = []
    x = torch.randn(2, N)
    net[1].register_forward_hook(lambda module, given, found: seen.append(found))
    net[1].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    made = agrees(net, x)
    seen.clear()
    y = made(x)
    assert torch.equal(made[2](seen[0]), y)


def test_frozen_original_and_copy_apart():
    net, x = NeRF(), torch.randn(5, 3)
    before = copy.deepcopy(net.state_dict())
    _, made = apply(net, x, method="tat", eta=0.4)
    made(x).sum().backward()
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert type(net) is NeRF and type(net.layers) is nn.ModuleList


def test_in_place():
    net, x = NeRF(), torch.randn(5, 3)
    s, made = apply(net, x, method="tat", eta=0.4)
    same = kc.apply_edits(net, s.edits, generator=torch.Generator().manual_seed(0), inplace=True)
    assert same is net and torch.equal(net(x), made(x))


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


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.both, self.decoder = (
            nn.Linear(N, N),
            nn.Linear(N, 2 * N),
            nn.Linear(N, N),
        )

    def encode(self, x: Any) -> Any:
        return self.both(F.relu(self.encoder(x))).chunk(2, -1)

    def reparameterise(self, mean: Any, log: Any) -> Any:
        return mean + torch.randn_like(mean) * F.softplus(log)

    def forward(self, x: Any) -> Any:
        mean, log = self.encode(x)
        return torch.sigmoid(self.decoder(F.relu(self.reparameterise(mean, log)))), mean, log


class FiLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scales, self.norm = nn.Linear(N, N), nn.Linear(N, 2 * N), nn.LayerNorm(N)

    def forward(self, x: Any, condition: Any) -> Any:
        gamma, beta = torch.chunk(self.scales(F.silu(condition)), 2, dim=-1)
        return F.relu((1 + gamma) * self.norm(self.layer(x)) + beta) + x


def test_models_with_noise_and_with_gates():
    agrees(VAE().eval(), torch.randn(4, N))
    agrees(FiLM().eval(), torch.randn(4, N), torch.randn(4, N))
