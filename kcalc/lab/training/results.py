"""The runs of a comparison, with a table and a plot."""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ...fields.arguments import one_number
from ...foundation.errors import KcalcError
from ...foundation.files import write_whole
from ...foundation.guests import DRAWINGS
from ...foundation.plain_arguments import choice, file_path
from ...foundation.printing import Shown, text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Result:
    """One run of a comparison, with its accuracy at each evaluation step.

    Attributes
    ----------
    label
        The label of the network.
    learning_rate
        The learning rate.
    seed
        The seed of the run.
    split
        The name of the split.
    curve
        Tuples (step, accuracy on training batches, accuracy on test examples), with accuracies as
        fractions in [0, 1].
    accuracy
        The final test accuracy.
    seconds
        The training time.
    diverged
        The step at which the run diverged, or None.

    """

    label: str
    learning_rate: float
    seed: int
    split: str
    curve: tuple[tuple[int, float, float], ...]
    accuracy: float
    seconds: float
    diverged: int | None = None

    def steps_to(self, share: float) -> int | None:
        """Return the first evaluation step with at least this test accuracy.

        Test accuracy is the fraction of correct answers on the test examples.

        Parameters
        ----------
        share
            The fraction of correct answers to reach.

        Returns
        -------
        int | None
            The step, or None if the run never reaches this accuracy.

        """
        return next((step for step, _, test in self.curve if test >= share), None)


@dataclass(frozen=True)
class Row:
    """The summary of a configuration at the learning rate with the best final mean test accuracy.

    It contains the mean and the standard error of the final accuracy over runs, and the mean
    accuracy on training batches. It also contains the step at which the mean curve reached the goal
    (None if never) and the number of diverged runs.
    """

    label: str
    learning_rate: float
    accuracy: float
    error: float
    train_accuracy: float
    steps_to_goal: int | None
    diverged: int
    runs: int
    at_the_edge: bool


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """All runs of a comparison; ``str`` returns the table.

    Attributes
    ----------
    title
        The title of the table.
    results
        The runs.
    goal
        The test accuracy to which the table's column of steps refers, or None.

    """

    title: str
    results: tuple[Result, ...]
    goal: float = 0.95

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels of the configurations, in order."""
        return tuple(dict.fromkeys(result.label for result in self.results))

    def of(self, label: str, learning_rate: float | None = None) -> tuple[Result, ...]:
        """Return the runs of a configuration, at one learning rate or at all of them.

        Parameters
        ----------
        label
            The label of a configuration.
        learning_rate
            The learning rate. None means all learning rates.

        Returns
        -------
        tuple[Result, ...]
            One result per learning rate and seed.

        """
        choice(label, "configuration", self.labels)
        rate = None if learning_rate is None else one_number(learning_rate, "learning_rate")
        return tuple(
            r for r in self.results if r.label == label and rate in (None, r.learning_rate)
        )

    def rates(self, label: str) -> dict[float, float]:
        """Return {learning rate: final mean test accuracy} for a configuration.

        Diverged runs count as 0.

        Parameters
        ----------
        label
            The label of a configuration.

        Returns
        -------
        dict[float, float]
            Accuracies as fractions in [0, 1].

        """
        tried = sorted({result.learning_rate for result in self.of(label)})
        return {
            rate: float(np.mean([result.accuracy for result in self.of(label, rate)]))
            for rate in tried
        }

    def best_rate(self, label: str) -> float:
        """Return the learning rate with the best mean test accuracy. In a tie, the smallest wins.

        Parameters
        ----------
        label
            The label of a configuration.

        Returns
        -------
        float
            The learning rate.

        """
        rates = self.rates(label)
        return max(rates, key=lambda rate: (rates[rate], -rate))

    def curve(self, label: str) -> list[tuple[int, float]]:
        """Return the mean test accuracy by step, at the best learning rate.

        It uses the evaluation steps that all runs at this learning rate have in common.

        Parameters
        ----------
        label
            The label of a configuration.

        Returns
        -------
        list[tuple[int, float]]
            Pairs (step, mean accuracy in [0, 1]).

        """
        runs = [
            {step: test for step, _, test in result.curve}
            for result in self.of(label, self.best_rate(label))
        ]
        shared = sorted(set.intersection(*map(set, runs)))
        return [(step, float(np.mean([run[step] for run in runs]))) for step in shared]

    @property
    def rows(self) -> list[Row]:
        """Return one row per configuration."""
        return [self._row(label) for label in self.labels]

    def _row(self, label: str) -> Row:
        rates, rate = self.rates(label), self.best_rate(label)
        runs = self.of(label, rate)
        final = [run.accuracy for run in runs]
        train = [run.curve[-1][1] if run.curve and run.diverged is None else 0.0 for run in runs]
        return Row(
            label,
            rate,
            float(np.mean(final)),
            float(np.std(final, ddof=1) / len(runs) ** 0.5) if len(runs) > 1 else math.nan,
            float(np.mean(train)),
            next((step for step, share in self.curve(label) if share >= self.goal), None),
            sum(run.diverged is not None for run in runs),
            len(runs),
            len(rates) > 2 and rate in (min(rates), max(rates)),
        )

    def __repr__(self) -> str:
        return (
            f"Comparison({self.title[:80]!r}, {len(self.labels)} configurations, "
            f"{len(self.results)} runs)"
        )

    def _frame(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]

    def _rows(self) -> list[tuple[str, ...]]:
        head = (
            "",
            "learning rate",
            "test %",
            "+-",
            "train %",
            f"steps to {100 * self.goal:g} %",
            "diverged",
        )
        return [head, *(_cells(row) for row in self.rows)]

    def __str__(self) -> str:
        head, *lines = text_table(self._rows()).splitlines()
        rule = "-" * max(map(len, (head, *lines)))
        note = "* the best learning rate is the lowest or highest one tried"
        notes = [note] * any(row.at_the_edge for row in self.rows)
        return "\n".join([self.title, "", head, rule, *lines, *notes])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot mean test accuracy by step for every configuration at its best learning rate.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["Comparison"](
            {f"{label} ({self.best_rate(label):g})": self.curve(label) for label in self.labels},
            ax,
            self.title,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, with a versioned schema.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "schema": "kcalc.comparison/1",
            "title": self.title,
            "goal": self.goal,
            "results": [asdict(r) for r in self.results],
        }

    def save_table(self, path: str | os.PathLike[str]) -> None:
        """Write the rows to a ``.csv`` file.

        Parameters
        ----------
        path
            The path of the file.

        Raises
        ------
        KcalcError
            If the suffix is not ``.csv``, or if the file cannot be written.

        """
        if file_path(path).suffix.lower() != ".csv":
            raise KcalcError(f"{path}: a table can be saved only as .csv; use this suffix")
        write_whole(path, self.csv())

    def csv(self) -> str:
        """Return the rows in CSV format.

        Returns
        -------
        str
            One line per configuration, after a header.

        """
        stream = io.StringIO()
        out = csv.DictWriter(stream, [item.name for item in fields(Row)], lineterminator="\n")
        out.writeheader()
        out.writerows(self._frame())
        return stream.getvalue()


def _cells(row: Row) -> tuple[str, ...]:
    error = "-" if math.isnan(row.error) else f"{100 * row.error:.2f}"
    rate = f"{row.learning_rate:g}{'*' if row.at_the_edge else ' '}"
    reached = "-" if row.steps_to_goal is None else str(row.steps_to_goal)
    return (
        row.label,
        rate,
        f"{100 * row.accuracy:.2f}",
        error,
        f"{100 * row.train_accuracy:.2f}",
        reached,
        f"{row.diverged} of {row.runs}",
    )
