"""Turn the operations of a jaxpr into a trace.

These functions join biases to their weights, recognise normalisation, and drop operations that are
not needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ..internal_errors import internal_error
from ..rewriting.biases import bias_added
from ..rewriting.norms import Norms
from ..trace import NotRead, Op, Pointwise, needed, spoken
from .jaxpr_values import DroppedOut, Padded, Recipe, View, WindowSum
from .reader import JaxReader
from .softmax import with_softmax

LEFT = {
    Padded: (
        "padding",
        "no convolution or pooling follows that could absorb the padding",
    ),
    WindowSum: (
        "sums over padded windows",
        "they are divided by neither the window size nor the number of entries in each window",
    ),
    DroppedOut: ("random mask", "unlike dropout, it does not rescale the entries that it keeps"),
}


def finished(
    reader: JaxReader, outputs: tuple[str, ...]
) -> tuple[list[Op], tuple[str, ...], dict[str, Recipe], dict[str, str]]:
    """Return (needed operations, outputs, recipes, joined sums) of a jaxpr that was read.

    The recipes locate the weights of every Linear in the parameters. The last result is {sum of a
    layer and its bias: layer}.
    """
    ops, recipes = dict(reader.ops), dict(reader.recipes)
    outputs, joined = _with_biases(ops, recipes, outputs, reader.views)
    ops = with_softmax(Norms(ops, outputs, reader.channel_axis).run().ops)
    for name, op in ops.items():
        told = LEFT.get(type(op))
        if told is not None:
            ops[name] = op.become(NotRead, what=told[0], reason=told[1])
        elif isinstance(op, Pointwise) and any(r in reader.random for r in op.reads):
            reads = tuple(r for r in op.reads if r not in reader.random)
            reason = "it combines a feature map with random numbers other than a dropout mask"
            ops[name] = op.become(NotRead, reads=reads, what="random numbers", reason=reason)
    found = needed(ops, outputs)
    return (
        [op for name, op in ops.items() if name in found],
        outputs,
        {name: recipe for name, recipe in recipes.items() if name in ops},
        joined,
    )


def _with_biases(
    ops: dict[str, Op], recipes: dict[str, Recipe], outputs: tuple[str, ...], views: dict[str, View]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Turn every ``Linear + array`` into one Linear if the array has one entry per output channel.

    Returns: (the outputs under their new names, {sum: layer}).
    """
    readers = Counter(r for op in ops.values() for r in op.reads) + Counter(outputs)
    gone: dict[str, str] = {}
    for name, op in list(ops.items()):
        op = ops[name] = replace(op, reads=tuple(gone.get(r, r) for r in op.reads))
        try:
            found = bias_added(ops, op) if isinstance(op, Pointwise) else None
        except Exception as error:
            reason = internal_error(error, f"the bias that {name!r} may add")
            ops[name] = op.become(NotRead, what=spoken(op), reason=reason)
            continue
        if found is None or readers[found[0].name] != 1:
            continue
        layer, held = found
        bias = np.broadcast_to(held.value.reshape(-1), (layer.shape[layer.out_axis],))
        own = {"bias_parameter": held.parameter, "bias_trained": held.trained}
        joined = replace(layer, bias=np.array(bias), **own)
        ops[layer.name] = joined
        view = views.get(held.name) if held.value.size == bias.size else None
        recipes[layer.name] = replace(recipes[layer.name], op=joined, bias=view)
        readers[layer.name] = readers[name]
        gone[name] = layer.name
        del ops[name]
    return tuple(gone.get(name, name) for name in outputs), gone


def labels_of(leaves: dict[str, Any]) -> dict[str, str]:
    """Return {parameter: name of its layer}.

    The name is the path of the module, or of the parameter if the module has several matrices.
    """
    prefix = {name: name.rsplit(".", 1)[0] if "." in name else name for name in leaves}
    matrices = Counter(
        prefix[name] for name, leaf in leaves.items() if sum(k != 1 for k in np.shape(leaf)) >= 2
    )
    out = {name: prefix[name] if matrices[prefix[name]] <= 1 else name for name in leaves}
    return {name: f"layer{label}" if label.isdigit() else label for name, label in out.items()}


def require_output(outputs: tuple[str, ...], framework: str) -> None:
    """Raise KcalcError if no output of the model depends on an input."""
    if not outputs:
        raise KcalcError(
            f"{framework}: the outputs of the model do not depend on its inputs, so there is "
            f"nothing to analyse"
        )
