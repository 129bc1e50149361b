r"""Write LaTeX tables of the constants, the conditions, and the weights of sums.

The tables need ``\usepackage{booktabs}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .content import Content

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
HEADS = {
    "alpha": r"$\alpha$",
    "beta": r"$\beta$",
    "gamma": r"$\gamma$",
    "delta": r"$\delta$",
    "negative_slope": "negative slope",
    "sigma_w": r"$\sigma_w$",
    "sigma_b": r"$\sigma_b$",
}
CONDITIONS = {
    "Q(1)": "$Q(1)$",
    "Q'(1)": "$Q'(1)$",
    "C(0)": "$C(0)$",
    "C'(1)": "$C'(1)$",
    "C''(1)": "$C''(1)$",
    "Q_f(1)": "$Q_f(1)$",
    "C_f'(1)": "$C_f'(1)$",
    "C_f(0)": "$C_f(0)$",
    "max C_f(0)": r"$\max C_f(0)$",
    "max C_f''(1)": r"$\max C_f''(1)$",
    "chi_1": r"$\chi_1$",
    "q*": "$q^*$",
    "E phi": r"$\mathrm{E}\,\phi$",
    "Var phi": r"$\mathrm{Var}\,\phi$",
    "E y^2": r"$\mathrm{E}\,y^2$",
}
FORMULA = r"$\hat\phi(x) = \gamma\,(\phi(\alpha x + \beta) + \delta)$"


def escape(text: Any) -> str:
    """Escape text for LaTeX; non-ASCII characters become question marks."""
    return "".join(SPECIAL.get(c, c if " " <= c <= "~" else "?") for c in str(text))


def number(value: float | None) -> str:
    """Write a number with ten digits, and powers of ten in LaTeX notation."""
    if value is None:
        return "--"
    mantissa, _, exponent = f"{value:.10g}".partition("e")
    return f"${mantissa} \\times 10^{{{int(exponent)}}}$" if exponent else f"${mantissa}$"


def write_latex(content: Content) -> str:
    """Return the tables as LaTeX source."""
    lines = [
        f"% kcalc {content.version}, method {escape(content.settings)}; needs "
        f"\\usepackage{{booktabs}}"
    ]
    if content.method != "looks_linear" and not set(content.source.constants.columns()) & {
        "sigma_w",
        "sigma_b",
    }:
        lines.append(FORMULA + r"\par\medskip")
    return "\n".join([*lines, *_constants(content), *_conditions(content), *_sums(content)]) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    body = [" & ".join(row) + r" \\" for row in rows]
    columns = f"l{'r' * (len(head) - 1)}"
    return [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _constants(content: Content) -> list[str]:
    table = content.source.constants
    columns = table.columns()
    found: dict[Any, int] = {}
    for constants in table.by_node.values():
        found[constants] = found.get(constants, 0) + 1
    rows = [
        [
            escape(k.activation.name),
            *(number(getattr(k, column)) for column in columns),
            f"${count}$",
        ]
        for k, count in found.items()
    ]
    return _table(["activation", *(HEADS[column] for column in columns), "nodes"], rows)


def _conditions(content: Content) -> list[str]:
    rows = []
    for name, target, value, residual in content.conditions:
        size = "--" if residual is None or target is None else number(float(f"{residual:.1e}"))
        rows.append([CONDITIONS.get(name, escape(name)), number(target), number(value), size])
    return (
        [r"\par\medskip", *_table(["condition", "target", "value", "residual"], rows)]
        if rows
        else []
    )


def _sums(content: Content) -> list[str]:
    rows = [
        [f"${index}$", ", ".join(map(number, mixed.weights)), f"${len(mixed.nodes)}$"]
        for index, mixed in enumerate(content.sums, 1)
    ]
    return [r"\par\medskip", *_table(["sum", "weights", "nodes"], rows)] if rows else []
