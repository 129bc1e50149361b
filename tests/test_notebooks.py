"""The notebooks as files: outputs are there, small and clean, figures say what they show, summaries
are those of the page that lists them. Nothing is executed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
PAGE = FOLDER.parent / "docs" / "notebooks.md"
MOST_BYTES = 600_000
ABSOLUTE = re.compile(
    r"(?<![\w.:/])/(?:home|Users|root|tmp|work|opt|usr|var|mnt|srv|data|private)/\w|[A-Z]:\\\\|file://"
)
TITLED = re.compile(r"set_title\(|\btitle=|suptitle\(")


def load(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"]).strip("\n")


def outputs(notebook: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    return [(i, out) for i, cell in enumerate(notebook["cells"]) for out in cell.get("outputs", ())]


def texts(out: dict[str, Any]) -> str:
    """What an output shows as text."""
    data = out.get("data", {})
    shown = [part for kind, part in data.items() if not kind.startswith("image/")]
    return "\n".join(map("".join, (out.get("text", ""), *shown)))


def helpers(cells: list[dict[str, Any]]) -> set[str]:
    """Names of functions of the notebook that set a title."""
    functions = re.compile(r"^def (\w+)\(.*?\n((?:(?:[ \t].*)?\n)*)", re.MULTILINE)
    found = [one for cell in cells for one in functions.findall(source(cell) + "\n")]
    return {name for name, body in found if TITLED.search(body)}


def test_there_are_notebooks():
    assert NAMES
    assert len({name[:2] for name in NAMES}) == len(NAMES), "two notebooks have one number"


def test_nothing_else_is_among_them():
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == {
        f"{name}.ipynb" for name in NAMES
    }


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_with_the_two_sentences_that_the_page_of_notebooks_has(name):
    title, summary = source(load(name)["cells"][0]).split("\n\n")[:2]
    assert len(re.findall(r"\.(?:\s|$)", summary)) == 2
    number, _, words = title.removeprefix("# ").partition(". ")
    assert int(number) == int(name[:2])
    entry = f"{{doc}}`{number}. {words} <notebooks/{name}>`\n: {summary}\n"
    assert entry in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_it_was_executed_in_order_and_without_noise(name):
    notebook = load(name)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert sum(bool(cell["outputs"]) for cell in code) >= len(code) / 2
    for i, out in outputs(notebook):
        assert out["output_type"] != "error", f"cell {i}"
        assert out.get("name") != "stderr", f"cell {i}: {texts(out)[:200]}"
        assert not re.search(r"\w*Warning\b", texts(out)), f"cell {i}"


@pytest.mark.parametrize("name", NAMES)
def test_it_tells_nothing_of_the_machine_and_stays_small(name):
    notebook = load(name)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for i, out in outputs(notebook):
        assert not ABSOLUTE.search(texts(out)), f"cell {i}"
    for i, cell in enumerate(notebook["cells"]):
        assert not ABSOLUTE.search(source(cell)), f"cell {i}"
        assert "execution" not in cell["metadata"], f"cell {i} has the times of a run"
    assert (FOLDER / f"{name}.ipynb").stat().st_size < MOST_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_title(name):
    cells = [cell for cell in load(name)["cells"] if cell["cell_type"] == "code"]
    known = helpers(cells)
    for i, cell in enumerate(cells):
        kinds = [kind for out in cell["outputs"] for kind in out.get("data", {})]
        text = source(cell)
        if any(kind.startswith("image/") for kind in kinds):
            called = any(re.search(rf"\b{helper}\(", text) for helper in known)
            assert called or TITLED.search(text), (
                f"code cell {i + 1} draws a figure and sets no title:\n{text[:200]}"
            )


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_with_a_heading_and_closes_with_what_was_seen(name):
    first, *_, last = load(name)["cells"]
    assert first["cell_type"] == last["cell_type"] == "markdown"
    assert source(first).startswith("# ") and "What we saw" in source(last)


# -- the checks themselves -------------------------------------------------------------------------


def test_absolute_paths_are_found_and_no_other_slashes():
    for text in ("/home/someone/kcalc", "see /tmp/x.png", "file:///etc", r"C:\\Users"):
        assert ABSOLUTE.search(text), text
    for text in ("docs/gains.md", "https://example.org/home/page", "a/tmp/b", "1/work"):
        assert not ABSOLUTE.search(text), text


def test_helpers_that_set_titles_are_found():
    text = "def page(a):\n    fig.suptitle(a)\n\n\ndef other():\n    return 1\n"
    assert helpers([{"source": text.splitlines(keepends=True)}]) == {"page"}
