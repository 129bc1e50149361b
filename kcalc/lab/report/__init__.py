"""A self-contained HTML page about a network: :func:`report`."""

from .api import NetworkReport, report

__all__ = ["NetworkReport", "report"]
