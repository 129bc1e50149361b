"""Networks on arrays for the fuzz of the pipeline.

In plain NumPy, with the functions of exported code, and by kcalc itself in JAX.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import array_oracle
import networkx as nx
import numpy as np
from exported import content_of, load, run_onnx

import kcalc as kc

L = kc.layers
Array = np.ndarray
ROWS = 3
INSTALLED = {
    "torch": importlib.util.find_spec("torch") is not None,
    "onnx": all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")),
}


def by_output(net: kc.Network, value: Any) -> dict[Any, Any]:
    """The result of a map as {output: value}, however many outputs there are."""
    return value if isinstance(value, dict) else {net.outputs[0]: value}


def part_of(net: kc.Network, node: Any) -> kc.Network:
    """What a node is computed from."""
    return kc.Network(net.graph.subgraph(nx.ancestors(net.graph, node) | {node}))


def data_with(net: kc.Network, c: float, q1: float, q2: float) -> Array:
    """Two data points of channel mean 0 with mean squares q1, q2 and cosine c."""
    width = net.features[net.inputs[0]] or 4
    first, second = np.zeros((2, width))
    first[:4], second[:4] = (1, -1, 1, -1), (1, 1, -1, -1)
    first, second = (v * np.sqrt(width / 4) for v in (first, second))
    return np.stack([np.sqrt(q1) * first, np.sqrt(q2) * (c * first + np.sqrt(1 - c * c) * second)])


def inputs_of(net: kc.Network, seed: int) -> dict[Any, Array]:
    """Rows for every input."""
    rng = np.random.default_rng(seed)
    return {node: rng.standard_normal((ROWS, net.features[node] or 4)) for node in net.inputs}


def widths_of(net: kc.Network) -> dict[Any, int]:
    """Channels by node, of feature maps without locations."""
    widths: dict[Any, int] = {}
    for node, layer, parents in net.steps():
        below = [widths[parent] for parent in parents]
        own = (
            layer.features
            if isinstance(layer, L.Input | L.Affine)
            else sum(below)
            if isinstance(layer, L.Concat)
            else below[0]
        )
        widths[node] = own or 4
    return widths


def weights_of(net: kc.Network, seed: int) -> dict[Any, dict[str, Array]]:
    """Gaussian weights (in / groups, out) and biases of every Affine, as kc.to_jax keeps them."""
    rng, widths, out = np.random.default_rng([seed, 1]), widths_of(net), {}
    for node, layer, parents in net.steps():
        if isinstance(layer, L.Affine):
            size = widths[parents[0]] // layer.groups
            out[node] = {"weight": rng.standard_normal((size, widths[node])) / np.sqrt(size)}
            if layer.bias:
                out[node]["bias"] = 0.1 * rng.standard_normal(widths[node])
    return out


def forward(
    net: kc.Network, x: Mapping[Any, Array], params: Mapping[Any, Mapping[str, Array]]
) -> dict[Any, Array]:
    """Every feature map, in plain NumPy."""
    with np.errstate(all="ignore"):
        return array_oracle.run(net, dict(x), params)


def size(values: Mapping[Any, Array], net: kc.Network, node: Any) -> float:
    """What an error at a node is measured against.

    The largest number there and at what it reads, times what an activation adds up.
    """
    largest = max(float(np.abs(values[n]).max()) for n in (node, *net.parents(node)))
    layer = net.layer(node)
    t = layer.activation.transformation if isinstance(layer, L.Nonlinear) else None
    return max(
        1.0,
        largest,
        0.0 if t is None else abs(float(t.output_scale)) * (1 + abs(float(t.output_shift))),
    )


def targets(seed: int) -> tuple[str, ...]:
    """What a network is exported to: NumPy always, the others in turn."""
    other = {0: "torch", 1: "onnx", 4: "jax", 6: "torch", 7: "onnx"}.get(seed // 4 % 10)
    return ("numpy",) if other is None or not INSTALLED.get(other, True) else ("numpy", other)


def run_exported(
    shaped: Any, target: str, x: Mapping[Any, Array], params: Mapping[Any, Mapping[str, Array]]
) -> dict[Any, Array]:
    """Every feature map with the activations and sums of exported code."""
    net = shaped.network
    activations, sums = (
        _onnx_functions(shaped) if target == "onnx" else _code_functions(shaped, target)
    )
    values: dict[Any, Array] = {}
    for node, layer, parents in net.steps():
        below = [values[p] for p in parents]
        if isinstance(layer, L.Input):
            values[node] = x[node]
        elif isinstance(layer, L.Nonlinear):
            values[node] = activations[node](*below)
        elif isinstance(layer, L.Sum):
            values[node] = sums[node](*below)
        else:
            values[node] = one_layer(layer, below, params.get(node, {}))
    return values


def one_layer(layer: Any, below: list[Array], params: Mapping[str, Array]) -> Array:
    """A layer that exports leave to the framework."""
    steps: list[Any] = [(i, L.Input(), ()) for i in range(len(below))] + [
        ("y", layer, tuple(range(len(below))))
    ]
    return array_oracle.run(kc.Network.from_steps(steps), dict(enumerate(below)), {"y": params})[
        "y"
    ]


Functions = Mapping[Any, Callable[..., Array]]


def _code_functions(shaped: Any, target: str) -> tuple[Functions, Functions]:
    names = load(shaped.export(target))
    into, back = _arrays(target)

    def wrapped(function: Any) -> Callable[..., Array]:
        def call(*values: Array) -> Array:
            with np.errstate(all="ignore"):
                return back(function, *map(into, values))

        return call

    return tuple(
        {node: wrapped(f) for node, f in names.get(table, {}).items()}
        for table in ("ACTIVATIONS", "SUMS")
    )  # type: ignore[return-value]


def _arrays(target: str) -> tuple[Any, Any]:
    if target == "torch":
        import torch

        return torch.tensor, lambda function, *values: function(*values).numpy()
    if target == "jax":
        import jax

        def wide(function: Any, *values: Array) -> Array:
            with jax.enable_x64(True):
                return np.asarray(function(*map(jax.numpy.asarray, values)))

        return np.asarray, wide
    return np.asarray, lambda function, *values: function(*values)


def _onnx_functions(shaped: Any) -> tuple[Functions, Functions]:
    from kcalc.interchange.writers.onnx_writer import onnx_model

    content = content_of(shaped, "0")
    model = onnx_model(content)
    known = {function.name for function in model.functions}

    def call(name: str) -> Callable[..., Array]:
        wide = f"{name}_float64"
        return lambda *values: run_onnx(model, wide if wide in known else name, *values)

    activations = {node: call(item.name) for item in content.activations for node in item.nodes}
    return activations, {node: call(item.name) for item in content.sums for node in item.nodes}


def run_jax(
    shaped: Any, x: Mapping[Any, Array], params: Mapping[Any, Mapping[str, Array]]
) -> dict[Any, Array]:
    """Every feature map by kcalc's own lowering, in double precision, with the same weights."""
    model = kc.to_jax(shaped, dtype="float64")
    given: Any = x if len(x) > 1 else next(iter(x.values()))
    drawn = model.init(0, given)
    assert {node: {k: v.shape for k, v in leaf.items()} for node, leaf in drawn.items()} == {
        str(node): {k: v.shape for k, v in leaf.items()} for node, leaf in params.items()
    }
    with model.precision():
        return {
            node: np.asarray(value)
            for node, value in model.trace(
                {str(n): dict(p) for n, p in params.items()}, given
            ).items()
        }
