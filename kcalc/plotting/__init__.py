"""Plots of results, and drawings of networks with matplotlib or as SVG."""

from . import axis_names
from .accuracy_curves import accuracies
from .curves import activations, c_maps, network, q_maps, save
from .frame import entitle

__all__ = [
    "accuracies",
    "activations",
    "axis_names",
    "c_maps",
    "entitle",
    "network",
    "q_maps",
    "save",
]
