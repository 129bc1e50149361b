"""Audits that find faults in the initialisation of PyTorch models."""

from __future__ import annotations

from .auditing import audit
from .findings import CRITERIA, SEVERITIES, Finding, known_codes
from .lock import lock_text
from .recipes import RECIPES
from .result import DOCUMENTS, Audit

__all__ = [
    "CRITERIA",
    "DOCUMENTS",
    "RECIPES",
    "SEVERITIES",
    "Audit",
    "Finding",
    "audit",
    "known_codes",
    "lock_text",
]
