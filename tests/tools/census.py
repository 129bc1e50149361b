"""How many places know layers, and how far a first map reaches: ``python tests/tools/census.py``.

Prints the rules over layers or primitives by file (registrations at dispatching methods), the
tests of a layer's class outside of the rooms that need layers themselves, the files of kcalc that
run in ``kc.c_map(net)(0.3)``, and how many rules of kernel maps it applies per node.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import kcalc as kc
from kcalc.calculi.kernel import Kernel
from kcalc.network import layers, primitives

ROOT = Path(kc.__file__).parent
LAYERS = {n for n, v in vars(layers).items() if isinstance(v, type) and issubclass(v, layers.Layer)}
KINDS = LAYERS | {
    name
    for name, value in vars(primitives).items()
    if isinstance(value, type) and issubclass(value, primitives.Primitive)
}
DRAWS = ("claims/per_layer_gradient/draws.py", "claims/scaling_calculus/draws.py")
FOLDS = ("claims/dks/random_networks.py", "claims/tat/independent.py")
APART = (*DRAWS, *FOLDS)
KNOW_LAYERS = (
    "network/",
    "experts/layers.py",
    "interchange/",
    "backend/",
    "calculi/arrays.py",
    "shaping/",
    *APART,
)
"""Builders and the graph, readers and writers, arrays, shaping.

Claims draw networks, and read those that they build, without the primitives of the library.
"""
COMMON = ("foundation/", "activations/")
"""Checks of arguments, and the definitions of activations."""


def trees() -> Iterator[tuple[str, ast.Module]]:
    """(path below kcalc, its syntax tree) of all files."""
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def _names(annotation: ast.expr | None) -> set[str]:
    """The names of an annotation or of the classes of ``isinstance``, without modules."""
    return set() if annotation is None else set(re.findall(r"\w+\b(?!\.)", ast.unparse(annotation)))


def tested(node: ast.AST) -> set[str]:
    """The layers of an ``isinstance`` or a ``case``; ``P`` is the module of primitives."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        classes = ast.unparse(node.args[1])
    else:
        classes = ast.unparse(node.cls) if isinstance(node, ast.MatchClass) else ""
    return set(re.findall(r"(?<!\bP\.)\b\w+", classes)) & (LAYERS - {"Layer"})


def registrations() -> Counter[str]:
    """{file: rules over layers or primitives that it registers}, without readers and writers."""
    found = Counter[str]()
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not path.startswith("interchange/"):
                arguments = [a for a in node.args.args if a.arg != "self"]
                found[path] += sum(
                    ast.unparse(d).endswith(".register")
                    and bool(_names(arguments[0].annotation) & KINDS)
                    for d in node.decorator_list
                )
    return +found


def class_tests() -> list[str]:
    """``isinstance`` on layers, and ``case``, outside of `KNOW_LAYERS`."""
    return [
        f"{path}: {ast.unparse(node)}"
        for path, tree in trees()
        if not path.startswith((*KNOW_LAYERS, "gaussian/"))  # it has a Scale of its own
        for node in ast.walk(tree)
        if tested(node)
    ]


def first_map() -> tuple[list[str], float]:
    """(Files that run in ``kc.c_map(net)(0.3)`` on a ResNet-50, rules applied per operation).

    The files are those below `kcalc` without `COMMON`, the rules those of kernel maps.
    """
    files, rules = set[str](), 0
    apply = {function.__code__ for function in vars(Kernel)["rule"].dispatcher.registry.values()}

    def watch(frame: object, event: str, _: object) -> None:
        nonlocal rules
        if event == "call":
            code = frame.f_code  # type: ignore[attr-defined]
            files.add(code.co_filename)
            rules += code in apply

    kc.c_map(kc.architectures.resnet_v2(50))(0.3)  # rooms are imported when they are first used
    net = kc.architectures.resnet_v2(50)
    sys.setprofile(watch)
    try:
        kc.c_map(net)(0.3)
    finally:
        sys.setprofile(None)
    inside = sorted(Path(f).relative_to(ROOT).as_posix() for f in files if f.startswith(f"{ROOT}/"))
    steps = sum(op is not None and bool(reads) for _, op, reads in net.operations)
    return [path for path in inside if not path.startswith(COMMON)], rules / steps


def main() -> None:
    """Print all of it."""
    rules, tests, (files, folds) = registrations(), class_tests(), first_map()
    for path, count in rules.items():
        print(f"{count:5d}  {path}")
    print(f"{rules.total():5d}  rules over layers or primitives")
    print(f"{len(tests):5d}  tests of a layer's class elsewhere", *tests, sep="\n       ")
    print(f"{len(files):5d}  files run in a first C map of ResNet-50", *files, sep="\n       ")
    print(f"{folds:5.2f}  rules applied per node in it")


if __name__ == "__main__":
    main()
