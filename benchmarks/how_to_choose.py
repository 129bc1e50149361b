"""Methods, targets and learning rates: ``python -m benchmarks.how_to_choose [--quick]``.

Trains three ReLU networks without norms (an MLP, a CNN and a ResNet) on scikit-learn's digits with
Adam, from the default initialisation, He's, and several shapings. Every network is trained with at
least five rates, and with more while the best rate is at an end of the range. Every run is a line
of ``--journal``, and runs in the journal are not repeated. The tables of HOW_TO_CHOOSE.md are
written from the journal.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import kcalc as kc

HERE = Path(__file__).resolve().parent
MARK = "<!-- written by python -m benchmarks.how_to_choose -->"
RATES = tuple(float(f"{digit}e{power}") for power in range(-7, 0) for digit in (1, 3))
FIRST = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)  # always tried
SEEDS = (0, 1)
DIVERGED = 10.0  # a run with a larger loss counts as diverged
Array = Any


@dataclass(frozen=True)
class Size:
    """Depths, widths and the length of a run."""

    mlp: int = 60
    cnn: int = 40
    blocks: int = 4  # per stage of the ResNet, which has three stages: 28 layers
    width: int = 64
    channels: int = 16
    steps: int = 250
    batch: int = 64


QUICK = Size(mlp=4, cnn=3, blocks=1, width=16, channels=4, steps=5)


# -- networks --------------------------------------------------------------------------------------


def mlp(size: Size) -> nn.Module:
    """Alternating linear layers and ReLUs."""
    width = size.width
    first = [nn.Linear(64, width), nn.ReLU()]
    rest = [layer for _ in range(size.mlp - 2) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*first, *rest, nn.Linear(width, 10))


def cnn(size: Size) -> nn.Module:
    """Alternating 3 x 3 convolutions and ReLUs on 4 x 4 maps, then a mean over locations."""
    width = size.channels
    first = [nn.Conv2d(2, width, 3, 2, 1), nn.ReLU()]
    layers = [(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU()) for _ in range(size.cnn - 2)]
    rest = [layer for pair in layers for layer in pair]
    return nn.Sequential(*first, *rest, *_head(width))


class Block(nn.Module):
    """A pre-activation block without norms; the first block of a stage projects its shortcut."""

    def __init__(self, width: int, stride: int, projects: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, stride, 1)
        self.second = nn.Conv2d(width, width, 3, 1, 1)
        self.shortcut = nn.Conv2d(width, width, 1, stride) if projects else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = functional.relu(x)
        branch = self.second(functional.relu(self.first(active)))
        return (x if self.shortcut is None else self.shortcut(active)) + branch


def resnet(size: Size) -> nn.Module:
    """A ResNet V2 with three stages, as in wide ResNets, on maps of 8 x 8, 4 x 4 and 2 x 2."""
    width = size.channels
    blocks = [
        Block(width, 2 if stage and not number else 1, not number)
        for stage in range(3)
        for number in range(size.blocks)
    ]
    return nn.Sequential(nn.Conv2d(2, width, 3, 1, 1), *blocks, nn.ReLU(), *_head(width))


def _head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]


NETWORKS: dict[str, tuple[Callable[[Size], nn.Module], tuple[int, ...]]] = {
    "MLP-60": (mlp, (2, 64)),
    "CNN-40": (cnn, (2, 2, 8, 8)),
    "ResNet-28": (resnet, (2, 2, 8, 8)),
}


# -- methods ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """An initialisation: options of ``kc.shape``, or None for PyTorch's own initialisation."""

    options: dict[str, Any] | None = None
    activation: str | None = None
    he: bool = False

    def prepare(self, network: str, size: Size) -> Callable[[int], nn.Module]:
        """Models with this initialisation, by seed. Raises: KcalcError if the method does not
        apply.
        """
        build, shape = NETWORKS[network]
        if self.options is None:
            return lambda seed: self._plain(build, size, seed)
        model = build(size)
        net = kc.read(model, shape).network.normalised()
        found = kc.shape(net, self.activation, **self.options)

        def drawn(seed: int) -> nn.Module:
            return found.apply_to(model, shape, generator=torch.Generator().manual_seed(seed))

        return drawn

    def _plain(self, build: Callable[[Size], nn.Module], size: Size, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = build(size)
        for parameter in model.parameters() if self.he else ():
            if parameter.dim() > 1:
                nn.init.kaiming_normal_(parameter, nonlinearity="relu")
            else:
                nn.init.zeros_(parameter)
        return model


def _dks(zeta: float) -> Method:
    return Method({"method": "dks", "zeta": zeta}, "tanh")


def _tat(eta: float) -> Method:
    return Method({"method": "tat", "eta": eta})


METHODS: dict[str, Method] = {
    "default": Method(),
    "He": Method(he=True),
    "DKS tanh, zeta 1.1": _dks(1.1),
    "DKS tanh, zeta 1.5": _dks(1.5),
    "DKS tanh, zeta 5": _dks(5.0),
    "TAT, eta .9": _tat(0.9),
    "TAT, eta .7": _tat(0.7),
    "TAT, eta .5": _tat(0.5),
    "edge of chaos, tanh": Method({"method": "eoc", "sigma_b": 0.1}, "tanh"),
}


# -- data and training -----------------------------------------------------------------------------


def digits(network: str) -> tuple[torch.Tensor, ...]:
    """Training images and labels, then test images and labels; all q values are 1."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data, labels = load_digits(return_X_y=True)
    parts = train_test_split(data, labels, test_size=360, random_state=0, stratify=labels)
    mean = np.mean(parts[0], axis=0)
    images = [_normalised(network, part - mean) for part in parts[:2]]
    return (*images, *(torch.tensor(part) for part in parts[2:]))


def _normalised(network: str, x: Array) -> torch.Tensor:
    if len(NETWORKS[network][1]) == 2:
        return torch.tensor(np.asarray(kc.normalise_locations(x, "none")), dtype=torch.float32)
    maps = np.asarray(kc.normalise_locations(x.reshape(-1, 8, 8, 1)))
    return torch.tensor(maps, dtype=torch.float32).permute(0, 3, 1, 2).contiguous()


@dataclass
class Run:
    """One run: final loss on all training images (None if it is not finite), and test accuracy."""

    network: str
    method: str
    rate: float
    seed: int
    loss: float | None = None
    accuracy: float = 0.0
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, float, int]:
        return self.network, self.method, self.rate, self.seed

    @property
    def order(self) -> float:
        """The loss, or inf if it is not finite."""
        return math.inf if self.loss is None else self.loss


def train(model: nn.Module, data: tuple[torch.Tensor, ...], run: Run, size: Size) -> Run:
    """Train with Adam at a constant rate; all methods use the same batches for a given seed."""
    x, x_test, y, y_test = data
    random = torch.Generator().manual_seed(1000 + run.seed)
    optimiser, began = torch.optim.Adam(model.parameters(), run.rate), time.process_time()
    model.train()
    for _ in range(size.steps):
        rows = torch.randint(len(x), (size.batch,), generator=random)
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(x[rows]), y[rows])
        if not math.isfinite(loss.item()):
            return run
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        end = functional.cross_entropy(model(x), y).item()
        right = (model(x_test).argmax(1) == y_test).double().mean().item()
    run.loss, run.accuracy = (round(end, 5) if math.isfinite(end) else None), round(right, 4)
    run.seconds = round(time.process_time() - began, 1)
    return run


# -- the journal -----------------------------------------------------------------------------------


@dataclass
class Journal:
    """Runs, stored in a file as lines of JSON."""

    path: Path
    runs: dict[tuple[str, str, float, int], Run] = field(default_factory=dict)
    unfit: dict[tuple[str, str], str] = field(default_factory=dict)  # why a method does not apply

    def __post_init__(self) -> None:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for entry in map(json.loads, lines):
            if "unfit" in entry:
                self.unfit[entry["network"], entry["method"]] = entry["unfit"]
            else:
                run = Run(**entry)
                self.runs[run.key] = run

    def add(self, run: Run) -> None:
        self.runs[run.key] = run
        self._append(asdict(run))

    def add_unfit(self, network: str, method: str, reason: str) -> None:
        self.unfit[network, method] = reason
        self._append({"network": network, "method": method, "unfit": reason})

    def _append(self, entry: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def of(self, network: str, method: str, seed: int) -> list[Run]:
        """The runs of one network, method and seed, by rate."""
        found = (r for r in self.runs.values() if r.key[:2] == (network, method) and r.seed == seed)
        return sorted(found, key=lambda run: run.rate)

    def best(self, network: str, method: str, seed: int) -> Run | None:
        """The run with the smallest loss, if there is one with a finite loss."""
        found = [run for run in self.of(network, method, seed) if run.loss is not None]
        return min(found, key=lambda run: run.order, default=None)


def next_rate(runs: Iterable[Run]) -> float | None:
    """The rate to try next: one of the first five, then a rate beyond the best rate if that is at
    an end of the range.
    """
    tried = {run.rate: run.order for run in runs}
    missing = [rate for rate in FIRST if rate not in tried]
    if missing:
        return missing[0]
    best = RATES.index(min(tried, key=lambda rate: tried[rate]))
    beyond = (RATES[k] for k in (best - 1, best + 1) if 0 <= k < len(RATES))
    return next((rate for rate in beyond if rate not in tried), None)


def sweep(journal: Journal, network: str, method: str, seed: int, size: Size) -> None:
    """Make all runs of one network, method and seed that the journal does not contain yet."""
    rate = next_rate(journal.of(network, method, seed))
    if rate is None or (network, method) in journal.unfit:
        return
    try:
        drawn = METHODS[method].prepare(network, size)
    except kc.KcalcError as error:
        journal.add_unfit(network, method, str(error).splitlines()[0])
        return
    data = digits(network)
    while rate is not None:
        run = train(drawn(seed), data, Run(network, method, rate, seed), size)
        journal.add(run)
        print(f"{network}, {method}, rate {rate:g}, seed {seed}: {cell(run)}", flush=True)
        rate = next_rate(journal.of(network, method, seed))


# -- tables ----------------------------------------------------------------------------------------


def cell(run: Run) -> str:
    """Loss and accuracy of a run."""
    return f"{shown(run)} / {run.accuracy:.2f}"


def shown(run: Run) -> str:
    """The loss of a run as text."""
    return f"{run.order:.2g}" if run.order < DIVERGED else "diverged"


def markdown(rows: list[list[str]]) -> str:
    """Rows as a table; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def summary(journal: Journal) -> str:
    """For each network and method, the best rate for each seed, with loss and accuracy."""
    rows = [["start"]]
    for network in NETWORKS:
        rows[0] += [f"{network}: best rates", "losses / accuracies"]
    for method in METHODS:
        row = [method]
        for network in NETWORKS:
            found = [best for seed in SEEDS if (best := journal.best(network, method, seed))]
            none = "does not apply" if (network, method) in journal.unfit else ""
            row.append(", ".join(f"{run.rate:.0e}".replace("e-0", "e-") for run in found) or none)
            row.append(", ".join(cell(run) for run in found))
        rows.append(row)
    return markdown(rows)


def all_rates(journal: Journal, network: str) -> str:
    """The losses on one network by method and rate, with the seeds side by side."""
    rates = sorted({run.rate for run in journal.runs.values() if run.network == network})
    rows = [["start", *(f"{rate:.0e}".replace("e-0", "e-") for rate in rates)]]
    for method in METHODS:
        found = {(r.rate, seed): r for seed in SEEDS for r in journal.of(network, method, seed)}
        runs = [[found[rate, s] for s in SEEDS if (rate, s) in found] for rate in rates]
        if found:
            rows.append([method, *(", ".join(shown(run) for run in tried) for tried in runs)])
    return markdown(rows)


def tables(journal: Journal) -> str:
    """All tables on the page."""
    parts = ["## At the best rates", summary(journal), "## At all rates"]
    for network in NETWORKS:
        parts += [f"Losses on {network} for both seeds:", all_rates(journal, network)]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.how_to_choose", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--journal", type=Path, default=HERE / "how_to_choose.jsonl")
    parser.add_argument("--steps", type=int, help="steps of a run; needs a separate journal")
    parser.add_argument(
        "--quick", action="store_true", help="use small networks and print the tables"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = QUICK if options.quick else Size()
    if options.steps:
        size = Size(**asdict(size) | {"steps": options.steps})
    own = options.quick or options.steps
    if own and options.journal == parser.get_default("journal"):
        options.journal = Path(tempfile.mkdtemp()) / "how_to_choose.jsonl"
    journal = Journal(options.journal)
    for seed in options.seeds:
        for network in options.only:
            for method in options.methods:
                sweep(journal, network, method, seed, size)
    if own:
        print(tables(journal))
    else:
        page = HERE / "HOW_TO_CHOOSE.md"
        text = page.read_text() if page.exists() else MARK
        page.write_text(f"{text[: text.index(MARK)]}{MARK}\n\n{tables(journal)}\n")


if __name__ == "__main__":
    main()
