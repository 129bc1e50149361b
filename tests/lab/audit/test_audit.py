"""The result of an audit, its files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from refusals import refused

torch = pytest.importorskip("torch")

import audit_models  # noqa: E402
from audit_models import IDS, PAIRS, Decoder, Perceptron, narrow, nothing, scaled  # noqa: E402
from torch import nn  # noqa: E402

import kcalc as kc  # noqa: E402

SCHEMA = json.loads((Path(kc.__file__).parent / "lab" / "audit" / "audit-1.json").read_text())
BROKEN = PAIRS["w3 scaled for w2"]


def clean() -> kc.Audit:
    return kc.audit(lambda: Decoder(sigma=scaled("proj.weight", "mlp.2.weight")), IDS)


def test_a_clean_model_prints_on_a_terminal() -> None:
    found = clean()
    text = str(found)
    assert "no findings" in text
    assert len(text.splitlines()) <= 25
    assert max(map(len, text.splitlines())) <= 140


def test_numbers_of_the_tables_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model = Decoder()
    ids = torch.randint(64, IDS)
    found = kc.audit(model, ids)
    rows = {row.name: row for row in found.parameters}
    with torch.no_grad():
        logits = model(ids)
        table = model.tokens(ids)
    assert found.logits == pytest.approx(float(logits.square().mean().sqrt()), rel=1e-5)
    assert rows["tokens.weight"].emits == pytest.approx(float(table.square().mean().sqrt()))
    assert rows["tokens.weight"].sigma == pytest.approx(float(model.tokens.weight.std()), rel=1e-3)
    loss = logits.logsumexp(-1) - logits.mean(-1)
    assert found.loss == pytest.approx(float(loss.mean()), rel=1e-5)
    assert found.tier == "model"
    assert [row.name for row in found.parameters] == [n for n, _ in model.named_parameters()]
    assert rows["blocks.0.attention.proj.weight"].fan_in == 32


def test_the_model_is_not_changed() -> None:
    model = Decoder().train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    kc.audit(model, IDS)
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


def test_findings_have_file_and_line() -> None:
    found = kc.audit(BROKEN.broken, IDS)
    (finding,) = found.found()
    file, _, line = finding.place.rpartition(":")
    text = (Path(__file__).parents[2] / Path(file).name).read_text().splitlines()[int(line) - 1]
    assert "normal_" in text
    with refused("INIT-DEPTH-PLACE"):
        found.check()
    assert found.check(ignore=("INIT-DEPTH-PLACE",)) is found


def test_documents(tmp_path: Path) -> None:
    found = kc.audit(BROKEN.broken, IDS)
    for ending in ("json", "sarif", "html", "txt"):
        found.save(tmp_path / f"audit.{ending}")
    jsonschema.validate(json.loads((tmp_path / "audit.json").read_text()), SCHEMA)
    log = json.loads((tmp_path / "audit.sarif").read_text())
    (result,) = log["runs"][0]["results"]
    assert result["ruleId"] == "INIT-DEPTH-PLACE"
    region = result["locations"][0]["physicalLocation"]
    assert region["artifactLocation"]["uri"].endswith("audit_models.py")
    assert "INIT-DEPTH-PLACE" in (tmp_path / "audit.html").read_text()
    with refused(r"audit\.doc"):
        found.save(tmp_path / "audit.doc")


def test_a_lock_file_tells_what_a_later_version_changed(tmp_path: Path) -> None:
    path = tmp_path / "init.lock"
    found = clean()
    found.lock(path)
    assert found.changes(path) == ()
    again = kc.audit(Decoder(sigma=scaled("proj.weight", "mlp.2.weight")), IDS)
    assert again.changes(path) == ()
    changed = kc.audit(lambda: Decoder(sigma=scaled("proj.weight")), IDS).changes(path)
    assert [f.code for f in changed] == ["LOCK-CHANGED"]
    assert set(changed[0].parameters) == {f"blocks.{i}.mlp.2.weight" for i in range(4)}
    fewer = kc.audit(lambda: Decoder(blocks=3), IDS).changes(path)
    assert any("was removed" in f.message for f in fewer)
    path.write_text("{}")
    with refused("not a lock file"):
        found.changes(path)


def _meta() -> Any:
    with torch.device("meta"):
        return nn.Linear(3, 3)


def _labelled() -> Any:
    class Labelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            if labels is None:
                raise ValueError("labels are needed")
            return {"loss": nn.functional.cross_entropy(self.layer(x), labels)}

    return Labelled()


def _quantised() -> Any:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    return layer


def _quantised_later() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)


def _exits() -> Any:
    raise SystemExit(0)


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "meta tensors": (_meta, (2, 3), "meta tensor"),
    "quantised weights": (_quantised, (2, 4), "before quantising it"),
    "dynamically quantised weights": (_quantised_later, (2, 4), "before quantising it"),
    "a builder that exits": (_exits, (2, 3), "the builder raised SystemExit"),
    "labels": (_labelled, (4, 8), "if the model needs labels"),
    "a builder that raises": (lambda: 1 / 0, (2, 3), "the builder raised ZeroDivisionError"),
    "a builder of something else": (lambda: 3, (2, 3), "the builder returned a int"),
    "no builder": (3, (2, 3), "expected a torch.nn.Module"),
    "no examples": (lambda: nn.Linear(3, 3), None, "pass example inputs"),
    "wrong examples": (lambda: nn.Linear(3, 3), (2, 5), "did not run on the example inputs"),
    "no parameters": (nn.ReLU, (2, 3), "no parameters"),
    "a lazy module": (lambda: nn.LazyLinear(3), (2, 3), "has no shape yet"),
    "a script": (lambda: torch.jit.script(nn.Linear(3, 3)), (2, 3), "ScriptModule"),
    "frozen parameters": (lambda: nn.Linear(3, 3).requires_grad_(False), (2, 3), "gradient"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.filterwarnings("ignore")
def test_refusals_are_one_line_with_a_remedy(case: tuple[Any, Any, str]) -> None:
    model, inputs, text = case
    with refused(text) as caught:
        kc.audit(model, inputs)
    assert "\n" not in str(caught.value)


def test_labels_go_in_a_dictionary() -> None:
    inputs = {"x": torch.randn(4, 8), "labels": torch.tensor([0, 1, 2, 3])}
    assert kc.audit(_labelled, inputs).findings == ()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"recipe": "gpt3"}, "unknown recipe"),
        ({"recipe": {"first.weight": "hee"}}, "must be a standard deviation"),
        ({"recipe": {"nothing": 0.1}}, "no parameter name matches"),
        ({"recipe": 3}, "recipe must be"),
        ({"recipe": "mup"}, "a builder of the base width"),
        ({"recipe": ("mup", 64)}, "expected a torch.nn.Module"),
        ({"recipe": ("mup", lambda: torch.nn.Linear(8, 8))}, "no parameter first.weight"),
        ({"optimizer": 3}, "optimizer must be"),
        ({"also": "INIT-TRUNK"}, "INIT-TRUNC"),
        ({"predict": 3}, "predict"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with refused(text):
        kc.audit(lambda: Perceptron(nothing), (16, 8), **options)


def test_an_optimizer_of_a_finished_model() -> None:
    model = narrow()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    before = model.first.weight.detach().clone()
    found = kc.audit(model, (16, 8), optimizer=optimizer)
    assert [f.code for f in found.findings] == ["PREC-STALL"]
    assert torch.equal(model.first.weight, before) and not optimizer.state


def test_copies_in_a_finished_model() -> None:
    pair = PAIRS["layers of PyTorch's encoder"]
    torch.manual_seed(0)
    codes = {f.code for f in kc.audit(pair.broken(), pair.inputs).findings}
    assert codes == {"INIT-COPY"}
    assert kc.audit(pair.mended(), pair.inputs).findings == ()


class Two(nn.Module):
    """A model of two inputs, one of them looked up in a table with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 8)
        self.head = nn.Linear(8, 40)

    def forward(self, ids: torch.Tensor, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.head(nn.functional.relu(self.table(ids) + scale * self.layer(x)))


@pytest.mark.parametrize(
    "inputs",
    [
        (torch.arange(32).view(8, 4), torch.ones(8, 8)),
        {"ids": torch.arange(32).view(8, 4), "x": torch.ones(8, 8), "scale": 0.5},
    ],
)
def test_several_inputs(inputs: Any) -> None:
    found = kc.audit(Two, inputs)
    assert found.findings == ()
    assert {r.name: r.role for r in found.parameters}["table.weight"] == "embedding"


def test_slices_of_fused_weights_have_the_fans_of_the_whole() -> None:
    """Cross-attention of PyTorch reads its fused weight in two slices."""

    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = (
                nn.MultiheadAttention(16, 2, batch_first=True),
                nn.Linear(16, 3),
            )

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.head(self.attention(x, y, y, need_weights=False)[0])

    assert kc.audit(Cross, (torch.randn(4, 5, 16), torch.randn(4, 6, 16))).findings == ()


def test_copies_of_a_builder_that_sets_its_own_seed() -> None:
    pair = PAIRS["layers made by copying"]

    def seeded() -> Any:
        torch.manual_seed(7)
        return pair.broken()

    (finding,) = kc.audit(seeded, pair.inputs).findings
    assert finding.code == "INIT-COPY" and len(finding.parameters) == 3


def test_equal_tables_of_sines_are_no_copies() -> None:
    """Equal in every draw: two trainable tables that start as the same waves."""

    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            waves = torch.sin(torch.arange(16.0)[:, None] / 4 + torch.arange(8.0) / 3)
            self.one, self.two = nn.Parameter(waves.clone()), nn.Parameter(waves.clone())
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.first(x + self.one)) + self.two)

    assert kc.audit(Waves, (4, 16, 8)).findings == ()
    torch.manual_seed(0)
    assert kc.audit(Waves(), (4, 16, 8)).findings == ()


def test_zero_writers_with_a_zero_readout_are_alive() -> None:
    """All writers of a decoder and its readout start at 0, as in LoRA's and Fixup's schemes."""

    def build() -> Any:
        model = Decoder(sigma=lambda n: 0.0 if n.endswith(("proj.weight", "2.weight")) else 0.02)
        model.head = nn.Linear(32, 64)
        nn.init.zeros_(model.head.weight)
        nn.init.zeros_(model.head.bias)
        return model

    assert kc.audit(build, IDS).findings == ()


@pytest.mark.parametrize("gated", [False, True])
def test_predicted_sizes_are_those_of_wide_models(
    gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of 4 draws at width 512 is within 6 % in the stream and of the logits."""
    monkeypatch.setattr(audit_models, "WIDTH", 512)
    monkeypatch.setattr(audit_models, "HEADS", 8)
    drawn = []
    for seed in range(4):
        torch.manual_seed(seed)
        drawn.append(kc.audit(Decoder(gated, blocks=3), (4, 16), predict=seed == 0))
    first = drawn[0]
    assert first.remarks == ()
    for i, block in enumerate(first.blocks):
        measured = sum(one.blocks[i].stream ** 2 for one in drawn) / 4
        assert block.predicted == pytest.approx(measured**0.5, rel=0.06)
    logits = sum((one.logits or 0.0) ** 2 for one in drawn) / 4
    assert first.predicted_logits == pytest.approx(logits**0.5, rel=0.06)
    assert any("sampled" in str(note) for note in first.assumptions)


def test_models_without_rules_say_that_nothing_is_predicted() -> None:
    model = PAIRS["layers of PyTorch's encoder"]
    found = kc.audit(model.mended, model.inputs)
    assert all(block.predicted is None for block in found.blocks) == any(
        "nothing is predicted" in remark for remark in found.remarks
    )


def test_a_place_outside_the_working_folder_is_no_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = kc.audit(BROKEN.broken, IDS)
    monkeypatch.chdir(tmp_path)
    (result,) = found.to_sarif()["runs"][0]["results"]
    (where,) = result["locations"]
    assert "physicalLocation" not in where
    assert where["logicalLocations"][0] == {"fullyQualifiedName": found.findings[0].place}


def test_an_optimizer_of_another_model_gives_one_finding() -> None:
    optimizer = torch.optim.SGD(Perceptron(nothing).parameters(), lr=0.1)
    (finding,) = kc.audit(lambda: Perceptron(nothing), (16, 8), optimizer=optimizer).findings
    assert finding.code == "OPT-MISSING" and "none of this model's" in finding.message


@pytest.mark.parametrize(("scale", "advice"), [(1.0, "divide scores"), (None, "give queries")])
def test_advice_on_scores_sees_whether_they_are_divided(scale: Any, advice: str) -> None:
    found = kc.audit(lambda: Decoder(sigma=lambda _: 1.0, scale=scale), IDS, predict=False)
    (fix,) = {f.fix for f in found.findings if f.code == "ATT-FROZEN"}
    assert fix.startswith(advice)


def test_a_builder_that_raises_is_named_with_its_line() -> None:
    with refused(r"ZeroDivisionError at test_audit\.py:\d+ in") as caught:
        kc.audit(lambda: 1 / 0, (2, 3))
    assert "without arguments" not in str(caught.value)


def test_several_optimizers_share_the_parameters() -> None:
    def two(model: Any) -> list[Any]:
        matrices = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim < 2]
        return [torch.optim.SGD(matrices, lr=0.1), torch.optim.Adam(others, lr=1e-3)]

    assert kc.audit(lambda: Perceptron(nothing), (16, 8), optimizer=two).findings == ()
    model = Perceptron(nothing)
    assert kc.audit(model, (16, 8), optimizer=two(model)).findings == ()
    first, _ = two(model)
    assert "OPT-MISSING" in {f.code for f in kc.audit(model, (16, 8), optimizer=[first]).findings}
    with refused("closure"):
        kc.audit(narrow, (16, 8), optimizer=lambda m: torch.optim.LBFGS(m.parameters()))
