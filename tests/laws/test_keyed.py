"""Results that hold others by name are mappings: iteration, len, in, keys, items, get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from refusals import refused

import kcalc as kc
from kcalc import architectures, claims
from kcalc.shaping.constants import Constants, ConstantsTable

PLAIN = architectures.vanilla(3, "tanh", features=10)


def of_several_sets() -> Any:
    """Constants of tanh at two nodes, and one set of relu."""
    tanh, relu = map(kc.activation, ("tanh", "relu"))
    sets = [
        Constants(phi, scale, 0.0, 1.0, 0.0) for phi, scale in ((tanh, 1), (tanh, 2), (relu, 1))
    ]
    return ConstantsTable(dict(zip("abc", sets, strict=True)))


RESULTS: dict[str, Callable[[], Any]] = {
    "values": lambda: kc.node_values(PLAIN, 0.5),
    "tangent kernels": lambda: kc.ntk(PLAIN).layers,
    "a report": lambda: claims.verify(claims.all()[0].id, processes=1),
    "constants of several sets": of_several_sets,
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_mapping(name: str) -> None:
    one = RESULTS[name]()
    assert isinstance(one, Mapping)
    keys = list(one)
    assert keys and len(one) == len(keys) == len(set(keys)) and list(one.keys()) == keys
    assert [key for key, _ in one.items()] == keys == list(dict(one))
    assert all(key in one for key in keys) and len(list(one.values())) == len(keys)
    for key in keys:
        assert type(one[key]) is type(one.get(key))
    for other in ("no such name", 0, 7.5, None, object()):
        assert other not in one and one.get(other) is None and one.get(other, 3) == 3
    with refused("no such"):
        one["no such name"]


def test_constants_of_an_activation_with_several_sets_are_listed_by_node() -> None:
    table = of_several_sets()
    assert list(table) == ["a", "b", "relu"] and len(table) == 3
    assert "c" in table and table["c"] is table["relu"]
    with refused("several sets"):
        table["tanh"]
