"""Makes spatial_peer.json with neural-tangents 0.6.5 (jax 0.4.30, jaxlib 0.4.30, numpy 1.26.4,
scipy 1.13.1, Python 3.11) in float64.

Run it in an environment of those versions; kcalc is not used. Each case is a network in plain data,
its images, and the NNGP and tangent kernels of the peer. Layers: conv (kernel, stride, padding,
sigma_w, sigma_b), relu, erf, mean (window, stride; None pools all), flatten, dense (sigma_w,
sigma_b), layernorm, residual (branch, shortcut).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PADDINGS = {"same": "SAME", "valid": "VALID", "circular": "CIRCULAR"}


def conv(
    kernel: Any,
    stride: Any = (1, 1),
    padding: str = "same",
    sigma_w: float = 1.4,
    sigma_b: float = 0.0,
) -> list[Any]:
    return ["conv", list(kernel), list(stride), padding, sigma_w, sigma_b]


def dense(sigma_w: float = 1.2, sigma_b: float = 0.1) -> list[Any]:
    return ["dense", sigma_w, sigma_b]


RELU, ERF, FLATTEN, NORM = ["relu"], ["erf"], ["flatten"], ["layernorm"]
GAP = ["mean", None, None]


def cases() -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for padding in ("same", "valid", "circular"):
        for name, phi in (("relu", RELU), ("erf", ERF)):
            body = [
                conv((3, 3), padding=padding, sigma_b=0.2),
                phi,
                conv((2, 2), padding=padding, sigma_w=1.5),
                phi,
            ]
            out[f"{padding} {name} flatten"] = [*body, FLATTEN, dense()]
            out[f"{padding} {name} mean"] = [*body, GAP, dense()]
    strided = [conv((3, 2), (2, 1), "same", 1.3, 0.3), RELU, conv((2, 2), (1, 2), "valid"), ERF]
    out["strides flatten"] = [*strided, FLATTEN, dense()]
    out["strides mean"] = [*strided, GAP, dense()]
    out["circular strides"] = [
        conv((3, 3), (2, 2), "circular"),
        RELU,
        conv((3, 3), (1, 1), "circular"),
        RELU,
        GAP,
        dense(),
    ]
    out["windows"] = [
        conv((3, 3)),
        RELU,
        ["mean", [2, 2], [2, 2]],
        conv((2, 2)),
        RELU,
        FLATTEN,
        dense(),
    ]
    out["overlapping windows"] = [
        conv((3, 3), sigma_b=0.1),
        ERF,
        ["mean", [3, 2], [1, 2]],
        conv((2, 2)),
        RELU,
        GAP,
        dense(),
    ]
    out["two poolings"] = [
        conv((3, 3)),
        RELU,
        ["mean", [2, 2], [2, 2]],
        conv((3, 3)),
        RELU,
        GAP,
        dense(),
    ]
    out["hidden dense"] = [conv((3, 3)), RELU, FLATTEN, dense(1.5, 0.0), RELU, dense()]
    out["deep"] = [
        part for _ in range(6) for part in (conv((3, 3), sigma_w=2**0.5, sigma_b=0.05), RELU)
    ] + [GAP, dense()]
    out["image output"] = [conv((3, 3)), RELU, conv((3, 3))]
    out["normalised"] = [conv((3, 3), sigma_b=0.2), NORM, RELU, conv((3, 3)), RELU, GAP, dense()]
    block = [RELU, conv((3, 3)), ERF, conv((3, 3))]
    out["residual"] = [conv((3, 3)), ["residual", block, []], RELU, GAP, dense()]
    down = [
        ["residual", [RELU, conv((3, 3), (2, 2)), RELU, conv((3, 3))], [conv((1, 1), (2, 2))]],
        ["residual", block, []],
    ]
    out["residual down"] = [conv((3, 3), sigma_b=0.1), *down, RELU, FLATTEN, dense()]
    half = ["mean", [2, 2], [2, 2]]
    out["residual pooled"] = [
        conv((3, 3)),
        ["residual", [RELU, conv((3, 3)), half], [half]],
        RELU,
        GAP,
        dense(),
    ]
    return out


def peer(layers: list[Any]) -> Any:
    """The neural-tangents layer of a list of layers."""
    from neural_tangents import stax

    def one(layer: list[Any]) -> Any:
        kind, *rest = layer
        if kind == "conv":
            kernel, stride, padding, sigma_w, sigma_b = rest
            return stax.Conv(
                8,
                tuple(kernel),
                tuple(stride),
                PADDINGS[padding],
                W_std=sigma_w,
                b_std=sigma_b or None,
            )
        if kind == "dense":
            return stax.Dense(8, W_std=rest[0], b_std=rest[1] or None)
        if kind == "mean":
            return (
                stax.GlobalAvgPool()
                if rest[0] is None
                else stax.AvgPool(tuple(rest[0]), tuple(rest[1]), "VALID")
            )
        if kind == "residual":
            branch, shortcut = (peer(part) if part else stax.Identity() for part in rest)
            return stax.serial(stax.FanOut(2), stax.parallel(branch, shortcut), stax.FanInSum())
        return {
            "relu": stax.Relu,
            "erf": stax.Erf,
            "flatten": stax.Flatten,
            "layernorm": lambda: stax.LayerNorm(axis=-1, eps=0.0),
        }[kind]()

    return stax.serial(*map(one, layers))


def equal_locations(values: Any) -> Any:
    """(N, M, h, h, w, w) at equal locations; (N, M) as it is."""
    import numpy as np

    return np.einsum("nmaabb->nmab", values) if values.ndim == 6 else values


def main() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    import numpy as np

    rng = np.random.default_rng(5)
    x = np.round(rng.normal(size=(3, 4, 5, 2)), 3)
    x[1, 0, 1] = x[1, 2, 3] = 0.0  # black pixels
    x[2, :2, :2] = 0.0  # a black patch, so that some patches are all zero
    y = np.round(rng.normal(size=(2, 4, 5, 2)), 3)
    out: dict[str, Any] = {"x": x.tolist(), "y": y.tolist(), "cases": {}}
    for name, layers in cases().items():
        kernel = peer(layers)[2]
        first, second = (x[:2], y) if name in ("normalised",) else (x, y)
        found = kernel(first, second, get=("nngp", "ntk"))
        own = kernel(first, None, get=("nngp", "ntk"))
        numbers = {"nngp": found.nngp, "ntk": found.ntk, "nngp own": own.nngp, "ntk own": own.ntk}
        tables = {
            key: equal_locations(np.asarray(value)).tolist() for key, value in numbers.items()
        }
        out["cases"][name] = {"layers": layers, "images": len(first), **tables}
        print(
            name, np.asarray(found.ntk).shape, float(np.asarray(found.ntk).ravel()[0]), flush=True
        )
    path = Path(
        sys.argv[1]
        if len(sys.argv) > 1
        else Path(__file__).parents[2] / "oracles" / "spatial_peer.json"
    )
    path.write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
