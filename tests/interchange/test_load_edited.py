"""Edited models saved and loaded: weights and edits together."""

import logging
import pickle
import warnings

import pytest

import kcalc as kc

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Plain(nn.Module):
    """A norm that goes, and a layer without bias before it."""

    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4)
        )

    def forward(self, x):
        return self.net(x)


def trained(model, x, labels=None):
    """The edits of a shaping, and an edited model after a step."""
    s = kc.shape(kc.read(model, x), method="dks", zeta=1.5, assume_independent=True)
    made = s.apply_to(model)
    loss = made(x).square().mean() if labels is None else made(x, labels=labels).loss
    loss.backward()
    torch.optim.SGD(made.parameters(), 0.1).step()
    return s.edits, made.eval()


@pytest.fixture
def plain(tmp_path):
    """(edits, trained model, input), saved in a folder."""
    torch.manual_seed(0)
    x = torch.randn(5, 8)
    edits, made = trained(Plain().eval(), x)
    torch.save(made.state_dict(), tmp_path / "weights.pt")
    edits.save(tmp_path / "edits.json")
    return edits, made, x


def test_what_cannot_be_loaded(plain, tmp_path):
    """No edits, weights of another model, no weights, no model: one line each."""
    edits, _, _ = plain
    weights = tmp_path / "weights.pt"
    with pytest.raises(kc.KcalcError, match="edits"):
        kc.load_edited(Plain, weights)
    torch.save(Plain().state_dict(), tmp_path / "other.pt")
    with pytest.raises(kc.KcalcError, match=r"net\.0\.bias") as caught:
        kc.load_edited(Plain, tmp_path / "other.pt", edits)
    assert "\n" not in str(caught.value)
    torch.save({"model": Plain().state_dict()}, tmp_path / "nested.pt")
    with pytest.raises(kc.KcalcError, match="state_dict"):
        kc.load_edited(Plain, tmp_path / "nested.pt", edits)
    for path in (tmp_path / "missing.pt", tmp_path / "edits.json"):
        with pytest.raises(kc.KcalcError, match="cannot read the weights"):
            kc.load_edited(Plain, path, edits)
    with pytest.raises(kc.KcalcError, match="model"):
        kc.load_edited(3, weights, edits)
    with pytest.raises(kc.KcalcError, match="depth"):
        kc.load_edited(Plain(), weights, edits, depth=3)
    with pytest.raises(kc.KcalcError, match="another model"):
        kc.load_edited(lambda: nn.Linear(3, 3), weights, edits)


# -- transformers ----------------------------------------------------------------------------------


def classifier(name):
    """A small classifier of transformers, an input, and its classes."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "bert":
        config = transformers.BertConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            vocab_size=50, max_position_embeddings=32, num_labels=3, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        kinds = "BertForSequenceClassification", "AutoModelForSequenceClassification"
        x = torch.randint(1, 50, (2, 7))
    else:
        config = transformers.ResNetConfig(
            num_channels=3, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
            layer_type="basic", num_labels=3,
        )  # fmt: skip
        kinds = "ResNetForImageClassification", "AutoModelForImageClassification"
        x = torch.randn(2, 3, 16, 16)
    kind, auto = (getattr(transformers, name) for name in kinds)
    return kind(config).eval(), x, kind, auto


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_save_pretrained_keeps_the_edits(name, tmp_path):
    """Loaded by the class and by an Auto class, saved again; removed norms, added biases."""
    model, x, kind, auto = classifier(name)
    edits, made = trained(model, x, torch.tensor([0, 1]))
    keys = made.state_dict().keys()
    made.save_pretrained(tmp_path / "first")
    assert kc.load_edits(tmp_path / "first" / "edits.json").to_dict() == edits.to_dict()
    found = kc.load_edited(kind, tmp_path / "first").eval()
    assert isinstance(found, kind) and found.state_dict().keys() == keys
    assert torch.equal(found(x).logits, made(x).logits)
    pickle.loads(pickle.dumps(found)).save_pretrained(tmp_path / "second")
    again = kc.load_edited(auto, str(tmp_path / "second"), dtype=torch.float64).eval()
    y = again(x.double() if x.is_floating_point() else x).logits
    assert y.dtype == torch.float64
    torch.testing.assert_close(y, made(x).logits.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
def test_plain_loading_says_what_is_missing(tmp_path, level):
    """``from_pretrained`` reports the mark in the weights and warns; ``load_edited`` does not."""
    model, x, kind, _ = classifier("bert")
    _, made = trained(model, x, torch.tensor([0, 1]))
    made.save_pretrained(tmp_path)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("transformers")
    log.addHandler(handler)
    before = log.level
    log.setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kc.load_edited(kind, tmp_path)
        assert not any("load_edited" in line for line in lines)
        with pytest.warns(UserWarning, match=r"kc\.load_edited"):
            kind.from_pretrained(tmp_path)
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
    assert any("kc.load_edited" in line for line in lines) == (level == logging.WARNING)


def test_inner_models_have_their_own_edits(tmp_path):
    """``model.bert.save_pretrained`` writes the edits of that part, by its names."""
    model, x, _, _ = classifier("bert")
    _, made = trained(model, x, torch.tensor([0, 1]))
    made.bert.save_pretrained(tmp_path)
    found = kc.load_edited(type(model.bert), tmp_path).eval()
    assert torch.equal(found(x).last_hidden_state, made.bert(x).last_hidden_state)
    assert made._get_files_timestamps(tmp_path).keys() == {"config.json", "model.safetensors"}


def test_folders_without_edits(tmp_path):
    model, _, kind, _ = classifier("resnet")
    model.save_pretrained(tmp_path)
    with pytest.raises(kc.KcalcError, match="from_pretrained"):
        kc.load_edited(kind, tmp_path)
