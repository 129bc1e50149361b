"""The only file that knows every room: which guest brings what.

It holds names, never imports: a guest is imported when something asks for what it brings.
``print(kcalc.wiring.table())`` shows all of it.
"""

from __future__ import annotations

from .foundation.guests import DRAWINGS, KERNELS, RULES, Registry

REGISTRIES: tuple[Registry, ...] = (DRAWINGS, KERNELS, RULES)


def table() -> str:
    """Everything that guests bring, as text."""
    return "\n\n".join(map(repr, REGISTRIES))
