"""Markdown pages whose code blocks run.

Used by the tests, which run every page, and by the build, which draws pictures from them.

A page is Markdown with fenced blocks:

- ``python``: run, all blocks of a page in order and in one namespace. After
  ``<!-- raises ERROR -->`` the block must raise that kcalc
  error, whose message is its output.
- ``bash`` and ``console`` whose lines start with ``kcalc`` (``$ kcalc`` in ``console``): run in
  this process.
- ``text``: the output of the block before it. White space does not matter, ``...`` stands for
  anything, numbers are compared to the digits
  shown, and of numbers that are rounding errors only the size.
- ``json``: must be JSON.
- A block after ``<!-- needs MODULE -->`` is run where that module is installed.
- A block after ``<!-- file NAME -->`` is written to that file.
- Commands after ``<!-- exits N -->`` must end with status N instead of 0.
- Marks are divided by semicolons: ``<!-- needs MODULE; exits 1 -->``.
- Any other block, and any that follows ``<!-- not run: REASON -->``, is left alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<info>.*?) *$")
MARK = re.compile(r"^ *<!-- *(?P<text>.*?) *-->$")
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?<=\w)\d+")
RULE = re.compile(r"[-=+|]{3,}")  # lines of tables are as long as the numbers in them
ROUNDING = 1e-9  # figures below it are rounding errors: they differ between machines
RUN = ("python", "bash", "console")


class PageError(AssertionError):
    """A block that does not do what its page says."""


@dataclass(frozen=True)
class Block:
    """A fenced block: language ("" where none is said), text, line of its fence, and comment.

    The comment is the one right before it.
    """

    language: str
    text: str
    line: int
    mark: str = ""

    def _marked(self, kind: str) -> str | None:
        """What the mark says of one kind; marks are divided by semicolons."""
        parts = [part.strip() for part in self.mark.split(";")]
        return next((part.removeprefix(kind) for part in parts if part.startswith(kind)), None)

    @property
    def reason(self) -> str | None:
        """Why it is not run, where it is marked so, or needs what is not installed."""
        needed = self._marked("needs ")
        if needed is not None and find_spec(needed) is None:
            return f"{needed} is not installed"
        return (
            self.mark.removeprefix("not run:").strip() if self.mark.startswith("not run:") else None
        )

    @property
    def raises(self) -> str | None:
        """The error that it is said to raise."""
        return self._marked("raises ")

    @property
    def file(self) -> str | None:
        """The name of the file that it is written to."""
        return self._marked("file ")

    @property
    def status(self) -> int:
        """The exit status of its commands."""
        return int(self._marked("exits ") or 0)

    @property
    def commands(self) -> list[str]:
        """The ``kcalc`` commands of a shell block, joined where a backslash ends a line."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page. Directives (``{name}`` fences) are not code and are left out."""
    found: list[Block] = []
    opened: re.Match[str] | None = None
    mark, start, kept = "", 0, []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence is not None:
                opened, start, kept = fence, number, []
            elif line.strip():
                said = MARK.match(line)
                mark = said["text"] if said else ""
        elif fence is not None and fence["fence"].startswith(opened["fence"]) and not fence["info"]:
            language = (opened["info"].split() or [""])[0]
            if not language.startswith("{"):
                indent = len(opened["indent"])
                body = "".join(row[indent:] + "\n" for row in kept)
                found.append(Block(language, body, start, mark))
            opened, mark = None, ""
        else:
            kept.append(line)
    if opened is not None:
        raise PageError(f"line {start}: a fence is not closed")
    return found


def run(
    text: str,
    namespace: dict[str, Any] | None = None,
    *,
    check: bool = True,
    upto: int | None = None,
) -> Iterator[tuple[Block, str]]:
    """Run a page block by block; yields each block that ran with what it printed.

    Parameters: ``namespace`` is what the first block finds; ``check`` compares outputs; ``upto``
    stops before that line.
    Raises: PageError naming the line.
    """
    names = {"__name__": "__main__"} if namespace is None else namespace
    printed: str | None = None
    for block in blocks(text):
        if upto is not None and block.line >= upto:
            return
        if block.reason is not None:
            printed = None
        elif block.file is not None:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "text" and printed is not None:
            if check:
                compare(block.text, printed, block.line)
            printed = None
        elif block.language == "json":
            json.loads(block.text)
        elif block.language in RUN:
            printed = _execute(block, names)
            if check and block.language == "console":
                compare(
                    "\n".join(
                        line for line in block.text.splitlines() if not line.startswith("$ ")
                    ),
                    printed,
                    block.line,
                )
            yield block, printed


def _execute(block: Block, names: dict[str, Any]) -> str:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            if block.language == "python":
                # Padding keeps the line numbers of tracebacks those of the page.
                text, name = "\n" * block.line + block.text, f"<page, line {block.line}>"
                # Functions have a source, as those of a notebook do.
                linecache.cache[name] = (len(text), None, text.splitlines(True), name)
                exec(compile(text, name, "exec"), names)
            else:
                _commands(block)
    except Exception as error:
        if block.raises is None:
            raise PageError(f"line {block.line}: {type(error).__name__}: {error}") from error
        if block.raises not in [kind.__name__ for kind in type(error).__mro__]:
            raise PageError(
                f"line {block.line}: {type(error).__name__} instead of {block.raises}: {error}"
            ) from error
        return f"{type(error).__name__}: {error}"
    if block.raises is not None:
        raise PageError(f"line {block.line}: no {block.raises} was raised")
    return out.getvalue()


def _commands(block: Block) -> None:
    from kcalc.cli import main

    for command in block.commands:
        words = shlex.split(command, comments=True)
        if words[:1] != ["kcalc"]:
            raise PageError(
                f"{command!r} is no kcalc command: say why it is not run with <!-- not run: "
                f"REASON -->"
            )
        mistakes = io.StringIO()
        with contextlib.redirect_stderr(mistakes):
            try:
                status = main(words[1:])
            except SystemExit as stop:
                status = stop.code
        if (status or 0) != block.status:
            raise PageError(f"{command!r} ends with status {status}: {mistakes.getvalue().strip()}")


def compare(expected: str, printed: str, line: int = 0) -> None:
    """Raises: PageError where ``printed`` is not what is shown."""
    at, actual = 0, printed.split()
    parts = [part.split() for part in re.split(r"(?<!\S)\.\.\.(?!\S)", expected)]
    for number, part in enumerate(parts):
        last = len(actual) - len(part)
        starts = range(at, last + 1) if number else [0]
        if number and number == len(parts) - 1:
            starts = [last] if last >= at else []
        found = next((i for i in starts if _alike(part, actual[i : i + len(part)])), None)
        if found is None:
            raise PageError(f"line {line}: the page shows\n{expected}\nbut it is\n{printed}")
        at = found + len(part)
    if parts[-1] and at != len(actual):
        raise PageError(f"line {line}: the page shows\n{expected}\nbut there is more:\n{printed}")


def _alike(expected: Sequence[str], actual: Sequence[str]) -> bool:
    return len(expected) == len(actual) and all(
        _same(one, two) for one, two in zip(expected, actual, strict=True)
    )


def _same(shown: str, actual: str) -> bool:
    """Equal, numbers to the digits shown."""
    if shown == actual or (RULE.fullmatch(shown) and RULE.fullmatch(actual)):
        return True
    if NUMBER.sub("#", shown) != NUMBER.sub("#", actual):
        return False
    return all(
        _close(one, two)
        for one, two in zip(NUMBER.findall(shown), NUMBER.findall(actual), strict=True)
    )


def _close(shown: str, actual: str) -> bool:
    value, found = float(shown), float(actual)
    if 0 < abs(value) < ROUNDING:
        return abs(found) < ROUNDING
    mantissa, _, exponent = shown.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    return abs(value - found) <= 0.51 * 10.0 ** (int(exponent or 0) - digits)
