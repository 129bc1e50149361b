"""Claims about depth, width, dropout and large batches."""

# registers its claims
# isort: off
from . import critical as critical
from . import training as training
from . import widths as widths
# isort: on

from .paper import PAPER as PAPER
