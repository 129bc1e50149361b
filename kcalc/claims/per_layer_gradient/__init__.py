"""Claims of "The effect of residual architecture on the per-layer gradient of deep networks"."""

# registers its claims
# isort: off
from . import architectures as architectures
from . import duality as duality
from . import paths as paths
from . import vanilla as vanilla
# isort: on

from .paper import PAPER as PAPER
