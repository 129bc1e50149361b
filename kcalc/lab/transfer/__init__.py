"""Transfer: how initialisation, learning rates, epsilon and decay change with width and depth."""

from .coordinates import TrainedCoordinates, trained_coordinates
from .entry import transfer
from .optimizers import GAUGES, OPTIMIZERS, RANKS
from .parametrisation import abc_exponents
from .result import ParameterRule, Transfer
from .stationary import Equilibrium, equilibrium
from .sweep import Gain, TransferCheck, transfer_check

__all__ = [
    "GAUGES",
    "OPTIMIZERS",
    "RANKS",
    "Equilibrium",
    "Gain",
    "ParameterRule",
    "TrainedCoordinates",
    "Transfer",
    "TransferCheck",
    "abc_exponents",
    "equilibrium",
    "trained_coordinates",
    "transfer",
    "transfer_check",
]
