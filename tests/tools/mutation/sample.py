"""Which mutants are tried: places drawn from the functions of a room."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from functools import lru_cache
from itertools import islice
from pathlib import Path

from mutants import Mutant, compiles, mutants

# A package or module with all that is in it ("kcalc.fields"), the module that defines a name at its
# top ("Factors"), or all functions of
# a name ("*.lowered"). The last go before the second, these before packages, and inner packages
# before outer ones.
ROOMS = {
    "kernel": ("kcalc.calculi", "interpret_back"),
    "expectations": ("kcalc.gaussian.expectations",),
    "slopes": (
        "kcalc.calculi.slopes",
        "ConvexCalculus",
        "Factors",
        "rational_polynomials",
        "DeepKernel",
    ),
    "subnetworks": ("kcalc.calculi.subnetworks",),
    "moments": ("kcalc.calculi.moments",),
    "fluctuations": ("kcalc.calculi.fluctuations",),
    "scaling": ("kcalc.calculi.scaling",),
    "smoothness": ("kcalc.calculi.smoothness",),
    "spatial": ("kcalc.calculi.spatial",),
    "gradients": ("Gradients",),
    "arrays": ("Arrays", "convolve"),
    "primitives": ("Primitive", "*.lowered"),
    "torch": ("kcalc.interchange.torch_model",),
    "jax": ("kcalc.interchange.jax_model",),
    "onnx": ("kcalc.interchange.onnx_model",),
    "shaping": ("kcalc.shaping",),
    "network": ("kcalc.network",),
    "audit": ("kcalc.lab.audit",),
    "transfer": ("kcalc.lab.transfer",),
    "cli": ("kcalc.cli",),
}


@lru_cache(maxsize=1)
def places(root: Path) -> dict[str, list[Mutant]]:
    """All mutants of every room.

    Raises: ValueError for a name of `ROOMS` that nothing answers to, or several modules define.
    """
    rooms = {name: room for room, names in ROOMS.items() for name in names}
    found: dict[str, list[Mutant]] = {room: [] for room in ROOMS}
    met: defaultdict[str, set[Path]] = defaultdict(set)
    for path in sorted((root / "kcalc").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = _home(".".join(path.relative_to(root).with_suffix("").parts), ast.parse(text), rooms)
        methods = [
            method for method in rooms if method.startswith("*.") and f"def {method[2:]}(" in text
        ]
        for mutant in mutants(path, root) if name or methods else ():
            inner = next(
                (method for method in methods if mutant.function.endswith(method[1:])), name
            )
            if inner:
                found[rooms[inner]].append(mutant)
                met[inner].add(path)
    if wrong := [
        name
        for name in rooms
        if not met[name] or (len(met[name]) > 1 and name[0] != "*" and "." not in name)
    ]:
        raise ValueError(f"ROOMS names {wrong}, which no module or several modules of kcalc have")
    return found


def _home(module: str, tree: ast.Module, rooms: dict[str, str]) -> str:
    """The name in ``rooms`` to which a module belongs, else ""."""
    tops = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in rooms
    ]
    return max(
        tops or (name for name in rooms if f"{module}.".startswith(f"{name}.")), key=len, default=""
    )


def sampled(
    root: Path, count: int, seed: int, rooms: list[str] | None = None
) -> list[tuple[str, Mutant]]:
    """``count`` mutants, the same number of every room, spread over its functions.

    A function with n of a room's N places gives n/N of the room's mutants, rounded up or down: so
    the share killed estimates the probability that a fault anywhere in the room is noticed. (With
    equal weights a property of one place would count like a rule of 40.)
    """
    chosen = rooms or list(ROOMS)
    drawn: list[tuple[str, Mutant]] = []
    for k, room in enumerate(chosen):
        wanted = count // len(chosen) + (k < count % len(chosen))
        drawn += (
            (room, mutant)
            for mutant in _spread(root, places(root)[room], wanted, random.Random(f"{seed} {room}"))
        )
    # Rooms take turns; of one room, the places in the order of its files.
    turns: dict[str, int] = dict.fromkeys(chosen, 0)
    ordered = []
    for room, mutant in sorted(drawn, key=lambda item: (item[1].path, item[1].start)):
        ordered.append((turns[room], chosen.index(room), room, mutant))
        turns[room] += 1
    return [(room, mutant) for _, _, room, mutant in sorted(ordered, key=lambda item: item[:2])]


def _spread(root: Path, every: list[Mutant], wanted: int, rng: random.Random) -> list[Mutant]:
    """Every N/wanted-th place from a random one on, functions and the places of each in random
    order.
    """
    functions: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in every:
        functions[mutant.function].append(mutant)
    rows = [functions[name] for name in sorted(functions)]
    for row in rows:
        rng.shuffle(row)
    rng.shuffle(rows)
    line, start = [mutant for row in rows for mutant in row], rng.random()
    drawn: dict[Mutant, None] = {}
    for k in range(min(wanted, len(line))):
        at = int((start + k) * len(line) / wanted) if wanted < len(line) else k
        following = (
            mutant
            for mutant in [*line[at:], *line[:at]]
            if mutant not in drawn and compiles(mutant, root)
        )
        drawn.update(dict.fromkeys(islice(following, 1)))
    return list(drawn)
