"""``kcalc ntk NET``: the NNGP kernel, the tangent kernel by layer, and the gradients."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from .. import Gradients, gradients, ntk
from .. import layers as L
from ..calculi import PARAMETERIZATIONS, TangentKernel
from ..foundation.errors import KcalcError
from .command import Option, Plot, save_figure
from .maps import COSINES
from .networks import FirstMethod, Named, Tokens, Weighted
from .targets import shape_by_name
from .text import (
    Json,
    assumption_lines,
    by_output,
    check_files,
    document,
    heading,
    mode_lines,
    show,
    table,
)

ROUNDING = 2.0**-48  # smaller values, relative to layers times output variance, are printed as 0


def run(
    named: Weighted,
    tokens: Tokens,
    plot: Plot = None,
    q: Annotated[float, Option("q value (mean square) of the network's input; default 1")] = 1.0,
    method: FirstMethod = None,
    parameterization: Annotated[str, Option("default ntk", choices=PARAMETERIZATIONS)] = "ntk",
    features: Annotated[
        int | None,
        Option("width of layers that do not specify one (standard parameterisation)", metavar="N"),
    ] = None,
    layers: Annotated[
        bool, Option("also print the contribution and the gradient of every Affine layer")
    ] = False,
    json: Json = None,
) -> None:
    """Print the infinite-width kernels of a network as functions of the c value of its inputs.

    The output also contains the size of the gradients at initialisation.

    Examples:
      kcalc ntk vanilla-100 --activation relu --sigma-w 1.41421356
      kcalc ntk vanilla-100 --activation tanh --method dks --layers

    """
    if q <= 0:
        raise KcalcError(f"--q is a mean square and must be > 0, got {q}")
    network = named.network
    if method is not None:
        network = shape_by_name(network, method=method).network
    check_files({"--json": json})
    kernel = ntk(network, parameterization, features, **tokens)
    text = kernel_text(named, kernel, q, layers, **tokens)
    if plot:
        save_figure(kernel.plot(q=q), plot)
    show(text, lambda: kernel_numbers(named, kernel, q, **tokens), json)


def kernel_numbers(named: Named, kernel: TangentKernel, q: float, **tokens: Any) -> dict[str, Any]:
    """Convert the kernels to plain data, with gradients and the contributions of Affine layers."""
    network = kernel.network
    tangent, covariance = (by_output(network, f(COSINES, q)) for f in (kernel, kernel.nngp))
    outputs = {node: {"nngp": covariance[node], "ntk": tangent[node]} for node in tangent}
    found: dict[str, Any] = {}
    if len(outputs) == 1:
        parts = kernel.by_layer([0.0, 1.0], q)
        found["layers"] = {node: {"ntk": part, "c": [0.0, 1.0]} for node, part in parts.items()}
        found["gradients"] = gradients(network, q, **tokens)
    return document(named, kernel, q=q, c=COSINES, outputs=outputs, **found)


def kernel_text(named: Named, kernel: TangentKernel, q: float, layers: bool, **tokens: Any) -> str:
    """Format the kernels as aligned text."""
    lines = heading(named.title, kernel.network, kernel)
    tangent: Any = kernel(COSINES, q)  # {output: array} if there are several outputs
    covariance: Any = kernel.nngp(COSINES, q)
    for node in kernel.network.outputs:
        theta, k = (v[node] if isinstance(v, dict) else v for v in (tangent, covariance))
        if len(kernel.network.outputs) > 1:
            lines.append(f"output {node}")
        noise = ROUNDING * len(kernel.network.nodes_of(L.Affine)) * k[-1]
        k, theta = (np.where(np.abs(values) <= noise, 0.0, values) for values in (k, theta))
        rows = [
            (f"{c:g}", f"{a:.10g}", f"{b:.10g}", _fixed(b / theta[-1]))
            for c, a, b in zip(COSINES, k, theta, strict=True)
        ]
        lines += [*table([("c", "NNGP", "NTK", "NTK / NTK(1)"), *rows], indent=2), ""]
    if len(kernel.network.outputs) == 1:
        lines += _gradient_lines(kernel, gradients(kernel.network, q, **tokens), q, layers)
    return "\n".join([*lines, *assumption_lines(kernel.assumptions)])


def _fixed(value: float) -> str:
    """Format a number with six decimals, without a sign on zeros."""
    return f"{round(value, 6) + 0.0:.6f}"


def _gradient_lines(kernel: TangentKernel, found: Gradients, q: float, layers: bool) -> list[str]:
    lines = [
        f"gradients: the largest E|d out/d layer|^2 is {found.growth:.6g} times the smallest",
        "",
    ]
    if found.mean is not None:
        lines = mode_lines(kernel.network, found)
    if layers:
        parts = kernel.by_layer([0.0, 1.0], q)
        rows = [
            (str(node), f"{part[0]:.8g}", f"{part[1]:.8g}", f"{found.nodes[node]:.6g}")
            for node, part in parts.items()
        ]
        lines += [
            *table(
                [("layer", "NTK at c = 0", "NTK at c = 1", "|d out/d layer|^2"), *rows], indent=2
            ),
            "",
        ]
    return lines
