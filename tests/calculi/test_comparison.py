"""kc.compare: networks and activations side by side, against what is known of their maps."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

import kcalc as kc

A = kc.architectures
L = kc.layers


def test_labels_pictures_and_text() -> None:
    nets, phis = [A.vanilla(2), A.rescaled_resnet(2)], ["relu", kc.activation("tanh")]
    both = kc.compare(nets, phis)
    assert both.labels == [
        "vanilla-2, relu",
        "vanilla-2, tanh",
        "rescaled-resnet-2, relu",
        "rescaled-resnet-2, tanh",
    ]
    assert kc.compare(nets[0], phis).labels == ["relu", "tanh"] and kc.compare(
        nets, "erf"
    ).labels == ["vanilla-2", "rescaled-resnet-2"]
    assert kc.compare(A.vanilla(2, "gelu")).labels == ["vanilla-2, gelu"]
    assert kc.compare(nets[0], {"mine": "tanh"}).rows[0].activation == "mine"
    ax = both.plot()
    drawn = {line.get_label(): line for line in ax.lines if line.get_gid() == "map"}
    assert list(drawn) == both.labels == [t.get_text() for t in ax.get_legend().get_texts()][:4]
    c, value = drawn["vanilla-2, tanh"].get_data()
    np.testing.assert_allclose(value, kc.c_map(A.vanilla(2, "tanh"))(c), rtol=0, atol=1e-15)
    lines = str(both).splitlines()
    assert (
        lines[0].split() == ["network", "activation", "Q(1)", "C(0)", "C'(1)", "C''(1)"]
        and len(lines) == 5
    )
    assert (
        repr(both) == "MapComparison(4 pairs of network and activation)"
        and "<td>inf</td>" in both._repr_html_()
    )
    assert both.to_dict()["rows"][0]["curvature"] is None and any(
        "infinite width" in a.text for a in both.assumptions
    )


def test_heuristic_maps_say_so_and_bad_input_is_refused() -> None:
    branch = kc.chain(L.Affine(), L.Nonlinear("tanh"))
    twice = kc.chain(
        L.Input(),
        L.Affine(),
        L.Nonlinear("tanh"),
        kc.residual(branch),
        L.Nonlinear("tanh"),
        L.Affine(),
    )
    with pytest.raises(kc.FreshnessError):
        kc.compare(twice)
    assert ", heuristic" in str(kc.compare(twice, assume_independent=True))
    for networks, phis, message in (
        ([], None, "no networks to compare"),
        (A.vanilla(1), [], "no activations to compare"),
        (["relu"], None, "expected a kcalc.Network"),
        ({1: A.vanilla(1)}, None, "a label"),
        (A.vanilla(1), ["rely"], "relu"),
    ):
        with refused(message):
            kc.compare(networks, phis)
    for named, message in (
        ({"c": 2}, "c value"),
        ({"q": 0}, "q is a mean square"),
        ({"c": [0.1]}, "one number"),
    ):
        with refused(message):
            kc.compare(A.vanilla(1), **named)
