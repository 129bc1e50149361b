"""Pictures: one layout for matplotlib and SVG, and titles computed from what is drawn."""

from .curves import activations, c_maps, network, q_maps, save

__all__ = ["activations", "c_maps", "network", "q_maps", "save"]
