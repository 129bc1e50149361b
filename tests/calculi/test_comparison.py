"""kc.compare: networks and activations side by side, against what is known of their maps."""

from __future__ import annotations

import numpy as np

import kcalc as kc

A = kc.architectures


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
