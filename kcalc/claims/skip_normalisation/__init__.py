"""Claims of "On skip connections and normalisation layers in deep optimisation"."""

# registers its claims
# isort: off
from . import convergence as convergence
from . import layers as layers
from . import regularity as regularity
# isort: on

from .paper import PAPER as PAPER
