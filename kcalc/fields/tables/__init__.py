"""Tables of C maps and Q maps."""

from .q_table import QTable, tabulate_q
from .table import Table, tabulate

__all__ = ["QTable", "Table", "tabulate", "tabulate_q"]
