"""Gates of products that DKS keeps: slopes and q against Monte Carlo and quadrature by mpmath."""

from refusal_networks import networks
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.network.layers import Affine, Nonlinear, Product

ONLY = wired(
    ("a", Affine()),
    ("g", Nonlinear("sigmoid")),
    ("b", Affine(), "x"),
    ("p", Product(), "g b"),
    ("w", Affine()),
)


def test_networks_without_gates_have_no_option_for_them():
    assert "gates" not in kc.shape(kc.architectures.vanilla(2), gates="normalise").options


def test_refusals_name_the_option():
    with refused("gates='normalise'"):
        kc.shape(networks()["squeeze and excitation"])
    with refused("way to shape gates"):
        kc.shape(networks()["squeeze and excitation"], gates="open")
    with refused("all activations are gates, so there is nothing to shape"):
        kc.shape(ONLY, gates="normalise", zeta=3)
