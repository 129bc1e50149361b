"""Claims of "Beyond Folklore: a scaling calculus for [...] initialization of ReLU networks"."""

# registers its claims
# isort: off
from . import blocks as blocks
from . import design as design
from . import propagation as propagation
from . import weights as weights
# isort: on

from .paper import PAPER as PAPER
