"""What differs from a model is noted at a node that stands in the network; numbers say that it differs."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kcalc as kc  # noqa: E402

nn = torch.nn
WIDTH = 4096


class Between(nn.Module):
    """Gaussian layers of variance 1/fan_in with something between them: ``b(f(a(x)))``."""

    def __init__(self, between, std: float = 0.125, bias: float | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, WIDTH, bias=bias is not None), nn.Linear(WIDTH, 512, bias=False)
        nn.init.normal_(self.a.weight, std=std)
        nn.init.normal_(self.b.weight, std=WIDTH**-0.5)
        if bias is not None:
            nn.init.constant_(self.a.bias, bias)
        self.between = between
        self.register_buffer("mask", (torch.arange(WIDTH) % 2).float())

    def forward(self, x):
        return self.b(self.between(self, self.a(x)))


def found(model: nn.Module) -> tuple[list[str], float, float]:
    """Texts of the notes, q of the output by kcalc and of the model itself for an input of q = 1."""
    torch.manual_seed(1)
    reading = kc.read(model, (1, 64))
    assert all(note.node in reading.network for note in reading.notes)
    x = torch.randn(1, 64)
    with torch.no_grad():
        truth = model(x / x.square().mean().sqrt()).square().mean()
    texts = [note.text for note in reading.notes if note.level == "approximate"]
    return texts, float(kc.q_map(reading.network)(1.0)), float(truth)


@pytest.mark.parametrize(
    "between",
    [
        lambda m, h: torch.tanh(h * m.mask),
        lambda m, h: torch.clamp(m.mask * h, min=0) + 0.5,
        lambda m, h: torch.tanh(h + m.mask * torch.relu(h)),
    ],
)
def test_factors_of_single_channels_are_noted_where_they_end(between) -> None:
    torch.manual_seed(0)
    texts, _, _ = found(Between(between))
    assert any("every channel has a factor of its own" in text for text in texts)


def test_the_note_on_a_mask_is_true() -> None:
    torch.manual_seed(0)
    texts, q, truth = found(Between(lambda m, h: torch.tanh(h * m.mask)))
    assert len(texts) == 1 and abs(q / truth - 1) > 0.2


def test_notes_of_what_reaches_no_output_go() -> None:
    def between(m, h):
        _ = torch.tanh(h * m.mask)
        return torch.tanh(h)

    torch.manual_seed(0)
    texts, q, truth = found(Between(between))
    assert texts == [] and q == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize(
    ("epsilon", "std", "noted"), [(1e-5, 0.125, False), (1.0, 0.125, True), (1e-5, 1.25e-4, True), (1e-10, 1.25e-4, False)]
)
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, lambda width, eps: nn.GroupNorm(8, width, eps)])
def test_an_epsilon_is_noted_where_it_counts(norm, epsilon: float, std: float, noted: bool) -> None:
    torch.manual_seed(0)
    layer = norm(WIDTH, eps=epsilon)
    texts, q, truth = found(Between(lambda _, h: torch.tanh(layer(h)), std))
    assert [f"epsilon is {epsilon:g}" in text for text in texts] == [True] * noted
    assert (abs(q / truth - 1) < 0.15) != noted


@pytest.mark.parametrize(("bias", "noted"), [(3.0, True), (-3.0, True), (0.0, False)])
def test_biases_that_have_a_mean_are_noted(bias: float, noted: bool) -> None:
    torch.manual_seed(0)
    texts, q, truth = found(Between(lambda _, h: torch.sigmoid(h), bias=bias))
    assert [f"biases have mean {bias:.4g}" in text for text in texts] == [True] * noted
    assert (abs(q / truth - 1) < 0.15) != noted


def test_biases_of_mean_0_and_biases_at_the_end_are_no_fault() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512))
    nn.init.constant_(model[2].bias, 2.0)
    reading = kc.read(model, (1, 64))
    assert reading.fidelity.level == "exact"
    spread = float(reading.network.layer("2").sigma_b)
    assert spread == 2.0  # E (W h + 2)^2 = sigma_w^2 q + 4


def test_a_number_that_is_added_is_part_of_the_activation() -> None:
    torch.manual_seed(0)
    texts, q, truth = found(Between(lambda _, h: torch.sigmoid(h + 3)))
    assert texts == [] and q == pytest.approx(truth, rel=0.1)


def test_a_number_that_is_added_in_jax() -> None:
    jnp = pytest.importorskip("jax.numpy")
    rng = np.random.default_rng(3)
    a, b = jnp.asarray(rng.normal(size=(64, 2048)) / 8), jnp.asarray(rng.normal(size=(2048, 512)) / 2048**0.5)
    reading = kc.read(lambda x: 1 / (1 + jnp.exp(-(x @ a + 3))) @ b, jnp.ones((2, 64)))
    assert reading.fidelity.level == "exact" and reading.network.layer(reading.network.inputs[0]) is not None
    z = rng.normal(size=400_000)
    assert kc.q_map(reading.network)(1.0) == pytest.approx(np.mean((1 + np.exp(-(z + 3))) ** -2.0), rel=0.1)


def test_stored_statistics_are_noted() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).eval()
    assert not any("stored" in note.text for note in kc.read(model, (2, 64)).notes)
    model[1].running_mean.fill_(3.0)
    (text,) = [note.text for note in kc.read(model, (2, 64)).notes if note.node == "1"]
    assert "stored" in text
