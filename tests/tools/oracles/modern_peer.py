"""Kernels of gated networks by neural-tangents 0.6.5 in float64.

FanInProd beside LayerNorm, Conv and GlobalAvgPool.

Run it in an environment of its own, ``pip install neural-tangents==0.6.5 jax==0.4.30 jaxlib==0.4.30
numpy==1.26.4 scipy==1.13.1``: ``python tests/tools/oracles/modern_peer.py`` writes modern_peer.json
beside it. A network is a list of layers, plain data: ["dense", sigma_w, sigma_b], ["conv", size,
sigma_w, sigma_b], ["product", branch, branch, ...], ["residual", branch], or a name.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

FIRST = [[0.9, -0.4, 1.3], [0.2, 0.5, -0.25], [2.0, 1.0, 0.5]]
SECOND = [[0.7, 0.1, 0.9], [-0.3, 1.1, 0.6]]


def gate(left: str, right: str, w: float, b: float) -> list[Any]:
    """A gated layer between two Dense layers."""
    return [["product", [["dense", w, b], left], [["dense", 1.1, b], right]], ["dense", 1.3, b]]


def stack(left: str, right: str, norm: bool, w: float, b: float) -> list[Any]:
    """Gated residual blocks, LayerNorm in front of each where ``norm``."""
    block = [["residual", [*(["layernorm"] if norm else []), *gate(left, right, w, b)]]]
    return [["dense", 1.2, 0.1], *block * 3, ["dense", 1.3, 0.2]]


def images(end: str) -> list[Any]:
    """Convolutions with a gate."""
    product = ["product", [["conv", 3, 1.3, 0.2], "erf"], [["conv", 1, 0.8, 0.1]]]
    return [product, ["conv", 3, 1.1, 0.1], "relu", end, ["dense", 1.2, 0.3]]


NETWORKS: dict[str, list[Any]] = {
    "bilinear": gate("identity", "identity", 1.2, 0.0),
    "reglu": gate("relu", "identity", 1.2, 0.3),
    "erf gate": gate("erf", "identity", 1.4, 0.2),
    "two activations": gate("erf", "relu", 0.8, 0.4),
    "three factors": [
        ["product", *[[["dense", w, 0.2], "erf"] for w in (0.8, 1.1, 1.4)]],
        ["dense", 1.0, 0.1],
    ],
    "stack": stack("erf", "identity", False, 1.1, 0.0),
    "stack with biases": stack("relu", "identity", False, 0.9, 0.2),
    "stack of norms": stack("erf", "relu", True, 1.5, 0.1),
    "image, pooled": images("pool"),
    "image, flattened": images("flatten"),
}


def peer(layers: list[Any]) -> Any:
    """neural-tangents' serial of the layers."""
    from neural_tangents import stax  # pyright: ignore[reportMissingImports]

    def one(layer: Any) -> Any:
        kind, *rest = [layer] if isinstance(layer, str) else layer
        match kind:
            case "dense":
                return stax.Dense(8, W_std=rest[0], b_std=rest[1] or None)
            case "conv":
                return stax.Conv(
                    8, (rest[0], rest[0]), padding="SAME", W_std=rest[1], b_std=rest[2] or None
                )
            case "product":
                return stax.serial(
                    stax.FanOut(len(rest)), stax.parallel(*map(peer, rest)), stax.FanInProd()
                )
            case "residual":
                return stax.serial(
                    stax.FanOut(2), stax.parallel(peer(rest[0]), stax.Identity()), stax.FanInSum()
                )
        names = {
            "relu": stax.Relu,
            "erf": stax.Erf,
            "identity": stax.Identity,
            "flatten": stax.Flatten,
            "pool": stax.GlobalAvgPool,
        }
        return stax.LayerNorm(axis=-1, eps=0.0) if kind == "layernorm" else names[kind]()

    return stax.serial(*map(one, layers))


def main() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    import neural_tangents as nt  # pyright: ignore[reportMissingImports]
    import numpy as np

    rng = np.random.default_rng(5)
    pictures = (
        rng.standard_normal((3, 4, 3, 2)).round(3),
        rng.standard_normal((2, 4, 3, 2)).round(3),
    )
    vectors = np.array(FIRST), np.array(SECOND)
    found = {}
    for name, layers in NETWORKS.items():
        kernel = peer(layers)[2](
            *(pictures if name.startswith("image") else vectors), get=("nngp", "ntk")
        )
        found[name] = {
            "layers": layers,
            "nngp": np.asarray(kernel.nngp).tolist(),
            "ntk": np.asarray(kernel.ntk).tolist(),
        }
        print(name, found[name]["ntk"][0][0], flush=True)
    versions = {
        "neural-tangents": nt.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    inputs = {"vectors": [v.tolist() for v in vectors], "pictures": [v.tolist() for v in pictures]}
    path = Path(__file__).parents[2] / "oracles" / "modern_peer.json"
    path.write_text(json.dumps({"versions": versions, "inputs": inputs, "networks": found}) + "\n")


if __name__ == "__main__":
    main()
