"""The reference: one page per object, from NumPy docstrings and annotations.

``sphinx.ext.autosummary`` writes the pages, ``sphinx.ext.napoleon`` reads the sections, and autodoc
adds the types. The hooks here link names, show formulas as text, and leave out internal members.
"""

from __future__ import annotations

import inspect
import pydoc
import re
import sys
from functools import cache, cached_property
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.python._object import PyObject
from sphinx.pycode import ModuleAnalyzer

LITERAL = re.compile(r"(``.+?``|:[a-z:]+:`[^`]+`|`[^`]+`_?)", re.DOTALL)
EXAMPLES = ".. rubric:: Examples"
IVAR = re.compile(r"^:ivar (\w+(?:, \w+)*): ?")
ROLE = re.compile(r":(class|func|exc):`(?:kc\.(\w[\w.]*)|(\w+))`")
LONG_NAME = re.compile(r":(class|func|exc):`(kcalc(?:\.\w+){3,})`")  # shown by its last part
DEFAULTS = {
    "<default of the method>": "...",
    "<class 'kcalc.network.layers.Normalisation'>": "L.Normalisation",
}  # as users know them
MADE_BY_HAND = frozenset({"Network", "Activation", "Sampling", "Settings", "Split"})
NO_MEMBERS = ("kcalc.network.layers.", "kcalc.foundation.errors.")
INTERNAL = re.compile(
    r"kcalc\.(maps\.maps\.\w+|activations\.local_map\.\w+)\.(gaps|ball_gaps|values|ball_values)$"
    r"|kcalc\.Activation\.(refuse_numeric_only|pieces|kink_points|jumps|jump_sizes|landmarks"
    r"|jax_values|numeric|base|transformation)$"
    r"|kcalc\.RunConfiguration\.\w+$|kcalc\.Model\.(plan|measuring|inputs_of)$"
    r"|.*\.Moment\.(in_range|of_balls|of_expressions|text)$"
    r"|.*\.(rows|mirror_of|symbols_of|plotted_times|ingredients|pruned|shown)$"
    r"|.*\.TrainingCurve\.of$|.*\.Note\.assumption$|.*\.hyperparameter_\w+$"
)  # members for the rest of the package, not for users


def mend(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Link names, and escape what reStructuredText would take for markup, outside literals."""
    if not name.startswith("kcalc"):  # the docstrings of numbers and tuples
        del lines[:]
        return
    if what == "class":
        lines[:] = _attributes(obj, lines)
    elif "return" in getattr(obj, "__annotations__", {}):
        lines[:] = [line for line in lines if not line.startswith(":rtype:")]  # autodoc links it
    prose, rubric, examples = "\n".join(lines).partition(EXAMPLES)
    text = LONG_NAME.sub(r":\1:`~\2`", ROLE.sub(_qualified, prose))
    pieces = LITERAL.split(text)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"(?<!\\)([|*])", r"\\\1", pieces[i])
        pieces[i] = re.sub(r"(\w)_(?=[\s.,;:)]|$)", r"\1\\_", pieces[i])
    lines[:] = f"{''.join(pieces)}\n{rubric}{examples}".split("\n")


def _attributes(owner: type, lines: list[str]) -> list[str]:
    """Attributes one by one, with their annotated types."""
    found: list[str] = []
    block: list[str] = []
    names: list[str] = []
    for line in [*lines, ""]:
        start = IVAR.match(line)
        if names and (start or not line.startswith(" ")):
            for name in names:
                found += [f":ivar {name}: {block[0]}", *block[1:]]
                kind = _annotation(owner, name)
                found += [f":vartype {name}: {kind}"] if kind else []
            names, block = [], []
        if start:
            names, block = start[1].split(", "), [line[start.end() :]]
        elif names:
            block.append(line)
        else:
            found.append(line)
    return found


def _annotation(owner: type, name: str) -> str:
    for base in owner.__mro__:
        fields = inspect.get_annotations(base)
        if name in fields:
            return str(fields[name])
        member = base.__dict__.get(name)
        getter = member.func if isinstance(member, cached_property) else getattr(member, "fget", 0)
        if getter:
            return str(getter.__annotations__.get("return", ""))
    return ""


def _qualified(role: re.Match[str]) -> str:
    """Names without their module are looked for everywhere."""
    kind, ours, bare = role.groups()
    return f":{kind}:`kcalc.{ours}`" if ours else f":{kind}:`.{bare}`"


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Members for the rest of the package are left out."""
    if type(obj).__name__ == "_tuplegetter":  # a named field, which the class describes
        return True
    owner = getattr(obj, "fget", None) or getattr(obj, "func", None) or obj
    full = f"{getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', name)}"
    short = re.sub(r"^kcalc\..*\.(Activation|Model|RunConfiguration)\.", r"kcalc.\1.", full)
    hidden = full.startswith(NO_MEMBERS) or INTERNAL.match(full) or INTERNAL.match(short)
    return True if hidden else None


def sign(
    app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    annotation: str | None,
) -> Any:
    """Functions make results, so the signatures of their classes are not shown."""
    by_hand = "layers" in name or name.rpartition(".")[2] in MADE_BY_HAND
    if what == "class" and name.startswith("kcalc.") and not by_hand:
        return "", None
    for default, shown in DEFAULTS.items():
        signature = signature and signature.replace(f"={default}", f"={shown}")
    return signature, annotation


def internal(
    app: Sphinx, env: Any, node: Any, contnode: nodes.TextElement
) -> nodes.TextElement | None:
    """A name that exists but has no page is shown without a link. Anything else is a mistake."""
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


@cache
def _exists(target: str) -> bool:
    module, _, last = target.rpartition(".")
    if target.startswith("kcalc."):  # a function may have the name of its module
        return pydoc.locate(target) is not None or hasattr(sys.modules.get(module), last)
    owner, _, name = target.rpartition(".")
    return any(
        hasattr(getattr(module, owner) if owner and hasattr(module, owner) else module, name)
        for module in _loaded(len(sys.modules))
    )


@cache
def _loaded(count: int) -> list[Any]:
    """The modules of kcalc, looked up again only after further imports."""
    return [module for key, module in list(sys.modules.items()) if key.startswith("kcalc.")]


def page_names(text: str) -> dict[str, str]:
    """File names of classes that differ from those of functions only in capitals."""
    names = re.findall(r"^   ~?(kcalc\.[\w.]+)$", text, re.MULTILINE)
    lower = [name.lower() for name in names]
    return {
        name: f"{name}-class"
        for name in names
        if lower.count(name.lower()) > 1 and inspect.isclass(pydoc.locate(name))
    }


def setup(app: Sphinx) -> dict[str, Any]:
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    analyzer = ModuleAnalyzer.for_module("kcalc.shaping")
    analyzer.analyze()
    analyzer.overloads.pop("shape", None)  # one for every method: the text lists their targets
    app.connect("autodoc-process-docstring", mend)
    app.connect("autodoc-process-signature", sign)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", internal)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
