"""What must not be refused: integers of other libraries, exact numbers, lists of them, paths
of every kind, symbols without effect.
"""

from __future__ import annotations

import os
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.fields.arguments import real_array
from kcalc.foundation.files import write_whole

L = kc.layers


def test_exact_numbers_alone_and_in_lists() -> None:
    c = kc.c_map(kc.architectures.vanilla(2, "relu"))
    exact = [
        Fraction(1, 3),
        sp.Rational(1, 3),
        Decimal("0.25"),
        mpmath.mpf("0.5"),
        0,
        sp.sqrt(2) / 2,
    ]
    floats = [1 / 3, 1 / 3, 0.25, 0.5, 0.0, 2**-0.5]
    np.testing.assert_array_equal(c(exact), c(floats))
    np.testing.assert_array_equal([c(value) for value in exact], c(floats))
    assert kc.q_map(kc.architectures.vanilla(1, "identity"))(10**20) == 1e20  # beyond 64 bits


@pytest.mark.parametrize(
    "given",
    [
        np.zeros(2, [("a", float), ("b", float)]),
        [[True]],
    ],
)
def test_what_is_no_array_of_numbers(given: Any) -> None:
    with refused("^c"):
        real_array(given, "c")


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="this system has no /dev/fd")
def test_a_pipe_of_the_process_itself_is_written(tmp_path: Path) -> None:
    out, into = os.pipe()
    try:
        write_whole(f"/dev/fd/{into}", b"through")  # as /dev/stdout is, where it is piped on
        assert os.read(out, 99) == b"through"
    finally:
        os.close(out)
        os.close(into)


def test_symbols_that_moments_do_not_depend_on() -> None:
    n, p = sp.Symbol("n", integer=True, positive=True), sp.Symbol("p", positive=True)
    found = kc.moments(
        kc.chain(L.Input(4), L.Affine(n), L.Nonlinear("relu"), L.Dropout(p), L.Affine(3))
    )
    assert found.subs({n: 8, p: 0.5}).out == found.subs({"n": 8}).out
    with refused("unknown symbol"):
        found.subs({"m": 8})


def test_labels_without_a_hash_are_one_error() -> None:
    with pytest.raises(kc.GraphError, match="hashable nodes"):
        kc.architectures.vanilla(1).relabelled(lambda node: [node])  # type: ignore[arg-type, return-value]
