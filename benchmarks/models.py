"""``python -m benchmarks.models [--only NAME ...] [--output FILE]``: a table of real architectures.

For every model of ``benchmarks/architectures.py``, the table shows whether kcalc can read it, which
results its network has, and what a shaped copy computes. Needs torchvision, timm and transformers;
nothing is downloaded. Every model runs in a separate process, and an interrupted run continues
where it stopped.
"""

from __future__ import annotations

import argparse
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kcalc as kc
from kcalc.network.layers import Product

from . import kept
from .__main__ import say
from .architectures import ARCHITECTURES, NAMED, WIDTH, Architecture
from .book import Table, write
from .copies import BATCHES, DRAWS, LARGE, PRECISION, SECONDS, TOLERANCE, Copy, copied

HERE = Path(__file__).resolve().parent
KEPT = HERE / ".models.jsonl"  # rows of an unfinished run
METHODS = {"dks": "tanh", "tat": "leaky_relu", "eoc": "tanh"}
COLUMNS = ("q, c", "NTK", "gradients", "dks", "tat", "eoc")
WITHOUT, BEFORE = "without norms", "pre-activated"
TOKENS = 16  # for images that are cut into patches
NEAREST = re.compile(r"(?:e\.g\.|reached is) (zeta|eta|tau) ?= ?([\d.]+\d)")
REASONS = (  # (words of an error, text in the table)
    ("(rotary)", "rotary embeddings"),
    ("steps over tokens", "strides over tokens"),
    ("pools windows", "pooling of tokens"),
    ("attends over tokens", "attention"),
    ("cannot be built", "an operation of another batch"),
    ("no axis that is known to hold channels", "channels unknown"),
    ("no such operation", "an operation of its own"),
    ("shares its weights", "a shared layer"),
    ("Product", "products"),
    ("product", "products"),
    ("Opaque", "a part not read"),
    ("no rule for Attend", "attention"),
    ("without attention", "attention"),
    ("TokenMix", "mixing of tokens"),
    ("reads the output of Embedding", "an embedding's q"),
    ("has no bias", "a layer without bias"),
    ("whose means are not 0", "means"),
    ("sees q =", "q of several layers"),
    ("BatchNorm", "BatchNorm"),
    ("fresh", "weights not fresh"),
    ("independent", "weights not fresh"),
    ("out of reach", "target out of reach"),
    ("too shallow", "target out of reach"),
    ("several outputs", "several outputs"),
)


@dataclass(frozen=True)
class Cell:
    """A result: "exact", "heuristic" or "refused", with the edits of the network that it needed,
    and the reason.
    """

    state: str
    note: str = ""
    message: str = ""

    def __str__(self) -> str:
        return self.state + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class Row:
    """The results for one architecture, computed in ``taken`` seconds of processor time.

    ``seconds`` is the reading time. ``copy`` is None if the model has no shaped copy.
    """

    architecture: Architecture
    taken: float
    seconds: float
    fidelity: str
    cells: dict[str, Cell]
    copy: Copy | None
    messages: dict[str, str]

    def texts(self) -> tuple[str, ...]:
        entry = self.architecture
        name = f"{entry.name} ({entry.library})" if entry.library else entry.name
        read = f"{self.seconds:.1f}"
        cells = (str(self.cells[column]) for column in COLUMNS)
        refused = self.messages.get("copy")
        none = "-" if refused is None else f"refused ({reason(refused)})"
        return name, read, self.fidelity, *cells, str(self.copy or none)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"architecture": self.architecture.name}

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Row:
        """The row from the result of ``to_dict``."""
        cells = {column: Cell(**cell) for column, cell in row["cells"].items()}
        copy = None if row["copy"] is None else Copy(**row["copy"])
        parts = {"architecture": NAMED[row["architecture"]], "cells": cells, "copy": copy}
        return cls(**row | parts)


def reason(error: Exception | str) -> str:
    """An error in a few words."""
    text = str(error)
    return next((short for words, short in REASONS if words in text), text[:60])


# -- results ---------------------------------------------------------------------------------------


def edited(network: kc.Network) -> Iterator[tuple[str, kc.Network]]:
    """Pairs (edits, network): the network as it was read, without norms, and without norms as a
    pre-activation network.
    """
    yield "", network
    bare = network.without_normalization().normalised()
    yield WITHOUT, bare
    yield BEFORE, bare.preactivated()


def tokens_of(entry: Architecture, network: kc.Network) -> list[dict[str, Any]]:
    """Arguments that specify the tokens, for networks with attention.

    This is the number of exchangeable tokens if possible, and otherwise the covariance of
    independent tokens.
    """
    if not network.nodes_of(kc.layers.Attend):
        return [{}]
    count = entry.shapes[0][1] if entry.ids else TOKENS
    return [{"tokens": count}, {"tokens": np.eye(count)}]


def state_of(result: Any) -> str:
    """Whether a result is exact or heuristic, according to its assumptions."""
    heuristic = any(a.kind == "heuristic" for a in result.assumptions)
    return "heuristic" if heuristic else "exact"


def available(entry: Architecture, network: kc.Network, ask: Callable[..., str]) -> Cell:
    """The first way to get a result: unchanged, with edits, or assuming independence."""
    refused: Exception | None = None
    for edits, variant in edited(network):
        for assume, tokens in product((False, True), tokens_of(entry, network)):
            try:
                return Cell(ask(variant, assume_independent=assume, **tokens), edits)
            except kc.KcalcError as error:
                refused = error
    assert refused is not None
    return Cell("refused", reason(refused), str(refused))


def _values(result: Any) -> list[float]:
    found = result.values() if isinstance(result, dict) else [result]
    return [float(value) for value in found]


def q_and_c(network: kc.Network, **options: Any) -> str:
    """Q(1) and C(1/2) at the outputs."""
    if isinstance(options.get("tokens"), np.ndarray):
        values = kc.node_values(network, **options)
        _finite(values[node].q for node in network.outputs)
        return "sampled"
    maps = kc.q_map(network, **options), kc.c_map(network, **options)
    _finite([*_values(maps[0](1.0)), *_values(maps[1](0.5))])
    return max(map(state_of, maps))  # "heuristic" if one of them is


def tangent(network: kc.Network, **options: Any) -> str:
    """The tangent kernel at c = 1/2."""
    kernel = kc.ntk(network, **options)
    if isinstance(options.get("tokens"), np.ndarray):
        return "sampled"
    _finite(_values(kernel(0.5)))
    return state_of(kernel)


def gradient(network: kc.Network, **options: Any) -> str:
    """Gradients at all nodes."""
    found = kc.gradients(network, output=network.outputs[0], **options)
    return "sampled" if hasattr(found, "covariances") else state_of(found)


def _finite(values: Iterable[Any]) -> None:
    found = np.array([*values], dtype=float)
    if not np.isfinite(found).all():
        raise kc.KcalcError(f"the values are not finite: {found}")


# -- shaping ---------------------------------------------------------------------------------------


def shaped(reading: Any, method: str) -> tuple[Cell, Any]:
    """The first shaping of the model that works, and how it was obtained.

    Tries the model itself, its network as a pre-activation network, and both with the reachable
    target named in the error.
    """
    refused: Exception | None = None
    variants = {"": reading, BEFORE: [*edited(reading.network)][-1][1]}
    gated = method == "dks" and bool(reading.network.nodes_of(Product))
    own = {"gates": "normalise"} if gated else {}
    targets: dict[str, float] = {}
    nearest: dict[str, float] = {}
    for _ in range(2):
        for options, edits in product(({}, {"assume_independent": True}), variants):
            try:
                given = variants[edits]
                found = kc.shape(given, METHODS[method], method, **own, **options, **targets)
            except kc.KcalcError as error:
                refused = error
                if advice := NEAREST.search(str(error)):
                    nearest = {advice[1]: float(advice[2])}
            else:
                said = [edits, *(f"{name} {value:.3g}" for name, value in targets.items())]
                said.append(_regions(found))
                return Cell(state_of(found), ", ".join(filter(None, said))), found
        if not nearest:
            break
        targets = nearest
    assert refused is not None
    return Cell("refused", reason(refused), str(refused)), None


def _regions(shaping: Any) -> str:
    """The number of regions of a model with parts that were not read."""
    networks = getattr(shaping, "networks", ())
    return f"{len(networks)} regions" if len(networks) > 1 else "1 region" * len(networks)


# -- the page --------------------------------------------------------------------------------------


def measured(entry: Architecture) -> Row:
    """All results for one architecture."""
    begun = time.process_time()
    model, example = entry.model(), entry.example()
    start = time.process_time()
    reading = kc.read(model, *example)
    spent = time.process_time() - start
    network = reading.network
    cells = {
        name: available(entry, network, ask)
        for name, ask in zip(COLUMNS, (q_and_c, tangent, gradient), strict=False)
    }
    shapings = {}
    for method in METHODS:
        cells[method], shapings[method] = shaped(reading, method)
    messages = {name: cell.message for name, cell in cells.items() if cell.message}
    first, copy = next((s for s in shapings.values() if s is not None), None), None
    try:
        copy = None if first is None else copied(entry, model, reading, first)
    except kc.KcalcError as error:
        messages["copy"] = str(error)
    taken = time.process_time() - begun
    return Row(entry, taken, spent, str(reading.fidelity), cells, copy, messages)


def row_of(name: str) -> dict[str, Any]:
    """The row of an architecture, computed in a separate process."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return measured(NAMED[name]).to_dict()


def unfinished(entry: Architecture, why: str) -> Row:
    """The row of an architecture whose process failed."""
    text = "not finished" if "not finished" in why else why
    cells = dict.fromkeys(COLUMNS, Cell("refused", text, why))
    return Row(entry, math.nan, math.nan, text, cells, None, {"read": why})


def row_from(name: str, found: dict[str, Any]) -> Row:
    """The row for the result of a process."""
    failed = found.get("failed")
    return Row.from_dict(found) if failed is None else unfinished(NAMED[name], failed)


def counted(rows: Sequence[Row]) -> list[str]:
    """Count the architectures with each result, and the reasons why others have none."""
    plain = [row for row in rows if not row.architecture.attends]
    maps = [row for row in plain if row.cells["q, c"].state != "refused"]
    copies = [row.copy for row in plain if row.copy is not None and row.copy.finite]
    compared = [copy for copy in copies if not math.isnan(copy.ratio)]
    near, far = ([c for c in compared if getattr(c, of)] for of in ("close", "off"))
    lines = [
        f"Of {len(plain)} architectures without attention, kcalc computes q and c at the outputs "
        f"of {len(maps)} ({len(maps) / max(len(plain), 1):.0%}), and {len(copies)} have a shaped "
        f"copy with a finite forward pass ({len(copies) / max(len(plain), 1):.0%}). q was "
        f"measured in {len(compared)} of the copies. In {len(near)} it lies within "
        f"{TOLERANCE:.0%} of the predicted value; in {len(far)} it deviates by more than that and "
        "by more than three standard errors.",
    ]
    for column in COLUMNS:
        reasons = Counter(
            row.cells[column].note for row in rows if row.cells[column].state == "refused"
        )
        if reasons:
            listed = ", ".join(f"{why} {count}" for why, count in reasons.most_common())
            lines.append(f"- {column} refused: {listed}")
    return lines


def page(rows: Sequence[Row]) -> str:
    """The whole text."""
    table = Table(
        'A result is exact or heuristic according to its `.assumptions`; "refused" means that '
        "kcalc raises an error. Parentheses give the edit that the network needed first, or the "
        "reason for the error. The last column measures a shaped copy of the model, using the "
        "first of the methods dks, tat and eoc that can shape it. It shows the measured q value "
        f"at the last module with at least {WIDTH} channels, divided by the predicted value. The "
        f"measured value is a mean over {DRAWS[0]} to {DRAWS[1]} draws of the weights (until the "
        f"standard error is below {PRECISION:.0%}, or for at most {SECONDS:.0f} s); weights are "
        f"orthogonal, or Gaussian for models with more than {LARGE / 1e6:.0f} million weights. "
        f"Each draw has {2 * BATCHES} inputs that are equal at all locations. Bold: the ratio "
        "differs from 1 by more than 10 % and by more than three standard errors. Gates of "
        "products, such as those in squeeze-and-excitation blocks, are shaped with "
        '`gates="normalise"`.',
        ("architecture", "read [s]", "nodes", *COLUMNS, "`apply_to`"),
        [row.texts() for row in rows],
    )
    versions = ", ".join(
        f"{name} {__import__(name).__version__}"
        for name in sorted({row.architecture.library for row in rows} - {""})
    )
    head = (
        f"Written by `python -m benchmarks.models` with kcalc {kc.__version__}, PyTorch "
        f"{torch.__version__}"
        + (f", {versions}" if versions else "")
        + f", in {np.nansum([row.taken for row in rows]) / 60:.0f} minutes of processor time. "
        "Models are built from their configurations with random weights; times are for one "
        "thread."
    )
    return "\n\n".join(["# Real architectures", head, "\n".join(counted(rows)), table.markdown()])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument(
        "--output", type=Path, help="default benchmarks/MODELS.md; with --only, printed"
    )
    parser.add_argument("--messages", action="store_true", help="also print full error messages")
    options = parser.parse_args()
    chosen = [a for a in ARCHITECTURES if options.only is None or a.name in options.only]
    output = options.output or (None if options.only else HERE / "MODELS.md")

    def show(name: str, found: dict[str, Any]) -> None:
        row = row_from(name, found)
        say(" | ".join(row.texts()))
        for column, text in row.messages.items() if options.messages else ():
            say(f"    {column}: {text[:400]}")

    names = [entry.name for entry in chosen]
    file = KEPT if options.only is None else None
    rows = kept.measured(row_of, names, file, show)
    text = page([row_from(name, rows[name]) for name in names]) + "\n"
    if output is None:
        print(text)
    else:
        write(text, output)
        KEPT.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
