"""Numbers given later, against the same arithmetic on numbers that are there."""

import numpy as np
import pytest

import kcalc as kc
from kcalc.calculi.tape import Replay, recordable, tape_inputs
from kcalc.fields.jets import Jet


@recordable
def power(base, exponent=2):
    return base**exponent


def formula(x, y, array):
    return power((array - x) * y / 4 + 0, 3) + sum([x, y * 2]) - power(y, exponent=2) * array


@pytest.mark.parametrize(
    ("x", "y"), [(0.3, 2.0), (np.array([1.0, 2.0]), 0.5), (Jet((1.0, 2.0)), Jet((3.0, -1.0)))]
)
def test_a_recorded_computation_is_the_computation(x, y):
    array = np.array([1.5, -2.0])
    given = tape_inputs("xy")
    made = Replay(given, {"out": formula(given["x"], given["y"], array), "y": given["y"]})
    for _ in range(2):  # again, from the same record
        found = made({"x": x, "y": y})
        direct, out = formula(x, y, array), found["out"]
        assert found["y"] is y
        if isinstance(direct, Jet):
            assert np.array_equal(out.coefficients, direct.coefficients)
        else:
            assert np.array_equal(out, direct)


def test_refusals_of_c_values_come_with_the_values():
    net = kc.large_batch(
        kc.chain(kc.layers.Input(), kc.layers.Affine(), kc.layers.BatchNorm()), c=0.5
    )
    cosines = kc.c_map(net)
    assert abs(cosines(0.75) - 0.5) < 1e-15
    with pytest.raises(kc.KcalcError, match=r"c = -0\.5 is too small there"):
        cosines(-0.5)
