"""Train classifiers with optax or K-FAC, compare them, and load scikit-learn's digits."""

from .classifier import classifier
from .comparison import compare
from .data import Split, digits
from .fitting import evaluate, fit
from .optimisers import OPTIMISERS
from .results import Comparison, Result
from .runs import Diverged, Run
from .settings import SCHEDULES, Settings

__all__ = [
    "OPTIMISERS",
    "SCHEDULES",
    "Comparison",
    "Diverged",
    "Result",
    "Run",
    "Settings",
    "Split",
    "classifier",
    "compare",
    "digits",
    "evaluate",
    "fit",
]


def __dir__() -> list[str]:
    return __all__
