"""The benchmark of methods and rates: which rates it tries, and runs that are kept."""

from __future__ import annotations

import pytest

from benchmarks import how_to_choose as choose

FLAT = dict.fromkeys(choose.FIRST, 2.0)


def runs(losses: dict[float, float | None]) -> list[choose.Run]:
    return [choose.Run("MLP-60", "He", rate, 0, loss) for rate, loss in losses.items()]


@pytest.mark.parametrize(
    ("losses", "rate"),
    [
        ({}, 3e-5),
        ({3e-5: 1.0, 1e-4: 0.5}, 3e-4),
        (FLAT | {3e-4: 1.0}, None),
        (FLAT | {3e-3: 1.0}, 1e-2),
        (FLAT | {3e-5: 1.0}, 1e-5),
        (FLAT | {3e-3: 1.0, 1e-2: None}, None),
        (FLAT | {3e-3: 1.0, 1e-2: 0.9}, 3e-2),
    ],
)
def test_the_best_rate_is_inside(losses: dict[float, float | None], rate: float | None) -> None:
    assert choose.next_rate(runs(losses)) == rate


def test_inputs_have_mean_square_one() -> None:
    for network in ("MLP-60", "ResNet-28"):
        images = choose.digits(network)[0]
        assert float((images.square().mean(1) - 1).abs().max()) < 1e-5


def test_the_page_is_that_of_the_journal() -> None:
    journal = choose.Journal(choose.HERE / "how_to_choose.jsonl")
    page = (choose.HERE / "HOW_TO_CHOOSE.md").read_text(encoding="utf-8")
    assert page.endswith(f"{choose.MARK}\n\n{choose.tables(journal)}\n")
    for network in choose.NETWORKS:
        for method in choose.METHODS:
            for seed in choose.SEEDS:
                assert choose.next_rate(journal.of(network, method, seed)) is None
