"""Claims about several residual streams and mixtures of experts at initialisation."""

from . import experts as experts  # registers its claims
from . import laws as laws
from .paper import PAPER as PAPER
