"""Singular values of I + A: the predicted law against simulated matrices, shortcuts I + A, and
spectra during training.
"""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import architectures, chain, residual
from kcalc.calculi.smoothness import residual_spectrum
from kcalc.network.layers import Affine, Input, Sum
from kcalc.network.skips import averaging_shortcuts, projection_shortcuts, skip_network
from kcalc.verification.spectra import training_spectra, variance_spectra

# -- the law ---------------------------------------------------------------------------------------


def test_pure_noise_is_the_quarter_circle_and_shifts_are_statistical() -> None:
    law = residual_spectrum(1, 0)
    x = np.linspace(0, 2, 9)
    assert law.density(x) == pytest.approx(np.sqrt(4 - x * x) / math.pi, abs=1e-7)
    assert law.mean() == pytest.approx(8 / (3 * math.pi), abs=1e-6) and law.support == (0, 2)
    half = residual_spectrum(0.5, 0)  # singular values of half the matrix
    assert half.density(x / 2) == pytest.approx(2 * law.density(x), abs=1e-7)
    assert "not a single matrix" in law.assumptions[0].text
    assert "support" in str(law) and "\n" not in repr(law)


@pytest.mark.parametrize("arguments", [(0,), (1, 1, 0)])
def test_bad_laws(arguments: tuple[object, ...]) -> None:
    with refused():
        residual_spectrum(*arguments)
    with refused(">= 0"):
        residual_spectrum(1).density(-1.0)


# -- shortcuts I + A -------------------------------------------------------------------------------


def identity_part(before: int, after: int, stride: int) -> np.ndarray:
    """The matrix of I that is added to a projection from ``before`` to ``after`` channels, on 4 x 6
    images.
    """
    net = chain(
        Input(before, (4, 6)),
        residual(Affine(after, kernel=3, stride=stride), shortcut=Affine(after, stride=stride)),
    )
    (node,) = projection_shortcuts(net)
    needed, steps = {(node, "I")}, list(averaging_shortcuts(net).steps())
    for name, _, parents in reversed(steps):
        needed |= set(parents) if name in needed else set()
    kept = [step for step in steps if step[0] in needed]
    model = kc.to_jax(wired(*kept, outputs=[(node, "I")]), dtype="float64")
    with jax.enable_x64(True):
        jacobian = jax.jacobian(lambda x: model.apply(model.init(0), x).ravel())
        found = jacobian(np.zeros((1, 4, 6, before)))
        return np.asarray(found).reshape(found.shape[0], -1)


@pytest.mark.parametrize(("before", "after", "stride"), [(3, 3, 1), (3, 3, 2), (2, 4, 2)])
def test_all_singular_values_of_the_added_map_are_one(before: int, after: int, stride: int) -> None:
    matrix = identity_part(before, after, stride)
    assert matrix.shape == (24 * after // stride**2, 24 * before)
    assert np.linalg.svd(matrix, compute_uv=False) == pytest.approx(1, abs=1e-12)
    if stride == 2 and before == after:  # an average over windows
        average = matrix[0][matrix[0] != 0]
        assert len(average) == 4 and len(set(np.round(average, 12))) == 1


def test_refused_changes() -> None:
    plain = kc.architectures.vanilla(3)
    block = residual(Affine(3, kernel=3), shortcut=Affine(3))
    for arguments, words in (
        ((plain,), "no projection shortcut"),
        ((chain(Input(4, (4, 4)), block),), "singular.*1"),
        ((chain(Input(image_shape=(4, 4)), block),), "widths"),
        ((plain, ["nonlinear_1"]), "not an Affine"),
    ):
        with refused(words):
            averaging_shortcuts(*arguments)
    with refused("unknown kind"):
        skip_network("dense")
    with refused("even"):
        skip_network("none", image_shape=(7, 8))


# -- measured spectra ------------------------------------------------------------------------------


def test_plots_and_bad_input_of_spectra(untouched_pyplot: None) -> None:
    rng = np.random.default_rng(0)
    law = residual_spectrum(0.5)
    assert law.plot(
        values=np.linalg.svd(np.eye(50) + rng.normal(size=(50, 50)) / 2 / 50**0.5, compute_uv=False)
    ).get_xlabel()
    net = architectures.vanilla(2, "tanh", features=4)
    X = rng.normal(size=(3, 4))
    labels = np.array([0, 1, 2])
    spectra = training_spectra(net, X, labels, steps=1)
    assert spectra.plot().get_ylabel() == "density" and len(str(spectra).splitlines()) == 3
    for arguments, match in (
        ((X, np.array([0.5, 1, 2])), "labels"),
        ((X, labels[:2]), "labels"),
        ((X, labels, "nothing"), "unknown node"),
        ((X, labels, "nonlinear_2", "affine_1"), "before"),
        ((X * np.nan, labels), "finite"),
    ):
        with refused(match):
            training_spectra(net, *arguments)  # pyright: ignore[reportArgumentType]
    with refused("example"):
        training_spectra(net, X, labels, example=3)
    with refused("steps"):
        training_spectra(net, X, labels, steps=-1)
    with refused("diverged at step .*smaller learning_rate"):
        training_spectra(net, X, labels, steps=3, learning_rate=1e300)
    with refused("positive"):
        variance_spectra(net, factors=(0.0, 1.0))


def test_sums_that_are_no_residual_blocks_have_no_projection() -> None:
    doubled = wired(("a", Affine(4)), ("s", Sum(), "a a"), ("b", Affine()))
    assert projection_shortcuts(doubled) == ()
    # nothing that both addends depend on: all before them is walked through
    apart = wired(
        ("x", Input()),
        ("y", Input()),
        ("a", Affine(4), "x"),
        ("b", Affine(4, kernel=3), "y"),
        ("c", Affine(4)),
        ("s", Sum(), "a c"),
    )
    assert projection_shortcuts(apart) == ("a",)
