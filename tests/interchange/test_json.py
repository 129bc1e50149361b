"""Networks as JSON: identity round trips, hostile documents, whole files or none."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.interchange import network_from_dict, network_to_dict
from kcalc.interchange.expressions import to_tree
from kcalc.interchange.json_format import parse_json

L, A = kc.layers, kc.architectures
x = sp.Symbol("x", real=True)
w = sp.Symbol("w", positive=True)

NETWORKS = {
    "resnet": A.resnet_v2(50, shortcut_weight=0.8),
    "symbolic": A.resnet_v2(50, residual_weight=w),
    "layernorm": A.layernorm_resnet(50),
    "densenet": A.densenet(3),
    "expression": A.vanilla(
        2,
        kc.activation(
            sp.Piecewise((x, x > 1), (sp.tanh(x) + sp.Rational(1, 3), True)), name="mine"
        ),
    ),
    "kinked": kc.shape(A.vanilla(4), "relu").network,
    "prefix": wired(
        ("x", L.Input(8)),
        *((name, L.Affine(8), "x") for name in "qkv"),
        ("a", L.Attend(2, 4, prefix=3), "q k v"),
    ),
}


def small() -> dict:
    return network_to_dict(A.vanilla(2, "tanh"))


def hostile(change) -> dict:
    data = small()
    change(data)
    return data


def deep_tree(depth: int) -> dict:
    tree: object = {"symbol": "x"}
    for _ in range(depth):
        tree = {"op": "sin", "args": [tree]}
    return {"type": "Nonlinear", "activation": {"name": "deep", "expr": tree}}


def nonlinear(tree: object) -> dict:
    return {"type": "Nonlinear", "activation": {"name": "f", "expr": tree}}


BAD = {
    "extra field": (lambda d: d.update(evil=1), "unknown field"),
    "double id": (lambda d: d["nodes"][1].update(id="input"), "defined twice"),
    "unknown activation": (
        lambda d: d["nodes"][2]["layer"].update(activation={"name": "tahn"}),
        "tanh",
    ),
    "two symbols": (
        lambda d: d["nodes"][2].update(
            layer=nonlinear({"op": "Mul", "args": [{"symbol": "x"}, {"symbol": "y"}]})
        ),
        "symbolic constants",
    ),
    "huge power": (
        lambda d: d["nodes"][2].update(layer=nonlinear({"op": "Pow", "args": [10, 10**9]})),
        "exponent",
    ),
    "huge integer": (lambda d: d["nodes"][2].update(layer=nonlinear(10**50)), "too large"),
    "deep": (lambda d: d["nodes"][2].update(layer=deep_tree(500)), "too large"),
    "tower": (
        lambda d: d["nodes"][1]["layer"].update(
            sigma_w={"op": "exp", "args": [{"op": "exp", "args": [1000]}]}
        ),
        "too large",
    ),
    "unhashable relation": (
        lambda d: d["nodes"][2].update(
            layer=nonlinear(
                {
                    "op": "Piecewise",
                    "rows": [
                        {"value": 1, "if": {"rel": {}, "args": [1, 2]}},
                        {"value": 0, "if": True},
                    ],
                }
            )
        ),
        "condition",
    ),
    "zero denominator": (
        lambda d: d["nodes"][1]["layer"].update(sigma_w={"rational": ["1", "0"]}),
        "denominator",
    ),
    "infinite": (
        lambda d: d["nodes"][1]["layer"].update(sigma_w={"op": "Pow", "args": [0, -1]}),
        "power of 0",
    ),
    "missing activation": (lambda d: d["nodes"][2]["layer"].pop("activation"), "needs activation"),
    "wrong arity": (lambda d: d["nodes"][1].update(reads=[]), "0 inputs"),
    "half a character as name": (
        lambda d: d["nodes"][2].update(
            layer={"type": "Nonlinear", "activation": {"name": "f\udfff", "expr": {"symbol": "x"}}}
        ),
        r"the name 'f\\udfff' contains '\\udfff'.* leave it out",
    ),
    "half a character as reason": (
        lambda d: d["nodes"][2].update(layer={"type": "Opaque", "name": "f", "reason": "\ud800"}),
        "Opaque: reason .* leave it out",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_hostile_documents_are_refused(name: str) -> None:
    change, message = BAD[name]
    with refused(message):
        network_from_dict(hostile(change))


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
            r"net\.json contains an integer of more than 4300 digits, which no network needs; "
            r"correct it$",
        ),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "net.json"
    file.write_bytes(content)
    with refused(message):
        kc.load_json(file)


def test_truncated_and_mutated_files_give_one_clear_error_or_a_network(tmp_path: Path) -> None:
    text = json.dumps(network_to_dict(NETWORKS["expression"]))
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

    def document(expr: sp.Expr, name: str) -> dict:
        layer = {
            "type": "Nonlinear",
            "activation": {"name": name, "expr": to_tree(expr), "kinks": []},
        }
        return {
            "schema": "kcalc.network/1",
            "nodes": [
                {"id": "x", "layer": {"type": "Input"}},
                {"id": "act", "layer": layer, "reads": ["x"]},
            ],
        }

    for name in ("tanh", "Tanh", "silu"):
        with refused(rf"node 'act', activation: '{name}' is the name of .*rename the activation"):
            network_from_dict(document(sp.sin(x), name))
    again = network_from_dict(document((sp.exp(x) - sp.exp(-x)) / (sp.exp(x) + sp.exp(-x)), "tanh"))
    assert again.layer("act").activation.name == "tanh"  # type: ignore[attr-defined]
    assert network_from_dict(document(sp.sin(x), "mine")).layer("act").activation.name == "mine"  # type: ignore[attr-defined]
    wrong = kc.chain(kc.layers.Input(), kc.layers.Nonlinear(kc.activation(sp.sin(x), name="tanh")))
    with refused("rename the activation"):
        network_to_dict(wrong)


def test_text_of_networks_is_utf8(tmp_path: Path) -> None:
    file = tmp_path / "net.json"
    kc.save_json(A.vanilla(1).relabelled({"input": "Größe 🙂"}), file)
    assert "\\ud83d" in file.read_text()
    assert kc.load_json(file).inputs == ("Größe 🙂",)
    file.write_text(file.read_text().replace("\\ude42", ""))
    with refused(r"'Größe.*\\ud83d'.*'\\ud83d'"):
        kc.load_json(file)
    with refused("the activation's name"):
        kc.activation("tanh", name="\udc00")


def test_a_key_given_twice_is_refused() -> None:
    with refused("the key 'name' twice"):
        parse_json('{"a": {"name": 1, "name": 2}}', "text")
