"""Registry of the frameworks whose models kcalc can edit.

Each framework has a package, and entries in ``PLACES`` that name its functions for finding edits,
applying them and writing patches. The package is imported when one of these functions is first
used.
"""

from __future__ import annotations

from ..foundation.errors import KcalcError
from ..foundation.guests import Registry

JAX = ("jax", "flax", "equinox", "keras")
OPTIONS = {"torch": ("weights", "generator"), **dict.fromkeys(JAX, ("weights", "key"))}
PLACES = {
    ("edits", "torch"): "torch_model.apply:torch_edits",
    ("can be edited", "torch"): "torch_model.apply:is_editable",
    ("edited", "torch"): "torch_model.apply:edited",
    ("scaled edits", "torch"): "torch_model.apply:scaled_edits",
    ("model that was read", "torch"): "torch_model.apply:model_of",
    ("changed", "torch"): "torch_model.apply:changed",
    ("patch", "torch"): "torch_model.patching:patch",
    ("loaded", "torch"): "torch_model.pretrained:loaded",
    **{("edits", framework): "jax_model.apply:jax_edits" for framework in JAX},
    **{("edited", framework): "jax_model.apply:edited" for framework in JAX},
    **{("changed", framework): "jax_model.apply:changed" for framework in JAX},
}

FRAMEWORKS = Registry("frameworks whose models are edited")
"""{(question, framework): function that answers it}."""

for key, place in PLACES.items():
    FRAMEWORKS.register(key, f"interchange.{place}")


def require_patches(framework: str) -> None:
    """Raise KcalcError if kcalc cannot write patches for models of a framework."""
    if ("patch", framework) not in FRAMEWORKS:
        raise KcalcError(
            f"only PyTorch models have patches, but this is a {framework} model; edit the model "
            "with kc.apply_edits(model, s.edits), or write the constants with s.export(...)"
        )
