"""Digests of arrays and texts, by which runs are told apart."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from .splits import Split


def digest(*parts: Any) -> str:
    """A digest of texts and arrays."""
    found = hashlib.sha256()
    for part in parts:
        found.update(
            part.encode() if isinstance(part, str) else np.ascontiguousarray(part).tobytes()
        )
    return found.hexdigest()[:32]


def data_digest(split: Split) -> str:
    """A digest of the examples of a split, as the network sees them."""
    return digest(split.x, split.y, split.train, split.test)
