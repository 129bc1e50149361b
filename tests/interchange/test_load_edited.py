"""Edited models saved and loaded: weights and edits together."""

import logging
import pickle
import sys
import warnings

import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


def plain():
    """A norm that goes, and a layer without bias before it."""
    return nn.Sequential(
        nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
    )


def trained(model, x, **labels):
    """The edits of a shaping, and an edited model after a step."""
    s = kc.shape(kc.read(model, x), method="dks", zeta=1.5, assume_independent=True)
    made = s.apply_to(model)
    found = made(x, **labels)
    (found.loss if labels else found.square().mean()).backward()
    torch.optim.SGD(made.parameters(), 0.1).step()
    return s.edits, made.eval()


def test_what_cannot_be_loaded(tmp_path):
    """No edits, weights of another model, no weights, no model: one line each."""
    torch.manual_seed(0)
    edits, made = trained(plain().eval(), torch.randn(5, 8))
    edits.save(tmp_path / "edits.json")
    other = plain().state_dict()
    files = {"weights": made.state_dict(), "other": other, "nested": {"model": other}}
    for name, state in files.items():
        torch.save(state, tmp_path / f"{name}.pt")
    for words, model, file, *given in (
        (r"0\.bias", plain, "other.pt", edits),
        ("state_dict", plain, "nested.pt", edits),
        ("cannot read the weights", plain, "missing.pt", edits),
        ("state_dict.*safetensors", plain, "edits.json", edits),
        ("model", 3, "weights.pt", edits),
        (
            "class Sequential, but this model has class Linear.*shape the model again",
            lambda: nn.Linear(3, 3),
            "weights.pt",
            edits,
        ),
    ):
        with refused(words) as caught:
            kc.load_edited(model, tmp_path / file, *given)
        assert "\n" not in str(caught.value)
    with refused("depth"):
        kc.load_edited(plain(), tmp_path / "weights.pt", edits, depth=3)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))


class Another(Own):
    def forward(self, x):
        return self.two(torch.sin(self.one(x)))


class Twice(Own):
    def forward(self, x):
        return super().forward(x) + self.two(torch.tanh(self.one(x)))


class Blocks(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Own() for _ in range(depth))

    def forward(self, x):
        return sum(block(x) for block in self.blocks)


class Saturated(Blocks):
    def forward(self, x):
        return super().forward(torch.sin(x))


def test_a_model_with_other_modules_is_not_edited(tmp_path):
    edits = kc.shape(kc.read(Blocks(2), torch.randn(2, 8)), zeta=1.2).edits
    edits.save(tmp_path / "edits.json")
    assert kc.load_edits(tmp_path / "edits.json").to_dict() == edits.to_dict()
    kc.apply_edits(Blocks(2), edits)
    for model, words in (
        (Blocks(3), "shaped model has no module 'blocks.2'"),
        (Blocks(1), "no module 'blocks.1'"),
        (
            Saturated(2),
            "the model runs Saturated.forward, but the shaped model runs Blocks.forward",
        ),
    ):
        with refused(words):
            kc.apply_edits(model, edits)


@pytest.mark.parametrize("other", [Another, Twice])
def test_a_subclass_that_overrides_what_was_edited(other):
    x = torch.randn(2, 8)
    shaping = kc.shape(kc.read(Own(), x), zeta=1.2)
    with refused(f"{other.__name__} overrides Own.forward.*read and shape"):
        kc.apply_edits(other(), shaping.edits)
    with refused("is not in the model that was shaped.*shape this"):
        shaping.apply_to(other(), x)


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, x):
        return self.net(x)

    def save_pretrained(self, folder, is_main_process=True):
        torch.save(self.state_dict(), folder / "weights.pt")

    @classmethod
    def from_pretrained(cls, folder):
        model = cls()
        model.load_state_dict(torch.load(folder / "weights.pt"))
        return model


def test_classes_that_save_and_load_themselves(tmp_path, monkeypatch):
    """Only the main process saves the edits; no folder, no transformers."""
    monkeypatch.setitem(sys.modules, "transformers.utils.hub", None)
    x = torch.randn(5, 8)
    _, made = trained(Kept().eval(), x)
    made.save_pretrained(tmp_path, is_main_process=False)
    with refused("contains no edits.json"):
        kc.load_edited(Kept, tmp_path)
    made.save_pretrained(tmp_path)
    found = kc.load_edited(Kept, tmp_path).eval()
    assert torch.equal(found(x), made(x)) and found.state_dict().keys() == made.state_dict().keys()
    for words, kind, path in (
        ("not a folder with an edited model", Kept, "missing"),
        ("pass them too", plain, "weights.pt"),
        ("pass them too", Own, "weights.pt"),
    ):
        with refused(words):
            kc.load_edited(kind, tmp_path / path)


def test_weights_in_safetensors(tmp_path):
    files = pytest.importorskip("safetensors.torch")
    x, path = torch.randn(5, 8), tmp_path / "weights.safetensors"
    edits, made = trained(plain().eval(), x)
    files.save_file(made.state_dict(), path)
    assert torch.equal(kc.load_edited(plain, path, edits).eval()(x), made(x))


# -- transformers ----------------------------------------------------------------------------------


LABELS = torch.tensor([0, 1])


def classifier():
    """A small classifier of transformers, and an input."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    kind = transformers.ResNetForImageClassification
    model = kind(kind.config_class(num_labels=3, **sizes)).eval()
    return model, torch.randn(2, 3, 16, 16)


def test_save_pretrained_keeps_the_edits(tmp_path):
    """Loaded by the class and by an Auto class, saved again; removed norms, added biases."""
    model, x = classifier()
    from transformers import AutoModelForImageClassification

    edits, made = trained(model, x, labels=LABELS)
    keys = made.state_dict().keys()
    made.save_pretrained(tmp_path / "first")
    assert kc.load_edits(tmp_path / "first" / "edits.json").to_dict() == edits.to_dict()
    found = kc.load_edited(type(model), tmp_path / "first").eval()
    assert isinstance(found, type(model)) and found.state_dict().keys() == keys
    assert torch.equal(found(x).logits, made(x).logits)
    pickle.loads(pickle.dumps(found)).save_pretrained(tmp_path / "second")
    auto, second = AutoModelForImageClassification, str(tmp_path / "second")
    y = kc.load_edited(auto, second, dtype=torch.float64).eval()(x.double()).logits
    torch.testing.assert_close(y, made(x).logits.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
def test_plain_loading_says_what_is_missing(tmp_path, level, caplog):
    """``from_pretrained`` reports the mark in the weights and warns; ``load_edited`` does not."""
    model, x = classifier()
    _, made = trained(model, x, labels=LABELS)
    made.save_pretrained(tmp_path)
    log = logging.getLogger("transformers")
    log.addHandler(caplog.handler)
    caplog.set_level(level, "transformers")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kc.load_edited(type(model), tmp_path)
        assert "load_edited" not in caplog.text
        with pytest.warns(UserWarning, match=r"kc\.load_edited"):
            type(model).from_pretrained(tmp_path)
    finally:
        log.removeHandler(caplog.handler)
    assert ("kc.load_edited" in caplog.text) == (level == logging.WARNING)


def test_inner_models_have_their_own_edits(tmp_path):
    """``model.resnet.save_pretrained`` writes the edits of that part, by its names."""
    model, x = classifier()
    _, made = trained(model, x, labels=LABELS)
    made.resnet.save_pretrained(tmp_path)
    found = kc.load_edited(type(model.resnet), tmp_path).eval()
    assert torch.equal(found(x).last_hidden_state, made.resnet(x).last_hidden_state)
    assert made._get_files_timestamps(tmp_path).keys() == {"config.json", "model.safetensors"}
