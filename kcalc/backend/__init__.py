"""Networks on JAX arrays: compiled models, initialisers, data-dependent initialisation."""

from .coordinate_check import CoordinateCheck, coordinate_check
from .data_dependent import DataDependent, lsuv, wli
from .initialisers import LAWS, Fan, Geometric, Initialiser, Orthogonal
from .model import Model, to_jax
from .output_scale import OutputScale, scale_output
from .parameterization import ABC, NTK, PARAMETERIZATIONS, Parameterization
from .per_location import normalise_locations

__all__ = [
    "ABC",
    "LAWS",
    "NTK",
    "PARAMETERIZATIONS",
    "CoordinateCheck",
    "DataDependent",
    "Fan",
    "Geometric",
    "Initialiser",
    "Model",
    "Orthogonal",
    "OutputScale",
    "Parameterization",
    "coordinate_check",
    "lsuv",
    "normalise_locations",
    "scale_output",
    "to_jax",
    "wli",
]
