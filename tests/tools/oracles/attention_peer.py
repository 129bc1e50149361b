"""Kernels of attention by neural-tangents, frozen in ``attention_peer.json``.

Run in an environment with neural-tangents 0.6.5, jax and jaxlib 0.4.30, numpy 1.26.4 and scipy
1.13.1: ``python tests/tools/oracles/attention_peer.py``. ``test_attention_peer.py`` has the same
networks.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)
warnings.simplefilter("ignore")
from neural_tangents import stax  # pyright: ignore[reportMissingImports]  # noqa: E402

PLACE = Path(__file__).parents[2] / "oracles" / "attention_peer.json"


def attention(**stds):
    """An attention layer at infinite width; widths play no part in kernels."""
    given = {
        "linear_scaling": True,
        "W_key_std": 1.0,
        "W_query_std": 1.0,
        "W_value_std": 1.0,
        "W_out_std": 1.0,
    }
    return stax.GlobalSelfAttention(1, 1, 1, 1, **(given | stds))


def identity(**stds):
    """Attention whose weights are its scores over the root of the key width."""
    return attention(linear_scaling=False, attention_mechanism="IDENTITY", **stds)


def residual(*layers):
    """x + f(x)."""
    return stax.serial(
        stax.FanOut(2), stax.parallel(stax.Identity(), stax.serial(*layers)), stax.FanInSum()
    )


dense, norm = stax.Dense, stax.LayerNorm
NETWORKS = {
    "bare": (attention(W_key_std=1.3, W_query_std=0.9), stax.GlobalAvgPool(), dense(1)),
    "mean": (
        dense(1, 1.2, 0.3),
        attention(W_key_std=1.5, W_value_std=0.8, W_out_std=1.1, b_std=0.2),
        stax.GlobalAvgPool(),
        dense(1, 1.0, 0.1),
    ),
    "flat": (
        dense(1, 1.1, 0.2),
        stax.Relu(),
        attention(W_query_std=1.7, b_std=0.1),
        stax.Relu(),
        stax.Flatten(),
        dense(1, 0.9),
    ),
    "deep": (
        dense(1),
        attention(W_key_std=1.4),
        dense(1, 1.4),
        stax.Relu(),
        attention(W_query_std=2.0, W_out_std=0.7),
        stax.Relu(),
        stax.GlobalAvgPool(),
        dense(1, 1.0, 0.2),
    ),
    "tower": (
        dense(1, 1.0, 0.5),
        *12
        * (
            residual(norm(axis=-1), attention(W_key_std=1.2, W_value_std=0.9, b_std=0.1)),
            residual(norm(axis=-1), dense(1, 1.3, 0.1), stax.Erf(), dense(1)),
        ),
        stax.GlobalAvgPool(),
        dense(1),
    ),
    "identity flat": (
        dense(1, 0.9),
        identity(W_query_std=0.8, W_value_std=1.1),
        dense(1, 1.2, 0.1),
        stax.Relu(),
        identity(W_key_std=0.7, b_std=0.3),
        stax.Flatten(),
        dense(1),
    ),
    "identity blocks": (
        dense(1, 1.0, 0.5),
        residual(norm(axis=-1), identity(W_out_std=0.6, b_std=0.1)),
        residual(norm(axis=-1), dense(1, 1.3, 0.1), stax.Erf(), dense(1)),
        stax.GlobalAvgPool(),
        dense(1),
    ),
}


def main() -> None:
    """Write the kernels of all networks for one batch of sequences."""
    x = np.random.default_rng(5).normal(size=(3, 4, 6))
    found = {}
    for name, layers in NETWORKS.items():
        kernel = stax.serial(*layers)[2](x, None, ("nngp", "ntk"))
        found[name] = {
            "nngp": np.asarray(kernel.nngp).tolist(),
            "ntk": np.asarray(kernel.ntk).tolist(),
        }
    PLACE.write_text(json.dumps({"x": x.tolist(), "kernels": found}))


if __name__ == "__main__":
    main()
