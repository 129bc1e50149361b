"""Plots: one layout for matplotlib and SVG, and titles computed from the drawn values."""

from . import axis_names
from .accuracy_curves import accuracies
from .curves import activations, c_maps, network, q_maps, save
from .frame import claim
from .titles import three_digits

__all__ = [
    "accuracies",
    "activations",
    "axis_names",
    "c_maps",
    "claim",
    "network",
    "q_maps",
    "save",
    "three_digits",
]
