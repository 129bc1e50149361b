"""The only file that knows every room: which guest brings what.

It holds names, never imports: a guest is imported when something asks for what it brings.
``print(kcalc.wiring.table())`` shows all of it.
"""

from __future__ import annotations

from .foundation.guests import DRAWINGS, KERNELS, MODELS, RULES, SHAPED, Registry

REGISTRIES: tuple[Registry, ...] = (DRAWINGS, KERNELS, SHAPED, MODELS, RULES)

OF_MODELS = {
    "edits": "interchange.apply:edits_of",
    "scaled edits": "interchange.apply:scaled_edits_of",
    "patch": "interchange.apply:patch_of",
    "apply": "interchange.apply:apply_to",
    "export": "interchange.writers:export",
    "export of regions": "interchange.writers:export_regions",
}

SHAPED.register("interchange.Reading", "interchange.shaping_models.model_regions:shape_reading")
for _question, _place in OF_MODELS.items():
    MODELS.register(_question, _place)


def table() -> str:
    """Everything that guests bring, as text."""
    return "\n\n".join(map(repr, REGISTRIES))
