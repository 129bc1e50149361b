"""Results of training a network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...fields.arguments import one_number
from ...foundation.errors import KcalcError
from ...foundation.guests import DRAWINGS
from ...foundation.printing import Shown, plain
from .settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Record:
    """One evaluation step of a run.

    It contains the loss and the accuracy on the training batches since the previous evaluation, and
    on all test examples.
    """

    step: int
    learning_rate: float
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float


@dataclass(frozen=True, eq=False)
class Run(Shown):
    """The result of training.

    Attributes
    ----------
    settings
        The settings.
    history
        One record per evaluation step.
    params
        The parameters after training. If the run diverged, these are the parameters of the last
        evaluation step with a finite loss.
    state
        The statistics of BatchNorm layers.
    seconds
        The training time.
    diverged
        The step at which the loss became infinite or nan, or None.

    """

    settings: Settings
    history: tuple[Record, ...]
    params: Any = field(repr=False)
    state: Any = field(repr=False)
    seconds: float = 0.0
    diverged: int | None = None

    @property
    def accuracy(self) -> float:
        """Return the final accuracy on the test examples, a fraction in [0, 1].

        It is 0 if the run diverged.
        """
        return (
            0.0 if self.diverged is not None or not self.history else self.history[-1].test_accuracy
        )

    def steps_to(self, share: float) -> int | None:
        """Return the first evaluation step with a test accuracy of at least ``share``, or None.

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
        least = one_number(share, "share")
        return next((record.step for record in self.history if record.test_accuracy >= least), None)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot accuracies against steps.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None makes new ones.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        lines = {
            "training batches": [(r.step, r.train_accuracy) for r in self.history],
            "test examples": [(r.step, r.test_accuracy) for r in self.history],
        }
        return DRAWINGS["Run"](lines, ax)

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain data, without the parameters.

        The data include settings, history, seconds and the step at which the run diverged.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "settings": self.settings.to_dict(),
            "history": plain(self.history),
            "seconds": self.seconds,
            "diverged": self.diverged,
        }

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("step", "rate", "loss", "correct", "test loss", "test correct")
        return [
            head,
            *(
                (
                    str(r.step),
                    f"{r.learning_rate:.3g}",
                    f"{r.train_loss:.4f}",
                    f"{r.train_accuracy:.2%}",
                    f"{r.test_loss:.4f}",
                    f"{r.test_accuracy:.2%}",
                )
                for r in self.history
            ),
        ]

    def __repr__(self) -> str:
        end = (
            f"diverged at step {self.diverged}"
            if self.diverged is not None
            else f"test accuracy {self.accuracy:.4f}"
        )
        return f"Run({self.settings.optimizer}, {self.settings.steps} steps, {end})"


class Diverged(KcalcError):
    """Error raised if the loss becomes infinite or nan.

    ``step`` is the step at which this happened, and ``run`` is the result up to that step.
    """

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run

    @property
    def step(self) -> int:
        """Return the step at which the loss became infinite or nan."""
        return self.run.diverged or 0
