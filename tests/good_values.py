"""Good values of parameters: by their declared type, and by their name where that says more.

kcalc has one name for one quantity, so that a table by names is short.
"""

from __future__ import annotations

import ast
import copy
import inspect
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from result_examples import (
    batch,
    block,
    block_of_relu,
    data,
    model,
    ntk,
    perceptron,
    relu,
    residual,
    shaped,
    torch_edits,
    torch_model,
    torch_shaped,
    torch_sorted,
    vanilla,
)

import kcalc as kc
from kcalc.lab.training import Settings, Split

L = kc.layers
A = kc.architectures
Pool = Sequence[Callable[[], Any]]


# -- values that are made once ---------------------------------------------------------------------


@cache
def path_to(name: str) -> str:
    """A place for a file in a folder of its own."""
    return str(Path(tempfile.mkdtemp()) / name)


def x(rows: int = 3) -> np.ndarray:
    return data()[0][:rows]


def y() -> np.ndarray:
    return data()[1][:3]


def spatial() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, 32, 32, 1))


def save_weights(path: str) -> None:
    import torch

    torch.save(torch_shaped().state_dict(), path)


WRITERS: dict[str, Callable[[str], Any]] = {
    "network.json": lambda path: kc.save_json(vanilla(), path),
    "edits.json": lambda path: torch_edits().save(path),
    "weights.pt": save_weights,
    "baseline.lock": lambda path: kc.audit(torch_model, (2, 8)).lock(path),
}


@cache
def saved(name: str) -> str:
    """A file that was written."""
    WRITERS[name](path_to(name))
    return path_to(name)


@cache
def split() -> Split:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    return Split("noise", x, np.arange(20) % 2, np.arange(16), np.arange(16, 20), 2)


@cache
def classifier() -> kc.Model:
    return kc.to_jax(kc.chain(L.Input(), L.Affine(2)))


@cache
def learnable() -> Any:
    return kc.learnable_kernel(A.vanilla(2)).init()


def plain_parameters() -> dict[Any, Any]:
    nodes = shaped().network.nodes_of(L.Affine)
    return {node: (np.ones((2, 2)), np.zeros(2)) for node in nodes}


def batch_norms() -> kc.Network:
    return kc.chain(L.Input(8), L.Affine(8), L.BatchNorm(), L.Nonlinear("relu"), L.Affine(8))


def stack(placement: str = "pre") -> kc.Network:
    return A.transformer_stack(2, 8, 2, placement=placement)


def quick() -> Settings:
    return Settings(steps=2, batch_size=4, evaluate_every=2)


def given(*values: Any) -> Pool:
    return [lambda value=value: value for value in values]


# -- the tables ------------------------------------------------------------------------------------

# Of a type that says what it is. Several values where functions ask for more than the type: the
# first with which a call works is the good one.
TYPES: dict[str, Pool] = {
    "Network": [
        vanilla,
        relu,
        residual,
        block,
        block_of_relu,
        batch_norms,
        lambda: A.vanilla(1, "tanh", features=4),
        lambda: A.wide_resnet(10),
        lambda: A.vanilla(2),
        lambda: stack("post"),
        lambda: A.gpt2(1, 8, 2, 20, 4, causal=False),
    ],
    "nx.DiGraph": [lambda: vanilla().graph],
    "Iterable[Step]": [lambda: list(vanilla().steps())],
    "Piece": [L.Affine],
    "L.Layer": [L.Affine],
    "Shaping": [shaped],
    "Edits": [torch_edits],
    "Activation": [lambda: kc.activation("tanh"), lambda: kc.activation("erf")],
    "Iterable[tuple[Any, Activation, Any]]": [
        lambda: [(1, kc.activation("tanh"), 1), (1, kc.activation("erf"), 1)]
    ],
    "Model": [lambda: model()[0], classifier],
    "Params": [
        lambda: model()[1],
        lambda: classifier().init(0, split().x[:1]),
        learnable,
    ],
    "Split": [split],
    "Settings": [quick],
    "Mapping[str, Any]": [lambda: {"a": kc.chain(L.Input(), L.Affine())}],
    "Sequence[Split]": [lambda: [split()]],
    "Claim": [lambda: kc.claims.get("DKS-dist")],
    "Sampling": [kc.Sampling],
    "Function": [lambda: lambda psi: psi],
    "Node": given("affine_1"),
    "Iterable[Node]": given([], ["1"]),
    "Mapping[Node, Any]": [plain_parameters],
    "Mapping[Node, Node]": given({"affine_1": "first"}),
    "Mapping[Node, Mapping[str, Array]]": [lambda: model()[0].unstack(model()[1])],
    "Mapping[str, tuple[Any, Any]]": given({"hidden": (0, 0.5)}),
    "Mapping[Any, Any]": given({}, {"c": 0.5}),
    "Iterable[Note]": given([]),
    "Callable[[Node, Any], L.Layer]": [lambda: lambda _, layer: layer],
    "Iterable[float]": given([0.2, 0.1], [0.2, 0.4]),
    "Sequence[float]": given((0.1, 0.2, 0.4)),
    "Sequence[int]": given([0, 1, 2], [3]),
    "type": given(L.BatchNorm),
}
# Of a type that says little.
LOOSE: dict[str, Pool] = {
    "int": given(2, 8, 50),
    "float": given(0.5, 1.5),
    "Number": given(0.5, 2),
    "Values": given(1.05),
    "object": given(0.5),
    "bool": given(True, False),
}
PATHS = [
    *(partial(path_to, name) for name in ("saved.json", "init.lock", "table.csv")),
    *(partial(saved, name) for name in ("network.json", "baseline.lock", "edits.json")),
]
NETWORKS = TYPES["Network"]
ARRAYS = [x, spatial, lambda: np.eye(3)]
NUMBERS = given(0.5, 1.05, 1.5)
# Of a name, for types that say little.
NAMES: dict[str, Pool] = {
    # activations, networks and models
    **dict.fromkeys(("activation", "f", "g", "spec"), given("tanh")),
    "other": [lambda: kc.activation("erf"), shaped],
    "networks": NETWORKS,
    "kernel": [ntk, lambda: ntk().nngp],
    "builder_or_model": [lambda: torch_model],
    "net_or_model": [lambda: A.vanilla(1)],
    "model": [
        torch_model,
        vanilla,
        lambda: copy.deepcopy(torch_shaped()),  # for it may be edited in place
        torch_sorted,
        lambda: perceptron(8),
    ],
    "build": [lambda: perceptron],
    "params": TYPES["Params"],
    # numbers and arrays
    "x": [
        *(x, lambda: model()[2], lambda: batch()[0], lambda: split().x, lambda: spatial()[0]),
        *NUMBERS,
    ],
    "X": ARRAYS,
    "x1": [x],
    "y": [y, lambda: batch()[1], lambda: split().y, lambda: spatial()[1]],
    "y_test": [lambda: y()[:2]],
    "cross": [lambda: np.ones((2, 12))],
    "theta": [lambda: 0.5, lambda: np.eye(3)],
    **dict.fromkeys(("b", "c", "q", "gap", "rho", "t", "noise", "negative_slope"), given(0.5)),
    **dict.fromkeys(("kappa", "lr", "ridge"), given(0.1)),
    "psi": NUMBERS,
    "target": [*given(1.5, 0.5, 0.8, "numpy", "json"), lambda: np.eye(2)],
    "level": given(0.6),
    **dict.fromkeys(("low", "sigma_w", "variance"), given(1.0)),
    "high": given(2.0),
    "least": given(0.0),
    "matrix": [lambda: [[1.0]], lambda: np.eye(2)],
    **dict.fromkeys(("value", "source", "logits", "h_res"), (lambda: np.eye(2),)),
    "mixing": [lambda: np.eye(3)],
    **dict.fromkeys(("h_pre", "h_post"), given([1.0, 0.5])),
    **dict.fromkeys(("streams", "top_k"), given(2)),
    **dict.fromkeys(("num_experts", "tokens"), given(4)),
    **dict.fromkeys(("a", "k", "factor"), given(2)),
    "n": given(3),
    **dict.fromkeys(("inputs", "outputs", "width"), given(2, 8)),
    "depth": given(3, 50),
    **dict.fromkeys(("block", "key", "index"), given(0, 1, "tanh")),
    # examples
    "train": [lambda: split().train],
    "test": [lambda: split().test],
    # words
    "name": given("n", "affine_1", "0.weight", "DKS-suo"),
    "title": given("My paper"),
    "node": given("1"),
    "label": given("relu"),
    "reason": given("b"),
    "gain": given("values"),
    "kind": given("max"),
    "what": given("it"),
    "id": given("DKS-dist"),
    "module": given("output"),
    "quantity": given("learning_rate"),
    # files
    **dict.fromkeys(("path", "baseline"), PATHS),
}
# Of parameters with a default, so that a call is quick.
QUICK: dict[str, Any] = {
    **dict.fromkeys(("draws", "batch", "steps", "seeds"), 2),
    **dict.fromkeys(("gradients", "tangent", "progress"), False),
    "widths": (4, 8),
    "folds": 5,
    "processes": 1,
    "rates": (0.01,),
    "ids": ["DKS-dist"],
    "learning_rate": 0.01,
}
# Of parameters with a default that some calls need all the same.
NEEDED: dict[str, Any] = {
    "features": 8,
    "width": 4,
    "radius": 1.0,
    "example_inputs": (2, 8),
    "slope": 0.7,
    "zeta": 1.5,
    "tokens": 4,
    "shortcut_weight": 0.8,
}
# What functions take by ``**`` and hand on: the parameters of others, or these.
FORWARDED: dict[str, Callable[[], Callable[..., Any]]] = {
    "shape": lambda: kc.shaping.METHODS["dks"],
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "token_gain": {"slope": 0.7},
    "token_phases": dict.fromkeys(("values", "scores"), np.array([0.5, 1.0])),
    "CMap.plot": {"labels": "m", "points": 21, "looks": None},
    "QMap.plot": {"labels": "m", "low": 0.5, "high": 2.0, "points": 21},
    "Network.draw": dict.fromkeys(("regions", "collapse", "columns"))
    | {"labels": True, "max_nodes": 40, "legend": True},
}


# -- from a parameter to its values ----------------------------------------------------------------


def handed_on(label: str, own: Any) -> dict[str, Any]:
    """Good keywords of a function that takes more than its own parameters."""
    found = dict(KEYWORDS.get(label, {}))
    if label in FORWARDED:
        parameters = inspect.signature(FORWARDED[label]()).parameters.values()
        found |= {p.name: p.default for p in parameters if p.default is not p.empty}
    return {name: value for name, value in found.items() if name not in own}


def small(optional: dict[str, inspect.Parameter]) -> dict[str, Any]:
    """Of the parameters with a default those that make a call quick."""
    settings = [n for n, p in optional.items() if "Settings" in alternatives(p.annotation)]
    return {n: v for n, v in QUICK.items() if n in optional} | dict.fromkeys(settings, quick)


def alternatives(annotation: Any) -> list[str]:
    """The members of a declared union, as they are written."""
    if annotation is inspect.Parameter.empty:
        return []
    if not isinstance(annotation, str):
        annotation = getattr(annotation, "__name__", str(annotation))
    node, parts = ast.parse(annotation, mode="eval").body, []
    while isinstance(node, ast.BinOp):  # a | b | c is (a | b) | c
        node, part = node.left, node.right
        parts.append(part)
    return [ast.unparse(part) for part in (node, *reversed(parts))]


def literals(text: str) -> Pool:
    """The values of a ``Literal[...]``."""
    node = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.Subscript) or ast.unparse(node.value) != "Literal":
        return []
    elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return given(*(ast.literal_eval(one) for one in elements))


def pool(parameter: inspect.Parameter) -> list[Callable[[], Any]]:
    """The good values of a parameter: of what its type says, else of its name and loose type."""
    kinds = alternatives(parameter.annotation)
    told = [make for kind in kinds for make in (*TYPES.get(kind, ()), *literals(kind))]
    if told:
        return told
    loose = [make for kind in kinds for make in LOOSE.get(kind, ())]
    return [*NAMES.get(parameter.name, ()), *loose]
