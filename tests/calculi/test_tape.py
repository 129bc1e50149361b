"""Numbers given later, against the same arithmetic on numbers that are there."""

from refusals import refused

import kcalc as kc
from kcalc import chain
from kcalc.network.layers import Affine, BatchNorm, Input


def test_refusals_of_c_values_come_with_the_values():
    net = kc.large_batch(chain(Input(), Affine(), BatchNorm()), c=0.5)
    cosines = kc.c_map(net)
    assert abs(cosines(0.75) - 0.5) < 1e-15
    with refused(r"c = -0\.5 is too small, because"):
        cosines(-0.5)
