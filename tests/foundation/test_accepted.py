"""What must not be refused: whole numbers of other libraries, exact numbers, lists of them, paths
of every kind, symbols without effect.
"""

from __future__ import annotations

import os
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.fields.arguments import real_array
from kcalc.foundation.files import write_whole
from kcalc.foundation.plain_arguments import extents, file_path, whole

L = kc.layers


@pytest.mark.parametrize(
    "three", [3, np.int64(3), np.uint8(3), np.array(3), sp.Integer(3), jnp.int32], ids=repr
)
def test_whole_numbers_of_every_library(three: Any) -> None:
    three = three(3) if three is jnp.int32 else three
    assert whole(three, "n", 1) == 3 and type(whole(three, "n", 1)) is int
    assert kc.architectures.vanilla(three, features=three) == kc.architectures.vanilla(
        3, features=3
    )


class Tensor:
    """What PyTorch has an index of: truth values, and rows of one number."""

    def __init__(self, dtype: str, ndim: int) -> None:
        self.dtype, self.ndim = dtype, ndim

    def __index__(self) -> int:
        return 1


NONE = [
    True,
    np.True_,
    np.array(True),
    3.0,
    sp.Float(3),
    Fraction(3),
    "3",
    None,
    [3],
    np.array([3]),
]


@pytest.mark.parametrize(
    "given",
    [*NONE, Tensor("torch.bool", 0), Tensor("torch.int64", 1)],
    ids=lambda given: str(given)[:20],
)
def test_what_is_no_whole_number(given: Any) -> None:
    with refused("number.*1"):
        whole(given, "n", 1)


def test_too_large_a_number_is_told_the_bound() -> None:
    with refused(f"<= {2**63 - 1}"):
        whole(2**70, "n")


@pytest.mark.parametrize(
    "shape", [(4, 6), [4, 6], np.array([4, 6]), (np.int64(4), sp.Integer(6))], ids=repr
)
def test_sizes_of_images(shape: Any) -> None:
    net = kc.chain(
        L.Input(2),
        L.Affine(4, kernel=3, padding="circular"),
        L.Nonlinear("relu"),
        L.Flatten(),
        L.Affine(3),
    )
    assert extents(shape, "image_shape") == (4, 6)
    assert kc.scaling(net, image_shape=shape).spread == kc.scaling(net, image_shape=(4, 6)).spread


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
        np.zeros(2, [("a", float)]),
        np.zeros(2, [("a", float), ("b", float)]),
        np.zeros(2, "V8"),
        [None],
        [[True]],
    ],
)
def test_what_is_no_array_of_numbers(given: Any) -> None:
    with refused("^c"):
        real_array(given, "c")


class Place(os.PathLike[str]):
    """A path that is neither text nor of pathlib."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


def test_paths_of_every_kind(tmp_path: Path) -> None:
    net = kc.architectures.vanilla(1)
    kc.save_json(net, Place(tmp_path / "net.json"))
    assert (
        kc.load_json(Place(tmp_path / "net.json")) == net and file_path(Place(tmp_path)) == tmp_path
    )


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
