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


def weight(document: Any) -> Any:
    return next(w for edit in document["edits"] for w in edit["weights"] if w.get("layout"))


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
