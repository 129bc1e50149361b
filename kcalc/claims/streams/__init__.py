"""Several residual streams at initialisation."""

from . import laws as laws  # registers its claims
from .paper import PAPER as PAPER
