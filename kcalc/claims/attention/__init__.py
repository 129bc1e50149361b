"""Claims about attention at initialisation."""

# registers its claims
# isort: off
from . import backwards as backwards
from . import depth as depth
from . import laws as laws
from . import layers as layers
from . import overlaps as overlaps
from . import published as published
from . import variants as variants
# isort: on

from .paper import PAPER as PAPER
