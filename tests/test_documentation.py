"""Every code block of the README, CONTRIBUTING and docs/ runs, and prints what the page says it
prints.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from command_words import words

import kcalc as kc

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT / "docs" / "pictures")]

import pages  # noqa: E402

BUILT = ("_build", "_generated", "notebooks", "_static")  # below docs/, not ours
DOCS = sorted(
    path
    for path in ROOT.glob("docs/**/*.md")
    if path.relative_to(ROOT / "docs").parts[0] not in BUILT
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
# the README's marks on what .ci/run executes in fresh environments
RUN_BY_CI = re.compile("<!-- (main-job|test) -->")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _text(path: Path) -> str:
    """The page, without the README's blocks that .ci/run executes."""
    reason = "<!-- not run: .ci/run executes it in a fresh environment -->"
    return RUN_BY_CI.sub(reason, path.read_text(encoding="utf-8"))


@pytest.fixture
def _restored() -> Iterator[None]:
    """Pages that add something leave kcalc's registers as they were."""
    from kcalc.activations import registry
    from kcalc.interchange.writers import WRITERS
    from kcalc.shaping import METHODS

    registers: list[dict[Any, Any]] = [registry._BY_NAME, registry._ALIASES, METHODS, WRITERS]  # pyright: ignore
    kept = [dict(register) for register in registers]
    yield
    for register, before in zip(registers, kept, strict=True):
        register.clear()
        register.update(before)


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_the_blocks_of_a_page_do_what_it_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # so that pages can import the modules they export
    try:
        list(pages.run(_text(path)))
    finally:
        plt.close("all")


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_an_empty_line_follows_a_table(path: Path) -> None:
    """Else the text below it becomes a row."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text("utf-8"), flags=re.M | re.S)
    assert not re.findall(r"^\|.*\n(?![|\n]).+", text, flags=re.M)


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_every_block_runs_or_says_why_not(path: Path) -> None:
    for block in pages.blocks(_text(path)):
        where = f"{_name(path)}, line {block.line}"
        if block.reason is not None:
            assert len(block.reason) > 5, f"{where}: say why it is not run"
        else:
            assert block.language in (*pages.RUN, "text", "json"), (
                f"{where}: {block.language!r} blocks need <!-- not run: REASON -->"
            )
        if block.language in ("bash", "console") and block.reason is None:
            assert block.commands, f"{where}: no command"


def test_a_page_writes_files_and_says_which_status_commands_end_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = "<!-- file one.py -->\n```python\nx = 1\n```\n\n{}\n```bash\nkcalc gain tahn\n```\n"
    list(pages.run(page.format("<!-- needs numpy; exits 2 -->")))
    assert (tmp_path / "one.py").read_text(encoding="utf-8") == "x = 1\n"
    with pytest.raises(pages.PageError, match="status 2"):
        list(pages.run(page.format("<!-- exits 1 -->")))


def test_documents_that_are_shown_can_be_read(tmp_path: Path) -> None:
    blocks = [block for path in PAGES for block in pages.blocks(_text(path))]
    texts = [block.text for block in blocks if block.language == "json"]
    found = [text for text in texts if "kcalc.network/1" in text]
    assert found
    for text in found:
        (tmp_path / "net.json").write_text(text, encoding="utf-8")
        kc.c_map(kc.load_json(tmp_path / "net.json"))


def test_what_the_readme_says_the_main_job_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from kcalc.cli import main

    found = pages.blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    job = next(block.text for block in found if block.mark == "main-job")
    shown = next(block.text for block in found if block.language == "text")
    assert main(job.split("&& kcalc ")[1].split()) == 0
    pages.compare(shown + "\n...", capsys.readouterr().out)


def test_the_readme_is_short_and_what_it_points_to_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    targets = re.findall(r"\]\(([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    assert len(targets) > 10
    assert not [
        target for pair in targets for target in pair if target and not (ROOT / target).exists()
    ]


def test_the_picture_of_the_readme_can_be_drawn_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import depth

    monkeypatch.setattr(depth, "DEPTHS", (1, 3))
    few = {name: (*looks, curves[:2]) for name, (*looks, curves) in depth.COLOURS.items()}
    monkeypatch.setattr(depth, "COLOURS", few)
    names = sorted(path.name for path in depth.write(tmp_path))
    assert names == sorted(path.name for path in (ROOT / "docs" / "pictures").glob("depth-*.svg"))


def test_the_picture_of_the_architecture_page_can_be_drawn_anew(tmp_path: Path) -> None:
    import house

    house.main(tmp_path)
    for path in (ROOT / "docs" / "pictures").glob("house-*.svg"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")
    )
    modules = words(
        "activations architectures claims layers symbols token_mixing __version__",
    )
    names = set(kc.__all__) - set(modules)
    missing = [name for name in names if f"   kcalc.{name}\n" not in text]
    assert not missing, f"docs/reference lacks {missing}"
    assert not [name for name in kc.layers.KINDS if f"   kcalc.layers.{name}\n" not in text]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("1.25 a", "1.2534 a", True),
        ("1.25 a", "1.26 a", False),
        ("residual 3.8e-17", "residual 2.2e-16", True),
        ("residual 3.8e-17", "residual 1.0", False),
        ("1 ... 3", "1 2 2 3", True),
        ("1 ...", "1 2 3", True),
        ("1 ... 4", "1 2 2 3", False),
        ("1", "1 2", False),
        ("affine_7", "affine_8", False),
        ("- 0.5", "-0.5", False),
        ("[0.1 -2e3]", "[0.1 -2600]", False),
        ("True", "False", False),
    ],
)
def test_outputs_are_compared_to_the_digits_shown(shown: str, printed: str, same: bool) -> None:
    with nullcontext() if same else pytest.raises(pages.PageError):
        pages.compare(shown, printed)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```python\n1 / 0\n```", "ZeroDivisionError"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```", "the page shows"),
        ("<!-- raises KcalcError -->\n```python\npass\n```", "no KcalcError was raised"),
        (
            "<!-- raises NoRule -->\n```python\nimport kcalc\nkcalc.activation('tahn')\n```",
            "instead of NoRule",
        ),
        ("```bash\nls\n```", "no kcalc command"),
        ("```bash\nkcalc gain tahn\n```", "status 2"),
        ("```python\n", "not closed"),
    ],
)
def test_a_page_that_is_wrong_fails(page: str, complaint: str) -> None:
    with pytest.raises(pages.PageError, match=complaint):
        list(pages.run(page))


@pytest.mark.parametrize("folder", ["theory", "reference", "howto", "dev"])
def test_text_after_a_table_is_no_row_of_it(folder: str) -> None:
    for path in sorted((ROOT / "docs" / folder).glob("*.md")):
        assert not re.findall(r"^\|.*\|\n (\S.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
