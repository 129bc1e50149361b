"""Documents of edits that are wrong, or of another model: one error, and nothing has changed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.interchange.edits import edits_from_dict  # noqa: E402

N = 6


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.last = nn.Linear(N, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.act = nn.ReLU()


class Net(Layers):
    def forward(self, x: Any) -> Any:
        return self.last(self.act(self.b(F.relu(self.a(x)))))


X = torch.ones(3, N)


@pytest.fixture(scope="module")
def good() -> Any:
    return json.loads(json.dumps(kc.shape(kc.read(Net(), X)).edits.to_dict()))


def refused(document: Any, tmp_path: Any, net: Any = None) -> str:
    """The message of the one error, after which the model is as it was."""
    net = net or Net()
    net(X)

    def kinds() -> Any:
        return [(type(module), sorted(vars(module))) for module in net.modules()]

    old, state, output = kinds(), copy.deepcopy(net.state_dict()), net(X)
    file = tmp_path / "edits.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(kc.KcalcError) as error:
        kc.apply_edits(net, kc.load_edits(file), inplace=True)
    assert kinds() == old
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert torch.equal(net(X), output)
    return str(error.value)


def of_kind(document: Any, whole: bool) -> Any:
    """The first edit of a call, of a module as a whole or inside of a forward."""
    calls = (call for edit in document["edits"] for call in edit["calls"])
    return next(call for call in calls if (not call["place"][1]) == whole)


def spoilt(part: Any, *path: Any) -> None:
    """Puts the last of ``path`` where the others lead."""
    *way, last, value = path
    for key in way:
        part = part[key]
    part[last] = value


STEP = ("place", 1, 0)
SLOT = ("inputs", 0, 0)
PLACES: dict[str, tuple[Any, ...]] = {
    "no such module": ("place", 0, "nowhere"),
    "a number for a path": ("place", 0, 3),
    "not a known way": ("place", slice(1, 2), []),
    "a way of texts": ("place", 1, "forward"),
    "infinity": ("scale", 1e400),
    "a factor of 0": ("scale", 0),
    "a huge whole number": ("scale", 10**400),
    "a list for a number": ("shift", [1]),
    "a negative visit": ("visit", -1),
    "a visit too many": ("visit", 1),
    "visits without end": ("visits", 10**18),
    "a slot past the last": (*SLOT, [10**20]),
    "a negative slot": (*SLOT, [-1]),
    "a strange name": (*SLOT, ["__class__"]),
    "a deep slot": (*SLOT, [0, 0, 0, 0]),
    "no slot": (*SLOT, []),
    "an input of two": ("inputs", 0, slice(2, 3), []),
    "a text for a number": ("inputs", 0, 1, "1"),
    "an argument taken past the last": ("take", [99]),
    "written elsewhere": ("written", [42]),
}
STEPS: dict[str, tuple[Any, ...]] = {
    "a short step": (*STEP, ["a", "b"]),
    "a function of another module": (*STEP, 0, "os"),
    "a changed source": (*STEP, 2, "0" * 32),
    "a negative site": (*STEP, 3, -1),
    "a site past the last": (*STEP, 3, 1000),
    "a strange method": (*STEP, 4, 7),
    "a true site": (*STEP, 3, True),
}


PAST = {"wide": [8, 6], "stored": [8, 6], "rows": [0, 10**7], "height": 8}
WEIGHTS: dict[str, tuple[Any, ...]] = {
    "no such parameter": ("parameter", "nowhere.weight"),
    "another kind": ("kind", "exec"),
    "a huge shape": ("shape", [10**9, 10**9]),
    "a huge layout": ("layout", "wide", [10**6, 10**6]),
    "a flat layout": ("layout", "wide", [48]),
    "no groups": ("layout", "groups", 0),
    "uneven groups": ("layout", "groups", 5),
    "rows past the last": ("layout", PAST),
    "rows below 0": ("layout", "rows", [-1]),
    "a spread of zeros": ("layout", "spread", [0, 0]),
    "an empty layout": ("layout", {}),
    "no layout": ("layout", None),
    "a layout of numbers": ("layout", [3]),
    "a sigma of text": ("sigma", "0.1"),
    "a flag of text": ("standardised", "yes"),
    "one that is added twice": ("added", True),
    "other copies": ("copies", 3),
}


PARTS: dict[str, tuple[Any, Any]] = {
    "inside": (lambda document: of_kind(document, whole=False), PLACES | STEPS),
    "whole": (lambda document: of_kind(document, whole=True), PLACES),
    "weights": (
        lambda document: next(
            w for edit in document["edits"] for w in edit["weights"] if w.get("layout")
        ),
        WEIGHTS,
    ),
}


@pytest.mark.parametrize(
    ("part", "name"), [(part, name) for part, (_, table) in PARTS.items() for name in table]
)
def test_spoilt_edits(part, name, good, tmp_path):
    document, (find, table) = copy.deepcopy(good), PARTS[part]
    spoilt(find(document), *table[name])
    refused(document, tmp_path)


DOCUMENTS: dict[str, Any] = {
    "nothing": "", "a list": "[]", "another schema": '{"schema": "kcalc/9"}',
    "no edits": '{"schema": "kcalc.edits/1"}',
    "edits of texts": '{"schema": "kcalc.edits/1", "framework": "torch", "model": "x", '
    '"edits": ["x"]}',
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents(name, tmp_path):
    refused(DOCUMENTS[name], tmp_path)


@pytest.mark.parametrize("path", [("left_alone", []), ("edits", 0, "calls", 3)])
def test_spoilt_documents(path, good, tmp_path):
    document = copy.deepcopy(good)
    spoilt(document, *path)
    assert path[-2] in refused(document, tmp_path)


def test_edits_with_other_functions_are_saved():
    model = nn.Sequential(nn.Linear(N, 8), nn.ReLU(), nn.Linear(8, 2))
    edits = kc.shape(kc.read(model, X), "tanh", zeta=1.5).edits
    again = edits_from_dict(json.loads(json.dumps(edits.to_dict())))
    assert again == edits and again[1] == edits.only("activation").items
    with pytest.raises(kc.KcalcError, match="node that is edited 'b'"):
        edits["b"]


SECOND: dict[str, tuple[Any, ...]] = {
    "two edits": ("scale", 3.0),
    "whole and inside": ("place", 1, []),
    "by their order": (*STEP, slice(2), ["", ""]),
    "in two ways": ("visits", 2),
    "several functions": (*STEP, 1, "Net.other"),
    "a method call": (*STEP, 4, 1),
    "outside and inside": ("place", 1, slice(1, 1), [["a", "b", "c", 0, 0]]),
}


@pytest.mark.parametrize("words", SECOND)
def test_edits_that_contradict_each_other(words, good, tmp_path):
    document = copy.deepcopy(good)
    call = of_kind(document, whole=False)
    other = copy.deepcopy(call) | ({"visit": 1} if words == "in two ways" else {})
    spoilt(other, *SECOND[words])
    next(e for e in document["edits"] if call in e["calls"])["calls"].append(other)
    assert words in refused(document, tmp_path)


def test_modules_of_another_model(good, tmp_path):
    assert "no module 'more'" in refused(
        good | {"modules": good["modules"] | {"more": ""}}, tmp_path
    )
    document, net = copy.deepcopy(good), Net()
    call, net.twin = of_kind(document, whole=True), net.act
    document["edits"][0]["calls"].append(call | {"place": ["twin", []]})
    assert "'twin' and 'act' are the same module" in refused(document, tmp_path, net)


class Other(Layers):
    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.b(F.relu(self.a(x)))))


def changed(**parts: Any) -> Any:
    net = Net()
    for name, part in parts.items():
        setattr(net, name, part)
    return net


MODELS = {
    "source": Other,
    "edit a model of that class": type("Renamed", (Layers,), {"forward": Net.forward}),
    "changed": type("InC", (Layers,), {"forward": torch.relu}),
    "scripted": lambda: torch.jit.trace(Net(), X),
    "b.bias": lambda: changed(b=nn.Linear(8, 8, bias=False)),
    "'last.weight' has shape (3, 8)": lambda: changed(last=nn.Linear(8, 3)),
    "Tanh": lambda: changed(act=nn.Tanh()),
    "forward": lambda: changed(forward=nn.Linear(N, 2).forward),
}


@pytest.mark.parametrize("words", MODELS)
def test_models_of_other_source_or_state(words, good, tmp_path):
    assert words in refused(good, tmp_path, MODELS[words]())


def test_types_of_weights(good, tmp_path):
    file = tmp_path / "edits.json"
    file.write_text(json.dumps(good))
    edits = kc.load_edits(file)
    whole = Net()
    whole.a.weight = nn.Parameter(torch.ones(8, N, dtype=torch.int8), requires_grad=False)
    for net, words in (
        (Net().to("meta"), "meta"),
        (whole, "before you quantise it"),
        *((bad, ".") for bad in (3, None, "model", lambda x: x)),
    ):
        with pytest.raises(kc.KcalcError, match=words):
            kc.apply_edits(net, edits)


def test_an_error_half_way_changes_nothing(good, tmp_path, monkeypatch):
    from kcalc.interchange.torch_model import performing

    real, calls = performing.edit, []

    def failing(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("no memory")
        real(*args)

    monkeypatch.setattr(performing, "edit", failing)
    assert "no memory" in refused(good, tmp_path)
