"""Write a Python module for a shaping, with a header, functions and tables.

The writers for torch, JAX, Flax, Keras and NumPy share this code.
"""

from __future__ import annotations

import re
import string
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...foundation.errors import KcalcError
from ...network.layers import Attend
from .content import Content, Node, TransformedActivation, WeightedSum
from .python_text import Dialect, body, digits
from .stable import constants

WIDTH = 110
LISTED = 4
LETTERS = string.ascii_lowercase[:6]


@dataclass(frozen=True)
class Framework:
    """The parts of a module that are specific to one framework.

    ``imports``: {word: import line}; a line is written if the code contains its word. ``tensor``:
    the type of tensors in annotations. ``decorate``: decorator lines of every function.
    ``helpers``: {name: source} for small functions, written if they are used. ``extra``: source
    after each activation, with {name} and {title}. ``locations``: source of per-location
    normalisation. ``initialisers``: {law: source}. ``standardised``: source of weight
    standardisation.
    """

    title: str
    imports: dict[str, str]
    tensor: str
    dialect: Dialect
    locations: str
    delta: str
    gaussian: str
    standardised: str
    decorate: str = ""
    helpers: tuple[tuple[str, str], ...] = ()
    extra: str = ""


def module_text(content: Content, framework: Framework) -> str:
    """Return the source text of the module.

    Raises: KcalcError if an activation has no exported form.
    """
    refuse_unwritten(content, framework.title)
    parts = [
        *(activation(shaped, framework) for shaped in content.activations),
        *(mixture(mixed, framework) for mixed in content.sums),
    ]
    parts += [framework.delta if content.delta else framework.gaussian]
    parts += [framework.standardised] if content.standardised else []
    parts.append(framework.locations)
    code = "\n\n\n".join(part.strip("\n") for part in [*parts, *tables(content)])
    helpers = [
        source.strip("\n") for name, source in framework.helpers if re.search(rf"\b{name}\b", code)
    ]
    code = "\n\n\n".join([*helpers, code])
    return f"{header(content, framework)}\n\n{_imports(code, framework.imports)}\n\n\n{code}\n"


def refuse_unwritten(content: Content, where: str) -> None:
    """Raise KcalcError if tables of constants cannot describe a shaping.

    Tables cannot describe mirrored weights (looks linear) or attention.
    """
    instead = 'use kc.to_jax(shaping), or export("json")'
    if content.method == "looks_linear":
        what = "a looks_linear shaping has mirrored weights and pairs of activations"
        raise KcalcError(f"{what}, which the {where} writer does not support; {instead}")
    for node in content.network.nodes_of(Attend):
        raise KcalcError(
            f"node {node!r} attends over tokens, which the {where} writer does not support; "
            f"{instead}"
        )


def _imports(code: str, imports: dict[str, str]) -> str:
    """Return the import lines whose words the code uses.

    The standard library comes first, then a blank line and all others, sorted as by isort.
    """
    used = [line for word, line in imports.items() if re.search(rf"(?<![\w.]){word}\.", code)]
    standard = [
        line for line in used if line.split()[1] in ("math", "functools", "importlib", "random")
    ]
    others = [line for line in used if line not in standard]
    return "\n\n".join("\n".join(group) for group in (standard, others) if group)


# --- text -----------------------------------------------------------------------------------------


def clean(text: Any) -> str:
    """Make text safe for a docstring.

    The result is a single line without triple quotes, backslashes or unprintable characters.
    """
    plain = "".join(c if c.isprintable() else " " for c in str(text))
    return plain.replace("\\", "/").replace('"""', "'''").encode("utf-8", "replace").decode("utf-8")


def literal(value: Any) -> str:
    """Return a node label as a Python literal."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        value = str(value)
    text = repr(value)
    return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text


def wrapped(words: Iterable[str], indent: int) -> str:
    """Write words, each followed by a comma, in lines of limited width."""
    lines, line = [], ""
    for word in words:
        if line and len(line) + len(word) + 2 > WIDTH - indent:
            lines.append(line)
            line = ""
        line += f"{' ' * bool(line)}{word},"
    return "\n".join(" " * indent + text for text in [*lines, line])


def header(content: Content, framework: Framework) -> str:
    """Return the docstring of the module: method, options, and conditions with residuals."""
    rows = [("condition", "target", "value", "residual")]
    for name, target, value, residual in content.conditions:
        aim = (
            ("-", "-")
            if target is None or residual is None
            else (f"{target:.12g}", f"{residual:.1e}")
        )
        rows.append((clean(name), aim[0], f"{value:.12g}", aim[1]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
    notes = [
        line
        for note in content.notes
        for line in textwrap.wrap(f"Note: {clean(note)}", WIDTH, subsequent_indent="  ")
    ]
    lines = [
        f'"""A shaped network for {framework.title}: activations, sums, initial weights and input '
        f"normalisation.",
        "",
        *textwrap.wrap(
            f"Written by kcalc {content.version}; it needs only {framework.title}. Method: "
            f"{clean(content.settings)}.",
            WIDTH,
        ),
        "",
        *table,
        *([""] if notes else []),
        *notes,
        '"""',
    ]
    return "\n".join(lines)


def formula(shaped: TransformedActivation) -> str:
    """Describe a transformed activation for a docstring."""
    name = clean(shaped.activation.base.name)[:60]
    if shaped.activation.transformation is None:
        return f"The activation {name}, unchanged."
    a, b, scale, shift = constants(shaped.activation)
    inside = f"{a:.6g} x" if a != 1 else "x"
    inside += f" {'-' if b < 0 else '+'} {abs(b):.6g}" if b else ""
    text = f"phi({inside})" + (f" {'-' if shift < 0 else '+'} {abs(shift):.6g}" if shift else "")
    text = text if scale == 1 else f"{scale:.6g} ({text})" if shift else f"{scale:.6g} {text}"
    return f"{text}, where phi is {name}."


def where_used(nodes: Sequence[Node]) -> str:
    """List nodes, but only the first few and the last if there are many."""
    names = [clean(node)[:40] for node in nodes]
    if len(names) <= LISTED:
        return f"Node{'s' * (len(names) > 1)}: {', '.join(names)}."
    return f"Nodes: {', '.join(names[: LISTED - 1])} ... {names[-1]} ({len(names)} in all)."


def function(
    name: str, arguments: str, doc: Sequence[str], lines: Sequence[str], framework: Framework
) -> str:
    """Return the source of a function."""
    text = [
        f"    {line}".rstrip()
        for paragraph in doc
        for line in (textwrap.wrap(paragraph, WIDTH) if paragraph else [""])
    ]
    text[0] = f'    """{text[0].strip()}'
    text = [f'{text[0]}"""'] if len(text) == 1 else [*text, '    """']
    head = f"def {name}({arguments}) -> {framework.tensor}:"
    return "\n".join(
        [
            *([framework.decorate] if framework.decorate else []),
            head,
            *text,
            *(f"    {line}" for line in lines),
        ]
    )


def activation(shaped: TransformedActivation, framework: Framework) -> str:
    """Return the source of an activation, followed by the framework's extra lines."""
    doc = [formula(shaped), "", where_used(shaped.nodes)]
    lines = body(shaped.activation, framework.dialect)
    source = function(
        shaped.name, f"x: {framework.tensor}", doc, [line.rstrip() for line in lines], framework
    )
    title = "".join(word.capitalize() for word in shaped.name.split("_"))
    return source + framework.extra.format(name=shaped.name, title=title)


def mixture(mixed: WeightedSum, framework: Framework) -> str:
    """Return the source of a weighted sum, with inputs in the order of the network's slots."""
    doc = [
        "A sum with fixed weights; inputs are in the order of the network.",
        "",
        where_used(mixed.nodes),
    ]
    if len(mixed.weights) > len(LETTERS):
        weights = f"weights = (\n{wrapped(map(digits, mixed.weights), 8)}\n    )"
        lines = [
            weights,
            "return sum(weight * x for weight, x in zip(weights, inputs, strict=True))",
        ]
        return function(mixed.name, f"*inputs: {framework.tensor}", doc, lines, framework)
    names = LETTERS[: len(mixed.weights)]
    terms = " + ".join(
        name if w == 1 else f"{digits(w)} * {name}"
        for name, w in zip(names, mixed.weights, strict=True)
    )
    arguments = ", ".join(f"{name}: {framework.tensor}" for name in names)
    lines = [f"return {terms}".replace("+ -", "- ")]
    if len(lines[0]) > WIDTH:
        lines = [
            "return (",
            *(f"    {'+ ' * bool(i)}{term}" for i, term in enumerate(terms.split(" + "))),
            ")",
        ]
    return function(mixed.name, arguments, doc, lines, framework)


def table(name: str, groups: Sequence[tuple[str, Sequence[Node]]], comment: str) -> str:
    """Return the source of a dictionary {node: value}, grouped by value."""
    pieces = []
    for value, nodes in groups:
        line = (
            f"**dict.fromkeys(({', '.join(map(literal, nodes))}{',' * (len(nodes) == 1)}), "
            f"{value}),"
        )
        many = (
            f"**dict.fromkeys(\n        (\n{wrapped(map(literal, nodes), 12)}\n        "
            f"),\n        {value},\n    ),"
        )
        pieces.append(f"    {line if len(line) <= WIDTH else many}")
    return f"# {comment}\n{name} = {{\n" + "\n".join(pieces) + "\n}"


def tables(content: Content) -> list[str]:
    """Return the tables that map nodes to functions and constants."""
    sigmas = [(f"({digits(w)}, {digits(b)})", nodes) for (w, b), nodes in content.sigmas.items()]
    rows = {
        "ACTIVATIONS": (
            [(s.name, s.nodes) for s in content.activations],
            "The activation of every nonlinear node.",
        ),
        "SUMS": (
            [(s.name, s.nodes) for s in content.sums],
            "The weighted sum at every node where branches meet.",
        ),
        "SIGMAS": (
            [] if content.plain else sigmas,
            "(sigma_w, sigma_b) of the initial weights: Var W = sigma_w^2 / fan-in, Var b = "
            "sigma_b^2.",
        ),
        "SCALES": (
            [(digits(f), nodes) for f, nodes in content.scales.items()],
            "The factors of fixed multiplications.",
        ),
        "VECTORS": (
            [(digits(size), nodes) for size, nodes in content.vectors.items()],
            "The standard deviation of the entries of embeddings and positional vectors.",
        ),
        "STANDARDISED": (
            [("True", content.standardised)] if content.standardised else [],
            "Layers that use standardise(weight) instead of weight.",
        ),
    }
    return [
        table(name, groups, comment)
        for name, (groups, comment) in rows.items()
        if groups or name == "ACTIVATIONS"
    ]
