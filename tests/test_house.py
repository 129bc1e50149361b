"""One place per layer, few files on the way of a first map, and a table of places that holds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import census
import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "dev" / "places.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("| where is ...")[2].partition("\n\n")[0].splitlines()[2:]


def nodes() -> Iterator[tuple[str, Any]]:
    """(path, node) of all files."""
    for path, tree in census.trees():
        for node in census.ast.walk(tree):
            yield path, node


def test_layers_are_known_in_few_places() -> None:
    rules = census.registrations()
    assert rules["calculi/kernel.py"] > 5  # registrations are found
    del rules["lab/transfer/sizes.py"]  # exponents, a subject of its own
    assert rules.total() <= 120
    assert census.class_tests() == []


def test_tests_of_classes_are_found() -> None:
    """The census sees them where layers must be known: builders and shaping."""
    found = {path for path, node in nodes() if census.tested(node)}
    assert {"network/combinators.py", "shaping/absorption.py", "shaping/base.py"} <= found


def test_a_first_map_runs_through_few_files() -> None:
    files, rules = census.first_map()
    assert "calculi/kernel.py" in files and len(files) <= 24
    assert rules <= 1.2


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.split("|")[1].strip()[:40])
def test_the_table_of_places_names_what_there_is(row: str) -> None:
    """Every path exists below kcalc, and every name stands in one of the row's files."""
    names = re.findall(r"`([^`]+)`", row.partition("|")[2].partition("|")[2])
    paths = [name for name in names if re.search(r"\.(py|js)$", name)]
    files = [file for path in paths for file in census.ROOT.rglob(path.rpartition("/")[2])]
    assert len(files) >= len(paths) > 0
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    for path in paths:
        assert "/" not in path or (census.ROOT / path).exists(), path
    for name in set(names) - set(paths):
        word = name.rpartition(".")[2]
        assert "/" in name or re.search(rf"\b{re.escape(word)}\b", text), name


# Gauss rules and Chebyshev series of NumPy and SciPy, and where they are called. Claims compute
# apart from the rest.
SERIES, RULES = "fields/chebyshev.py", "gaussian/expectations/quadrature.py"
ELSEWHERE = {
    "leggauss": {SERIES},
    "gauss_legendre": {SERIES, RULES, "maps/sphere.py", "spectra/slopes.py"},
    "hermegauss": {RULES},
    "chebval": {"matrices/gram/norms.py"},
}
NOWHERE = {"hermgauss", "roots_legendre", "chebfit", "chebinterpolate", "Chebyshev"}


def test_nodes_and_tables_are_made_in_one_place() -> None:
    found = defaultdict(set)
    for path, node in nodes():
        if not path.startswith("claims/"):
            found[getattr(node, "attr", getattr(node, "id", None))].add(path)
    assert not NOWHERE & found.keys()
    assert all(found[name] <= files for name, files in ELSEWHERE.items())
    assert found["leggauss"] == {SERIES} and found["hermegauss"] == {RULES}


# Questions about an expression that no value of its parts answers, by file.
TRAVERSALS = {
    "interchange/writers/stable.py": "which function is the first that frameworks lack",
    "interchange/torch_model/activation.py": "which numbers have more than 17 digits",
    "maps/composition.py": "how long a formula is, and which local map is inside of another",
}
ASKING = (census.ast.Call, census.ast.Compare)
HEADS = re.compile(r"\bsp\.(Add|Mul|Pow|Piecewise|Max|Min)\b")


def test_expressions_are_walked_in_one_module() -> None:
    """Only the fold asks of which kind a part is; other modules say what kinds are to them."""
    asked, traversed = set(), set()
    for path, node in nodes():
        text = census.ast.unparse(node) if isinstance(node, ASKING) else ""
        if re.match(r"isinstance\(", text) or re.search(r"type\(|\.func\b", text):
            asked |= {path} if HEADS.search(text) else set()
        if getattr(node, "attr", getattr(node, "id", "")).endswith("order_traversal"):
            traversed.add(path)
    assert asked == {"fields/expressions.py"}
    assert traversed == set(TRAVERSALS)


# Unbounded caches over the classes of a library, of which there are a handful.
FEW = {f"interchange/jax_model/{name}.py" for name in ("markers", "equinox")}
UNBOUNDED = re.compile(
    r"^@(?:functools\.)?(?:cache|lru_cache\(maxsize=None\))\n(?:async )?def \w+\((?!\))", re.M
)
LOCKING = re.compile(
    r"^from functools import .*\bcached_property\b|\bfunctools\.cached_property\b", re.M
)
SETTING = re.compile(
    r"\b(?:work|extra)(?:dps|prec)\(|\b(?:mp|ctx)\.(?:dps|prec) = |\bsp\.lambdify\(|\bos\.umask\("
)


def test_every_cache_is_bounded_and_every_precision_guarded() -> None:
    """In the text of the library, whose own way to each is in ``process_state.py``."""
    paths = (path for path in sorted(census.ROOT.rglob("*.py")) if path.name != "process_state.py")
    sources = [
        (path.relative_to(census.ROOT).as_posix(), path.read_text("utf-8")) for path in paths
    ]
    assert {name for name, text in sources if UNBOUNDED.search(text)} <= FEW
    assert [name for name, text in sources if LOCKING.search(text)] == []
    setting = {name: found for name, text in sources if (found := SETTING.findall(text))}
    assert setting == {"fields/balls.py": ["ctx.prec = "] * 2}
    for line in ("@cache\ndef f(x):", "@lru_cache(maxsize=None)\ndef f(x):"):
        assert UNBOUNDED.search(line)
    assert LOCKING.search("from functools import cached_property, partial") and SETTING.search(
        "with mpmath.workdps(30):"
    )
