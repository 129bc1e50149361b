"""kcalc: kernel calculus on neural networks.

Give it a network as a directed acyclic graph; it derives local and global Q/C maps and slope polynomials, and from
them the constants that make the network trainable. jax, matplotlib and torch are imported only when they are used.
"""

from . import activations, architectures, layers, symbols
from .activations import Activation, activation
from .calculi.global_maps import c_map, node_values, q_map, q_values
from .calculi.ntk import ntk
from .calculi.slopes import slope_polynomial
from .combinators import chain, repeat, residual
from .errors import FreshnessError, GraphError, KcalcError, NoRule, UnreachableTarget
from .gains import gain
from .gaussian import expectation, pair_expectation
from .interchange import load_json, save_json
from .network import Network
from .shaping import Constants, Shaping, depth_limit, phase_diagram, shape
from .subnetworks import maximal, maximal_c_value, maximal_curvature, maximal_slope, subnetworks

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "Constants",
    "FreshnessError",
    "GraphError",
    "KcalcError",
    "Network",
    "NoRule",
    "Shaping",
    "UnreachableTarget",
    "activation",
    "activations",
    "architectures",
    "c_map",
    "chain",
    "depth_limit",
    "expectation",
    "gain",
    "layers",
    "load_json",
    "maximal",
    "maximal_c_value",
    "maximal_curvature",
    "maximal_slope",
    "node_values",
    "ntk",
    "pair_expectation",
    "phase_diagram",
    "q_map",
    "q_values",
    "repeat",
    "residual",
    "save_json",
    "shape",
    "slope_polynomial",
    "subnetworks",
    "symbols",
]
