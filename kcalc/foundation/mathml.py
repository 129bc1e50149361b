"""Convert formulas to MathML that can wrap.

The MathML needs no scripts and no embedded fonts, and is readable without a mathematical font.
"""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from functools import lru_cache

from .extras import imported

# LaTeX accepts f'^2, but the converter does not
_PRIMED = re.compile(r"((?:\\[a-z]+\s*)*\\?[A-Za-z]+)('+)\^")
_DOUBLY_PRIMED = re.compile(r"(_(?:\w|\{[^{}]*\}))('{2,3})")  # to typeset C_f'' as C''_f
_BARE = re.compile(r"\\(math[a-z]+)\s+([A-Za-z])")  # browsers render \mathbb{E} but not \mathbb E
_PRIMES = ("\u2032", "\u2033", "\u2034")
_BREAKS = frozenset("=≤≥<>≈≠∼≲≳→⇒∝+−-∈;")
_OPEN, _CLOSE, _BARS = frozenset("([{⌈⌊⟨"), frozenset(")]}⌉⌋⟩"), frozenset("|‖")
_ROWS = frozenset({"math", "mrow", "msqrt", "mtd", "mstyle"})
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]+")
_THIN = "0.167em"
_LONG = 60  # characters of LaTeX, including commands, that fit on one line of a phone


def formulas(text: str) -> str:
    """Replace $LaTeX$ in a text by HTML with MathML."""
    pieces = re.split(r"\$(.+?)\$", text)
    return "".join(
        html.escape(piece) if i % 2 == 0 else mathml(piece) for i, piece in enumerate(pieces)
    )


def tree(latex: str) -> ET.Element | None:
    """Return one formula as a ``math`` element, or None if it cannot be parsed."""
    convert = imported("latex2mathml.converter").convert
    try:
        primed = _DOUBLY_PRIMED.sub(r"\2\1", _PRIMED.sub(r"{\1\2}^", latex))
        text = _BARE.sub(r"\\\1{\2}", primed)
        root = ET.fromstring(re.sub(r' xmlns="[^"]*"', "", convert(text)))
    except Exception:  # the converter defines no exception class
        return None
    _set_primes(root)
    _set_operators(root)
    return root


@lru_cache(maxsize=4096)
def mathml(latex: str) -> str:
    """Convert one formula to MathML; a formula that cannot be parsed stays LaTeX code.

    A long formula is split at operators outside brackets, so lines can break there.
    """
    root = tree(latex)
    if root is None:
        return f"<code>{html.escape(latex)}</code>"
    row = root[0] if len(root) == 1 and root[0].tag == "mrow" else root
    pieces = _pieces(list(row)) if len(latex) > _LONG else [list(row)]
    return "<wbr>".join(_math(piece) for piece in pieces)


def _math(items: list[ET.Element]) -> str:
    body = "".join(ET.tostring(item, encoding="unicode") for item in items)
    return f'<math display="inline"><mrow>{body}</mrow></math>'


def _pieces(items: list[ET.Element]) -> list[list[ET.Element]]:
    """Split a formula before the operators between its terms."""
    pieces: list[list[ET.Element]] = [[]]
    depth, bars = 0, 0
    for item in items:
        if (
            item.tag == "mo"
            and _sign(item) in _BREAKS
            and depth == 0
            and bars % 2 == 0
            and pieces[-1]
        ):
            pieces.append([])
            item.set("form", "infix")
        sign = _sign(item)
        depth += (sign in _OPEN) - (sign in _CLOSE)
        bars += sign in _BARS  # bars open and close alternately
        pieces[-1].append(item)
    return pieces


def _sign(item: ET.Element) -> str:
    """Return the text of an operator (also of a bracket with a power); "" for other elements."""
    base = item[0] if item.tag in ("msup", "msub", "msubsup") and len(item) else item
    return (base.text or "").strip() if base.tag == "mo" else ""


def _set_primes(node: ET.Element) -> None:
    """Set primes at full size after their letter.

    Fonts already raise the prime character, and a superscript prime would be too small to see.
    """
    for child in node:
        _set_primes(child)
    if node.tag not in ("msup", "msubsup") or (node[-1].text or "") not in _PRIMES:
        return
    prime = ET.Element("mi", {"mathvariant": "normal"})
    prime.text = node[-1].text
    primed = ET.Element("mrow")
    primed.extend([node[0], prime])
    below = list(node)[1:-1]
    node.tag = "msub" if below else "mrow"
    for child in list(node):
        node.remove(child)
    node.extend([primed, *below] if below else list(primed))


def _set_operators(root: ET.Element) -> None:
    """Set function names as letters with thin spaces, and remove spaces around slashes."""
    for item in root.iter("mo"):
        text = (item.text or "").strip()
        if text == "/":
            item.attrib |= {"lspace": "0", "rspace": "0"}
        elif text == "\u221e" or (_NAME.fullmatch(text)):
            item.tag = "mi"
    for item in root.iter("mi"):
        if (item.text or "").strip() == "~":  # the converter's \sim
            item.tag, item.text = "mo", "\u223c"
    for row in root.iter():
        if row.tag in _ROWS:
            _set_names_apart(row)


def _set_names_apart(row: ET.Element) -> None:
    """Put thin spaces between a function name and the letters and numbers beside it."""
    items = list(row)
    spaced: list[ET.Element] = []
    for item, last in zip(items, [None, *items], strict=False):
        names = _is_name(item), last is not None and _is_name(last)
        if last is not None and any(names) and _ends(last)[1] and _ends(item)[0]:
            spaced.append(ET.Element("mspace", {"width": _THIN}))
        spaced.append(item)
    row[:] = spaced


def _is_name(item: ET.Element) -> bool:
    base = item[0] if item.tag in ("msub", "msup", "msubsup", "munder") and len(item) else item
    text = (base.text or "").strip()
    return base.tag == "mi" and _NAME.fullmatch(text) is not None


def _ends(item: ET.Element) -> tuple[bool, bool]:
    """Return whether an item begins and whether it ends with something that needs a thin space."""
    first = last = item
    while first.tag in _ROWS and len(first):
        first = first[0]
    while last.tag in _ROWS and len(last):
        last = last[-1]
    apart = ("mo", "mspace")
    return first.tag not in apart, last.tag not in apart or _sign(last) in _CLOSE
