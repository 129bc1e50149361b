"""E[phi(u) psi(v)] near |c| = 1, its drop from c = +-1 and two derivatives, for functions that jump
and bend.

From tests/gaussian_pieces.py; ``python tests/tools/oracles/end_zones.py`` writes it.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gaussian_pieces import BENT, ELU, MIRROR, MIXED, STEP, STEPS, Pieces, at_end, digits, plane

FUNCTIONS = {f.name: f for f in (STEPS, BENT, MIXED, MIRROR, ELU, STEP)}
PAIRS: list[tuple[Pieces, float, Pieces, float]] = [
    (STEPS, 0.8, BENT, 1.7),
    (BENT, 0.8, STEPS, 1.7),
    (STEPS, 1.3, STEPS, 1.3),
    (STEPS, 1.3, STEPS, 0.6),
    (STEPS, 1.0, STEPS, 1.0 + 1e-10),
    (STEPS, 0.05, STEPS, 0.05),
    (BENT, 1.0, BENT, 1.0),
    (MIXED, 2.0, MIXED, 2.0000002),
    (MIXED, 1.0, STEPS, 9.0),  # a jump meets a bend
    (STEPS, 9.0, MIXED, 1.0),
    (MIXED, 40.0, BENT, 30.0),
    (MIXED, 1.0, ELU, 2.0),
    (ELU, 4.0, ELU, 4.0),
    (ELU, 0.25, ELU, 3.0),
    (MIRROR, 1.5, STEPS, 1.5),  # kinks that meet at c = -1
    (STEPS, 1.5, MIRROR, 1.500003),
    (MIRROR, 2.25, MIXED, 0.25),
    (STEP, 0.8, BENT, 1.7),  # a jump, and nothing else
    (ELU, 0.8, STEP, 1.7),
]
ANGLES = (0.3, 0.03, 1e-3, 1e-6)


def record(
    phi: Pieces, q1: float, psi: Pieces, q2: float, sign: int, theta: float
) -> dict[str, Any]:
    """One row: ``values`` are Gamma, Gamma' and Gamma'' at c = sign cos(theta), ``drop`` is
    Gamma(sign) - Gamma.
    """
    with digits(32 + round(-4 * math.log10(theta))):
        found, end = plane(phi, q1, psi, q2, sign, theta), at_end(phi, q1, psi, q2, sign)
        numbers = [float(x) for x in (*found, end, end - found[0])]
    return {
        "phi": phi.name,
        "q1": q1,
        "psi": psi.name,
        "q2": q2,
        "sign": sign,
        "theta": theta,
        "values": numbers[:3],
        "end": numbers[3],
        "drop": numbers[4],
    }


def main() -> None:
    """Write the file."""
    rows = [record(*pair, sign, theta) for pair in PAIRS for sign in (1, -1) for theta in ANGLES]
    lines = ",\n".join(json.dumps(row) for row in rows)
    (Path(__file__).parents[2] / "oracles" / "end_zones.json").write_text(
        f'{{"records": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    main()
