"""The table of real architectures, on those that need no further library."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from benchmarks import copies, models  # noqa: E402
from benchmarks.architectures import ARCHITECTURES  # noqa: E402

OWN = {entry.name: entry for entry in ARCHITECTURES if not entry.library}


def test_there_are_fifty_and_thirty_five_without_attention() -> None:
    names = [entry.name for entry in ARCHITECTURES]
    assert len(set(names)) == len(names) >= 50
    assert sum(not entry.attends for entry in ARCHITECTURES) >= 35


@pytest.mark.parametrize("name", OWN)
def test_models_written_here_run(name: str) -> None:
    with torch.no_grad():
        outputs = OWN[name].model()(*OWN[name].example())
    leaves = outputs if isinstance(outputs, tuple) else (outputs,)
    assert all(torch.isfinite(y).all() and len(y) == 2 for y in leaves)


def test_rows_are_kept_and_read_again() -> None:
    cells = dict.fromkeys(models.COLUMNS, models.Cell("refused", "products", "why"))
    copy = copies.Copy(True, 1.2, 0.01, 512, 4)
    row = models.Row(OWN["Highway"], 2.0, 1.0, "1 exact", cells, copy, {})
    assert models.row_from("Highway", json.loads(json.dumps(row.to_dict()))) == row
    assert row.texts()[-1] == "**1.20 ± 0.01**"
    missing = models.row_from("Highway", {"failed": "job: not finished after 300 s"})
    assert missing.texts()[2] == "not finished" and missing.texts()[-1] == "-"


@pytest.mark.parametrize(
    ("ratio", "error", "close", "off"),
    [(1.09, 0.01, True, False), (0.8, 0.1, False, False), (1.2, 0.02, False, True)],
)
def test_copies_are_close_or_off(ratio: float, error: float, close: bool, off: bool) -> None:
    copy = copies.Copy(True, ratio, error, 512, 4)
    assert (copy.close, copy.off) == (close, off)
