"""Claims of the paper on Tailored Activation Transformation."""

# registers its claims
# isort: off
from . import algorithms as algorithms
from . import appendices as appendices
from . import experiments as experiments
from . import maps as maps
from . import propositions as propositions
from . import subnetworks as subnetworks
from . import tailored as tailored
from . import theorems as theorems
from . import widths as widths
# isort: on

from .paper import PAPER as PAPER
