"""Tailored Activation Transformation."""

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
)  # registers its claims
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
