"""The only file that knows every room: which guest brings what.

It holds names, never imports: a guest is imported when something asks for what it brings.
``print(kcalc.wiring.table())`` shows all of it.
"""

from __future__ import annotations

from .foundation.guests import (
    ARCHITECTURES,
    DRAWINGS,
    KERNELS,
    READINGS,
    RULES,
    Readings,
    Registry,
)

REGISTRIES: tuple[Registry | Readings, ...] = (READINGS, DRAWINGS, KERNELS, RULES, ARCHITECTURES)

READINGS.register(
    "images",
    {"spatial": "delta", "image_shape": None, "weights": "dense"},
    [("calculi.spatial.readings", "c_map ntk")],
)
READINGS.register(
    "tokens",
    {"tokens": None, "token_cosine": None, "sampling": None},
    [
        ("calculi.attention.maps", "c_map q_map q_values node_values"),
        ("calculi.attention.tangent", "ntk"),
        ("calculi.attention.gradients", "gradients"),
    ],
)
RULES.register(("arrays", "Attend"), "calculi.attention.arrays:attend")
for name in ("bert", "gpt2", "llama", "t5", "transformer_stack", "vit"):
    ARCHITECTURES.register(name, f"network.architectures.transformers:{name}")


def table() -> str:
    """Everything that guests bring, as text."""
    return "\n\n".join(map(repr, REGISTRIES))
