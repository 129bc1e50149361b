"""Training: data sets, optimisers, checkpoints, comparisons, the papers' experiments.

The package also has splits, fit and evaluate, and training on several devices.
"""

from .comparison import Unfinished, compare
from .datasets import SOURCES, Dataset, load
from .loop import Trainer, evaluate, fit
from .optimisers import OPTIMISERS
from .recipes import RECIPES, Recipe, recipe
from .results import Comparison, Result
from .run import Diverged, Run
from .run_configurations import RunConfiguration
from .settings import SCHEDULES, Settings
from .sharding import connect, data_mesh
from .splits import Preparation, Split, fold, held_out, prepare

__all__ = [
    "OPTIMISERS",
    "RECIPES",
    "SCHEDULES",
    "SOURCES",
    "Comparison",
    "Dataset",
    "Diverged",
    "Preparation",
    "Recipe",
    "Result",
    "Run",
    "RunConfiguration",
    "Settings",
    "Split",
    "Trainer",
    "Unfinished",
    "compare",
    "connect",
    "data_mesh",
    "evaluate",
    "fit",
    "fold",
    "held_out",
    "load",
    "prepare",
    "recipe",
]


def __dir__() -> list[str]:
    return __all__
