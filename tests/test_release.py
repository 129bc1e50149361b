"""One version everywhere, and the file of oldest versions in line with what the package
declares.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from collections import Counter
from pathlib import Path

from command_words import words
from packaging.version import Version

import kcalc as kc

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# what tests/oldest.txt pins; PyTorch's oldest is the tested one
EXTRAS = words("train onnx flax equinox keras dask widgets report completion")
REQUIRED = PROJECT["project"]["dependencies"]
OPTIONAL = PROJECT["project"]["optional-dependencies"]
NEEDED_BY = {"jaxlib": "jax"}  # pinned with another: they are released together


def pins() -> dict[str, str]:
    """{name: version} of tests/oldest.txt."""
    text = (ROOT / "tests" / "oldest.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([^#=\s]+)==([^#\s]+)", text, re.M))


def bounds() -> dict[str, str]:
    """{name: lowest version} of what the package needs, and of the extras that are tested with
    their oldest versions.
    """
    lines = [*REQUIRED, *(line for extra in EXTRAS for line in OPTIONAL[extra])]
    found = [re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line) for line in lines]
    assert all(found), f"every dependency has a lower bound and nothing else: {lines}"
    return {match[1]: match[2] for match in found if match}


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    pinned, lowest = pins(), bounds()
    assert pinned.keys() - NEEDED_BY.keys() == lowest.keys()
    wrong = [name for name in lowest if Version(pinned[name]) != Version(lowest[name])]
    assert wrong == []
    assert all(pinned[name] == pinned[other] for name, other in NEEDED_BY.items())


def test_a_package_has_one_requirement_whatever_extra_asks_for_it() -> None:
    """So that the tests run with what users of an extra install."""
    lines = {*REQUIRED, *(line for extra in OPTIONAL.values() for line in extra)}
    named = Counter(re.split(r"[^\w-]", line)[0] for line in lines)
    assert [name for name, count in named.items() if count > 1 and name != "kcalc"] == []
    for extra, tests in {
        "report": "test",
        "train": "test",
        **dict.fromkeys(("torch", "onnx", "flax", "equinox", "keras", "dask"), "test-interop"),
    }.items():
        assert re.search(rf"[\[,]{extra}[,\]]", OPTIONAL[tests][0]), f"{tests} takes kcalc[{extra}]"
    assert not [line for line in lines if re.search("[<=~]=|<", line.replace(">=", ""))], (
        "an upper bound or an exact version would replace the one that a user has"
    )


def test_the_light_test_extra_brings_no_other_framework() -> None:
    light = " ".join(OPTIONAL["test"])
    assert not re.search("torch|onnx|flax|keras|equinox|playwright|dask", light)


def test_links_of_the_readme_work_outside_of_the_repository() -> None:
    """On the page of the package, whose text the build makes from README.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    assert len(targets) > 10
    home = PROJECT["project"]["urls"]["Homepage"].removeprefix("https://github.com/")
    for target in (one or other for one, other in targets):
        assert target.startswith("https://"), target
        if home in target:
            path = target.partition("/main/")[2].partition("#")[0]
            assert path and (ROOT / path).exists(), target


def test_one_version() -> None:
    """Written in kcalc/version.py; the built package reads it there, as the documentation does.

    The rest says the same.
    """
    tree = ast.parse((ROOT / "kcalc" / "version.py").read_text(encoding="utf-8"))
    values = (node.value for node in tree.body if isinstance(node, ast.Assign))
    (version,) = (value.value for value in values if isinstance(value, ast.Constant))
    assert kc.__version__ == version and "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "kcalc/version.py"
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", citation, re.M) == [version]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest is not None and newest[1] == version
    assert "version = release = __version__" in (ROOT / "docs" / "conf.py").read_text(
        encoding="utf-8"
    )
    try:
        installed = importlib.metadata.version("kcalc")
    except importlib.metadata.PackageNotFoundError:
        installed = version
    assert installed == version


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "kcalc" / "py.typed").exists()
    assert not list((ROOT / "kcalc").rglob("test_*.py"))
    assert (ROOT / "kcalc" / "lab" / "report" / "assets" / "page.html").exists()
