"""Render pages and drawings from Jinja templates that escape all values."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .extras import imported
from .mathml import formulas, mathml

if TYPE_CHECKING:
    from jinja2 import Template

FORBIDDEN = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML and HTML


def asset(package: str, name: str) -> str:
    """Read a file from the folder ``assets`` of a package."""
    return files(package).joinpath("assets", name).read_text(encoding="utf-8")


def clean(text: Any) -> str:
    """Replace the characters that XML and HTML forbid."""
    return FORBIDDEN.sub("\ufffd", str(text))


def one_line(text: Any) -> str:
    """Put text on one line."""
    return " ".join(clean(text).split())


def sentence(text: Any) -> str:
    """Put text on one line that ends with a full stop."""
    words = one_line(text)
    return words if words.endswith((".", "!", "?")) else f"{words}."


@lru_cache(maxsize=8)
def template(text: str) -> Template:
    """Compile a template that escapes values, with filters for lines and formulas."""
    jinja2, markup = imported("jinja2"), imported("markupsafe").Markup

    def shown(value: Any) -> Any:
        return value if hasattr(value, "__html__") else clean(value)

    made = jinja2.Environment(autoescape=True, finalize=shown, undefined=jinja2.ChainableUndefined)
    made.filters |= {
        "one_line": one_line,
        "sentence": sentence,
        "formulas": lambda text: markup(formulas(text)),
        "formula": lambda latex: markup(mathml(latex)),
    }
    return made.from_string(text)
