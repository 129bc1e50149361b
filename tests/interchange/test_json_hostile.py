"""Documents that are small and would grow without bound, and files without an end."""

from __future__ import annotations

import os
import time

import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.cli.targets import given_tokens
from kcalc.fields.degrees import poly
from kcalc.interchange import network_from_dict
from kcalc.interchange.fusion import recognised
from kcalc.lab.audit import lock

x = sp.Symbol("x", real=True)
X = {"symbol": "x"}


def op(name, *args):
    return {"op": name, "args": list(args)}


def powers(tree, levels, between=lambda tree: tree):
    for _ in range(levels):
        tree = between(op("Pow", tree, 64))
    return tree


def document(tree, **activation):
    layer = {"type": "Nonlinear", "activation": {"name": "mine", "expr": tree} | activation}
    nodes = [
        {"id": "x", "layer": {"type": "Input", "features": 8}},
        {"id": "a", "layer": {"type": "Affine", "features": 8}, "reads": ["x"]},
        {"id": "p", "reads": ["a"], "layer": layer},
    ]
    return {"schema": "kcalc.network/1", "nodes": nodes}


SUM = op("Add", X, 1)
WAVES = op("Add", op("sin", X), op("Mul", 2, op("cos", X)))
TOWERS = {
    "powers": powers(X, 9),
    "two levels": powers(X, 2),
    "of a sum": powers(SUM, 9),
    "waves": powers(WAVES, 9, lambda tree: op("Add", tree, {"rational": [1, 3]})),
    "inside a function": op("sin", powers(SUM, 4)),
}


@pytest.mark.parametrize("name", TOWERS)
def test_the_degree_of_a_document_is_bounded_before_anything_is_expanded(name):
    start = time.process_time()
    with refused(r"'p'.*degree|degree|'p'.*many terms"):
        network_from_dict(document(TOWERS[name]))
    assert time.process_time() - start < 1


def test_a_maximum_of_many_is_refused_before_its_arguments_are_compared():
    many = op("Max", *[op("Add", op("Mul", k, X), k * k) for k in range(200)])
    with refused("'p'.*Max"):
        network_from_dict(document(many))


@pytest.mark.parametrize(
    "expr",
    [
        x**3000000,
        sp.Max(x, 0) ** 3000000,
        ((x + 1) ** 64 + 1) ** 64,
        sp.exp(-((x + 1) ** 10**9)),
    ],
)
def test_activations_have_a_bounded_degree(expr):
    start = time.process_time()
    argument = kc.activation("tanh").expr.free_symbols.pop()
    for read in (kc.activation, lambda expr: recognised(expr.subs(x, argument))):
        with refused("degree.*smaller exponent"):
            read(expr)
    assert time.process_time() - start < 1


def test_many_terms_are_not_multiplied_out():
    """47905 terms, which took a minute; and a polynomial of 48 million terms before like ones."""
    start = time.process_time()
    kc.activation((sp.sin(x) + sp.exp(-x * x) + sp.tanh(x) + sp.cos(x)) ** 64 / 1000)
    terms = sum(x**k / sp.Integer(10) ** k for k in range(11))
    assert poly(terms**19, x).degree() == 190
    assert poly(terms**2, x) == sp.Poly(sp.expand(terms**2), x)
    assert time.process_time() - start < 3


def test_exponentials_of_exponentials_end():
    """exp(exp(exp(x))) at x = 1000, which has more digits than there is memory."""
    with refused("grows|finite"):
        kc.activation(sp.exp(sp.exp(sp.exp(x))))


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device")
@pytest.mark.parametrize("read", [kc.load_json, lock._read])
def test_files_without_an_end_are_not_read_to_it(read):
    with refused("/dev/zero.*larger than 64 MiB"):
        read("/dev/zero")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device")
def test_tokens_of_the_command_line_are_not_read_without_end(tmp_path):
    with pytest.raises(Exception, match="larger than 64 MiB"):
        given_tokens("/dev/zero")
    path = tmp_path / "tokens.csv"
    path.write_text("1,0.5\n0.5,1\n")
    assert given_tokens(str(path)).tolist() == [[1, 0.5], [0.5, 1]]
