"""Tailored Activation Transformation."""

# registers its claims
from . import (
    algorithms,
    appendices,
    experiments,
    maps,
    propositions,
    subnetworks,
    tailored,
    theorems,
    widths,
)
from .paper import PAPER

__all__ = [
    "PAPER",
    "algorithms",
    "appendices",
    "experiments",
    "maps",
    "propositions",
    "subnetworks",
    "tailored",
    "theorems",
    "widths",
]
