"""The result of an audit, its files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch
from audit_models import IDS, PAIRS, Decoder, narrow, perceptron
from modern_zoo import Model
from refusals import refused
from torch import nn

import kcalc as kc

SCHEMA = json.loads((Path(kc.__file__).parent / "lab" / "audit" / "audit-1.json").read_text())


def test_the_result_and_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = PAIRS["w3 scaled for w2"]
    found = kc.audit(pair.broken, pair.inputs)
    (finding,) = found.found()
    file, _, line = finding.place.rpartition(":")
    text = (Path(__file__).parents[2] / Path(file).name).read_text().splitlines()[int(line) - 1]
    assert "normal_" in text
    with refused("INIT-DEPTH-PLACE"):
        found.check()
    assert found.check(ignore=("INIT-DEPTH-PLACE",)) is found
    for ending in ("json", "sarif", "html", "txt"):
        found.save(tmp_path / f"audit.{ending}")
    jsonschema.validate(json.loads((tmp_path / "audit.json").read_text()), SCHEMA)
    log = json.loads((tmp_path / "audit.sarif").read_text())
    (result,) = log["runs"][0]["results"]
    assert result["ruleId"] == "INIT-DEPTH-PLACE"
    region = result["locations"][0]["physicalLocation"]
    assert region["artifactLocation"]["uri"].endswith("audit_models.py")
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert page.startswith('<!doctype html><html lang="en"><head><meta charset="utf-8">')
    assert "<title>Audit of Decoder</title>" in page and found._repr_html_() in page
    with refused(r"audit\.doc"):
        found.save(tmp_path / "audit.doc")
    monkeypatch.chdir(tmp_path)  # a place outside the working folder is no URI
    (where,) = found.to_sarif()["runs"][0]["results"][0]["locations"]
    assert "physicalLocation" not in where
    assert where["logicalLocations"][0] == {"fullyQualifiedName": finding.place}


def test_the_row_of_a_family_shows_all_members() -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(32, 128), nn.Linear(128, 129), nn.Linear(129, 10))
        nn.init.normal_(model[0].weight, std=0.1)
        return model

    text = str(kc.audit(build, (4, 32), predict=False))
    (line,) = [line for line in text.splitlines() if line.startswith("*.weight")]
    for column in ("hidden / readout", "normal / kaiming_uniform", "32 ... 129"):
        assert f"  {column}  " in line


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        if labels is None:
            raise ValueError("labels are needed")
        return {"loss": nn.functional.cross_entropy(self.layer(x), labels)}


def linear(**options: Any) -> Any:
    return lambda: nn.Linear(3, 3, **options)


def _quantised() -> Any:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    return layer


def _quantised_later() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)


def _sparse() -> Any:
    model = nn.Linear(3, 3)
    model.w = nn.Parameter(torch.eye(3).to_sparse())
    return model


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "meta tensors": (linear(device="meta"), (2, 3), "meta tensor"),
    "quantised weights": (_quantised, (2, 4), "before quantising it"),
    "dynamically quantised weights": (_quantised_later, (2, 4), "before quantising it"),
    "labels": (Labelled, (4, 8), "if the model needs labels"),
    "a builder that raises": (
        lambda: 1 / 0,
        (2, 3),
        r"^(?!.*without arguments).*the builder raised ZeroDivisionError at test_audit\.py:\d+ in",
    ),
    "a builder of something else": (lambda: 3, (2, 3), "the builder returned a int"),
    "no builder": (3, (2, 3), "expected a torch.nn.Module"),
    "no examples": (linear(), None, "pass example inputs"),
    "wrong examples": (linear(), (2, 5), "could not be run on the example inputs"),
    "too few axes": (
        Model(lambda m, x: m.l(x[..., 0, 0]), l=nn.Linear(3, 3)),
        (4,),
        r"number of axes.*shapes \(4,\)",
    ),
    "ids beyond the table": (
        nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)),
        torch.full((2, 3), 9),
        "largest id is 9, .* embeddings are: 9",
    ),
    "hidden layers alone": (
        lambda: Model(lambda m, x: m.layers[0](x), layers=[nn.Linear(8, 8)]),
        (16, 8),
        r"layers\[0\]\.weight.*ModuleList",
    ),
    "no parameters": (nn.ReLU, (2, 3), "no parameters"),
    "a lazy module": (lambda: nn.LazyLinear(3), (2, 3), "has no shape yet"),
    "a sparse parameter": (_sparse, (2, 3), "w is not a dense tensor"),
    "a script": (lambda: torch.jit.script(nn.Linear(3, 3)), (2, 3), "ScriptModule"),
    "frozen parameters": (lambda: nn.Linear(3, 3).requires_grad_(False), (2, 3), "gradient"),
}


@pytest.mark.parametrize(("model", "inputs", "text"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.filterwarnings("ignore")
def test_refusals_are_one_line_with_a_remedy(model: Any, inputs: Any, text: str) -> None:
    with refused(text) as caught:
        kc.audit(model, inputs)
    assert "\n" not in str(caught.value)


class Configured(nn.Module):
    """A model with the configuration of a transformers model, and the shapes that it got."""

    got: dict[str, Any] = {}

    def __init__(self, main: str, **config: Any) -> None:
        super().__init__()
        self.main_input_name, self.config = main, SimpleNamespace(**config)
        self.table, self.last = nn.Embedding(32, 8), nn.Linear(8, 12)

    def forward(
        self, input_ids: Any = None, pixel_values: Any = None, decoder_input_ids: Any = None
    ) -> Any:
        given = {"ids": input_ids, "pixels": pixel_values, "decoder": decoder_input_ids}
        self.got.update({name: tuple(x.shape) for name, x in given.items() if x is not None})
        return self.last(pixel_values if input_ids is None else self.table(input_ids + self.wrong))

    wrong = 0


def test_inputs_of_a_configuration() -> None:
    """Positions that start after the padding id leave 20 - 2; a decoder needs ids too."""
    vision = SimpleNamespace(image_size=6, num_channels=2)
    sizes = {"vocab_size": 32, "max_position_embeddings": 20, "pad_token_id": 1}
    Configured.got.clear()
    model = Configured("input_ids", is_encoder_decoder=True, vision_config=vision, **sizes)
    kc.audit(model, predict=False)
    assert Configured.got == {"ids": (4, 18), "pixels": (4, 2, 6, 6), "decoder": (4, 18)}
    Configured.got.clear()
    image = Configured("pixel_values", image_size=(5, 8))
    image.table.requires_grad_(False)
    kc.audit(image, predict=False)
    assert Configured.got == {"pixels": (4, 3, 5, 8)}
    kc.audit(model, {"input_ids": (4, 8)}, predict=False)
    kc.audit(image, {"pixel_values": (4, 8)}, predict=False)
    assert Configured.got == {"ids": (4, 8), "pixels": (4, 8)}
    assert any("several inputs" in remark for remark in kc.audit(image).remarks)
    torch.manual_seed(0)
    predicted = kc.audit(Configured("input_ids", vocab_size=32)).predicted_logits
    assert predicted == pytest.approx((8 / 24 + 1 / 24) ** 0.5, rel=0.3)
    model.wrong = 32
    with refused("specified only input_ids, .*so pass example inputs"):
        kc.audit(model, predict=False)


def _moved(layer: Any, name: str, place: Any = ...) -> Any:
    with torch.no_grad():
        getattr(layer, name)[place] += 0.1 if place is ... else -getattr(layer, name)[place]
    return layer


UNPREDICTED: dict[str, tuple[Any, Any]] = {
    "entries of 0.weight have a mean of 0.": (lambda: [_moved(nn.Linear(64, 64), "weight")], 64),
    "0.bias, the bias of a norm, is not zero": (lambda: [_moved(nn.LayerNorm(8), "bias")], 8),
    "sums other than those that add a branch": (
        lambda: [Model(lambda m, x: m.a(x) + m.b(x), a=nn.Linear(8, 8), b=nn.Linear(8, 8))],
        8,
    ),
    "some token ids have a row of zeros": (lambda: [_moved(nn.Embedding(9, 8), "weight", 3)], 0),
}


@pytest.mark.parametrize(("words", "case"), UNPREDICTED.items(), ids=range(len(UNPREDICTED)))
def test_what_prevents_a_prediction(words: str, case: Any) -> None:
    build, size = case
    inputs = (4, size) if size else torch.arange(8).reshape(2, 4)
    found = kc.audit(lambda: nn.Sequential(*build()), inputs)
    assert any(words in remark for remark in found.remarks)


def patches(model: Any, x: Any) -> Any:
    """Attention of one head to patches of an image."""
    x = model.patches(x).flatten(2).mT
    attended = nn.functional.scaled_dot_product_attention(model.q(x), model.k(x), model.v(x))
    return model.head((x + model.out(attended)).mean(1))


def test_predictions_for_bags_and_patches() -> None:
    """The sum of six vectors of variance 1 has q = 6; a readout has variance 1 / (3 fan_in)."""
    found = kc.audit(
        lambda: nn.Sequential(nn.EmbeddingBag(300, 64, mode="sum"), nn.Linear(64, 120)),
        torch.randint(300, (64, 6)),
    )
    assert found.predicted_logits == pytest.approx((6 / 3 + 1 / 192) ** 0.5, rel=0.05)
    for first, shape in (
        (nn.Conv2d(3, 64, 4, 4), (16, 3, 16, 16)),
        (nn.Conv1d(8, 64, 1), (16, 8, 9)),
    ):
        layers = {name: nn.Linear(64, 64) for name in ("q", "k", "v", "out", "head")}
        found = kc.audit(Model(patches, patches=first, **layers), shape)
        assert found.predicted_logits == pytest.approx(found.logits, rel=0.1)


def test_labels_go_in_a_dictionary() -> None:
    inputs = {"x": torch.randn(4, 8), "labels": torch.tensor([0, 1, 2, 3])}
    assert kc.audit(Labelled, inputs).findings == ()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"recipe": "gpt3"}, "unknown recipe"),
        ({"recipe": {"first.weight": "hee"}}, "must be a standard deviation"),
        ({"recipe": {"nothing": 0.1}}, "no parameter name matches"),
        ({"recipe": 3}, "recipe must be"),
        ({"recipe": "mup"}, "the model with the base width"),
        ({"recipe": ("mup", 64)}, "expected a torch.nn.Module"),
        ({"recipe": ("mup", linear())}, "no parameter first.weight"),
        ({"recipe": {"first.weight": "he", "first.bias": "he"}}, "needs a fan, but first.bias"),
        ({"optimizer": 3}, "optimizer must be"),
        ({"optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=-1)}, "learning rate: -1"),
        ({"also": "INIT-TRUNK"}, "INIT-TRUNC"),
        ({"predict": 3}, "predict"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with refused(text):
        kc.audit(perceptron, (16, 8), **options)


def test_an_optimizer_of_a_finished_model() -> None:
    model = narrow()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    before = model.first.weight.detach().clone()
    found = kc.audit(model, (16, 8), optimizer=optimizer)
    assert [f.code for f in found.findings] == ["PREC-STALL"]
    assert int(found.findings[0].message.split("%")[0]) <= 100
    assert torch.equal(model.first.weight, before) and not optimizer.state


def test_copies_of_a_finished_model_and_of_a_builder_that_sets_its_own_seed() -> None:
    pair = PAIRS["layers made by copying"]

    def seeded() -> Any:
        torch.manual_seed(7)
        return pair.broken()

    for given in (pair.broken(), seeded):
        (finding,) = kc.audit(given, pair.inputs).findings
        assert finding.code == "INIT-COPY" and len(finding.parameters) == 3
    assert kc.audit(pair.mended(), pair.inputs).findings == ()


def test_slices_of_fused_weights_have_the_fans_of_the_whole() -> None:
    """Cross-attention of PyTorch reads its fused weight in two slices."""

    def cross() -> Any:
        attention = nn.MultiheadAttention(16, 2, batch_first=True)
        return Model(
            lambda m, x, y: m.head(m.attention(x, y, y, need_weights=False)[0]),
            attention=attention,
            head=nn.Linear(16, 3),
        )

    assert kc.audit(cross, (torch.randn(4, 5, 16), torch.randn(4, 6, 16))).findings == ()
    normed = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 3, 2))
    fans = [row.fan_in for row in kc.audit(normed, (2, 4, 8), predict=False).parameters]
    assert fans == [None, None, 4 * 2]  # the gain has none


def test_equal_tables_of_sines_are_no_copies() -> None:
    """Equal in every draw: two trainable tables that start as the same waves."""

    def waves() -> Any:
        start = torch.sin(torch.arange(16.0)[:, None] / 4 + torch.arange(8.0) / 3)
        one, two = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        layers = {"first": nn.Linear(8, 8), "last": nn.Linear(8, 5)}
        return Model(
            lambda m, x: m.last(torch.relu(m.first(x + m.one)) + m.two), one=one, two=two, **layers
        )

    assert kc.audit(waves, (4, 16, 8)).findings == ()
    torch.manual_seed(0)
    assert kc.audit(waves(), (4, 16, 8)).findings == ()


def test_a_finding_without_a_place_names_parameters() -> None:
    (result,) = kc.audit(PAIRS["a norm without epsilon"].broken(), (16, 8)).to_sarif()["runs"][0][
        "results"
    ]
    assert result["ruleId"] == "NONFINITE" and result["locations"] == [{"logicalLocations": []}]


def test_an_optimizer_of_another_model_gives_one_finding() -> None:
    optimizer = torch.optim.SGD(perceptron().parameters(), lr=0.1)
    found = kc.audit(perceptron, (16, 8), optimizer=optimizer)
    assert not any("nothing is predicted" in remark for remark in found.remarks)
    (finding,) = found.findings
    assert finding.code == "OPT-MISSING" and "none of this model's" in finding.message

    def twice(model: Any) -> Any:
        return torch.optim.SGD([{"params": [p]} for p in (*model.parameters(), model.first.weight)])

    (finding,) = kc.audit(perceptron, (16, 8), optimizer=twice, predict=False).findings
    assert finding.code == "OPT-MISSING" and "in more than one" in finding.message


@pytest.mark.parametrize(
    ("scale", "advice"), [(1.0, "divide the scores"), (None, "initialise queries")]
)
def test_advice_on_scores_sees_whether_they_are_divided(scale: Any, advice: str) -> None:
    found = kc.audit(lambda: Decoder(sigma=lambda _: 1.0, scale=scale), IDS, predict=False)
    (fix,) = {f.fix for f in found.findings if f.code == "ATT-FROZEN"}
    assert fix.startswith(advice)


def test_several_optimizers_share_the_parameters() -> None:
    def two(model: Any) -> list[Any]:
        matrices = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim < 2]
        return [torch.optim.SGD(matrices, lr=0.1), torch.optim.Adam(others, lr=1e-3)]

    assert kc.audit(perceptron, (16, 8), optimizer=two).findings == ()
    model = perceptron()
    assert kc.audit(model, (16, 8), optimizer=two(model)).findings == ()
    first, _ = two(model)
    assert "OPT-MISSING" in {f.code for f in kc.audit(model, (16, 8), optimizer=[first]).findings}
    with refused("closure"):
        kc.audit(narrow, (16, 8), optimizer=lambda m: torch.optim.LBFGS(m.parameters()))
