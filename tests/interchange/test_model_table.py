"""The table of real architectures, on those that need no further library."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import kcalc as kc

torch = pytest.importorskip("torch")

from benchmarks import models  # noqa: E402
from benchmarks.architectures import ARCHITECTURES, Architecture  # noqa: E402

OWN = {entry.name: entry for entry in ARCHITECTURES if not entry.library}


def wide() -> torch.nn.Module:
    layers = [torch.nn.Linear(8, 512), torch.nn.Tanh(), torch.nn.Linear(512, 600)]
    return torch.nn.Sequential(*layers)


def test_there_are_fifty_and_thirty_five_without_attention() -> None:
    names = [entry.name for entry in ARCHITECTURES]
    assert len(set(names)) == len(names) >= 50
    assert sum(not entry.attends for entry in ARCHITECTURES) >= 35


@pytest.mark.parametrize("name", OWN)
def test_models_written_here_run(name: str) -> None:
    entry = OWN[name]
    with torch.no_grad():
        outputs = entry.model()(*entry.example())
    leaves = outputs if isinstance(outputs, tuple) else (outputs,)
    assert all(bool(torch.isfinite(y).all()) and len(y) == 2 for y in leaves)


def test_a_row_says_what_there_is() -> None:
    row = models.measured(Architecture("stack", "", wide, ((2, 8),)))
    assert [row.cells[column].state for column in models.COLUMNS] == ["exact"] * 6
    assert row.fidelity == "4 exact" and row.texts()[:2] == ("stack", f"{row.seconds:.1f}")
    ratio, error = map(float, row.copy.split(" ± "))
    assert abs(ratio - 1) < max(5 * error, 0.1)
    text = models.page([row], 60.0)
    assert "1 have q and c at their outputs (100%), 1 a shaped copy" in text
    assert f"| stack | {row.seconds:.1f} | 4 exact |" in text
    other = dataclasses.replace(row, architecture=Architecture("stack", "timm", wide, ((2, 8),)))
    assert other.texts() == ("stack (timm)", *row.texts()[1:])


def test_refusals_are_counted_by_reason() -> None:
    def sorted_rows() -> torch.nn.Module:
        class Sorted(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a = torch.nn.Linear(8, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.a(x).sort(dim=1)[0]

        return Sorted()

    row = models.measured(Architecture("sorted", "", sorted_rows, ((2, 8),)))
    assert row.cells["q, c"] == models.Cell("refused", "a part not read", row.messages["q, c"])
    assert row.copy == "-" and "sorted" in models.page([row], 0.0)
    assert any("a part not read 1" in line for line in models.counted([row]))


def test_the_measured_q_is_that_of_the_node() -> None:
    """Against the mean square that a hook of PyTorch sees."""
    entry = Architecture("stack", "", wide, ((2, 8),))
    model, (x,) = entry.model(), models.alike(entry, 0)
    assert x.square().mean(1).numpy() == pytest.approx(np.ones(len(x)), rel=1e-6)
    reading = kc.read(model, x)
    new = kc.shape(reading.network, "tanh").apply_to(model)
    name = new.kcalc_nodes[reading.network.outputs[0]]
    run = models.Watched(new, {name})
    outputs = run.run(x)
    assert run.found[name] == pytest.approx(float(outputs.double().square().mean()), rel=1e-6)


def test_images_are_alike_at_all_locations() -> None:
    image, condition = models.alike(OWN["FiLM"], 1)
    assert torch.equal(image, image[:, :, :1, :1].expand_as(image))
    assert image.square().mean(1).flatten().numpy() == pytest.approx(
        np.ones(image[:, 0].numel()), rel=1e-5
    )
    assert condition.shape == (len(image), 32)
