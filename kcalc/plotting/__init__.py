"""Pictures: one layout for matplotlib and SVG, and titles computed from the drawn values."""

from . import axis_names
from .curves import activations, c_maps, network, q_maps, save

__all__ = ["activations", "axis_names", "c_maps", "network", "q_maps", "save"]
