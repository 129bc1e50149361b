"""Formatting of numbers and data for the page."""

from __future__ import annotations

import json
import math
from dataclasses import is_dataclass
from typing import Any


def number(value: Any, digits: int = 6) -> str:
    """Format a number for display."""
    if value is None:
        return "-"
    x = float(value)
    if math.isnan(x):
        return "unknown"
    if math.isinf(x):
        return "infinite" if x > 0 else "minus infinite"
    return f"{x:.{digits}g}".replace("-", "\u2212") if x else "0"


def embedded(data: Any) -> str:
    """Return data as JSON that is safe in HTML, with infinite and missing numbers as null."""
    text = json.dumps(_plain(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(data: Any) -> Any:
    """Convert data to JSON types. Unset fields of dataclasses are omitted."""
    if hasattr(data, "to_json"):
        return _plain(data.to_json())
    if is_dataclass(data):
        return _plain({k: v for k, v in vars(data).items() if v is not None and v is not False})
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return data if data is None or isinstance(data, str | bool | int) else str(data)
