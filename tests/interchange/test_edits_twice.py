"""Models that compute the same value twice, or use parts of an activation elsewhere.

Every call is edited that computes what the network has as one node, or all are left alone.
"""

from __future__ import annotations

import importlib.util
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_values import shaped_values, values
from thinning import mostly_slow

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import kcalc as kc  # noqa: E402

N = 8
SHARED = "the model also uses one of its intermediate values elsewhere"


def helper(v: Any) -> Any:
    return torch.tanh(v) * 1.3


class Net(nn.Module):
    """Linear layers; ``twice`` uses one value several times."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.d = (nn.Linear(N, N) for _ in range(4))
        self.act, self.others = nn.SiLU(), nn.ModuleList(nn.SiLU() for _ in range(2))
        self.drop = nn.Dropout(0.1)

    def own(self, v: Any) -> Any:
        return torch.sin(v) + torch.tanh(2 * v) / 3

    def twice(self, p: Any) -> Any:
        return self.b(F.relu(p)) + self.c(F.relu(p))

    def forward(self, x: Any) -> Any:
        return self.d(torch.tanh(self.twice(self.a(x))))


class Written(Net):
    def twice(self, p: Any) -> Any:
        return self.b(self.own(p)) + self.c(self.own(p))


class OneModule(Net):
    def twice(self, p: Any) -> Any:
        return self.b(self.act(p)) + self.c(self.act(p))


class Modules(Net):
    def twice(self, p: Any) -> Any:
        return self.b(self.others[0](p)) + self.c(self.others[1](p))


class Different(Net):
    def twice(self, p: Any) -> Any:
        return self.b(F.relu(p)) + self.c(p.clamp(min=0))


class InOtherLayouts(Net):
    def twice(self, p: Any) -> Any:
        return self.b(F.silu(p).reshape(-1, N)) + self.c(self.act(p[:, None]).flatten(1) * 1)


class Helpers(Net):
    def twice(self, p: Any) -> Any:
        return self.b(helper(p)) + self.c(helper(p))


class InOneSum(Net):
    def twice(self, p: Any) -> Any:
        return self.act(p) + self.b(self.own(p)) + self.act(p)


class Factors(Net):
    def twice(self, p: Any) -> Any:
        p = F.silu(p)
        return self.b(2 * p) + self.c(p * 2)


class FactorsInSteps(Net):
    def twice(self, p: Any) -> Any:
        return self.b(F.silu(p)) / 2 * 3


class InLoops(Net):
    def twice(self, p: Any) -> Any:
        total = 0
        for layer in (self.b, self.c):
            total = total + layer(self.act(p))
        return total


class TimesZero(Net):
    """A branch that starts at 0, as in ConvNeXt V2: its nodes reach no output."""

    def twice(self, p: Any) -> Any:
        q = F.silu(p)
        gates = q / (q.norm(dim=1, keepdim=True) + 1e-6)
        return self.b(torch.addcmul(self.zero, self.zero, q * gates) + q)

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(N))


# parts of one activation that are used elsewhere


class Part(Net):
    def twice(self, p: Any) -> Any:
        q = F.silu(p)
        return self.b(q) + self.c(torch.tanh(q))


class FactorPart(Net):
    def twice(self, p: Any) -> Any:
        q = 2 * p
        return self.b(q) + self.c(torch.tanh(q))


class RepeatedInside(Net):
    def twice(self, p: Any) -> Any:
        q = F.relu(p)
        return self.b(q) + self.c(F.relu(q))


class SharedInside(Net):
    def twice(self, p: Any) -> Any:
        q = torch.exp(-(p**2))
        return self.b(q + 1) + self.c(1 + q)


ALL = (
    Net, Written, OneModule, Modules, Different, InOtherLayouts, Helpers, InOneSum,
    FactorsInSteps, InLoops, TimesZero,
)  # fmt: skip
PARTS = (Part, FactorPart, RepeatedInside, SharedInside, Factors)
X = torch.randn(5, N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gap(net: Any, **options: Any) -> tuple[float, Any]:
    """How far the edited model is from its shaped network, both with the model's own weights."""
    net = net.eval().double()
    s = kc.shape(kc.read(net, X), **{"assume_independent": True, **options})
    with torch.no_grad():
        plain, made = net(X).numpy(), s.apply_to(net, X, weights="keep")(X).numpy()
    assert np.allclose(values(s.reading.unmerged, {}, s, X.numpy()), plain, atol=1e-12)
    found = shaped_values(s, X.numpy())
    return float(np.abs(found - made).max() / max(1, np.abs(made).max())), s


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("options", [{"method": "dks"}, {"method": "dks", "activation": "tanh"}])
def test_every_call_is_edited(kind, options):
    if kind in (Net, Different) and "activation" not in options:
        options = {"method": "tat", "activation": "relu", "eta": 0.3}
    found, s = gap(kind(), **options)
    assert found < 1e-9
    assert not any(node in s.reading.unmerged for node in getattr(s, "left_alone", ()))


@pytest.mark.parametrize("kind", PARTS)
def test_values_inside_of_two_nodes_are_left_alone(kind):
    found, s = gap(kind(), method="dks", activation="tanh")
    assert found < 1e-9
    assert [why for why in s.left_alone.values() if why == SHARED]


@pytest.mark.parametrize("seed", mostly_slow(range(16)))
def test_random_code(seed, tmp_path):
    """Programs that repeat their expressions, in several forms."""
    made = module_of(program(random.Random(seed)), tmp_path)
    methods = (
        {"method": "tat", "activation": "relu", "eta": 0.3},
        {"method": "dks", "activation": "tanh"},
    )
    try:
        found, _ = gap(made.Random(), **methods[seed % 2])
    except kc.KcalcError as error:
        assert "has activations" in str(error)
        return
    assert found < 1e-9


ACTIVATIONS = (
    "F.relu({})", "torch.tanh({})", "self.act({})", "self.own({})", "helper({})", "{}.relu()",
    "{}.clamp(min=0)", "({0} * torch.sigmoid({0}))",
)  # fmt: skip
CHANGES = (
    "{} * 1", "{}.reshape(-1, N)", "self.drop({})", "2 * {}", "{} / 2 * 3", "-{}",
    "1.5 * (2 * {})", "{0} - 0.5 * {0}",
)  # fmt: skip
SUMS = ("{} + {}", "{} - 0.5 * {}", "({} + {}) / math.sqrt(2)", "torch.add({}, {})")


def program(r: random.Random) -> str:
    """The forward of a model of layers, activations, sums and repetitions."""
    lines: list[str] = []
    repeated: list[str] = []
    layers = iter(range(100))

    def linear(v: str) -> str:
        return f"self.layers[{next(layers)}]({v})"

    def value() -> str:
        return f"v{r.randrange(max(0, len(lines) - 5), len(lines))}"

    def add(expression: str) -> None:
        lines.append(f"v{len(lines)} = {expression}")

    add(linear("x"))
    for _ in range(r.randrange(6, 14)):
        kind, v = r.random(), value()
        if kind < 0.2:
            add(linear(v))
        elif kind < 0.6:
            repeated.append(r.choice(ACTIVATIONS if kind < 0.45 else CHANGES).format(v))
            add(repeated[-1])
        elif kind < 0.85 and repeated:
            again = r.choice(repeated[-4:])
            add(r.choice([again, linear(again)]))
        else:
            add(r.choice(SUMS).format(linear(v), linear(r.choice(ACTIVATIONS).format(value()))))
    text = "\n".join(f"        {line}" for line in lines)
    returned = f"{linear(f'v{len(lines) - 1}')} + {linear(f'torch.tanh({value()})')}"
    return f"    def forward(self, x):\n{text}\n        return {returned}\n"


def module_of(forward: str, folder: Path) -> Any:
    """A module with the class ``Random``, in a file, so that its source is known."""
    text = (
        "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
        f"N = {N}\n\n\ndef helper(v):\n    return torch.tanh(v) * 1.3\n\n\n"
        "class Random(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        torch.manual_seed(0)\n"
        "        self.layers = nn.ModuleList(nn.Linear(N, N) for _ in range(40))\n"
        "        self.act, self.drop = nn.SiLU(), nn.Dropout(0.1)\n\n"
        "    def own(self, v):\n        return torch.sin(v) + torch.tanh(2 * v) / 3\n\n" + forward
    )
    path = folder / "random_model.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"random_model_{folder.name}", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def test_jax_functions_that_compute_the_same_twice():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    rng = np.random.default_rng(0)
    params = {
        k: jnp.asarray(rng.standard_normal((N, N)) / math.sqrt(N), jnp.float32) for k in "abcd"
    }

    def run(p: Any, x: Any) -> Any:
        h = x @ p["a"]
        return jnp.tanh(jnp.sin(h) @ p["b"] + jax.jit(jnp.sin)(h) @ p["c"]) @ p["d"]

    x = jnp.asarray(X.numpy(), jnp.float32)
    s = kc.shape(kc.read(run, params, x), "tanh", assume_independent=True)
    new, kept = s.apply_to(run, params, x, weights="keep")
    assert np.allclose(new(kept, x), shaped_values(s, X.numpy()), atol=2e-5)
