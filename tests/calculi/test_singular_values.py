"""Singular values of I + A: the predicted law against simulated matrices, shortcuts I + A, and
spectra during training.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.calculi.smoothness import residual_spectrum
from kcalc.network.skips import averaging_shortcuts, skip_network
from kcalc.verification.spectra import training_spectra, variance_spectra

L = kc.layers


# -- the law ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        (0,),
        (-1,),
        (1, 1, 0),
    ],
)
def test_bad_laws(arguments: tuple[object, ...]) -> None:
    with pytest.raises(kc.KcalcError):
        residual_spectrum(*arguments)
    with refused(">= 0"):
        residual_spectrum(1).density(-1.0)


# -- shortcuts I + A -------------------------------------------------------------------------------


def test_refused_changes() -> None:
    with refused("no projection shortcut"):
        averaging_shortcuts(kc.architectures.vanilla(3))
    with refused("singular.*1"):
        averaging_shortcuts(
            kc.chain(L.Input(4, (4, 4)), kc.residual(L.Affine(3, kernel=3), shortcut=L.Affine(3)))
        )
    with refused("widths"):
        averaging_shortcuts(
            kc.chain(
                L.Input(image_shape=(4, 4)),
                kc.residual(L.Affine(3, kernel=3), shortcut=L.Affine(3)),
            )
        )
    with refused("not an Affine"):
        averaging_shortcuts(kc.architectures.vanilla(3), ["nonlinear_1"])
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
    net = kc.architectures.vanilla(2, "tanh", features=4)
    X = rng.normal(size=(3, 4))
    labels = np.array([0, 1, 2])
    spectra = training_spectra(net, X, labels, steps=1)
    assert spectra.plot().get_ylabel() == "density" and len(str(spectra).splitlines()) == 3
    json.dumps(spectra.to_dict(), allow_nan=False)
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
    with refused("positive"):
        variance_spectra(net, factors=(0.0, 1.0))
