"""Edited PyTorch models stay the user's models: numbers, gradients, state, copies, files."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from refusals import refused

torch = pytest.importorskip("torch")
from edit_oracle import agrees, edited, gap  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import kcalc as kc  # noqa: E402

N = 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(N, N), nn.Linear(N, N), nn.LayerNorm(N)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return x + scale * self.b(F.relu(self.a(F.relu(self.norm(x))).detach()))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(5, N), nn.BatchNorm1d(N), nn.ReLU(inplace=True))
        self.blocks, self.last = nn.ModuleList([Block(), Block()]), nn.Linear(N, 3)

    def features(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return F.gelu(x, approximate="tanh")

    def forward(self, x: Any) -> Any:
        return self.last(self.features(x))


def perceptron(width: int = 5) -> Any:
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 2))


@pytest.fixture
def x() -> Any:
    torch.manual_seed(2)
    return torch.randn(6, 5)


def model() -> Any:
    return Classifier().eval()


def copied(net: Any) -> list[Any]:
    return [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]


def test_types_and_devices(x):
    made, order, _ = edited(model(), x)
    with order:
        wanted = model().double()(x.double())
    found = copy.deepcopy(made).double()(x.double())
    assert found.dtype == torch.float64 and gap(found, wanted) < 1e-13
    half = copy.deepcopy(made).to(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16
    assert all(b.dtype == torch.float32 for n, b in half.float().named_buffers() if "kcalc" in n)
    hollow = copy.deepcopy(made).to("meta")
    assert hollow(x.to("meta")).shape == (6, 3)
    full = hollow.to_empty(device="cpu")
    full.load_state_dict(made.state_dict())
    assert gap(full(x), made(x)) < 1e-6


def test_repr_tells_what_was_done(x):
    text = repr(edited(model(), x)[0])
    for words in ("removed", "edited: ", "Classifier(", "(norm): LayerNorm((8,), eps=1e-05, "):
        assert words in text


def test_a_copy_lists_its_edits_in_words(x):
    net = model()
    s = kc.shape(kc.read(net, x), "tanh", method="dks", assume_independent=True)
    made = s.apply_to(net)
    assert len(made.kcalc_changes) == len(s.edits) > 3 and not hasattr(net, "kcalc_changes")
    assert {line.partition(":")[0] for line in made.kcalc_changes} == {e.node for e in s.edits}
    assert pickle.loads(pickle.dumps(made)).kcalc_changes == made.kcalc_changes
    assert "kcalc_changes" not in made.state_dict()


def test_edited_models_are_not_edited_again(x):
    net = perceptron(N)
    s = kc.shape(kc.read(net, x))
    made = s.apply_to(net, x)
    for again, words in (
        (lambda: s.apply_to(made, x), "."),
        (lambda: kc.apply_edits(made, s.edits), "edited"),
        (lambda: kc.shape(kc.read(made, x), method="eoc", sigma_b=0.1), "edited"),
    ):
        with refused(words):
            again()


def test_scripting_an_edited_model_is_refused(x):
    made = agrees(perceptron(), x)
    with refused("trace"):
        torch.jit.script(made)
    assert gap(torch.jit.trace(made, x)(x), made(x)) < 1e-6


class Own(nn.Module):
    """Copies itself by building a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.kind = perceptron(), type(self)

    def forward(self, x: Any) -> Any:
        return self.inner(x)

    def __deepcopy__(self, memo: Any) -> Any:
        new = self.kind()
        new.load_state_dict(self.state_dict())
        return new


class OwnActing(Own):
    def forward(self, x: Any) -> Any:
        return F.relu(self.inner(x))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.act = nn.Linear(5, 5), nn.ReLU()

    def forward(self, x):
        return torch.tanh(self.act(self.a(x)) + x)


MODELS = {"Own": Own, "OwnActing": OwnActing, "graph": lambda: torch.fx.symbolic_trace(Small())}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_copy_themselves_keep_their_edits(name, x):
    made = agrees(MODELS[name](), x)
    for twin in copied(made):
        assert torch.equal(twin(x), made(x)) and repr(twin) == repr(made)


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.network = nn.Parameter(torch.randn(5, 5)), nn.Linear(5, 5)

    def forward(self, x):
        return torch.relu(x @ self.weight)


def test_parametrised_modules(x):
    from torch.nn.utils import parametrizations, parametrize

    net = nn.Sequential(Holder(), nn.Linear(5, 5), nn.LayerNorm(5)).eval()
    parametrize.register_parametrization(net[2], "weight", nn.Identity())
    parametrizations.orthogonal(net[0])
    parametrizations.spectral_norm(net[1])
    made = agrees(net, x)
    before = made(x)
    assert torch.equal(copy.deepcopy(made)(x), before)
    parametrize.remove_parametrizations(made[0], "weight")
    assert gap(made(x), before) < 1e-6 and isinstance(made[0], Holder)


def test_the_fast_path_of_transformer_layers_is_off():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 4, 8)
    mask = torch.tensor([[False] * 4, [False] * 2 + [True] * 2])
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
    for model in (nn.Linear(5, 5), Holder()):
        with refused(r"kc\.read"):
            kc.shape(model)


class Entered(nn.Module):
    """A norm of the input, whose result is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.BatchNorm1d(5), nn.Linear(5, N), nn.Linear(N, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(torch.tanh_(self.norm(x)))))


def test_inputs_are_not_changed(x):
    """Without the norm, the activation would write into the input."""
    model, before = Entered().eval(), x.clone()
    s = kc.shape(kc.read(model, x), assume_independent=True)
    assert any(edit.kind == "norm" for edit in s.edits)
    s.apply_to(model)(x).sum().backward()
    assert torch.equal(x, before)
