"""Tables of C maps and Q maps."""

from ...foundation.moved import former
from .q_table import QTable, tabulate_q
from .table import Table, tabulate

__all__ = ["QTable", "Table", "tabulate", "tabulate_q"]

__getattr__ = former(__name__)
