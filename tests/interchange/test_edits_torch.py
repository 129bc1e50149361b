"""Edited PyTorch models stay the user's models: numbers, gradients, state, copies, files."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
from edit_oracle import agrees, edited, first, gap  # noqa: E402

import kcalc as kc  # noqa: E402

N = 8


class Block(nn.Module):
    def __init__(self, wide: int = N) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(wide, wide), nn.Linear(wide, wide), nn.LayerNorm(wide)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        if self.training:
            x = x + 0.01 * torch.randn_like(x)
            self.count += 1
        inner = self.a(F.relu(self.norm(x))).detach()
        return x + scale * self.b(F.relu(inner))


class Classifier(nn.Module):
    def __init__(self, wide: int = N, depth: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(5, wide), nn.BatchNorm1d(wide), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList(Block(wide) for _ in range(depth))
        self.last = nn.Linear(wide, 3)

    def features(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return F.gelu(x, approximate="tanh")

    def forward(self, x: Any, labels: Any = None) -> Any:
        y = self.last(self.features(x))
        return y if labels is None else (F.cross_entropy(y, labels), y)


@pytest.fixture
def x() -> Any:
    torch.manual_seed(2)
    return torch.randn(6, 5)


def model() -> Any:
    return Classifier().eval()


def made_and_order(x: Any, **options: Any) -> Any:
    made, order, edits = edited(model(), x, **options)
    return made, order, edits


def gradients(net: Any) -> dict[str, Any]:
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def test_types_and_devices(x):
    made, order, _ = made_and_order(x)
    wide, net, long = copy.deepcopy(made).double(), model().double(), x.double()
    with order:
        wanted = net(long)
    assert first(wide(x.double())).dtype == torch.float64
    assert gap(wide(x.double()), wanted) < 1e-13
    half = copy.deepcopy(made).to(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16
    back = half.float()
    assert all(b.dtype == torch.float32 for n, b in back.named_buffers() if "kcalc" in n)
    hollow = copy.deepcopy(made).to("meta")
    assert hollow(x.to("meta")).shape == (6, 3)
    full = hollow.to_empty(device="cpu")
    full.load_state_dict(made.state_dict())
    assert gap(full(x), made(x)) < 1e-6


def test_repr_tells_what_was_done(x):
    made, *_ = made_and_order(x)
    text = repr(made)
    assert "removed" in text and "edited: " in text and "Classifier(" in text
    assert "(norm): LayerNorm((8,), eps=1e-05, " in text


def test_a_copy_lists_its_edits_in_words(x):
    net = model()
    s = kc.shape(kc.read(net, x), "tanh", method="dks", assume_independent=True)
    made = s.apply_to(net)
    assert len(made.kcalc_changes) == len(s.edits) > 3 and not hasattr(net, "kcalc_changes")
    assert {line.partition(":")[0] for line in made.kcalc_changes} == {e.node for e in s.edits}
    assert pickle.loads(pickle.dumps(made)).kcalc_changes == made.kcalc_changes
    assert "kcalc_changes" not in made.state_dict()


def test_edited_models_are_not_edited_again(x):
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    s = kc.shape(kc.read(net, x))
    made = s.apply_to(net, x)
    with pytest.raises(kc.KcalcError):
        s.apply_to(made, x)
    with pytest.raises(kc.KcalcError, match="edited"):
        kc.apply_edits(made, s.edits)
    with pytest.raises(kc.KcalcError, match="edited"):
        kc.shape(kc.read(made, x), method="eoc", sigma_b=0.1)


def test_scripting_an_edited_model_is_refused(x):
    made, *_ = edited(nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2)), x)
    with pytest.raises(kc.KcalcError, match="trace"):
        torch.jit.script(made)
    assert gap(torch.jit.trace(made, x)(x), made(x)) < 1e-6


def test_a_module_built_anew_of_an_edited_class_is_refused(x):
    made, *_ = made_and_order(x)
    block = made.blocks[0]
    assert block.__class__.__mro__[1] is Block
    with pytest.raises(kc.KcalcError, match="was created from the class"):
        type(block)()(torch.ones(2, N))


class Own(nn.Module):
    """Copies itself by building a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x: Any) -> Any:
        return self.inner(x)

    def __deepcopy__(self, memo: Any) -> Own:
        new = Own()
        new.load_state_dict(self.state_dict())
        return new


class OwnActing(Own):
    def forward(self, x: Any) -> Any:
        return F.relu(self.inner(x))

    def __deepcopy__(self, memo: Any) -> OwnActing:
        new = OwnActing()
        new.load_state_dict(self.state_dict())
        return new


@pytest.mark.parametrize("kind", [Own, OwnActing])
def test_models_that_copy_themselves_keep_their_edits(kind, x):
    made = agrees(kind(), x)
    assert torch.equal(copy.deepcopy(made)(x), made(x))
    assert torch.equal(pickle.loads(pickle.dumps(made))(x), made(x))


def test_graph_modules(x):
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act = nn.Linear(5, 5), nn.ReLU()

        def forward(self, x):
            return torch.tanh(self.act(self.a(x)) + x)

    made = agrees(torch.fx.symbolic_trace(Small()), x)
    assert torch.equal(copy.deepcopy(made)(x), made(x))
    assert torch.equal(pickle.loads(pickle.dumps(made))(x), made(x))


def test_parametrised_modules(x):
    from torch.nn.utils import parametrizations, parametrize

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 5))

        def forward(self, x):
            return torch.relu(x @ self.weight)

    net = nn.Sequential(Holder(), nn.Linear(5, 5)).eval()
    parametrizations.orthogonal(net[0])
    parametrizations.spectral_norm(net[1])
    made = agrees(net, x)
    before = made(x)
    assert torch.equal(copy.deepcopy(made)(x), before)
    parametrize.remove_parametrizations(made[0], "weight")
    assert gap(made(x), before) < 1e-6 and isinstance(made[0], Holder)


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_fast_path_of_transformer_layers_is_off(norm_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    x = torch.randn(2, 4, 8)
    mask = torch.tensor([[False] * 4, [False, False, True, True]])
    made, order, _ = edited(net, x)
    slow = copy.deepcopy(net)
    for part in slow.layers:
        part.activation_relu_or_gelu = 0
    with torch.no_grad():
        with order:
            wanted = slow(x)
        assert gap(made(x), wanted) < 1e-5
        assert gap(made(x, src_key_padding_mask=mask)[0], wanted[0]) < 1e-5
        assert gap(net(x), wanted) > 1e-3


def test_a_model_in_place_of_a_network_is_to_be_read_first():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = nn.Linear(5, 5)

    for model in (nn.Linear(5, 5), Holder()):
        with pytest.raises(kc.KcalcError, match=r"kc\.read"):
            kc.shape(model)


class CastNorm(nn.Module):
    """An RMSNorm that computes in single precision, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(N))

    def forward(self, x: Any) -> Any:
        kind, x = x.dtype, x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(kind)


class Streamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, N), nn.Linear(N, 3)
        self.norms = nn.ModuleList(CastNorm() for _ in range(3))
        self.up, self.down = (nn.ModuleList(nn.Linear(N, N) for _ in range(2)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        hidden = self.first(x)
        for i in range(2):
            residual = hidden
            hidden = self.norms[i](hidden)
            hidden = self.down[i](torch.tanh(self.up[i](hidden)))
            hidden = residual + hidden
        return self.last(self.norms[2](hidden))


def test_sums_before_a_cast(x):
    """An exporter adds a check before ``x.to(dtype)``; the sum that it checks is edited."""
    net = Streamed().eval()
    s = kc.shape(kc.read(net, x), method="dks", zeta=1.5)
    assert not [node for node in s.left_alone if "add" in node]
    k = next(iter(s.constants.by_node.values()))
    new = s.apply_to(net)
    hidden = new.first(x)
    for up, down in zip(new.up, new.down, strict=True):
        inner = up(hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6))
        inner = k.gamma * (torch.tanh(k.alpha * inner + k.beta) + k.delta)
        hidden = (hidden + down(inner)) / 2**0.5
    expected = new.last(hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6))
    torch.testing.assert_close(new(x), expected, rtol=1e-5, atol=1e-5)
