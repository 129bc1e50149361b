"""Token ids that are made up for a model: none for padding, and the user's own as they are."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kcalc.interchange.example_shapes import example_ids  # noqa: E402
from kcalc.interchange.torch_model.examples import argument  # noqa: E402
from kcalc.interchange.torch_model.padding import drawn_ids, padding_ids  # noqa: E402


def padded(padding: int = 5) -> nn.Module:
    return nn.Sequential(nn.Embedding(40, 16, padding_idx=padding), nn.Linear(16, 24))


def test_ids_for_padding_are_those_of_tables_and_of_the_configuration() -> None:
    model = padded(-1)
    assert padding_ids(model) == {39}
    model.types = nn.Embedding(2, 16, padding_idx=0)
    assert padding_ids(model) == {39, 0}
    model.config = SimpleNamespace(pad_token_id=1000, text_config={"pad_token_id": 7})
    assert padding_ids(model) == {39, 0, 1000, 7} and not padding_ids(model.forward)
    few = drawn_ids(model, 2, (50,), torch.Generator().manual_seed(0))
    assert set(few.tolist()) == {0, 1}  # 1 is the only other id
    assert 0 not in drawn_ids(model, 3, (50,), torch.Generator().manual_seed(0))


def test_example_ids_avoid_padding_and_those_of_the_user_stay() -> None:
    made = argument(padded(), example_ids((2, 10)), "x")
    assert 5 not in made.unique().tolist() and set(made.unique().tolist()) <= {3, 4, 6, 7}
    chosen = np.full((2, 4), 5)
    assert torch.equal(argument(padded(), chosen, "x"), torch.from_numpy(chosen))
    assert example_ids((2, 10)).min() == 3
