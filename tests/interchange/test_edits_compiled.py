"""Edited PyTorch models under compilers, exporters and several processes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
from edit_oracle import agrees, edited, gap  # noqa: E402

N = 8
pytestmark = pytest.mark.slow


def helper(x: Any, y: Any) -> Any:
    return F.relu(x) + y


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(N, N), nn.Linear(N, N), nn.LayerNorm(N)
        self.act = nn.ReLU(inplace=True)
        self.f = F.silu

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


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_whole(backend, x):
    made = agrees(Net(), x)
    fast = torch.compile(made, fullgraph=True, backend=backend)
    assert gap(fast(x), made(x)) < 1e-5
    more = torch.randn(7, 5)
    assert gap(fast(more), made(more)) < 1e-5
    fast(x).sum().backward()
    got = {n: p.grad.clone() for n, p in made.named_parameters()}
    made.zero_grad()
    made(x).sum().backward()
    assert all(gap(got[n], p.grad) < 1e-4 for n, p in made.named_parameters())


def test_twelve_compiled_blocks_have_one_graph(x):
    from torch._dynamo.testing import CompileCounter

    made = agrees(Net(12), x)
    counter = CompileCounter()
    wanted = made(x)
    for i in range(12):
        made.blocks[i] = torch.compile(made.blocks[i], backend=counter, fullgraph=True)
    assert gap(made(x), wanted) < 1e-5
    assert counter.frame_count == 1


@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict, x):
    made = agrees(Net(), x)
    program = torch.export.export(made, (x,), strict=strict)
    assert gap(program.module()(x), made(x)) < 1e-6
    assert not any("kcalc" in name for name in program.state_dict)


def test_traced(x):
    made = agrees(Net(), x)
    assert gap(torch.jit.trace(made, x)(x), made(x)) < 1e-6
    traced = torch.fx.symbolic_trace(made)
    assert gap(traced(x), made(x)) < 1e-6


@pytest.fixture
def transformers() -> Any:
    found = pytest.importorskip("transformers")
    found.logging.set_verbosity_error()
    torch.manual_seed(0)
    return found


SIZES = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64,
}  # fmt: skip


def _of_transformers(T: Any, name: str) -> Any:
    heads = {"num_key_value_heads": 2, "head_dim": 8}
    experts = {
        "num_key_value_heads": 4, "n_routed_experts": 4, "moe_intermediate_size": 16,
        "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    }  # fmt: skip
    makers = {
        "bert": lambda: T.BertForSequenceClassification(T.BertConfig(**SIZES)),
        "gpt2": lambda: T.GPT2LMHeadModel(
            T.GPT2Config(
                vocab_size=99, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
            )
        ),
        "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**SIZES)),
        "phi3": lambda: T.Phi3ForCausalLM(T.Phi3Config(**SIZES, pad_token_id=0)),
        "gemma2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**SIZES, **heads)),
        "deepseek": lambda: T.DeepseekV3ForCausalLM(T.DeepseekV3Config(**SIZES, **experts)),
    }
    return makers[name]().eval()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_generation_and_checkpoints(name, transformers):
    ids = torch.randint(3, 90, (2, 9))
    net = _of_transformers(transformers, name)
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


VISION = (
    ("torchvision", "resnet18"), ("torchvision", "mobilenet_v3_small"),
    ("torchvision", "googlenet"), ("torchvision", "densenet121"),
    ("torchvision", "swin_t"), ("torchvision", "convnext_tiny"),
    ("timm", "ecaresnet26t"), ("timm", "cait_xxs24_224"), ("timm", "levit_128s"),
)  # fmt: skip


@pytest.mark.parametrize(("house", "name"), VISION)
def test_models_of_images(house, name):
    home = pytest.importorskip("torchvision.models" if house == "torchvision" else house)
    torch.manual_seed(0)
    if house == "torchvision":
        net = getattr(home, name)(**({"init_weights": False} if name == "googlenet" else {}))
    else:
        small = {"img_size": 64} if name[:4] in ("cait", "levi") else {}
        net = home.create_model(name, **small)
    with torch.no_grad():
        for parameter_name, parameter in net.named_parameters():
            if "layer_scale" in parameter_name:  # else blocks hardly count
                parameter.fill_(0.5)
    made = agrees(net.eval(), torch.randn(1, 3, 64, 64), norms=False)
    assert made(torch.randn(2, 3, 64, 64)).shape[0] == 2


def test_options(x):
    """The helper itself: nothing is edited where nothing is chosen."""
    made, order, edits = edited(Net(), x, norms=False)
    assert len(edits) and order.actions and isinstance(made, Net)
