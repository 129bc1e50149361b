"""Small faults put into source text, one at a time.

a wrong operator, a wrong bound, a check left out.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.Pow: "*",
    ast.FloorDiv: "/",
    ast.Mod: "//",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
# What a function of these names shows of itself is looked at by eyes, not compared with the truth.
SHOWN = frozenset(
    {"__repr__", "__str__", "_repr_html_", "_repr_latex_", "_repr_svg_", "plot", "draw"}
)
SYMMETRIC = frozenset(
    {
        "max",
        "min",
        "maximum",
        "minimum",
        "zip",
        "isinstance",
        "broadcast_shapes",
        "Add",
        "Mul",
        "KcalcError",
        "plus",
        "meet",
    }
)


@dataclass(frozen=True)
class Mutant:
    """One edit of one file: what stands between two offsets (in characters) of its text becomes
    ``after``.

    ``function``: the qualified name of the function or class around it, "" for the module;
    ``text``: the line, without its indentation.
    """

    path: str
    function: str
    line: int
    text: str
    start: int
    end: int
    before: str
    after: str

    def applied(self, text: str) -> str:
        """The file's text with the fault."""
        return text[: self.start] + self.after + text[self.end :]

    def __str__(self) -> str:
        place = f"{self.path}:{self.line} {self.function}".rstrip()
        return (
            f"{place}: {' '.join(self.before.split())[:70]!r} -> "
            f"{' '.join(self.after.split())[:70]!r}"
        )


def mutants(path: Path, root: Path) -> list[Mutant]:
    """All mutants of one file, in the order of its text; a few may not compile."""
    text = path.read_text(encoding="utf-8")
    maker = _Maker(str(path.relative_to(root)), text)
    maker.visit(ast.parse(text))
    return maker.made


def compiles(mutant: Mutant, root: Path) -> bool:
    """False for what Python would refuse, which no test need notice."""
    try:
        compile(
            mutant.applied((root / mutant.path).read_text(encoding="utf-8")),
            "mutant",
            "exec",
            dont_inherit=True,
        )
    except (SyntaxError, ValueError):
        return False
    return True


class _Maker(ast.NodeVisitor):
    def __init__(self, path: str, text: str) -> None:
        self.path, self.text, self.made = path, text, list[Mutant]()
        self.around: list[str] = []
        self.lines = [0]
        for line in text.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def _offset(self, line: int, column: int) -> int:
        start = self.lines[line - 1]
        raw = self.text[start : self.lines[line]].encode()[:column]
        return start + len(raw.decode())

    def _span(self, node: ast.AST) -> tuple[int, int]:
        start = self._offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return start, self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _add(self, node: ast.AST, start: int, end: int, after: str) -> None:
        before = self.text[start:end]
        if before != after:
            line: int = node.lineno  # type: ignore[attr-defined]
            text = self.text[self.lines[line - 1] : self.lines[line]].strip()
            self.made.append(
                Mutant(self.path, ".".join(self.around), line, text, start, end, before, after)
            )

    def _source(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.text[start:end]

    def _between(self, left: ast.AST, right: ast.AST, after: str) -> None:
        """The operator between two operands, with any brackets beside it left alone."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self.text[start:end]
        token = gap.strip("() \n\\")
        if token and gap.count(token) == 1:
            at = start + gap.index(token)
            self._add(left, at, at + len(token), after)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in SHOWN:
            return
        self.around.append(node.name)
        for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self.around.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.around.append(node.name)
        self.generic_visit(node)
        self.around.pop()

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add(node, *self._span(node), "pass")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._add(node, *self._span(node), "pass")
            self.visit(node.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.generic_visit(node)
        if type(node.op) in OPERATORS:
            self._between(node.left, node.right, OPERATORS[type(node.op)])

    def visit_Compare(self, node: ast.Compare) -> None:
        self.generic_visit(node)
        for left, op, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            self._between(left, right, COMPARISONS[type(op)])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.generic_visit(node)
        after = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, after)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not | ast.USub):
            self._add(node, *self._span(node), f"({self._source(node.operand)})")

    def visit_If(self, node: ast.If) -> None:
        self.generic_visit(node)
        self._condition(node.test)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.generic_visit(node)
        self._condition(node.test)

    def _condition(self, test: ast.expr) -> None:
        # `not x` and comparisons have mutants of their own that say the same.
        simple = isinstance(test, ast.UnaryOp) or (
            isinstance(test, ast.Compare) and len(test.ops) == 1
        )
        if not simple and self._source(test) != "TYPE_CHECKING":
            self._add(test, *self._span(test), f"(not ({self._source(test)}))")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, *self._span(node), str(not node.value))
        elif isinstance(node.value, int | float):
            self._add(node, *self._span(node), f"({self._source(node)} + 1)")

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # of zip: says what holds anyway
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        if (
            len(node.args) >= 2
            and name not in SYMMETRIC
            and not any(isinstance(a, ast.Starred) for a in node.args[:2])
        ):
            first, second = self._source(node.args[0]), self._source(node.args[1])
            start, end = self._span(node.args[0])[0], self._span(node.args[1])[1]
            self._add(node, start, end, f"{second}, {first}")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        return  # messages
