"""Edited PyTorch models under compilers, exporters and several processes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from edit_oracle import agrees, gap  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

N = 8
pytestmark = pytest.mark.slow


def helper(x: Any, y: Any) -> Any:
    return F.relu(x) + y


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(N, N), nn.Linear(N, N), nn.LayerNorm(N)
        self.act, self.f = nn.ReLU(inplace=True), F.silu

    def inner(self, x: Any) -> Any:
        return self.f(self.a(x))

    def forward(self, x: Any) -> Any:
        x = x + self.inner(self.norm(x))
        y = self.b(x)
        y += self.act(self.a(x))
        return helper(y.relu(), 0.5 * y)


class Net(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, N)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for _ in range(2):
            x = torch.tanh(self.first.weight.sum() * 0.01 + x) + x
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def x() -> Any:
    torch.manual_seed(1)
    return torch.randn(4, 5)


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_compiled_whole(x):
    made = agrees(Net(), x)
    fast = torch.compile(made, fullgraph=True, backend="aot_eager")
    for given in (x, torch.randn(7, 5)):
        assert gap(fast(given), made(given)) < 1e-5
    got, wanted = (torch.autograd.grad(net(x).sum(), [*made.parameters()]) for net in (fast, made))
    assert all(gap(*pair) < 1e-4 for pair in zip(got, wanted, strict=True))


def test_modules_without_source_run_outside_of_compiled_graphs(x):
    space = dict(globals())
    exec("class Bare(nn.Module):\n    def forward(self, x): return F.relu(x) + x", space)
    made = agrees(nn.Sequential(nn.Linear(5, 5), space["Bare"]()), x)
    with pytest.raises(RuntimeError, match="Bare has no source code"):
        torch.compile(made, backend="eager", fullgraph=True)(x)
    assert gap(torch.compile(made, backend="eager")(x), made(x)) < 1e-6


def test_twelve_compiled_blocks_have_one_graph(x):
    from torch._dynamo.testing import CompileCounter

    made = agrees(Net(12), x)
    counter = CompileCounter()
    wanted = made(x)
    for i in range(12):
        made.blocks[i] = torch.compile(made.blocks[i], backend=counter, fullgraph=True)
    assert gap(made(x), wanted) < 1e-5
    assert counter.frame_count == 1


def test_exported_and_traced(x):
    made = agrees(Net(), x)
    for strict in (False, True):
        program = torch.export.export(made, (x,), strict=strict)
        assert gap(program.module()(x), made(x)) < 1e-6
        assert not any("kcalc" in name for name in program.state_dict)
    assert gap(torch.fx.symbolic_trace(made)(x), made(x)) < 1e-6


def test_generation_and_checkpoints():
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": 99, "intermediate_size": 64, "eos_token_id": 2}
    config = transformers.LlamaConfig(**sizes)
    net = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 90, (2, 9))
    made = agrees(net, ids, run={"use_cache": False})
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    assert torch.equal(
        made.generate(ids, **options), made.generate(ids, use_cache=False, **options)
    )
    made.train()

    def gradient() -> Any:
        torch.manual_seed(0)
        made.zero_grad()
        made(ids, labels=ids, use_cache=False).loss.backward()
        return torch.cat([p.grad.flatten() for p in made.parameters() if p.grad is not None])

    plain = gradient()
    made.gradient_checkpointing_enable()
    assert gap(gradient(), plain) < 1e-5


VISION: dict[str, dict[str, Any]] = {
    "torchvision mobilenet_v3_small": {},
    "torchvision googlenet": {"init_weights": False},
    "torchvision densenet121": {},
    "torchvision swin_t": {},
    "timm ecaresnet26t": {},
    "timm levit_128s": {"img_size": 64},
}


@pytest.mark.parametrize("model", VISION)
def test_models_of_images(model):
    house, name = model.split()
    home = pytest.importorskip({"torchvision": "torchvision.models"}.get(house, house))
    torch.manual_seed(0)
    make = getattr(home, "create_model" if house == "timm" else "get_model")
    made = agrees(make(name, **VISION[model]).eval(), torch.randn(1, 3, 64, 64), norms=False)
    assert made(torch.randn(2, 3, 64, 64)).shape[0] == 2
