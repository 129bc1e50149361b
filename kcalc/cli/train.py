"""``kcalc train NET``: train a shaped network, compare methods, or run a paper's experiment.

Several methods are trained side by side.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from ..foundation.errors import KcalcError
from ..foundation.files import PICTURES, destination
from ..foundation.plain_arguments import choice
from ..foundation.printing import text_table
from ..training import (
    OPTIMISERS,
    RECIPES,
    SCHEDULES,
    SOURCES,
    Comparison,
    Diverged,
    Run,
    RunConfiguration,
    Settings,
    Unfinished,
    compare,
    datasets,
    recipe,
)
from ..training.logs import Log
from ..training.loop import Trainer
from ..training.run_configurations import METHOD_NAMES
from ..training.sharding import data_mesh
from ..training.splits import Split, fold, held_out
from .command import Option, Plot, number, save_figure, write
from .networks import NET_HELP, ShortcutWeight, named_network
from .targets import TARGETS, flag, owners


def _rates(text: str) -> tuple[float, ...]:
    found = tuple(number(part) for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no learning rate; write 1e-3, or 1e-4,1e-3"
        )
    return found


@dataclass(frozen=True)
class Files:
    """The files of a training run or a comparison, checked before any work is done.

    Raises: KcalcError for files that could not be written or read.
    """

    log: Annotated[
        str | None, Option("rows of a single run as .csv or .jsonl", metavar="FILE", group="files")
    ] = None
    checkpoint: Annotated[
        str | None,
        Option("newest good state of a single run (.npz)", metavar="FILE", group="files"),
    ] = None
    resume: Annotated[bool, Option("go on from the checkpoint", group="files")] = False
    journal: Annotated[
        str | None,
        Option(
            "finished runs of a comparison (.jsonl), which goes on where it stopped",
            metavar="FILE",
            group="files",
        ),
    ] = None
    table: Annotated[
        str | None,
        Option(
            "write the table as .csv, '-' to standard output alone", metavar="FILE", group="files"
        ),
    ] = None
    plot: Plot = None

    def __post_init__(self) -> None:
        for name, suffixes in (
            ("plot", PICTURES),
            ("table", (".csv",)),
            ("checkpoint", (".npz",)),
            ("journal", (".jsonl",)),
        ):
            path = getattr(self, name)
            if path is None or (name == "table" and path == "-"):
                continue
            destination(path)
            if Path(path).suffix.lower() not in suffixes:
                raise KcalcError(
                    f"--{name} is the name of a file {', '.join(suffixes)}, not {path}"
                )
        if self.resume and self.checkpoint is not None and not Path(self.checkpoint).exists():
            raise KcalcError(
                f"--checkpoint {self.checkpoint} does not exist, so there is nothing to resume; "
                f"leave out --resume to start"
            )


@dataclass(frozen=True)
class Trained:
    """The networks that are trained: NET by one or several methods, or those of a recipe."""

    network: Annotated[
        str | None,
        Option(
            f"{NET_HELP}; or a family alone with --depth; none with --recipe",
            "network",
            metavar="NET",
            nargs="?",
        ),
    ] = None
    depth: Annotated[
        int | None,
        Option("depth, where NET does not say it; of the networks of a recipe", metavar="N"),
    ] = None
    activation: Annotated[
        str | None, Option("activation of every nonlinear layer", metavar="NAME")
    ] = None
    shortcut_weight: ShortcutWeight = None
    method: Annotated[
        str, Option("how the network is shaped or initialised; default dks", metavar="METHOD")
    ] = "dks"
    compare: Annotated[
        str | None,
        Option(
            "several methods side by side; METHOD:ACTIVATION changes the activation",
            metavar="M,M,...",
        ),
    ] = None
    recipe: Annotated[
        str | None,
        Option("one of the papers' experiments (see below) in place of NET", metavar="NAME"),
    ] = None
    width: Annotated[
        int,
        Option("channels of layers that do not say theirs; default 64", metavar="N", group="model"),
    ] = 64
    weights: Annotated[
        str,
        Option("law of initial weights; default delta_orthogonal", metavar="LAW", group="model"),
    ] = "delta_orthogonal"
    dtype: Annotated[
        str, Option("float32 (default), float64, bfloat16 or float16", group="model")
    ] = "float32"

    def configurations(self, targets: Mapping[str, Any]) -> tuple[list[RunConfiguration], str]:
        """(the run configurations, a title)."""
        if self.recipe is not None:
            return self._of_recipe(self.recipe, targets)
        if self.network is None:
            raise KcalcError("say which network to train: NET (vanilla-100, ...) or --recipe NAME")
        name = self.network if self.depth is None else f"{self.network}-{self.depth}"
        named = named_network(name, self.activation, self.shortcut_weight)
        if self.compare is None:
            return [self._configuration(self.method, named.network, targets)], named.short
        wanted = [part.strip() for part in self.compare.split(",") if part.strip()]
        if not wanted:
            raise KcalcError(
                f"--compare {self.compare!r} names no method; write --compare "
                f"{','.join(METHOD_NAMES[:2])}"
            )
        return [
            self._configuration(text, named.network, targets) for text in dict.fromkeys(wanted)
        ], named.short

    def _of_recipe(
        self, name: str, targets: Mapping[str, Any]
    ) -> tuple[list[RunConfiguration], str]:
        own = ("network", "activation", "compare", "shortcut_weight")
        given = [
            "NET" if option == "network" else f"--{option.replace('_', '-')}"
            for option in own
            if getattr(self, option) is not None
        ]
        if given or targets:
            raise KcalcError(
                f"a recipe has networks and methods of its own; leave out "
                f"{', '.join(given or ['targets of methods'])}"
            )
        chosen = recipe(name)
        return chosen.configurations(self.depth, self.width), f"{chosen.title} [{chosen.source}]"

    def _configuration(
        self, text: str, network: Any, targets: Mapping[str, Any]
    ) -> RunConfiguration:
        method, _, phi = text.partition(":")
        choice(method, "method", METHOD_NAMES)
        own = {name: value for name, value in targets.items() if method in owners(name)}
        if self.compare is None and own != targets:
            foreign = next(name for name in targets if name not in own)
            raise KcalcError(
                f"{flag(foreign)} is no target of the method {method}; see kcalc shape --help"
            )
        return RunConfiguration(
            text,
            network,
            method,
            own,
            phi or None,
            self.width,
            self.weights,
            dtype=self.dtype,
        )


def _training(help: str, metavar: str, **more: Any) -> Option:
    return Option(help, metavar=metavar, group="training", **more)


TRAINING = {
    "optimizer": _training(f"{', '.join(OPTIMISERS)}; default adam", "NAME"),
    "steps": _training("default 500", "N", type=int),
    "batch_size": _training("default 64", "N", type=int),
    "schedule": _training(f"{', '.join(SCHEDULES)}; default cosine", "NAME"),
    "warmup": _training("steps over which the learning rate rises; default 0", "N", type=int),
    "label_smoothing": _training("default 0", "E", type=number),
    "momentum": _training("default 0.9", "M", type=number),
    "weight_decay": _training("default 0", "D", type=number),
    "evaluate_every": _training(
        "steps between evaluations on the test images; default 50", "N", type=int
    ),
}


def _settings(**given: Annotated[Any, TRAINING]) -> Settings:
    """The settings of all runs.  Raises: KcalcError in the words of the command line."""
    try:
        return Settings(**given)
    except KcalcError as error:
        name, space, rest = str(error).partition(" ")
        flag = f"--{name.replace('_', '-')}" if name in TRAINING else name
        raise KcalcError(f"{flag}{space}{rest}") from None


def run(
    files: Annotated[Files, Files],
    settings: Annotated[Settings, _settings],
    trained: Annotated[Trained, Trained],
    learning_rate: Annotated[
        tuple[float, ...] | None,
        _training(
            "one or several to try; default five of the optimizer's",
            "R,R,...",
            type=_rates,
            action="store",
        ),
    ] = None,
    seeds: Annotated[
        int, _training("runs with seeds 0 .. N-1, each on its fold; default 1", "N")
    ] = 1,
    devices: Annotated[int | None, _training("share batches out over N devices", "N")] = None,
    data: Annotated[
        str, Option(f"{', '.join(SOURCES)}; default digits", metavar="NAME", group="data")
    ] = "digits",
    folder: Annotated[
        str | None,
        Option("where the files of mnist, cifar10 or folder are", metavar="DIR", group="data"),
    ] = None,
    split: Annotated[
        str,
        Option(
            "test on stratified folds (default) or on the set's own test images",
            choices=("folds", "last"),
            group="data",
        ),
    ] = "folds",
    **targets: Annotated[Any, TARGETS],
) -> None:
    configurations, title = trained.configurations(targets)
    # an unknown optimizer is refused before data are read
    rates = learning_rate or configurations[0].tried(settings)
    dataset = datasets.load(data, folder)
    mesh = None if devices is None else data_mesh(devices)
    if len(configurations) == 1 and len(rates) == 1 and seeds == 1 and not trained.recipe:
        if files.table or files.journal:
            raise KcalcError("--table and --journal are for comparisons; a single run has --log")
        if files.log:
            Log.at(files.log)
        (configuration,) = configurations
        preparation = configuration.prepared().preparation
        parts = (
            held_out(dataset, None, preparation)
            if split == "last"
            else fold(dataset, 0, preparation=preparation)
        )
        _single(files, configuration, replace(settings, learning_rate=rates[0]), parts, mesh, title)
        return
    for name in ("log", "checkpoint", "resume"):
        if getattr(files, name):
            raise KcalcError(
                f"--{name} is for a single run: one method, one --learning-rate, one seed; "
                f"comparisons keep a --journal"
            )
    runs = "1 seed" if seeds == 1 else f"{seeds} seeds"
    try:
        found = compare(
            configurations,
            dataset,
            settings,
            seeds,
            split,
            learning_rate,
            f"{title}: {dataset.name}, {settings.steps} steps of {settings.batch_size}, "
            f"{settings.optimizer}, {runs}",
            files.journal,
            _line if sys.stderr.isatty() else None,
            mesh,
        )
    except Unfinished as stopped:
        _finish(files, stopped.comparison)
        raise
    _finish(files, found)


run.__doc__ = f"""Train a network on small images and report how many test images it gets right.

With one method and one learning rate it trains once and prints a line per evaluation; otherwise it
prints a table: every method at the best of its learning rates, over seeds. Deep shaped networks
want learning rates about ten times below habit.

Examples:
  kcalc train vanilla-100 --activation tanh --method dks --learning-rate 3e-4
  kcalc train vanilla --depth 100 --activation tanh --compare none,dks,tat,he:relu,eoc \\
      --seeds 3 --plot methods.png
  kcalc train vanilla-50 --activation relu --method tat --data mnist --folder mnist \\
      --checkpoint run.npz
  kcalc train --recipe dks-zeta --depth 50 --table zeta.csv

recipes: {", ".join(RECIPES)}
methods: {", ".join(METHOD_NAMES)}
"""


def _line(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _finish(files: Files, found: Comparison) -> None:
    if sys.stderr.isatty():
        _line("")
    if files.table != "-":
        print(found)
    if files.plot:
        save_figure(found.plot(), files.plot)
    if files.table:
        write(files.table, found.csv())


def _single(
    files: Files,
    configuration: RunConfiguration,
    settings: Settings,
    split: Split,
    mesh: Any,
    title: str,
) -> None:
    """One run, a line per evaluation step."""
    model, initial = configuration.prepared().built(split)

    def header() -> None:
        rate = f"{settings.optimizer}, learning rate {settings.learning_rate:g}"
        print(f"{title}, {configuration.label}: {model!r}\n{split!r}\n{rate}\n", flush=True)

    trainer = Trainer(model, settings, mesh)
    trainer.check(split)
    with model.precision():
        params = initial(settings.seed, split)
    try:
        run = trainer.fit(
            split,
            params=params,
            checkpoint=files.checkpoint,
            resume=files.resume,
            log=files.log,
            progress=sys.stderr.isatty(),
            begun=header,
        )
    except Diverged as stopped:
        _report(files, stopped.run, split)
        raise
    _report(files, run, split)


def _report(files: Files, run: Run, split: Split) -> None:
    print(text_table(run._rows(), len(run.history)))
    print(f"\n{len(split.train)} training and {len(split.test)} test images, {run.seconds:.1f} s")
    if files.plot and run.history:
        save_figure(run.plot(), files.plot)
