"""How weights are read: sums in one pass, and layers with the same weights told from independent
ones by as little reading as will do.
"""

from __future__ import annotations

import numpy as np
from refusals import refused
from tape import Tape

from kcalc.interchange.trace import Linear


def test_layers_without_weights_are_refused():
    tape = Tape(2, 4)
    name = tape.add(
        Linear, "fc", (2, 0), ("x",), weight=np.zeros((0, 4)), parameter="w", axis=1, out_axis=1
    )
    with refused("features"):
        tape.read(name, sigmas=True)
