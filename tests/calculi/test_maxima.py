"""Maxima over subnetworks for any monotone function, and the maximal c value.

Enumeration is in test_subnetwork_enumeration.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc import chain
from kcalc.calculi.subnetworks import maximal
from kcalc.network.layers import Affine, Nonlinear


def test_any_monotone_function():
    net = kc.architectures.rescaled_resnet(3)
    below = maximal(net, lambda x: x / 2)
    assert below(0.5) == 0.5  # the readout alone
    assert len(below.active(0.5).layers) == 1
    above = maximal(net, lambda x: (1 + x) / 2)
    assert above(above.inverse(0.9, 0.0, 0.9)) == pytest.approx(0.9, rel=1e-13)
    with pytest.raises(kc.UnreachableTarget, match="is not in this range"):
        above.inverse(0.1, 0.0, 1.0)
    with refused("non-decreasing"):
        maximal(net, lambda x: 1 - x)(np.array([0.3, 0.5]))
    with refused("not finite"):
        maximal(net, lambda x: x / 0.0 if isinstance(x, np.ndarray) else math.inf)(0.5)
    with refused("must be a function"):
        maximal(net, 2)


def test_functions_by_node_or_activation():
    net = chain(Affine(), Nonlinear("relu"), Affine(), Nonlinear("tanh"))
    up, half = (lambda x: (1 + x) / 2), (lambda x: x / 2)
    mixed = maximal(net, {"relu": up, "tanh": half})
    assert mixed(0.4) == pytest.approx(0.7)
    assert mixed.active(0.4).layers == ("affine_1", "nonlinear_1", "affine_2")
    assert maximal(net, {"relu": half, "nonlinear_2": up})(0.4) == pytest.approx(0.7)
    assert "relu=" in repr(mixed)
    with refused("'nonlinear_2'"):
        maximal(net, {"relu": up})
    with refused("activation.*'rleu'"):
        maximal(net, {"rleu": up, "tanh": up})
    with refused("must be a function"):
        maximal(net, {"relu": up, "tanh": 3})
