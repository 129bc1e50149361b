"""Docstrings of the reference have the sections of NumPy, with the names and types of the code."""

from __future__ import annotations

import inspect
import pydoc
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sphinx")  # CI runs these where it builds the documentation

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
NAMES = [
    name
    for path in sorted((ROOT / "docs" / "reference").glob("*.md"))
    for name in re.findall(r"^   ~?(kcalc\.[\w.]+)$", path.read_text("utf-8"), re.MULTILINE)
]
HEAD = re.compile(r"^(Parameters|Returns|Raises|Attributes)\n-+\n", re.MULTILINE)
SECTION_END = re.compile(r"^\w+\n-{4,}\n", re.MULTILINE)
OWN_WORDS = {"kcalc.apply_edits", "kcalc.load_edited"}  # models: types that no annotation names


def sections(docstring: str) -> dict[str, list[str]]:
    """{section: its unindented lines}, the names of its entries."""
    found = {}
    for head in HEAD.finditer(docstring):
        rest = docstring[head.end() :]
        end = SECTION_END.search(rest)
        body = rest[: end.start()] if end else rest
        found[head[1]] = [line for line in body.splitlines() if line and line[0] != " "]
    return found


def listed(entries: list[str]) -> list[str]:
    """The names of parameters, in order, without types and stars."""
    heads = [entry.split(" : ")[0] for entry in entries if not entry.startswith("[")]
    return [name.strip().lstrip("*") for head in heads for name in head.split(",")]


def callables() -> Iterator[tuple[str, object]]:
    from reference import skip

    for name in NAMES:
        found = pydoc.locate(name)
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found) and ".layers." not in name:
            for key, member in vars(found).items():
                function = getattr(member, "__func__", member)
                public = inspect.isfunction(function) and not key.startswith("_")
                if public and function.__doc__ and not skip(*[None] * 3, function, False, None):
                    yield f"{name}.{key}", function


CALLABLES = dict(callables())


def test_pages_are_listed_once() -> None:
    assert len(NAMES) > 250
    assert len(set(NAMES)) == len(NAMES)


def section(thing: object, name: str) -> list[str]:
    return sections(inspect.getdoc(thing) or "").get(name, [])


def differ(thing: object) -> bool:
    """Whether a docstring lists other parameters than the signature."""
    names = inspect.signature(thing).parameters.keys() - {"self", "cls"}
    return sorted(listed(section(thing, "Parameters"))) != sorted(names)


def test_the_parameters_are_those_of_the_signature() -> None:
    assert not [name for name, function in CALLABLES.items() if differ(function)]


def test_the_returned_type_is_that_of_the_annotation() -> None:
    wrong = []
    for name, function in CALLABLES.items():
        found = section(function, "Returns")
        annotation = inspect.signature(inspect.unwrap(function)).return_annotation
        nothing = annotation in (None, "None", inspect.Signature.empty)
        expected = "" if nothing else str(annotation).strip("'\"")
        if " ".join(found) != expected and name not in OWN_WORDS:
            wrong.append(name)
    assert not wrong


def test_the_parameters_of_layers_are_their_fields() -> None:
    layers = {name for name in NAMES if ".layers." in name}
    layers -= {"kcalc.layers.Layer"}  # the base, which nobody calls
    assert layers and not [name for name in layers if differ(pydoc.locate(name))]


def test_the_first_line_is_a_sentence() -> None:
    first = {name: (inspect.getdoc(pydoc.locate(name)) or " ").splitlines()[0] for name in NAMES}
    abbreviated = re.compile(r"\b(sec|App|eq|al|Fig)\. ")  # it would end the summary
    lines = first.values()
    assert not [line for line in lines if not line.endswith(".") or abbreviated.search(line)]


def test_no_docstring_has_a_section_in_a_sentence() -> None:
    head = re.compile(r"(?<![`\w])(Parameters|Returns|Raises): ")
    assert not [name for name, f in CALLABLES.items() if head.search(inspect.getdoc(f) or "")]
