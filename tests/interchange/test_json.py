"""Networks as JSON: identity round trips, hostile documents, whole files or none."""

from __future__ import annotations

import json
import random
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import sympy as sp
from refusals import refused
from test_json_hostile import X, document, op

import kcalc as kc
from kcalc.interchange import network_from_dict, network_to_dict
from kcalc.interchange.expressions import to_tree
from kcalc.interchange.json_format import parse_json

L, A = kc.layers, kc.architectures
x = sp.Symbol("x", real=True)

MINE = sp.Piecewise((x, x > 1), (sp.tanh(x) + sp.Rational(1, 3), True))


def nonlinear(tree: object, name: str = "f") -> dict:
    return {"type": "Nonlinear", "activation": {"name": name, "expr": tree}}


DEEP = reduce(lambda tree, _: op("sin", tree), range(500), X)
ROWS = [{"value": 1, "if": {"rel": {}, "args": [1, 2]}}, {"value": 0, "if": True}]
# (fields of the document, of its first layer's node, of that layer, or the whole second layer)
BAD: dict[str, tuple[str, object, str]] = {
    "extra field": ("document", {"evil": 1}, "unknown field"),
    "double id": ("node", {"id": "input"}, "defined twice"),
    "wrong arity": ("node", {"reads": []}, "0 inputs"),
    "tower": ("affine", {"sigma_w": op("exp", op("exp", 1000))}, "too large"),
    "zero denominator": ("affine", {"sigma_w": {"rational": ["1", "0"]}}, "denominator"),
    "infinite": ("affine", {"sigma_w": op("Pow", 0, -1)}, "power of 0"),
    "unknown activation": ("layer", {"type": "Nonlinear", "activation": {"name": "tahn"}}, "tanh"),
    "missing activation": ("layer", {"type": "Nonlinear"}, "needs activation"),
    "two symbols": ("layer", nonlinear(op("Mul", X, {"symbol": "y"})), "symbolic constants"),
    "huge power": ("layer", nonlinear(op("Pow", 10, 10**9)), "exponent"),
    "huge integer": ("layer", nonlinear(10**50), "too large"),
    "deep": ("layer", nonlinear(DEEP), "too large"),
    "unhashable relation": ("layer", nonlinear({"op": "Piecewise", "rows": ROWS}), "condition"),
    "half a character as name": (
        "layer",
        nonlinear(X, "f\udfff"),
        r"the name 'f\\udfff' contains '\\udfff'.* remove it",
    ),
    "half a character as reason": (
        "layer",
        {"type": "Opaque", "name": "f", "reason": "\ud800"},
        "Opaque: reason .* remove it",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_hostile_documents_are_refused(name: str) -> None:
    where, change, message = BAD[name]
    data = network_to_dict(A.vanilla(2, "tanh"))
    _, node, other = data["nodes"][:3]
    if where == "layer":
        other["layer"] = change
    else:
        {"document": data, "node": node, "affine": node["layer"]}[where].update(change)
    with refused(message):
        network_from_dict(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "line 1"),
        (b"[1, 2]", "JSON object"),
        (b'{"schema": NaN}', "not a finite"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"[" * 100_000, "deeply|not valid"),
        (b"", "not valid JSON"),
        (
            b"1" * 5000,
            r"net\.json contains an integer with more than 4300 digits; "
            r"correct this integer$",
        ),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "net.json"
    file.write_bytes(content)
    with refused(message):
        kc.load_json(file)


def test_truncated_and_mutated_files_give_one_clear_error_or_a_network(tmp_path: Path) -> None:
    text = json.dumps(network_to_dict(A.vanilla(2, kc.activation(MINE, name="mine"))))
    rng = random.Random(7)
    alphabet = '{}[]":,0123456789.eE-xnulltruefalse \\'
    for _ in range(200):
        chars = list(text)
        for _ in range(rng.randint(1, 4)):
            position = rng.randrange(len(chars))
            chars[position : position + rng.randint(0, 3)] = rng.choice(alphabet)
        mutated = "".join(chars[: rng.randint(1, len(chars))] if rng.random() < 0.2 else chars)
        (tmp_path / "m.json").write_text(mutated)
        try:
            assert len(kc.load_json(tmp_path / "m.json")) > 1
        except kc.KcalcError as error:
            assert str(error)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    net = A.vanilla(1).relabelled(lambda n: (n, 1))
    with refused("relabel"):
        kc.save_json(net, tmp_path / "net.json")
    with refused("folder.*exist"):
        kc.save_json(A.vanilla(1), tmp_path / "missing" / "net.json")
    assert list(tmp_path.iterdir()) == []


def test_a_registered_name_belongs_to_its_function() -> None:
    """Another function under the name is refused, by reader and writer.

    The same one, written otherwise, is not.
    """

    def read(expr: sp.Expr, name: str) -> str:
        network = network_from_dict(document(to_tree(expr), name=name, kinks=[]))
        return network.layer("p").activation.name  # type: ignore[attr-defined]

    for name in ("tanh", "Tanh", "silu"):
        with refused(rf"node 'p', activation: '{name}' is the name of .*rename the activation"):
            read(sp.sin(x), name)
    assert read((sp.exp(x) - sp.exp(-x)) / (sp.exp(x) + sp.exp(-x)), "tanh") == "tanh"
    assert read(sp.sin(x), "mine") == "mine" and read(sp.tanh(x), "tanh") == "tanh"
    with refused("rename the activation"):
        network_to_dict(kc.chain(L.Input(), L.Nonlinear(kc.activation(sp.sin(x), name="tanh"))))


def test_standard_output(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    net = A.vanilla(1)
    kc.save_json(net, "-")
    assert network_from_dict(json.loads(capsys.readouterr().out)) == net
    monkeypatch.setattr("sys.stdout", None)
    kc.save_json(net, "-")


def test_text_of_networks_is_utf8(tmp_path: Path) -> None:
    file = tmp_path / "net.json"
    kc.save_json(A.vanilla(1).relabelled({"input": "Größe 🙂"}), file)
    assert "\\ud83d" in file.read_text()
    assert kc.load_json(file).inputs == ("Größe 🙂",)
    file.write_text(file.read_text().replace("\\ude42", ""))
    with refused(r"'Größe.*\\ud83d'.*'\\ud83d'"):
        kc.load_json(file)


def test_a_key_given_twice_is_refused() -> None:
    with refused("the key 'name' twice"):
        parse_json('{"a": {"name": 1, "name": 2}}', "text")
