"""What comes from kcalc's own registers.

``{activations}``, ``{shaping-methods}``, ``{export-targets}``, ``{command}``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

Cell = Sequence[nodes.Node]
LONG = 150  # characters of LaTeX that a cell holds


def table(
    head: Sequence[str], rows: Sequence[Sequence[Cell]], classes: Sequence[str] = ()
) -> nodes.table:
    """A table of cells, each a list of inline nodes."""
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    top = nodes.thead()
    top += _row([[nodes.Text(name)] for name in head])
    body = nodes.tbody()
    body += [_row(row) for row in rows]
    group += [top, body]
    found = nodes.table(classes=list(classes))
    found += group
    return found


def _row(cells: Sequence[Cell]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += nodes.paragraph("", "", *cell)
        row += entry
    return row


def _code(text: str) -> nodes.literal:
    return nodes.literal(text, text)


class Activations(SphinxDirective):
    """The catalogue: names, formula, kinks, degree, who introduced it."""

    def run(self) -> list[nodes.Node]:
        import sympy as sp

        from kcalc.activations import catalogue

        rows: list[list[Cell]] = []
        for entry in catalogue():
            phi = entry.activation
            names: list[nodes.Node] = [_code(entry.name)]
            for alias in entry.aliases:
                names += [nodes.Text(", "), _code(alias)]
            kinks = ", ".join(str(kink) for kink in phi.kinks) or "none"
            degree = "" if phi.degree is None else str(phi.degree)
            formula = nodes.math("", _latex(sp, phi.expr))
            rows.append(
                [
                    names,
                    [formula],
                    [nodes.Text(kinks)],
                    [nodes.Text(degree)],
                    [nodes.Text(entry.source)],
                ]
            )
        return [table(["name", "φ(x)", "kinks", "degree", "source"], rows, ["activations"])]


def _latex(sp: Any, expr: Any) -> str:
    """LaTeX of an expression, in four digits where it is long; short decimals for odd fractions."""
    expr = expr.replace(lambda e: e.is_Rational and e.q > 100, lambda e: sp.Float(e, 5))
    exact = sp.latex(expr, inv_trig_style="full")
    shown = exact if len(exact) <= LONG else sp.latex(expr.evalf(4), inv_trig_style="full")
    return shown.replace(r"\operatorname", r"\mathrm")


class ShapingMethods(SphinxDirective):
    """The methods of ``kc.shape`` with their targets and defaults."""

    def run(self) -> list[nodes.Node]:
        from inspect import signature

        from kcalc.shaping import METHODS, record

        rows: list[list[Cell]] = []
        for name, method in METHODS.items():
            parameters = [
                p
                for key, p in signature(method).parameters.items()
                if key not in ("network", "activation")
            ]
            targets: list[nodes.Node] = []
            for parameter in parameters:
                targets += [nodes.Text(", ")] * bool(targets) + [
                    _code(f"{parameter.name}={parameter.default!r}")
                ]
            about = [nodes.Text(record(method).about)]
            rows.append([[_code(name)], about, targets or [nodes.Text("none")]])
        return [table(["method", "what it does", "targets"], rows)]


class ExportTargets(SphinxDirective):
    """The targets of ``s.export``."""

    def run(self) -> list[nodes.Node]:
        from kcalc.interchange.writers import ALIASES, WRITERS

        rows: list[list[Cell]] = []
        for name, writer in WRITERS.items():
            others = (
                ", ".join(alias for alias, target in ALIASES.items() if target == name) or "none"
            )
            rows.append(
                [
                    [_code(name)],
                    [nodes.Text(others)],
                    [nodes.Text("text and a binary file" if writer.data else "text")],
                ]
            )
        return [table(["target", "other names", "what it gives"], rows)]


class Command(SphinxDirective):
    """What ``kcalc COMMAND --help`` prints."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        from kcalc.cli import main

        kept, out = os.environ.get("COLUMNS"), io.StringIO()
        os.environ["COLUMNS"] = "88"
        try:
            with redirect_stdout(out), suppress(SystemExit):
                main([*self.arguments, "--help"])
        finally:
            os.environ.pop("COLUMNS")
            if kept is not None:
                os.environ["COLUMNS"] = kept
        text = out.getvalue()
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, Any]:
    for name, directive in {
        "activations": Activations,
        "shaping-methods": ShapingMethods,
        "export-targets": ExportTargets,
        "command": Command,
    }.items():
        app.add_directive(name, directive)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
