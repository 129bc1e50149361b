"""Which mutants are tried."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

from mutants import Mutant, compiles, mutants, sources

ROOMS = {
    "kernel": ("kcalc/calculi/kernel*.py", "kcalc/calculi/freshness.py", "kcalc/calculi/atoms.py", "kcalc/calculi/products.py",
               "kcalc/calculi/crossing.py", "kcalc/calculi/symbolic.py", "kcalc/compose.py", "kcalc/calculi/tangent.py"),
    "expectations": ("kcalc/expectations/*.py",),
    "slopes": ("kcalc/calculi/slopes.py", "kcalc/calculi/convex.py", "kcalc/calculi/factored.py", "kcalc/calculi/powers.py",
               "kcalc/subnetworks/leaky_relus.py", "kcalc/subnetworks/*maxima.py"),
    "subnetworks": tuple(f"kcalc/subnetworks/{name}.py" for name in ("api", "regions", "pruning", "forward")),
    "moments": ("kcalc/calculi/moments/*.py",),
}  # fmt: skip


def sampled(root: Path, count: int, seed: int, rooms: list[str] | None = None) -> list[tuple[str, Mutant]]:
    """``count`` mutants, the same number of every room, drawn without replacement."""
    chosen = {room: ROOMS[room] for room in rooms or ROOMS}
    drawn: list[tuple[str, Mutant]] = []
    for k, room in enumerate(chosen):
        every = [(name, mutant) for name, path in sources(root, {room: chosen[room]}) for mutant in mutants(path, root)]
        wanted = count // len(chosen) + (k < count % len(chosen))
        random.Random(f"{seed} {room}").shuffle(every)
        drawn += islice((item for item in every if compiles(item[1], root)), wanted)
    # Of one file after another, so that neighbours of a survivor stand together in what is printed.
    return sorted(drawn, key=lambda item: (list(chosen).index(item[0]), item[1].path, item[1].start))
