"""Meshes and quadrature rules: what they must resolve, where they must end, what they refuse."""

from __future__ import annotations

import numpy as np
from gaussian_pieces import Given, wave
from refusals import refused

from kcalc.gaussian.expectations.quadrature import (
    mesh,
)


def zero(x: np.ndarray) -> np.ndarray:
    return 0 * x


def given(*derivatives: object, **marks: object) -> Given:
    return Given("given", (*derivatives, *[zero] * (5 - len(derivatives))), **marks)  # type: ignore[arg-type]


def test_what_cannot_be_resolved_is_refused() -> None:
    with refused("varies too fast"):
        mesh(wave(3e5, 0.0), 16.0)
    for step in (1.0, 1e-4):
        jump = given(lambda x, step=step: x + step * (x > 1 / 3), lambda x: 1 + zero(x))
        with refused(r"0\.333333"):
            mesh(jump, 16.0)
    # where floats are far apart
    with refused("smooth.*300000"):
        mesh(given(lambda x: x + 1e5 * (x > 3e5 + 1 / 3), lambda x: 1 + zero(x)), 2.0**19)
    with refused(r"smooth.*-5\.2"):
        mesh(
            given(
                lambda x: 1 / (x + 5.2), lambda x: -1 / (x + 5.2) ** 2, lambda x: 2 / (x + 5.2) ** 3
            ),
            16.0,
        )
    with refused(r"smooth.*0\.3"):
        mesh(given(lambda x: np.abs(x - 0.3), lambda x: np.sign(x - 0.3)), 16.0)
