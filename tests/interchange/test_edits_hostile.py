"""Documents of edits that are wrong, or of another model: one error, and nothing has changed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import kcalc as kc  # noqa: E402

N = 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.last = nn.Linear(N, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.act = nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.last(self.act(self.b(F.relu(self.a(x)))))


X = torch.ones(3, N)


@pytest.fixture(scope="module")
def good() -> Any:
    net = Net()
    return kc.shape(kc.read(net, X)).edits.to_dict()


def refused(document: Any, tmp_path: Any, net: Any = None) -> str:
    """The message of the one error, after which the model is as it was."""
    net = Net() if net is None else net
    net(X)
    classes = [type(module) for module in net.modules()]
    state, output = copy.deepcopy(net.state_dict()), net(X)
    keys = [sorted(vars(module)) for module in net.modules()]
    file = tmp_path / "edits.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(kc.KcalcError) as error:
        kc.apply_edits(net, kc.load_edits(file), inplace=True)
    assert [type(module) for module in net.modules()] == classes
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert torch.equal(net(X), output)
    assert [sorted(vars(module)) for module in net.modules()] == keys
    return str(error.value)


def of_kind(document: Any, whole: bool) -> Any:
    """The first edit of a call, of a module as a whole or inside of a forward."""
    for edit in document["edits"]:
        for call in edit["calls"]:
            if (not call["place"][1]) == whole:
                return call
    raise AssertionError


def step(call: Any) -> Any:
    return call["place"][1][0]


PLACES = {
    "no such module": lambda call: call["place"].__setitem__(0, "nowhere"),
    "an absurd path": lambda call: call["place"].__setitem__(0, "../../__class__.__init__"),
    "a number for a path": lambda call: call["place"].__setitem__(0, 3),
    "not a way": lambda call: call["place"].pop(),
    "a way of texts": lambda call: call["place"].__setitem__(1, "forward"),
    "a short step": lambda call: call["place"][1].__setitem__(0, ["a", "b"]),
    "another function": lambda call: step(call).__setitem__(1, "Net.other"),
    "a function of another module": lambda call: step(call).__setitem__(0, "os"),
    "an unreachable function": lambda call: call["place"][1].append(
        ["shutil", "rmtree", step(call)[2], 0, 0]
    ),
    "a changed source": lambda call: step(call).__setitem__(2, "0" * 32),
    "a negative site": lambda call: step(call).__setitem__(3, -1),
    "a huge site": lambda call: step(call).__setitem__(3, 10**30),
    "a site past the last": lambda call: step(call).__setitem__(3, 1000),
    "a strange method": lambda call: step(call).__setitem__(4, 7),
    "a true site": lambda call: step(call).__setitem__(3, True),
    "a negative visit": lambda call: call.__setitem__("visit", -1),
    "a visit too many": lambda call: call.__setitem__("visit", 1),
    "visits without end": lambda call: call.update(visits=10**18),
    "a slot past the last": lambda call: call["inputs"][0].__setitem__(0, [10**20]),
    "a negative slot": lambda call: call["inputs"][0].__setitem__(0, [-1]),
    "a strange name": lambda call: call["inputs"][0].__setitem__(0, ["__class__"]),
    "a deep slot": lambda call: call["inputs"][0].__setitem__(0, [0, 0, 0, 0]),
    "no slot": lambda call: call["inputs"][0].__setitem__(0, []),
    "an input of two": lambda call: call["inputs"][0].pop(),
    "a text for a number": lambda call: call["inputs"][0].__setitem__(1, "1"),
    "no number": lambda call: call.__setitem__("scale", None),
    "infinity": lambda call: call.__setitem__("scale", 1e400),
    "a list for a number": lambda call: call.__setitem__("shift", [1]),
    "an argument taken past the last": lambda call: call.update(take=[99]),
    "written elsewhere": lambda call: call.__setitem__("written", [42]),
    "a huge whole number": lambda call: call.__setitem__("scale", 10**400),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_inside_of_a_forward(name, good, tmp_path):
    document = json.loads(json.dumps(good))
    PLACES[name](of_kind(document, whole=False))
    refused(document, tmp_path)


WHOLE = [name for name in PLACES if "site" not in name and "step" not in name]


@pytest.mark.parametrize("name", [n for n in WHOLE if "function" not in n and "source" not in n])
def test_places_of_whole_modules(name, good, tmp_path):
    if name == "a strange method":
        pytest.skip("there is no step")
    document = json.loads(json.dumps(good))
    PLACES[name](of_kind(document, whole=True))
    refused(document, tmp_path)


def weight(document: Any) -> Any:
    return next(w for edit in document["edits"] for w in edit["weights"] if w.get("layout"))


WEIGHTS = {
    "no such parameter": lambda w: w.__setitem__("parameter", "nowhere.weight"),
    "an attribute": lambda w: w.__setitem__("parameter", "__class__"),
    "another kind": lambda w: w.__setitem__("kind", "exec"),
    "another shape": lambda w: w.__setitem__("shape", [3, 3]),
    "a huge shape": lambda w: w.__setitem__("shape", [10**9, 10**9]),
    "a huge layout": lambda w: w["layout"].__setitem__("wide", [10**6, 10**6]),
    "a flat layout": lambda w: w["layout"].__setitem__("wide", [48]),
    "no groups": lambda w: w["layout"].__setitem__("groups", 0),
    "uneven groups": lambda w: w["layout"].__setitem__("groups", 5),
    "rows past the last": lambda w: w["layout"].update(rows=[0, 10**7], height=8),
    "rows below 0": lambda w: w["layout"].update(rows=[-1]),
    "a spread of zeros": lambda w: w["layout"].__setitem__("spread", [0, 0]),
    "an empty layout": lambda w: w.__setitem__("layout", {}),
    "a sigma of text": lambda w: w.__setitem__("sigma", "0.1"),
    "a flag of text": lambda w: w.__setitem__("standardised", "yes"),
    "one that is added twice": lambda w: w.__setitem__("added", True),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name, good, tmp_path):
    document = json.loads(json.dumps(good))
    WEIGHTS[name](weight(document))
    refused(document, tmp_path)


DOCUMENTS: dict[str, Any] = {
    "nothing": "", "a list": "[]", "no JSON": "{", "a number": "3", "a text": '"x"',
    "another schema": '{"schema": "kcalc/9"}', "no edits": '{"schema": "kcalc.edits/1"}',
    "deep": "[" * 100_000 + "]" * 100_000, "not a number": '{"schema": NaN}',
    "edits of texts": '{"schema": "kcalc.edits/1", "framework": "torch", "model": "x", '
    '"edits": ["x"]}',
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents(name, tmp_path):
    refused(DOCUMENTS[name], tmp_path)


def test_two_edits_of_one_call(good, tmp_path):
    document = json.loads(json.dumps(good))
    call = of_kind(document, whole=False)
    other = json.loads(json.dumps(call))
    other.pop("inputs")
    other["take"] = [0]
    next(e for e in document["edits"] if call in e["calls"])["calls"].append(other)
    refused(document, tmp_path)


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(N, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.act = nn.Tanh()

    def forward(self, x: Any) -> Any:
        return self.last(self.act(self.b(F.relu(self.a(x)))))


def test_models_of_other_source_or_state(good, tmp_path):
    assert "source" in refused(good, tmp_path, Other())
    scripted = torch.jit.trace(Net(), X)
    assert "scripted" in refused(good, tmp_path, scripted)
    narrow = Net()
    narrow.b = nn.Linear(8, 8, bias=False)
    assert "b.bias" in refused(good, tmp_path, narrow)
    other = Net()
    other.act = nn.Tanh()
    assert "Tanh" in refused(good, tmp_path, other)
    replaced = Net()
    replaced.forward = lambda x: replaced.last(replaced.a(x))
    assert "forward" in refused(good, tmp_path, replaced)


def test_types_of_weights(good, tmp_path):
    file = tmp_path / "edits.json"
    file.write_text(json.dumps(good))
    edits = kc.load_edits(file)
    with torch.device("meta"):
        hollow = Net()
    with pytest.raises(kc.KcalcError, match="meta"):
        kc.apply_edits(hollow, edits)
    whole = Net()
    whole.a.weight = nn.Parameter(torch.ones(8, N, dtype=torch.int8), requires_grad=False)
    with pytest.raises(kc.KcalcError, match="before you quantise it"):
        kc.apply_edits(whole, edits)
    for bad in (3, None, "model", lambda x: x):
        with pytest.raises(kc.KcalcError):
            kc.apply_edits(bad, edits)


def test_an_error_half_way_changes_nothing(good, tmp_path, monkeypatch):
    from kcalc.interchange.torch_model import performing

    real, count = performing.edit, [0]

    def failing(*args: Any) -> None:
        count[0] += 1
        if count[0] == 2:
            raise RuntimeError("no memory")
        real(*args)

    monkeypatch.setattr(performing, "edit", failing)
    assert "no memory" in refused(good, tmp_path)
