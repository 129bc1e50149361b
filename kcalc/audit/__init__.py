"""Audits of models of PyTorch: how they were initialised, what is wrong with that, and where."""

from __future__ import annotations

from .auditing import audit
from .findings import CRITERIA, Finding
from .result import Audit

__all__ = ["CRITERIA", "Audit", "Finding", "audit"]
