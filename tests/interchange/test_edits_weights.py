"""Edits where parameters matter: gains of norms, parameters read elsewhere, joint projections."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import kcalc as kc  # noqa: E402

N = 8


class Normed(nn.Module):
    def __init__(self, norm: Any, gain: float = 2.0, bias: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(N, N) for _ in range(3))
        self.norm = norm(N)
        nn.init.constant_(self.norm.weight, gain)
        nn.init.constant_(self.norm.bias, bias)

    def forward(self, x: Any) -> Any:
        return self.c(F.relu(self.b(F.relu(self.norm(self.a(x))))))


def inside(made: Any, x: Any) -> Any:
    """What the second layer reads."""
    seen: list[Any] = []
    handle = made.b.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    made(x)
    handle.remove()
    return seen[0]


def shaped(net: Any, x: Any, **options: Any) -> Any:
    return kc.shape(kc.read(net.eval(), x), method="dks", **{"zeta": 1.5, **options})


@pytest.mark.parametrize("weights", ["orthogonal_delta", "keep"])
@pytest.mark.parametrize(("bias", "activation"), [(0.0, None), (0.1, "tanh")])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_the_one_gain_of_a_norm_is_part_of_the_activation(
    norm: Any, bias: float, activation: Any, weights: str
) -> None:
    """The activation that was read is f(2 z + h); z is what the norm makes, or what it read."""
    net, x = Normed(norm, bias=bias), torch.randn(5, N)
    s = shaped(net, x, activation=activation)
    made = s.apply_to(net, x, weights=weights)
    k = s.constants.by_node["relu"]
    f = torch.tanh if activation else lambda v: torch.relu(2 * v + bias)
    z = made.a(x)
    z = F.layer_norm(z, (N,)) if norm is nn.LayerNorm else z
    expected = k.gamma * (f(k.alpha * z + k.beta) + k.delta)
    assert torch.allclose(inside(made, x), expected, atol=1e-5)


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(N, N), nn.BatchNorm1d(N), nn.ReLU(), nn.Linear(N, N))
        self.last = nn.Linear(N, N)

    def forward(self, x: Any) -> Any:
        y = self.last(torch.tanh(self.layers(x)))
        return (y, self.layers[1].weight.abs().mean()) if self.training else y


@pytest.mark.parametrize("net", [Listed])
def test_a_norm_whose_parameters_are_read_elsewhere_stays(net: Any) -> None:
    net, x = net(), torch.randn(4, N)
    s = shaped(net, x, activation="tanh")
    (why,) = (why for why in s.left_alone.values() if "elsewhere" in why)
    assert "weight" in why
    made = s.apply_to(net, x).train()
    assert made(x) is not None
    if hasattr(net, "penalty"):
        assert made.penalty() == 1


class Joint(nn.Module):
    """Attention with queries, keys and values of one layer."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(N, 3 * N), nn.Linear(N, N), heads
        self.up, self.down = nn.Linear(N, 4 * N), nn.Linear(4 * N, N)

    def forward(self, x: Any) -> Any:
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(found)
        return x + self.down(F.relu(self.up(x)))


class Module(Joint):
    """The same with PyTorch's own module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(N, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(F.relu(self.up(x)))
