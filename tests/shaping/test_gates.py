"""Gates of products that DKS keeps: slopes and q against Monte Carlo and quadrature by mpmath."""

from refusals import refused

import kcalc as kc
from kcalc.network.layers import Affine, Input, Nonlinear, Product, Scale


def gated(first="tanh", gate="sigmoid", scale=None):
    """x -> tanh -> weights, times a gate of the same input, -> tanh -> weights."""
    steps = [
        ("x", Input(), ()),
        ("a", Affine(), ("x",)),
        ("v", Nonlinear(first), ("a",)),
        ("b", Affine(), ("v",)),
        ("s", Affine(), ("x",)),
        ("g", Nonlinear(gate), ("s",)),
    ]
    if scale is not None:
        steps.append(("twice", Scale(scale), ("g",)))
    steps += [
        ("p", Product(), ("b", "g" if scale is None else "twice")),
        ("o", Affine(), ("p",)),
        ("n", Nonlinear("tanh"), ("o",)),
        ("w", Affine(), ("n",)),
    ]
    return kc.Network.from_steps(steps, ["w"])


def test_refusals_name_the_option():
    with refused("gates='normalise'"):
        kc.shape(gated())
    with refused("way to shape gates"):
        kc.shape(gated(), gates="open")
