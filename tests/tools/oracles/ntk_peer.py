"""Kernels of small networks by neural-tangents 0.6.5, in float64.

The networks are plain data, so that this file runs without kcalc.

Run it in an environment of its own, ``pip install neural-tangents==0.6.5 jax==0.4.30 jaxlib==0.4.30
numpy==1.26.4 scipy==1.13.1`` (it does not import on newer JAX): ``python
tests/tools/oracles/ntk_peer.py`` prints JSON; tests/tools/oracles/ntk.py calls it and freezes what it says.

A network is a list of steps [node, kind, options, parents]; the fold below passes neural-tangents'
Kernel objects from layer to layer, as its ``serial`` and ``parallel`` do. Left out: its
RectifiedMonomial(2) gives nan, its FanInConcat refuses an activation that follows.
"""

from __future__ import annotations

import json
import platform
from typing import Any

Step = tuple[str, str, dict[str, Any], tuple[str, ...]]
WIDTH = 3  # numbers per input
FIRST = [[0.9, -0.4, 1.3], [0.2, 0.5, -0.25], [2.0, 1.0, 0.5], [1.0, -1.0, 1.0]]
SECOND = [[0.7, 0.1, 0.9], [-0.3, 1.1, 0.6], [-1.5, 0.75, 0.25], [1.0, 1.0, -1.0]]
NEAR = [1e-2, 1e-4, 1e-6, 1e-8, 0.0]
"""Angles between near duplicates, where neural-tangents loses digits."""


def dense(width: int, w: float, b: float | None = None) -> dict[str, Any]:
    return {"features": width, "W_std": w, "b_std": b}


def body(phi: list[Any], layers: int, w: float, b: float | None, **more: Any) -> list[Step]:
    """Dense and activation in turn, Dense last."""
    steps: list[Step] = [("x", "input", {}, ())]
    for i in range(layers):
        steps += [
            (f"a{i}", "dense", dense(8, w, b) | more, (steps[-1][0],)),
            (f"p{i}", "phi", {"phi": phi}, (f"a{i}",)),
        ]
    return [*steps, ("out", "dense", dense(2, w, b) | more, (steps[-1][0],))]


def residual(phi: list[Any], blocks: int, weights: list[float], norm: bool = False) -> list[Step]:
    """Pre-activation blocks of two layers with identity shortcuts, LayerNorm in front of every
    activation if ``norm``.
    """
    steps: list[Step] = [("x", "input", {}, ()), ("stem", "dense", dense(8, 1.2, 0.1), ("x",))]
    for i in range(blocks):
        entry = tail = steps[-1][0]
        for k in range(2):
            if norm:
                steps.append((f"n{i}{k}", "layernorm", {}, (tail,)))
                tail = f"n{i}{k}"
            steps += [
                (f"p{i}{k}", "phi", {"phi": phi}, (tail,)),
                (f"a{i}{k}", "dense", dense(8, 1.1, 0.2), (f"p{i}{k}",)),
            ]
            tail = f"a{i}{k}"
        steps.append((f"s{i}", "sum", {"weights": weights}, (entry, tail)))
    return [
        *steps,
        ("pout", "phi", {"phi": phi}, (steps[-1][0],)),
        ("out", "dense", dense(1, 1.3, 0.3), ("pout",)),
    ]


def forked(join: str) -> list[Step]:
    """Two branches of different depth over a shared trunk, joined; another output on one branch.

    (neural-tangents refuses an activation
    right after a concatenation.)
    """
    return [
        ("x", "input", {}, ()),
        ("trunk", "dense", dense(8, 1.3, 0.2), ("x",)),
        ("pt", "phi", {"phi": ["relu"]}, ("trunk",)),
        ("left", "dense", dense(6, 1.1, None), ("pt",)),
        ("pl", "phi", {"phi": ["erf", 1.0, 1.0, 0.0]}, ("left",)),
        ("left2", "dense", dense(12 if join == "concat" else 8, 0.9, 0.4), ("pl",)),
        ("right", "dense", dense(4 if join == "concat" else 8, 1.4, 0.1), ("pt",)),
        ("join", join, {"weights": [1.0, 1.0]} if join == "sum" else {}, ("left2", "right")),
        *([("mid", "dense", dense(8, 1.0, 0.1), ("join",))] if join == "concat" else []),
        ("pj", "phi", {"phi": ["leaky_relu", 0.3]}, ("mid" if join == "concat" else "join",)),
        ("out", "dense", dense(1, 1.2, 0.2), ("pj",)),
        ("side", "dense", dense(1, 0.8, 0.5), ("right",)),
    ]


NETWORKS: dict[str, list[Step]] = {
    "linear": [("x", "input", {}, ()), ("out", "dense", dense(2, 1.3, 0.4), ("x",))],
    "relu": body(["relu"], 3, 1.4142135623730951, None),
    "relu with bias": body(["relu"], 5, 1.3, 0.3),
    "relu, bias of deviation 0": body(["relu"], 2, 1.5, 0.0),
    "leaky": body(["leaky_relu", 0.2], 4, 1.2, 0.1),
    "abrelu": body(["abrelu", -0.5, 1.5], 3, 0.9, 0.2),
    "abs": body(["abs"], 3, 1.0, 0.1),
    "erf": body(["erf", 1.0, 1.0, 0.0], 4, 1.5, 0.2),
    "erf transformed": body(["erf", 0.7, 1.3, 0.4], 3, 1.2, 0.1),
    "sin": body(["sin", 1.0, 1.0, 0.0], 3, 1.1, 0.3),
    "sin transformed": body(["sin", 0.8, 1.4, 0.5], 3, 0.9, None),
    "cos": body(["cos", 1.2, 0.7, 0.0], 3, 1.1, 0.2),
    "rbf": body(["rbf", 0.6], 2, 1.0, 0.1),
    "gelu": body(["gelu"], 3, 1.4, 0.2),
    "cube": body(["monomial", 3], 2, 0.6, 0.2),
    "exp": body(["exp", 0.7, 0.4], 2, 0.9, 0.1),
    "gaussian": body(["gaussian", 1.1, -0.5], 2, 1.3, 0.2),
    "resnet, relu": residual(["relu"], 3, [0.8, 0.6]),
    "resnet, erf, plain sums": residual(["erf", 1.0, 1.0, 0.0], 2, [1.0, 1.0]),
    "resnet, gelu": residual(["gelu"], 2, [0.6, -0.8]),
    "resnet, relu, LayerNorm": residual(["relu"], 2, [1.0, 1.0], norm=True),
    "shared trunk, sum": forked("sum"),
    "shared trunk, concat": forked("concat"),
    "standard, relu": body(["relu"], 3, 1.3, 0.2, parameterization="standard"),
    "standard, no bias": body(["erf", 1.0, 1.0, 0.0], 3, 1.5, None, parameterization="standard"),
    "standard, bias of deviation 0": body(["relu"], 2, 1.4, 0.0, parameterization="standard"),
    "standard, one layer": [
        ("x", "input", {}, ()),
        ("out", "dense", dense(2, 1.3, 0.4) | {"parameterization": "standard"}, ("x",)),
    ],
    "standard, s = 4": [
        ("x", "input", {}, ()),
        ("a0", "dense", dense(8, 1.3, 0.2) | {"parameterization": "standard", "s": (1, 4)}, ("x",)),
        ("p0", "phi", {"phi": ["relu"]}, ("a0",)),
        (
            "a1",
            "dense",
            dense(5, 1.1, 0.3) | {"parameterization": "standard", "s": (4, 4)},
            ("p0",),
        ),
        ("p1", "phi", {"phi": ["relu"]}, ("a1",)),
        (
            "out",
            "dense",
            dense(1, 0.9, 0.1) | {"parameterization": "standard", "s": (4, 1)},
            ("p1",),
        ),
    ],
    "standard, shared trunk": [
        (
            node,
            kind,
            options | ({"parameterization": "standard"} if kind == "dense" else {}),
            parents,
        )
        for node, kind, options, parents in forked("concat")
    ],
}


def outputs_of(steps: list[Step]) -> list[str]:
    """The nodes that nothing reads."""
    read = {p for *_, parents in steps for p in parents}
    return [node for node, *_ in steps if node not in read]


def layer_of(stax: Any, kind: str, options: dict[str, Any]) -> Any:
    """neural-tangents' kernel function of one layer."""
    if kind == "dense":
        more = {k: options[k] for k in ("parameterization", "s") if k in options}
        return stax.Dense(options["features"], options["W_std"], options["b_std"], **more)
    if kind == "phi":
        name, *numbers = options["phi"]
        makers = {
            "relu": stax.Relu,
            "leaky_relu": stax.LeakyRelu,
            "abrelu": stax.ABRelu,
            "abs": stax.Abs,
            "erf": stax.Erf,
            "sin": stax.Sin,
            "cos": stax.Cos,
            "rbf": stax.Rbf,
            "gelu": stax.Gelu,
            "monomial": stax.Monomial,
            "exp": stax.Exp,
            "gaussian": stax.Gaussian,
        }
        return makers[name](*numbers)
    return {
        "layernorm": lambda: stax.LayerNorm(eps=0.0),
        "sum": stax.FanInSum,
        "concat": stax.FanInConcat,
    }[kind]()


def kernels(
    stax: Any, steps: list[Step], first: Any, second: Any
) -> dict[str, tuple[list[Any], list[Any]]]:
    """{output: (NNGP, NTK)} for pairs of rows of the inputs."""
    import numpy as np

    states: dict[str, Any] = {}
    for node, kind, options, parents in steps:
        if kind == "input":
            states[node] = stax.Identity()[2](first, second, get=None)
            continue
        below = [states[p] for p in parents]
        if kind == "sum":
            below = [k * w for k, w in zip(below, options["weights"], strict=True)]
        states[node] = layer_of(stax, kind, options)[2](
            below if kind in ("sum", "concat") else below[0]
        )
    return {
        node: tuple(np.diag(np.asarray(k)).tolist() for k in (states[node].nngp, states[node].ntk))
        for node in outputs_of(steps)
    }


def main() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jaxlib.version
    import neural_tangents as nt  # pyright: ignore[reportMissingImports]
    import numpy as np
    from neural_tangents import stax  # pyright: ignore[reportMissingImports]

    found = {}
    for name, steps in NETWORKS.items():
        found[name] = {
            "steps": steps,
            "outputs": kernels(stax, steps, np.array(FIRST), np.array(SECOND)),
        }
    one, angles = np.sqrt(3.0) * np.eye(3)[:1], np.array(NEAR)[:, None]
    turned = np.sqrt(3.0) * (np.cos(angles) * np.eye(3)[0] + np.sin(angles) * np.eye(3)[1])
    near = {}
    for name in ("relu", "erf"):
        chain = body(
            [name] if name == "relu" else ["erf", 1.0, 1.0, 0.0],
            10,
            2.0**0.5 if name == "relu" else 1.5,
            None,
        )
        near[name] = kernels(stax, chain, one.repeat(len(NEAR), 0), turned)["out"]
    versions = {
        "neural-tangents": nt.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "numpy": np.__version__,
    }
    made = versions | {"python": platform.python_version()}
    print(
        json.dumps(
            {
                "versions": made,
                "first": FIRST,
                "second": SECOND,
                "networks": found,
                "angles": NEAR,
                "near": near,
            }
        )
    )


if __name__ == "__main__":
    main()
