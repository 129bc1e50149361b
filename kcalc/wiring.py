"""The only file that knows every room: which guest brings what.

It holds names, never imports: a guest is imported when something asks for what it brings.
``print(kcalc.wiring.table())`` shows all of it.
"""

from __future__ import annotations

from .foundation.guests import DRAWINGS, KERNELS, METHODS, RULES, SHAPING, Registry

REGISTRIES: tuple[Registry, ...] = (DRAWINGS, KERNELS, METHODS, RULES, SHAPING)

SHAPING_METHODS = {
    "dks": "shaping.dks:dks",
    "tat": "shaping.tat:tat",
    "eoc": "shaping.eoc:eoc",
    "nf": "shaping.normaliser_free:normaliser_free",
    "residual_weights": "shaping.residual_weights:residual_weights",
    "self_normalising": "shaping.self_normalising:self_normalising",
    "looks_linear": "shaping.looks_linear:looks_linear",
    "normalisation": "shaping.scales:normalisation",
    "geometric": "shaping.geometric:geometric",
    "edge": "shaping.transformer_edge:edge",
    "he": "shaping.scales:he",
    "lecun": "shaping.scales:lecun",
    "glorot": "shaping.scales:glorot",
    "fan_out": "shaping.scales:fan_out",
}
OF_TOKENS = {
    "tokens": "shaping.tokens:given_tokens",
    "depth trace": "shaping.traces:depth_trace",
}

for _name, _place in SHAPING_METHODS.items():
    METHODS.register(_name, _place)
for _name, _place in OF_TOKENS.items():
    SHAPING.register(_name, _place)
DRAWINGS.register("Shaping", "plotting.shaping:shaping_figure")
DRAWINGS.register("Shaping.tokens", "shaping.token_plots:token_figure")


def table() -> str:
    """Everything that guests bring, as text."""
    return "\n\n".join(map(repr, REGISTRIES))
