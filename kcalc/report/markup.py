"""HTML in small pieces: every text that is not marked as HTML already is escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ..foundation.mathml import mathml


class Html(str):
    """Text that is HTML already."""


def safe(content: Any) -> Html:
    """Anything as HTML: sequences joined, text escaped, control characters replaced."""
    if isinstance(content, Html):
        return content
    if content is None:
        return Html("")
    if isinstance(content, list | tuple):
        return Html("".join(safe(part) for part in content))
    text = "".join(
        c if c in "\n\t" or (ord(c) >= 32 and not 0xD800 <= ord(c) <= 0xDFFF) else "\ufffd"
        for c in str(content)
    )
    return Html(escape(text, quote=True))


def tag(name: str, *content: Any, **attributes: Any) -> Html:
    """An HTML element.

    ``class_`` is class, underscores in names are dashes, True is an attribute without value, None
    no attribute.
    """
    given = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        given.append(f" {label}" if value is True else f' {label}="{safe(value)}"')
    return Html(f"<{name}{''.join(given)}>{safe(content)}</{name}>")


def paragraph(*content: Any, kind: str | None = None) -> Html:
    """A paragraph."""
    return tag("p", *content, class_=kind)


def calm(text: Any) -> Html:
    """A missing result, and the reason."""
    words = " ".join(str(text).split())
    return tag("p", words if words.endswith((".", "!", "?")) else f"{words}.", class_="calm")


def section(name: str, title: str, lead: str, *content: Any, badge: Html | None = None) -> Html:
    """A section of the page: a heading, a sentence about the section, and content.

    If there is a badge, it stands beside the heading.
    """
    heading = tag("h2", title, id=f"{name}-title")
    top = tag("div", heading, badge, class_="headed") if badge else heading
    return tag(
        "section",
        top,
        paragraph(lead, kind="lead"),
        *content,
        id=name,
        aria_labelledby=f"{name}-title",
    )


def heuristic_badge(*results: Any) -> Html | None:
    """A link to the assumptions, beside results of which one is heuristic."""
    if not any(getattr(result, "heuristic", False) for result in results):
        return None
    return tag(
        "a",
        "heuristic",
        href="#assumptions",
        class_="badge",
        title="A rule is used whose hypothesis does not hold; see Assumptions",
    )


def sampled_badge(*results: Any) -> Html | None:
    """A link to the assumptions, beside results that are means over draws."""
    if not any(
        a.kind == "sampled" for result in results for a in getattr(result, "assumptions", ())
    ):
        return None
    words = "Means over random draws, with standard errors; see Assumptions"
    return tag("a", "sampled", href="#assumptions", class_="badge", title=words)


def details(summary: Any, *content: Any, kind: str | None = None) -> Html:
    """Something that opens."""
    return tag("details", tag("summary", summary), *content, class_=kind)


def table(
    head: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    caption: str | None = None,
    text: Sequence[int] = (),
) -> Html:
    """A table that scrolls by itself; the first column heads its rows.

    ``text``: columns of words, not numbers.
    """
    top = tag(
        "tr",
        *(
            tag("th", cell, scope="col", class_="words" if i in text else None)
            for i, cell in enumerate(head)
        ),
    )
    body = []
    for first, *rest in rows:
        cells = (
            tag("td", cell, class_="words" if i in text else None) for i, cell in enumerate(rest, 1)
        )
        body.append(tag("tr", tag("th", first, scope="row"), *cells))
    label = tag("caption", caption) if caption else None
    return tag(
        "div",
        tag("table", label, tag("thead", top), tag("tbody", *body)),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=caption or "table",
    )


def formula(latex: str) -> Html:
    """A formula as MathML; as it was written where it cannot be read."""
    return Html(mathml(latex))


def number(value: Any, digits: int = 6) -> str:
    """A number for reading."""
    if value is None:
        return "-"
    x = float(value)
    if math.isnan(x):
        return "not known"
    if math.isinf(x):
        return "infinite" if x > 0 else "minus infinite"
    return f"{x:.{digits}g}".replace("-", "\u2212") if x else "0"


def embedded(data: Any) -> str:
    """Data as JSON that no HTML parser can misread, infinite and missing numbers as null."""
    text = json.dumps(_finite(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data
