"""Results that are tables as pandas data frames: a row per node, point or case, with all digits."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from refusals import refused
from result_examples import RESULTS, residual, shaped, vanilla

import kcalc as kc
from kcalc.foundation.printing import Tabled

TABLES = [name for name in RESULTS if name != "training.Run"]


def test_without_pandas_the_refusal_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused("pip install pandas"):
        kc.gradients(vanilla()).to_dataframe()


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_a_data_frame(name: str) -> None:
    pandas: Any = pytest.importorskip("pandas")
    result = RESULTS[name]()
    if not isinstance(result, Tabled):
        assert not hasattr(result, "to_dataframe")
        return
    frame = result.to_dataframe()
    assert isinstance(frame, pandas.DataFrame) and len(frame.columns) >= 1
    assert len(frame) >= 1 or name == "read"  # a model that is read exactly has no notes


def test_values_against_the_results() -> None:
    pytest.importorskip("pandas")
    values = kc.node_values(vanilla(), [0.1, 0.2], q1=1, q2=2)
    frame = values.to_dataframe()
    assert list(frame.columns) == ["node", "q1", "q2", "c"] and len(frame) == 2 * len(vanilla())
    at = frame[frame.node == "affine_3"]
    np.testing.assert_array_equal(at.c, values["affine_3"].c)
    assert (at.q2 == values["affine_3"].q2).all()
    found = kc.phase_diagram("tanh", [1.5, 2.0], [0.1, 0.2, 0.3])
    frame = found.to_dataframe()
    assert len(frame) == 6
    for _, row in frame.iterrows():
        i, j = list(found.sigma_b).index(row.sigma_b), list(found.sigma_w).index(row.sigma_w)
        assert (row.q, row.chi, row.depth) == (found.q[i, j], found.chi[i, j], found.depth[i, j])
    g = kc.gradients(vanilla())
    frame = g.to_dataframe().set_index("node")
    assert frame.node_gradient.to_dict() == {str(n): v for n, v in g.nodes.items()}
    pieces = kc.subnetworks(residual())
    assert pieces.to_dataframe().layers.tolist() == [len(piece.layers) for piece in pieces]
    both = shaped().compare(kc.shape(vanilla(), method="tat")).to_dataframe()
    assert both.zeta[0] == 1.5 and both.method.tolist() == ["dks", "tat"]
    compared = kc.compare(vanilla(), ["relu", "tanh"]).to_dataframe()
    assert compared.activation.tolist() == ["relu", "tanh"]


def test_singular_values_and_blocks_row_by_row() -> None:
    pytest.importorskip("pandas")
    for name in ("layer_jacobians", "variance_spectra", "training_spectra"):
        found = RESULTS[f"verification.{name}"]()
        values = list(found.values.values()) if isinstance(found.values, dict) else [found.values]
        frame = found.to_dataframe()
        assert frame.singular_value.tolist() == [float(v) for part in values for v in part.ravel()]
        assert frame["rank"].max() == max(part.shape[1] for part in values)
    blocks = RESULTS["hessian_blocks"]()
    frame = blocks.to_dataframe()
    assert frame.weight.tolist() == [str(node) for node in blocks.nodes]
    assert frame.measured.tolist() == blocks.squares.diagonal().tolist()
    bounds = RESULTS["maximal_slope.bounds"]()
    expected = [bounds.strict, bounds.forward, bounds.longest_path]
    assert bounds.to_dataframe().slope.tolist() == expected


def test_node_values_have_names_and_unpack() -> None:
    values = kc.node_values(vanilla(), 0.5, q=2.0)
    node = values["affine_2"]
    assert tuple(node) == (node.q1, node.q2, node.c)
    assert node.q1 == node.q2 == kc.q_values(vanilla(), 2.0)["affine_2"]
    assert str(values).splitlines()[0].split() == ["node", "q1", "q2", "c"]
    assert "<td>0.5</td>" in values._repr_html_()
    assert values.to_dict()["nodes"]["input"] == {"q1": 2.0, "q2": 2.0, "c": 0.5}
