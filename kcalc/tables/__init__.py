"""C maps by table."""

from .table import Table, tabulate

__all__ = ["Table", "tabulate"]
