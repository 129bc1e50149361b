"""What moments, fluctuations, scalings and smoothness bounds refuse or say, on small networks."""

import numpy as np
import pytest

import kcalc as kc

L = kc.layers
RELU = kc.chain(L.Input(3), L.Affine(4, sigma_w=2**0.5), L.Nonlinear("relu"), L.Affine(2))
TANH = kc.chain(L.Input(3), L.Affine(4), L.Nonlinear("tanh"), L.Affine(2))


def test_weights_of_radius_zero_are_weights_that_are_zero():
    found = kc.smoothness(TANH, radius=0)
    assert found.input_lipschitz["input"] == 0.0
    assert np.isfinite(found.parameter_lipschitz)


def test_layers_that_may_be_all_zero_are_told():
    texts = [note.text for note in kc.fluctuations(RELU).assumptions]
    assert any("no layer is all 0" in text and "0.0625" in text for text in texts)  # 2^-4
    assert not any("all 0" in note.text for note in kc.fluctuations(TANH).assumptions)
    random = np.random.default_rng(0)
    hidden = np.maximum(random.normal(size=(20000, 4)), 0)
    assert np.all(hidden == 0, axis=1).mean() == pytest.approx(1 / 16, abs=4 * 0.0018)
    alive = np.log((hidden**2).mean(axis=1)[hidden.any(axis=1)])
    assert kc.fluctuations(RELU).nodes["nonlinear_1"].log_variance == pytest.approx(
        alive.var(), rel=0.06
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kc.fluctuations(RELU, q=1e-300), "double precision"),
        (lambda: kc.fluctuations(RELU, q=1e300), "double precision"),
        (lambda: kc.scaling(RELU, correlation=float("nan")), "correlation"),
        (lambda: kc.scaling(RELU, correlation="x"), "correlation"),
        (lambda: kc.scaling(RELU, correlation=2), "correlation"),
        (lambda: kc.smoothness(TANH, radius=1, scale="foo"), "scale"),
        (lambda: kc.smoothness(TANH, radius=1, scale=0), "scale"),
        (lambda: kc.moments(kc.architectures.densenet(3, growth=None), features=64), "ratio"),
        (lambda: kc.moments(RELU, features=9).width_for(0.1), "all widths stand in the layers"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(kc.KcalcError, match=message):
        call()
