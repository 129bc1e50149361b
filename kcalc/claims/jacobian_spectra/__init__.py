"""Claims about spectra of Jacobians at initialisation."""

# registers its claims
from . import laws as laws
from .paper import PAPER as PAPER
