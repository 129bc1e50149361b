"""Deep networks on scikit-learn's digits: what DKS and TAT make of skip-free networks, beside what they are measured against.

``python benchmarks/training.py [--only digits,optimizers,speed] [--journal FOLDER]``; the whole takes about half an hour on two cores, and
goes on where it was interrupted if it has a folder for its journals.  K-FAC is in the second table where kfac-jax steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import kcalc as kc
from kcalc import training
from kcalc.training import Comparison, Settings

SECTIONS = ("digits", "optimizers", "speed")
SETTINGS = Settings(optimizer="adam", steps=500, batch_size=64, evaluate_every=25)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default=",".join(SECTIONS), metavar="PART,...", help=f"some of {', '.join(SECTIONS)}")
    options.add_argument("--journal", metavar="FOLDER", help="keep finished runs here")
    chosen = options.parse_args()
    dataset = training.load("digits")
    for name in chosen.only.split(","):
        if name not in SECTIONS:
            options.error(f"{name} is none of {', '.join(SECTIONS)}")
        if name == "speed":
            speed(dataset)
        else:
            tables(name, dataset, None if chosen.journal is None else Path(chosen.journal))


def tables(section: str, dataset: Any, folder: Path | None) -> None:
    """The headline on folds and on the last writers, or optimisers on folds."""
    contenders = training.recipe("headline" if section == "digits" else "optimizers").contenders()
    for part, seeds in (("folds", 5), ("last", 3)) if section == "digits" else (("folds", 3),):
        journal = None if folder is None else folder / f"{section}-{part}.jsonl"
        found = training.compare(contenders, dataset, SETTINGS, seeds, part, journal=journal)
        print(f"## {section}, {'stratified 5-fold' if part == 'folds' else 'the last 360'}, {seeds} runs per learning rate\n")
        print(markdown(found), "\n")


def markdown(found: Comparison) -> str:
    """The table of a comparison in Markdown."""
    lines = ["| network | learning rate | test % | +- | train % | steps to 95 % | diverged |", "|---|---|---|---|---|---|---|"]
    for row in found.rows:
        reached = "-" if row.steps_to_goal is None else row.steps_to_goal
        rate = f"{row.learning_rate:g}{' (end of the grid)' if row.at_the_edge else ''}"
        lines.append(
            f"| {row.label} | {rate} | {100 * row.accuracy:.2f} | {100 * row.error:.2f} | {100 * row.train_accuracy:.2f} | {reached} | "
            f"{row.diverged} of {row.runs} |"
        )
    return "\n".join(lines)


def speed(dataset: Any) -> None:
    """Milliseconds a step, compilation apart, against the same loop with one dispatch per step."""
    split = training.fold(dataset, 0)
    settings = Settings("adam", learning_rate=1e-4, steps=200, evaluate_every=200)
    print("## speed: 100-layer DKS tanh, width 64, batch 64, Adam\n\n| steps per dispatch | first run, s | ms a step |\n|---|---|---|")
    network = kc.architectures.vanilla(100, "tanh")
    for count in (1, 50):
        model = kc.to_jax(kc.shape(network), {None: 64, network.outputs[0]: 10})
        trainer = training.Trainer(model, settings, steps_per_dispatch=count)
        start = time.perf_counter()
        trainer.fit(split)
        first = time.perf_counter() - start
        times = []
        for _ in range(5):
            start = time.perf_counter()
            trainer.fit(split)
            times.append(time.perf_counter() - start)
        print(f"| {count} | {first:.1f} | {1000 * statistics.median(times) / settings.steps:.2f} |")


if __name__ == "__main__":
    main()
