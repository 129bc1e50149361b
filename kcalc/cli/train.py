"""``kcalc train NET``: train a shaped network, compare methods, or run a paper's experiment.

Several methods are trained side by side.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..foundation.errors import KcalcError
from ..foundation.files import destination
from ..foundation.plain_arguments import choice
from ..plotting.frame import SUFFIXES
from ..training import (
    OPTIMISERS,
    RECIPES,
    SCHEDULES,
    SOURCES,
    Comparison,
    Dataset,
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
from .command import Command, number, plot_option, save_figure
from .networks import NET_HELP, named_network
from .targets import ABSENT, OPTIONS, add_targets

DESCRIPTION = """\
Train a network on small images and report how many test images it gets right.

With one method and one learning rate it trains once and prints a line per evaluation; otherwise it
prints a table: every method at the best of its learning rates, over seeds. Deep shaped networks
want learning rates about ten times below habit."""
EPILOG = f"""\
examples:
  kcalc train vanilla-100 --activation tanh --method dks --learning-rate 3e-4
  kcalc train vanilla --depth 100 --activation tanh --compare none,dks,tat,he:relu,eoc \\
      --seeds 3 --plot methods.png
  kcalc train vanilla-50 --activation relu --method tat --data mnist --folder mnist \\
      --checkpoint run.npz
  kcalc train --recipe dks-zeta --depth 50 --table zeta.csv

recipes: {", ".join(RECIPES)}
methods: {", ".join(METHOD_NAMES)}
"""


def _rates(text: str) -> tuple[float, ...]:
    found = tuple(number(part) for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no learning rate; write 1e-3, or 1e-4,1e-3"
        )
    return found


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "network",
        metavar="NET",
        nargs="?",
        help=f"{NET_HELP}; or a family alone with --depth; none with --recipe",
    )
    command.add_argument(
        "--depth",
        type=int,
        metavar="N",
        help="depth, where NET does not say it; of the networks of a recipe",
    )
    command.add_argument("--activation", metavar="NAME", help="activation of every nonlinear layer")
    command.add_argument(
        "--shortcut-weight",
        type=number,
        metavar="W",
        help="amplitude of the shortcut in ResNet sums, in [0, 1)",
    )
    command.add_argument(
        "--method",
        default="dks",
        metavar="METHOD",
        help="how the network is shaped or initialised; default dks",
    )
    command.add_argument(
        "--compare",
        metavar="M,M,...",
        help="several methods side by side; METHOD:ACTIVATION changes the activation",
    )
    command.add_argument(
        "--recipe",
        metavar="NAME",
        help="one of the papers' experiments (see below) in place of NET",
    )
    data = command.add_argument_group("data")
    data.add_argument(
        "--data", default="digits", metavar="NAME", help=f"{', '.join(SOURCES)}; default digits"
    )
    data.add_argument(
        "--folder", metavar="DIR", help="where the files of mnist, cifar10 or folder are"
    )
    data.add_argument(
        "--split",
        choices=("folds", "last"),
        help="test on stratified folds (default) or on the set's own test images",
    )
    network = command.add_argument_group("model")
    network.add_argument(
        "--width",
        type=int,
        default=64,
        metavar="N",
        help="channels of layers that do not say theirs; default 64",
    )
    network.add_argument(
        "--weights",
        default="delta_orthogonal",
        metavar="LAW",
        help="law of initial weights; default delta_orthogonal",
    )
    network.add_argument(
        "--dtype", default="float32", help="float32 (default), float64, bfloat16 or float16"
    )
    _training_options(command.add_argument_group("training"))
    _file_options(command.add_argument_group("files"))
    plot_option(command)
    add_targets(command)


def _training_options(group: Any) -> None:
    group.add_argument(
        "--optimizer", default="adam", metavar="NAME", help=f"{', '.join(OPTIMISERS)}; default adam"
    )
    group.add_argument(
        "--learning-rate",
        type=_rates,
        metavar="R,R,...",
        help="one or several to try; default five of the optimizer's",
    )
    group.add_argument("--steps", type=int, default=500, metavar="N", help="default 500")
    group.add_argument("--batch-size", type=int, default=64, metavar="N", help="default 64")
    group.add_argument(
        "--schedule",
        default="cosine",
        metavar="NAME",
        help=f"{', '.join(SCHEDULES)}; default cosine",
    )
    group.add_argument(
        "--warmup",
        type=int,
        default=0,
        metavar="N",
        help="steps over which the learning rate rises; default 0",
    )
    group.add_argument("--label-smoothing", type=number, default=0.0, metavar="E", help="default 0")
    group.add_argument("--momentum", type=number, default=0.9, metavar="M", help="default 0.9")
    group.add_argument("--weight-decay", type=number, default=0.0, metavar="D", help="default 0")
    group.add_argument(
        "--evaluate-every",
        type=int,
        default=50,
        metavar="N",
        help="steps between evaluations on the test images; default 50",
    )
    group.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="runs with seeds 0 .. N-1, each on its fold; default 1",
    )
    group.add_argument("--devices", type=int, metavar="N", help="share batches out over N devices")


def _file_options(group: Any) -> None:
    group.add_argument("--log", metavar="FILE", help="rows of a single run as .csv or .jsonl")
    group.add_argument(
        "--checkpoint", metavar="FILE", help="newest good state of a single run (.npz)"
    )
    group.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    group.add_argument(
        "--journal",
        metavar="FILE",
        help="finished runs of a comparison (.jsonl), which goes on where it stopped",
    )
    group.add_argument("--table", metavar="FILE", help="write the table as .csv")


def _run(options: argparse.Namespace) -> None:
    _check_files(options)
    settings = _settings(options)
    configurations, title = _configurations(options)
    # an unknown optimizer is refused before data are read
    rates = options.learning_rate or configurations[0].tried(settings)
    dataset = datasets.load(options.data, options.folder)
    mesh = None if options.devices is None else data_mesh(options.devices)
    if len(configurations) == 1 and len(rates) == 1 and options.seeds == 1 and not options.recipe:
        _single(
            options,
            configurations[0],
            replace(settings, learning_rate=rates[0]),
            dataset,
            mesh,
            title,
        )
        return
    for name in ("log", "checkpoint", "resume"):
        if getattr(options, name):
            raise KcalcError(
                f"--{name} is for a single run: one method, one --learning-rate, one seed; "
                f"comparisons keep a --journal"
            )
    seeds = "1 seed" if options.seeds == 1 else f"{options.seeds} seeds"
    try:
        found = compare(
            configurations,
            dataset,
            settings,
            options.seeds,
            options.split or "folds",
            options.learning_rate,
            f"{title}: {dataset.name}, {settings.steps} steps of {settings.batch_size}, "
            f"{options.optimizer}, {seeds}",
            options.journal,
            _line if sys.stderr.isatty() else None,
            mesh,
        )
    except Unfinished as stopped:
        _finish(options, stopped.comparison)
        raise
    _finish(options, found)


def _settings(options: argparse.Namespace) -> Settings:
    """The settings of all runs.  Raises: KcalcError in the words of the command line."""
    try:
        return Settings(
            optimizer=options.optimizer,
            steps=options.steps,
            batch_size=options.batch_size,
            schedule=options.schedule,
            warmup=options.warmup,
            label_smoothing=options.label_smoothing,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            evaluate_every=options.evaluate_every,
        )
    except KcalcError as error:
        name, space, rest = str(error).partition(" ")
        raise KcalcError(
            f"--{name.replace('_', '-')}{space}{rest}" if hasattr(options, name) else str(error)
        ) from None


def _check_files(options: argparse.Namespace) -> None:
    """Raises: KcalcError for files that could not be written or read, before any work is done."""
    for name, suffixes in (
        ("plot", SUFFIXES),
        ("table", (".csv",)),
        ("checkpoint", (".npz",)),
        ("journal", (".jsonl",)),
    ):
        path = getattr(options, name)
        if path is None:
            continue
        destination(path)
        if Path(path).suffix.lower() not in suffixes or Path(path).is_dir():
            raise KcalcError(f"--{name} is the name of a file {', '.join(suffixes)}, not {path}")
    if options.resume and options.checkpoint is None:
        raise KcalcError("--resume needs the file of a checkpoint: --checkpoint FILE")
    if options.checkpoint is None:
        return
    there = Path(options.checkpoint).exists()
    if options.resume and not there:
        raise KcalcError(
            f"--checkpoint {options.checkpoint} does not exist, so there is nothing to resume; "
            f"leave out --resume to start"
        )
    if there and not options.resume:
        raise KcalcError(
            f"--checkpoint {options.checkpoint} exists; go on from it with --resume, or remove it "
            f"to start again"
        )


def _line(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _finish(options: argparse.Namespace, found: Comparison) -> None:
    if sys.stderr.isatty():
        _line("")
    print(found)
    if options.plot:
        save_figure(found.plot(), options.plot)
    if options.table:
        found.save_table(options.table)


def _configurations(options: argparse.Namespace) -> tuple[list[RunConfiguration], str]:
    """(the run configurations, a title)."""
    if options.recipe is not None:
        given = [
            f"--{name}"
            for name in ("network", "activation", "compare", "shortcut_weight")
            if getattr(options, name) is not None
        ]
        if given or any(getattr(options, target.name) is not ABSENT for target in OPTIONS):
            given = [text.replace("--network", "NET").replace("_", "-") for text in given] or [
                "targets of methods"
            ]
            raise KcalcError(
                f"a recipe has networks and methods of its own; leave out {', '.join(given)}"
            )
        chosen = recipe(options.recipe)
        return chosen.configurations(
            options.depth, options.width
        ), f"{chosen.title} [{chosen.source}]"
    if options.network is None:
        raise KcalcError("say which network to train: NET (vanilla-100, ...) or --recipe NAME")
    name = options.network if options.depth is None else f"{options.network}-{options.depth}"
    named = named_network(name, options.activation, options.shortcut_weight)
    wanted = (
        [part.strip() for part in options.compare.split(",") if part.strip()]
        if options.compare is not None
        else [options.method]
    )
    if options.compare is not None and not wanted:
        raise KcalcError(
            f"--compare {options.compare!r} names no method; write --compare "
            f"{','.join(METHOD_NAMES[:2])}"
        )
    single = options.compare is None
    return [
        _configuration(options, text, named.network, single) for text in dict.fromkeys(wanted)
    ], named.short


def _configuration(
    options: argparse.Namespace, text: str, network: Any, single: bool
) -> RunConfiguration:
    method, _, phi = text.partition(":")
    choice(method, "method", METHOD_NAMES)
    own = {
        target.name: getattr(options, target.name) for target in OPTIONS if method in target.methods
    }
    targets = {name: value for name, value in own.items() if value is not ABSENT}
    foreign = [
        t.option
        for t in OPTIONS
        if method not in t.methods and getattr(options, t.name) is not ABSENT
    ]
    if single and foreign:
        raise KcalcError(
            f"{foreign[0]} is no target of the method {method}; see kcalc shape --help"
        )
    return RunConfiguration(
        text,
        network,
        method,
        targets,
        phi or None,
        options.width,
        options.weights,
        dtype=options.dtype,
    )


def _single(
    options: argparse.Namespace,
    configuration: RunConfiguration,
    settings: Settings,
    dataset: Dataset,
    mesh: Any,
    title: str,
) -> None:
    """One run, a line per evaluation step."""
    if options.table or options.journal:
        raise KcalcError("--table and --journal are for comparisons; a single run has --log")
    if options.log:
        Log.at(options.log)
    prepared = configuration.prepared()
    last = options.split == "last"
    split = (
        held_out(dataset, None, prepared.preparation)
        if last
        else fold(dataset, 0, preparation=prepared.preparation)
    )
    model, initial = prepared.built(split)

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
            checkpoint=options.checkpoint,
            resume=options.resume,
            log=options.log,
            progress=sys.stderr.isatty(),
            begun=header,
        )
    except Diverged as stopped:
        _report(options, stopped.run, split)
        raise
    _report(options, run, split)


def _report(options: argparse.Namespace, run: Run, split: Split) -> None:
    print(f"{'step':>7}  {'rate':>9}  {'loss':>9}  {'correct':>8}  {'test loss':>9}  {'test':>8}")
    for r in run.history:
        print(
            f"{r.step:7d}  {r.learning_rate:9.3g}  {r.train_loss:9.4f}  "
            f"{100 * r.train_accuracy:7.2f}%  {r.test_loss:9.4f}  "
            f"{100 * r.test_accuracy:7.2f}%"
        )
    print(f"\n{len(split.train)} training and {len(split.test)} test images, {run.seconds:.1f} s")
    if options.plot and run.history:
        save_figure(run.plot(), options.plot)


COMMAND = Command(
    "train", "train networks and compare methods", DESCRIPTION, _options, _run, EPILOG
)
