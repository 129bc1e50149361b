"""q and c of library models beside their own forward passes, by ``benchmarks.forwards``."""

import pytest

pytest.importorskip("torch")
forwards = pytest.importorskip("benchmarks.forwards")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MLP, GELU", "SwiGLU", "BertModel"])
def test_predictions_hold_for_new_draws(name: str) -> None:
    (model,) = (m for m in forwards.MODELS if m.name == name)
    pytest.importorskip(model.library)
    found, exact = forwards.compared(model)
    assert exact
    assert all(abs(row.z) <= forwards.LIMIT for row in found), found
