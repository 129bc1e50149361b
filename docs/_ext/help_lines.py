"""Lines of ``--help`` as entries, which phones show with the explanation below the option."""

from __future__ import annotations

import html
import re

START = "<span></span>usage: "
NAME = re.compile(r"^( +\S.*?)( {2,})(?=\S)")
OPTION = re.compile(r"(?<![\w&])--?[a-zA-Z][\w-]*")
LABEL = re.compile(r"\w+: ")
DIVIDED = re.compile(r"[a-z\d]-$")
FULL = 70  # characters: a line of prose that the next one continues
COLUMN = 10  # spaces before an explanation on a line of its own


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _continues(line: str, entry: list[str]) -> bool:
    """Whether a line belongs to the entry that the lines before it began."""
    if not entry[0] or not line or NAME.match(line):
        return False
    if _indent(line) > _indent(entry[0]):
        return _indent(entry[0]) > 0 or not entry[0].endswith(":")
    if _indent(line) or _indent(entry[0]) or (LABEL.match(entry[0]) and LABEL.match(line)):
        return False
    return len(html.unescape(entry[-1])) > FULL


def _joint(entry: list[str], number: int) -> str:
    """The line break before a line of an entry, by what phones make of it."""
    before, line = entry[number - 1], entry[number]
    space = f"\n{' ' * _indent(line)}"
    if before.endswith("\\"):
        return space
    alone = number == 1 and 0 < _indent(before) < COLUMN <= _indent(line)
    if alone and not NAME.match(before):
        return f'<span class="gap">{space}</span>'
    return f'<span class="{"divided" if DIVIDED.search(before) else "join"}">{space}</span>'


def _shown(entry: list[str], wide: int) -> str:
    lines = [OPTION.sub(r'<span class="unbroken">\g<0></span>', line) for line in entry]
    text = NAME.sub(r'\1<span class="gap">\2</span>', lines[0])
    text += "".join(_joint(entry, i) + lines[i].strip(" ") for i in range(1, len(entry)))
    hangs = _indent(entry[0]) or f"<span></span>{entry[0]}".startswith(START)
    classes = "entry" + " hanging" * bool(hangs)
    classes += " long" * (max(len(html.unescape(line)) for line in entry) > wide)
    return f'<span class="{classes}">{text}\n</span>'


def in_entries(body: str, wide: int) -> str:
    """The lines of a help text as entries; those wider than ``wide`` characters wrap anywhere."""
    first, *lines = body.removeprefix("<span></span>").rstrip("\n").split("\n")
    entries = [[first]]
    for line in lines:
        if _continues(line, entries[-1]):
            entries[-1].append(line)
        else:
            entries.append([line])
    return "".join(_shown(entry, wide) if entry[0] else "\n" for entry in entries)
