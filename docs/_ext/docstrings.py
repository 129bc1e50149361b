"""kcalc's docstrings as reStructuredText.

Plain formulas with bars and stars are text, parameters and "Returns:" are fields.

A docstring describes a parameter in sentences that begin with its name, as in "``ridge``: what is
added to the diagonal." Such sentences, with those that follow in the same paragraph, become the
entry of the parameter.
"""

from __future__ import annotations

import inspect
import pydoc
import re
import sys
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

LITERAL = re.compile(r"(``.+?``|:[a-z:]+:`[^`]+`|`[^`]+`_?)", re.DOTALL)
LABEL = re.compile(r"(?<![\w*])(Parameters|Returns|Raises|Yields): ")
NAMES = r"(?:``\w+``(?:, | and |, and ))*``\w+(?:=[^`]+)?``"
ENTRY = re.compile(
    rf"(?:(?<=[.;:\]] )|\A)(?P<names>{NAMES}|\w+(?:, \w+)*)(?P<colon>:)?(?: \([^()`]*\))?(?=[ :,])"
)
ENDS = re.compile(r"(?:(?<=[.;\]] )|(?<=[.;\]]  )|\A)(Returns|Raises|Yields)(?:: | (?=\w+Error ))")
FIELD = re.compile(r"^:(param|returns|raises)\b", re.MULTILINE)  # of sections, from napoleon
EXAMPLES = ".. rubric:: Examples"
SOURCE = re.compile(r"\s*(\[[A-Z][^\]]*\d[^\]]*\])\.?$")
COMMA = ",\u200b"  # Sphinx takes what stands before a space for a type
COMMON = {
    "network": "the :class:`kcalc.Network`.",
    "net": "the :class:`kcalc.Network`.",
    "ax": "the matplotlib Axes to draw on; None: new ones.",
    "axes": "the matplotlib Axes to draw on; None: new ones.",
    "assume_independent": "whether to go on where a hypothesis fails; the result is then "
    "heuristic.",
    "activation": "a registered name, an :class:`Activation <kcalc.Activation>` or a SymPy "
    "expression.",
    "block": "a network of one input and one output, as ``kc.chain`` makes it.",
    "classes": "the number of outputs.",
    "depth": "the number of layers, or of copies of the block.",
    "draws": "how many random networks are drawn.",
    "features": "the width of layers that state none; or {node: width}.",
    "image_shape": "(height, width) of the images.",
    "key": "a JAX random key, or a whole number.",
    "model": "a :class:`kcalc.Model`, as :func:`kcalc.to_jax` gives it.",
    "params": "the parameters of the model, as ``model.init`` gives them.",
    "q": "the mean square of the inputs.",
    "readout": "whether an Affine layer ends the network.",
    "residual_weight": "the amplitude of the branch; squares of the two weights sum to 1.",
    "seed": "the seed of the random numbers.",
    "shortcut_weight": "the amplitude of the shortcut; squares of the two weights sum to 1.",
    "sigma_b": "the standard deviation of biases.",
    "sigma_w": "the root of fan-in times the variance of weights.",
    "X": "the rows of data, (n, features).",
    "y": "the targets, (n,) or (n, outputs).",
}
INTERNAL = re.compile(
    r"kcalc\.(maps\.maps\.\w+|activations\.local_map\.\w+)\.(gaps|ball_gaps|values|ball_values)$"
    r"|kcalc\.Activation\.(refuse_numeric_only|pieces|kink_points|jumps|jump_sizes|landmarks|jax_values|numeric|base|transformation)$"
    r"|kcalc\.RunConfiguration\.\w+$|kcalc\.Model\.(plan|measuring|inputs_of)$|.*\.Moment\.(in_range|of_balls|of_expressions|text)$"
    r"|.*\.(rows|mirror_of|symbols_of|plotted_times|ingredients|pruned|shown)$|.*\.TrainingCurve\.of$|.*\.Note\.assumption$"
    r"|.*\.hyperparameter_\w+$"
)  # members for the rest of the package, not for users
DRAWN_BY = re.compile(r"(?:(?:;| and) see|\bSee) :func:`kcalc\.plotting(?:\.\w+)+`\.? *")
ROLE = re.compile(r":(class|func|exc):`(?:kc\.(\w[\w.]*)|(\w+))`")
LONG_NAME = re.compile(r":(class|func|exc):`(kcalc(?:\.\w+){3,})`")  # shown by its last part
DEFAULTS = {
    "<default of the method>": "...",
    "<class 'kcalc.network.layers.Normalisation'>": "L.Normalisation",
}  # as users know them
MADE_BY_HAND = frozenset({"Network", "Activation"})  # classes whose constructor a user calls


def mend(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape what reStructuredText would take for markup, outside literals."""
    if not name.startswith("kcalc"):  # what numbers and tuples say of themselves
        del lines[:]
        return
    shown = DRAWN_BY.sub(lambda see: "" if see[0][0] == "S" else ".", "\n".join(lines))
    prose, rubric, examples = shown.partition(EXAMPLES)
    if not FIELD.search(prose):  # a docstring without sections
        prose = "\n".join(_listed(prose.split("\n"), _parameters(what, name, obj)))
    text = ROLE.sub(_qualified, prose)
    text = LONG_NAME.sub(r":\1:`~\2`", text)
    pieces = LITERAL.split(text)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"(?<!\\)([|*])", r"\\\1", pieces[i])
        pieces[i] = re.sub(r"(\w)_(?=[\s.,;:)]|$)", r"\1\\_", pieces[i])
        pieces[i] = LABEL.sub(r"**\1:** ", pieces[i])
    lines[:] = f"{''.join(pieces)}\n{rubric}{examples}".split("\n")


def _parameters(what: str, name: str, obj: Any) -> list[str]:
    """The parameters of what a user calls.

    Functions, methods, layers, and the classes made by hand.
    """
    if what not in ("function", "method") and not (
        what == "class" and ("layers" in name or name.rpartition(".")[2] in MADE_BY_HAND)
    ):
        return []
    try:
        return [key for key in inspect.signature(obj).parameters if key != "self"]
    except (TypeError, ValueError):
        return []


def _listed(lines: list[str], parameters: list[str]) -> list[str]:
    """A docstring whose parameters, Returns and Raises are fields behind its prose."""
    paragraphs = [part for part in "\n".join(lines).strip("\n").split("\n\n") if part.strip()]
    prose: list[str] = []
    entries: dict[str, str] = {}
    ends: dict[str, str] = {}
    for i, paragraph in enumerate(paragraphs):
        if re.match(r"[-*] |\s|::|\.\. ", paragraph) or paragraph.endswith("::"):
            prose.append(paragraph)
            continue
        text = " ".join(paragraph.split())
        text, *rest = re.split(ENDS, text)
        text = re.sub(r"^Parameters: ", "", text)
        for label, words in zip(rest[::2], rest[1::2], strict=True):
            ends[label] = words.strip()
        kept, found = _entries(text, parameters) if i or len(paragraphs) == 1 else (text, {})
        entries |= found
        if kept:
            prose.append(kept)
    for key in parameters:
        if key in COMMON and not any(key in names.split(", ") for names in entries):
            entries[key] = COMMON[key]
    for words in (entries, ends):
        for key, text in words.items():
            source = SOURCE.search(text)
            if source:
                words[key] = text[: source.start()]
                prose.append(source[1])
    ordered = sorted(entries, key=lambda names: parameters.index(names.split(", ")[0]))
    fields = [f":param {COMMA.join(names.split(', '))}: {entries[names]}" for names in ordered]
    fields += [
        f":{'returns' if label == 'Yields' else label.lower()}: {words}"
        for label, words in ends.items()
    ]
    return [*"\n\n".join(prose).split("\n"), "", *fields, ""]


def _entries(text: str, parameters: list[str]) -> tuple[str, dict[str, str]]:
    """What a paragraph says before its first parameter, and {names: what it says of them}."""
    starts = []
    for match in ENTRY.finditer(text):
        names = re.findall(r"\w+", re.sub(r"=[^`]+| and ", " ", match["names"]))
        quoted = match["names"].startswith("``")
        before = text[: match.start()]
        apart = before.count("(") <= before.count(")")  # what stands in brackets is an aside
        known = apart and names and all(name in parameters for name in names)
        if known and (quoted or match["colon"]):
            starts.append((match, names))
    if not starts:
        return text, {}
    found: dict[str, str] = {}
    for (match, names), following in zip(
        starts, [*(m.start() for m, _ in starts[1:]), len(text)], strict=True
    ):
        words = text[match.end("names") : following].lstrip(" :,").rstrip(" ;:")
        value = re.search(r"=([^`]+)``$", match["names"])
        words = f"``{value[1]}`` {words}" if value else re.sub(r"^(is|are) ", "", words)
        found[", ".join(names)] = words if words.endswith(".") else f"{words}."
    before = text[: starts[0][0].start()].rstrip(" ;").removesuffix("Parameters:").rstrip()
    return f"{before}." if before and before[-1] not in ".:])" else before, found


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Members for the rest of the package are left out."""
    if type(obj).__name__ == "_tuplegetter":  # a named field, which the class describes
        return True
    owner = getattr(obj, "fget", None) or getattr(obj, "func", None) or obj
    full = f"{getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', name)}"
    short = re.sub(r"^kcalc\..*\.(Activation|Model|RunConfiguration)\.", r"kcalc.\1.", full)
    return True if INTERNAL.match(full) or INTERNAL.match(short) else None


def _qualified(role: re.Match[str]) -> str:
    """Names without their module are looked for everywhere."""
    kind, ours, bare = role.groups()
    return f":{kind}:`kcalc.{ours}`" if ours else f":{kind}:`.{bare}`"


def sign(
    app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    annotation: str | None,
) -> Any:
    """Results are made by functions: how their classes are called is nobody's business."""
    if (
        what == "class"
        and name.startswith("kcalc.")
        and "layers" not in name
        and name.rpartition(".")[2] not in MADE_BY_HAND
    ):
        return "", None
    for default, shown in DEFAULTS.items():
        signature = signature and signature.replace(f"={default}", f"={shown}")
    return signature, annotation


def internal(
    app: Sphinx, env: Any, node: Any, contnode: nodes.TextElement
) -> nodes.TextElement | None:
    """What a docstring names exists, but has no entry: its name stands without a link.

    It is the name by which users know it, or its last part. Anything else is a mistake.
    """
    target = str(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or not _exists(target):
        return None
    if target.startswith("kcalc.") and contnode.astext().rstrip("()") == target:
        parts = target.split(".")
        public = (".".join([*parts[:n], parts[-1]]) for n in (1, 2))
        name = next((name for name in public if pydoc.locate(name) is not None), parts[-1])
        call = "()" if contnode.astext().endswith("()") else ""
        return nodes.literal(name + call, name + call, classes=contnode["classes"])
    return contnode


def _exists(target: str) -> bool:
    module, _, last = target.rpartition(".")
    if target.startswith("kcalc."):  # a function may have the name of its module
        return pydoc.locate(target) is not None or hasattr(sys.modules.get(module), last)
    owner, _, name = target.rpartition(".")
    loaded = [module for key, module in list(sys.modules.items()) if key.startswith("kcalc.")]
    return any(
        hasattr(getattr(module, owner) if owner and hasattr(module, owner) else module, name)
        for module in loaded
    )


def setup(app: Sphinx) -> dict[str, Any]:
    analyzer = ModuleAnalyzer.for_module("kcalc.shaping")
    analyzer.analyze()
    analyzer.overloads.pop("shape", None)  # one for every method: the text lists their targets
    app.connect("autodoc-process-docstring", mend)
    app.connect("autodoc-process-signature", sign)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", internal)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
