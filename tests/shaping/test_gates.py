"""Gates of products that DKS keeps: slopes and q against Monte Carlo and quadrature by mpmath."""

from refusals import refused

import kcalc as kc

L = kc.layers


def gated(first="tanh", gate="sigmoid", scale=None):
    """x -> tanh -> weights, times a gate of the same input, -> tanh -> weights."""
    steps = [
        ("x", L.Input(), ()),
        ("a", L.Affine(), ("x",)),
        ("v", L.Nonlinear(first), ("a",)),
        ("b", L.Affine(), ("v",)),
        ("s", L.Affine(), ("x",)),
        ("g", L.Nonlinear(gate), ("s",)),
    ]
    if scale is not None:
        steps.append(("twice", L.Scale(scale), ("g",)))
    steps += [
        ("p", L.Product(), ("b", "g" if scale is None else "twice")),
        ("o", L.Affine(), ("p",)),
        ("n", L.Nonlinear("tanh"), ("o",)),
        ("w", L.Affine(), ("n",)),
    ]
    return kc.Network.from_steps(steps, ["w"])


def test_refusals_name_the_option():
    with refused("gates='normalise'"):
        kc.shape(gated())
    with refused("way to shape gates"):
        kc.shape(gated(), gates="open")
