"""C maps, Q maps and token maps by table."""

from .q_table import QTable, tabulate_q
from .table import Table, tabulate
from .token_table import TokenTable, tabulate_tokens

__all__ = ["QTable", "Table", "TokenTable", "tabulate", "tabulate_q", "tabulate_tokens"]
