"""What differs from a model is noted at a node that stands in the network.

Numbers say that it differs.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_zoo.twin import Model  # noqa: E402

import kcalc as kc  # noqa: E402

nn = torch.nn
WIDTH = 4096


def between(function):
    """Gaussian layers of variance 1/fan_in with something between them: ``b(f(a(x)))``."""
    a, b = nn.Linear(64, WIDTH, bias=False), nn.Linear(WIDTH, 512, bias=False)
    nn.init.normal_(a.weight, std=0.125)
    nn.init.normal_(b.weight, std=WIDTH**-0.5)
    return Model(lambda m, x: m.b(function(m, m.a(x))), a=a, b=b)


def found(model: nn.Module) -> tuple[list[str], float, float]:
    """Texts of the notes, q of the output by kcalc and of the model itself for an input
    of q = 1.
    """
    torch.manual_seed(1)
    reading = kc.read(model, (1, 64))
    assert all(note.node in reading.network for note in reading.notes)
    x = torch.randn(1, 64)
    with torch.no_grad():
        truth = model(x / x.square().mean().sqrt()).square().mean()
    texts = [note.text for note in reading.notes if note.level == "approximate"]
    return texts, float(kc.q_map(reading.network)(1.0)), float(truth)


def test_the_note_on_a_mask_is_true() -> None:
    torch.manual_seed(0)
    model = between(lambda m, h: torch.tanh(h * m.mask))
    model.register_buffer("mask", (torch.arange(WIDTH) % 2).float())
    texts, q, truth = found(model)
    assert len(texts) == 1 and abs(q / truth - 1) > 0.2


def test_gains_that_differ_or_vanish_are_noted() -> None:
    torch.manual_seed(0)
    layer = nn.LayerNorm(WIDTH)
    for change, words in (
        (lambda: nn.init.uniform_(layer.weight), "gains differ between channels"),
        (lambda: nn.init.zeros_(layer.weight), "gains are all 0"),
        (
            lambda: (nn.init.ones_(layer.weight), nn.init.uniform_(layer.bias)),
            "biases differ between channels",
        ),
    ):
        change()
        texts, q, truth = found(between(lambda _, h: torch.tanh(layer(h))))
        assert len(texts) == 1 and words in texts[0] and abs(q / max(truth, 1e-9) - 1) > 0.1


# -- dropout ---------------------------------------------------------------------------------------


DROPOUT = {  # {function of (model, activations): whether it is on in evaluation}
    "by the mode of the module": (lambda m, h: m.drop(h), False),
    "by default": (lambda m, h: torch.nn.functional.dropout(h, 0.5), True),
    "none": (lambda m, h: torch.nn.functional.dropout(h, 0.0), False),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_that_is_on_in_evaluation_is_noted(name: str, training: bool) -> None:
    torch.manual_seed(0)
    function, on = DROPOUT[name]
    model = between(lambda m, h: function(m, torch.tanh(h)))
    model.drop = nn.Dropout(0.5)
    texts, q, _ = found(model.train(training))
    assert [("active in evaluation mode" in text) for text in texts] == [True] * on
    _, _, truth = found(model.eval())
    assert truth / q == pytest.approx(2.0 if on else 1.0, rel=0.2)


@pytest.mark.parametrize("always", [False, True])
def test_dropout_that_is_on_in_evaluation_in_flax_and_equinox(always: bool) -> None:
    jax = pytest.importorskip("jax")
    nnx, linen, eqx = (pytest.importorskip(name) for name in ("flax.nnx", "flax.linen", "equinox"))
    x = jax.numpy.ones((2, 8))

    class Linen(linen.Module):
        @linen.compact
        def __call__(self, x, train: bool):
            drop = linen.Dropout(0.5, deterministic=not (train or always))
            return linen.Dense(4)(drop(jax.nn.tanh(linen.Dense(16)(x))))

    class Nnx(nnx.Module):
        def __init__(self) -> None:
            self.a = nnx.Linear(8, 16, rngs=nnx.Rngs(0))
            self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(2))

        def __call__(self, x):
            h = jax.nn.tanh(self.a(x))
            return self.drop(h, deterministic=False) if always else self.drop(h)

    class Equinox(eqx.Module):
        a: eqx.nn.Linear
        drop: eqx.nn.Dropout

        def __call__(self, x, key=None):
            h = jax.nn.tanh(self.a(x))
            return self.drop(h, key=key, inference=False if always else None)

    keys = jax.random.split(jax.random.key(0), 2)
    last = Equinox(eqx.nn.Linear(8, 16, key=keys[0]), eqx.nn.Dropout(0.5))
    module = Linen(), Linen().init({"params": keys[0], "dropout": keys[1]}, x, train=False)
    for given in ((module, x), (module, x, True), (Nnx(), x), (last, x[0])):
        reading = kc.read(*given)
        assert any("active in evaluation mode" in n.text for n in reading.notes) == always


# -- what is not read, by its name -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda h: h.sum(-1), "the sum over channels"),
        (lambda h: h.amax(-1), "the maximum over channels"),
        (lambda h: h.mean(-1), "averages channels"),
        (lambda h: h.amin(-1), "minimum over axes (1,)"),
        (lambda h: h.logsumexp(-1), "logsumexp"),
        (lambda h: h.var(-1), "a variance"),
        (lambda h: h.norm(dim=-1), "a norm"),
    ],
)
def test_operations_over_channels_go_by_their_names(function, name: str) -> None:
    reading = kc.read(between(lambda _, h: function(h)[:, None] * h), (2, 64))
    told = [note.text for note in reading.notes if note.level == "not read"]
    assert any(name in text for text in told), told


ONE_NUMBER = {
    "a factor": lambda m, x, t: m.b(torch.tanh(m.a(x)) * t),
    "a factor of the input": lambda m, x, t: m.b(torch.tanh(m.a(x * t))),
    "waves beside each other": lambda m, x, t: m.b(
        m.a(x) + torch.cat([torch.sin(t * m.w), torch.cos(t * m.w)], -1)
    ),
}


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("name", ONE_NUMBER)
def test_one_number_for_every_example_is_not_read(name: str, rank: int) -> None:
    def run(m, x, t):
        return ONE_NUMBER[name](m, x, t if t.ndim == 2 else t[:, None])

    model = Model(run, a=nn.Linear(8, 64), b=nn.Linear(64, 4))
    model.register_buffer("w", torch.linspace(0.1, 3, 32))
    for count in (1, 2):
        reading = kc.read(model, (count, 8), (count, 1)[:rank])
        assert reading.fidelity.level == "not read", reading
        assert not any("first shifts or scales the input" in note.text for note in reading.notes)


@pytest.mark.parametrize(("gain", "bias"), [(-1.5, 0.25), (1.0, -0.5)])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, lambda width: nn.GroupNorm(8, width)])
def test_gains_and_biases_of_norms_that_all_channels_share_are_read(
    norm, gain: float, bias: float
) -> None:
    torch.manual_seed(0)
    layer = norm(WIDTH)
    nn.init.constant_(layer.weight, gain)
    if getattr(layer, "bias", None) is not None:
        nn.init.constant_(layer.bias, bias)
    for function in (lambda _, h: torch.tanh(layer(h)), lambda _, h: layer(h)):
        texts, q, truth = found(between(function))
        assert texts == [] and q == pytest.approx(truth, rel=0.15)


def test_dropout_written_into_a_function_is_noted() -> None:
    jax = pytest.importorskip("jax")
    a = np.random.default_rng(0).normal(size=(8, 64))
    b = np.random.default_rng(1).normal(size=(64, 4))

    def model(p, x, key):
        h = jax.numpy.tanh(x @ p["a"])
        return jax.numpy.where(jax.random.bernoulli(key, 0.5, h.shape), h / 0.5, 0) @ p["b"]

    reading = kc.read(model, {"a": a, "b": b}, jax.numpy.ones((64, 8)), jax.random.key(0))
    assert any("active in evaluation mode" in note.text for note in reading.notes)
