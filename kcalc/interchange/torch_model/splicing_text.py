"""Redirect individual calls in the text of the user's functions, and keep all other text."""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from ...foundation.errors import KcalcError
from .splicing import OPERATORS, Definition

HERE = "here"  # name of the argument that passes the current call to a function
TAIL, HEAD, CUT = range(3)


@dataclass(frozen=True)
class Cut:
    """A replacement for some bytes; ``rank`` orders replacements at the same place."""

    start: int
    end: int
    text: str
    rank: tuple[int, int] = (CUT, 0)


@dataclass(frozen=True)
class Token:
    """A token (not a comment or line break) and its position in bytes."""

    text: str
    start: int
    end: int
    line: int


class SourceText:
    """Python source text with places given as byte offsets.

    Raises: KcalcError if the text is not Python.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.lines = [line.encode() for line in lines_of(text)]
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.tokens = [*self._tokens()]
        self._places = [token.start for token in self.tokens]

    def _tokens(self) -> Iterable[Token]:
        skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT)
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type in (*skipped, tokenize.DEDENT, tokenize.ENDMARKER):
                continue
            start, end = (self._of_character(*place) for place in (token.start, token.end))
            yield Token(token.string, start, end, token.start[0])

    def _of_character(self, line: int, column: int) -> int:
        text = self.lines[line - 1].decode()
        return self.starts[line - 1] + len(text[:column].encode())

    def at(self, line: int | None, column: int | None) -> int:
        """Return the byte offset of a line and column of a syntax tree."""
        assert line is not None and column is not None
        return self.starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return the byte offsets of the beginning and end of a node."""
        start = self.at(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return start, self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def part(self, start: int, end: int) -> str:
        """Return the text between two byte offsets."""
        return self.text.encode()[start:end].decode()

    def after(self, place: int, text: str) -> int:
        """Return the index of the first token ``text`` at or after a place."""
        number = bisect_left(self._places, place)
        while self.tokens[number].text != text:
            number += 1
        return number

    def with_cuts(self, cuts: Iterable[Cut]) -> str:
        """Return the text after the replacements ``cuts``."""
        old, new, place = self.text.encode(), [], 0
        for cut in sorted(set(cuts), key=lambda cut: (cut.start, cut.rank)):
            assert cut.start >= place, self.name
            new += [old[place : cut.start], cut.text.encode()]
            place = cut.end
        return b"".join([*new, old[place:]]).decode()


def lines_of(text: str) -> list[str]:
    """Split a text at line feeds only, and keep the line ends."""
    parts = text.split("\n")
    return (
        [*(f"{line}\n" for line in parts[:-1]), *parts[-1:]]
        if parts[-1]
        else [f"{line}\n" for line in parts[:-1]]
    )


@dataclass(frozen=True)
class Redirected:
    """Rewrites the text of a call or operator as ``asked(owner, number, function, ...)``.

    Operators and tensor methods are given by their names. ``callee``: a function that replaces the
    called function.
    """

    asked: str
    owner: str
    number: int
    method: bool = False
    callee: str = ""

    def cuts(self, source: SourceText, node: ast.AST) -> list[Cut]:
        """Return the replacements that rewrite a node."""
        start, end = source.span(node)
        size = end - start
        head = f"{self.asked}({self.owner}, {self.number}, "
        if isinstance(node, ast.Call):
            return self._call(source, node, head, size)
        if isinstance(node, ast.AugAssign):
            return self._augmented(source, node, head)
        assert isinstance(node, ast.BinOp | ast.UnaryOp)
        name = f'{head}"{operator_name(node)}", '
        made = [Cut(start, start, name, (HEAD, -size)), Cut(end, end, ")", (TAIL, size))]
        if isinstance(node, ast.UnaryOp):
            (first,) = source.tokens[source.after(start, _sign(node.op)) :][:1]
            return [*made, Cut(start, first.end, "")]
        number = source.after(source.span(node.left)[1], _sign(node.op))
        return [*made, _tight(source, number, ",")]

    def _call(self, source: SourceText, node: ast.Call, head: str, size: int) -> list[Cut]:
        start, end = source.span(node)
        function = source.span(node.func)
        number = source.after(function[1], "(")
        opening, inside = source.tokens[number], source.tokens[number + 1]
        comma = "" if inside.text == ")" else ", " if inside.line == opening.line else ","
        closing = []
        only = node.args[0] if len(node.args) == 1 and not node.keywords else None
        bare = isinstance(only, ast.GeneratorExp) and source.span(only)[0] == opening.start
        if bare:  # f(x for x in y)
            comma, closing = ", (", [Cut(end, end, ")", (TAIL, size))]
        if self.method:
            assert isinstance(node.func, ast.Attribute)
            name = source.after(function[1] - len(node.func.attr.encode()), node.func.attr)
            dot = source.tokens[name - 1]
            return [
                Cut(start, start, f'{head}"{node.func.attr}", ', (HEAD, -size)),
                Cut(dot.start, source.tokens[name].end, ""),
                Cut(opening.start, opening.end, comma),
                *closing,
            ]
        made = [Cut(opening.start, opening.end, comma), *closing]
        if self.callee:
            return [Cut(start, opening.start, head + self.callee, (HEAD, -size)), *made]
        return [Cut(start, start, head, (HEAD, -size)), *made]

    def _augmented(self, source: SourceText, node: ast.AugAssign, head: str) -> list[Cut]:
        start, end = source.span(node)
        target = source.span(node.target)
        number = source.after(target[1], f"{_sign(node.op)}=")
        sign = source.tokens[number]
        written = source.part(*target)
        if any(isinstance(part, ast.Call) for part in ast.walk(node.target)):
            raise KcalcError(
                f"a patch would evaluate {written} in {source.name} twice, but it contains a call; "
                "store the result of the call in a variable first"
            )
        text = f'= {head}"{operator_name(node)}", {written},'
        return [Cut(sign.start, sign.end, text), Cut(end, end, ")", (TAIL, end - start))]


def _tight(source: SourceText, number: int, text: str) -> Cut:
    """Return a replacement for a token and the spaces before it."""
    token, before = source.tokens[number], source.tokens[number - 1]
    blank = not source.part(before.end, token.start).strip(" ")
    return Cut(before.end if blank else token.start, token.end, text)


def operator_name(node: ast.AST) -> str:
    """Return the name of an operator in patches, such as "+", "+=" or "unary -"."""
    sign = _sign(node.op)  # type: ignore[attr-defined]
    if isinstance(node, ast.UnaryOp):
        return f"unary {sign}"
    return f"{sign}=" if isinstance(node, ast.AugAssign) else sign


def operator_function(node: ast.AST) -> str:
    """Return the name of an operator in Python's ``operator`` module."""
    name = OPERATORS[type(node.op)]  # type: ignore[attr-defined]
    return f"i{name.strip('_')}" if isinstance(node, ast.AugAssign) else name


def _sign(op: ast.operator | ast.unaryop) -> str:
    return {
        ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.MatMult: "@",
        ast.FloorDiv: "//", ast.Mod: "%", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~",
        ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    }[type(op)]  # fmt: skip


def argument(source: SourceText, node: Definition) -> Cut:
    """Add the argument ``here`` as the last argument of a function."""
    number = source.after(source.span(node)[0], "lambda" if isinstance(node, ast.Lambda) else "def")
    named = isinstance(node, ast.FunctionDef)
    number = source.after(source.tokens[number].end, "(") if named else number
    place, depth = number, 0
    while True:
        place += 1
        token = source.tokens[place]
        if depth == 0 and token.text == "**" and node.args.kwarg is not None:
            return Cut(token.start, token.start, f"{HERE}=None, ")
        if depth == 0 and token.text == (")" if named else ":"):
            before = source.tokens[place - 1]
            empty = place == number + 1
            gap = "" if empty and named else " " if empty or before.text == "," else ", "
            return Cut(before.end, before.end, f"{gap}{HERE}=None")
        depth += (token.text in "([{") - (token.text in ")]}")


def parent(source: SourceText, node: ast.Call, class_name: str, first: str) -> Cut:
    """Write ``super()`` with explicit arguments, for a function outside its class."""
    number = source.after(source.span(node.func)[1], "(")
    place = source.tokens[number].end
    return Cut(place, place, f"{class_name}, {first}")


def import_place(tree: ast.Module) -> int:
    """Return the line after which to insert an import: the last import at the top of the file."""
    head = (ast.Import, ast.ImportFrom)
    place = next(
        place
        for place, node in enumerate(tree.body)
        if not isinstance(node, head if place else (*head, ast.Expr))
    )
    return tree.body[place - 1].end_lineno or 0 if place else 0
