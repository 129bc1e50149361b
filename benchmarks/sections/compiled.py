"""The JAX backend: compilation time by depth, a gradient step compared with a hand-written scan,
and training steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import kcalc as kc

from ..book import Figure, Options, Section, Table, digits, seconds, times
from ..timing import Spent, median, paired_ratio, rounds_of, timed

MiB = 2.0**20


def run(options: Options) -> Section:
    compile_table, rolled, unrolled = compile_times(options)
    sizes = options.size([(10, 32, 16)], [(100, 256, 64), (1000, 64, 32)])
    steps, ratio, share = step_times(options, sizes, ("float32",))
    tables = [compile_table, steps]
    if jax.default_backend() == "gpu":
        large = [(100, 256, 64), (100, 1024, 1024), (1000, 1024, 256)]
        tables.append(
            step_times(
                options, large, ("float32", "bfloat16"), "The same at larger sizes and in bfloat16"
            )[0]
        )
    if not options.quick:
        tables.append(training(options))
    return Section(
        "Compiling, a gradient step, training",
        f"On {jax.devices()[0].device_kind} ({jax.default_backend()}). Compilation times include "
        "tracing, lowering and compiling the gradient of a mean square with respect to all "
        "parameters, with a new model in every round. A step is the same gradient step, computed "
        "by kcalc's function and by a hand-written `lax.scan` over the same parameters, in pairs "
        "of alternating order. The floor is the scan. Tables for a GPU are omitted if there is "
        "none.",
        tables,
        {
            "rolled": Figure(rolled, times(rolled)),
            "unrolled": Figure(unrolled, times(unrolled)),
            "step": Figure(ratio, times(ratio)),
            "step_memory": Figure(share, times(share)),
        },
    )


def gradient_step(apply: Callable[..., Any]) -> Any:
    """The value and gradient of the mean square of the output."""
    return jax.jit(jax.value_and_grad(lambda p, x: (apply(p, x).astype(jnp.float32) ** 2).mean()))


def shaped(depth: int) -> Any:
    """A plain tanh network shaped by DKS."""
    return kc.shape(kc.architectures.vanilla(depth), "tanh", method="dks")


def compiled(network: Any, width: int, batch: int, **options: Any) -> tuple[Spent, Spent]:
    """Time to make the model, and to trace and compile its step."""

    def make() -> tuple[Any, Any]:
        model = kc.to_jax(network, width, **options)
        return model, jax.eval_shape(lambda: model.init(0))

    made, (model, params) = timed(make)
    took, _ = timed(
        lambda: (
            gradient_step(model.apply)
            .lower(params, jnp.ones((batch, width), model.dtype))
            .compile()
        )
    )
    return made, took


def compile_times(options: Options) -> tuple[Table, float, float]:
    """Rolled networks of several depths and one unrolled network, in alternating rounds.

    Also returns the ratios of wall times for the targets.
    """
    shallow, deep = options.size((5, 20), (50, 1000))
    blocks = options.size((2,), (16, 333))
    networks = {
        f"plain, {depth} layers": kc.architectures.vanilla(depth, "tanh")
        for depth in (shallow, deep)
    }
    for count in blocks:
        networks[f"rescaled ResNet, {count} blocks"] = kc.shape(
            kc.architectures.rescaled_resnet(count), "tanh", method="dks"
        ).network
    # the first call of a process also sets up XLA
    compiled(kc.architectures.vanilla(3, "tanh"), 64, 32)
    found: dict[str, list[tuple[Spent, Spent]]] = {name: [] for name in networks}
    for _ in range(options.size(1, 5)):
        for name, network in networks.items():
            found[name].append(compiled(network, 64, 32))
    unrolled = f"plain, {deep} layers, unrolled"
    found[unrolled] = [compiled(kc.architectures.vanilla(deep, "tanh"), 64, 32, rolled=False)]
    middle = {
        name: tuple(median(one[i] for one in rows) for i in (0, 1)) for name, rows in found.items()
    }
    rows = [
        (name, seconds(made.wall), seconds(took.wall), seconds(took.cpu))
        for name, (made, took) in middle.items()
    ]
    depth_ratio = (
        middle[f"plain, {deep} layers"][1].wall / middle[f"plain, {shallow} layers"][1].wall
    )
    roll_ratio = middle[unrolled][1].wall / middle[f"plain, {deep} layers"][1].wall
    return (
        Table(
            "Compiling a gradient step, width 64", ("network", "model", "compilation", "CPU"), rows
        ),
        depth_ratio,
        roll_ratio,
    )


def hand_written(constants: Any, dtype: Any) -> Callable[..., Any]:
    """The same network written by hand: a scan over (weight, bias), then the readout."""
    a, b, g, d = (
        float(v) for v in (constants.alpha, constants.beta, constants.gamma, constants.delta)
    )

    def apply(params: Any, x: Any) -> Any:
        def body(h: Any, layer: Any) -> Any:
            z = h @ layer["weight"] + layer["bias"]
            return (g * (jnp.tanh(a * z.astype(jnp.float32) + b) + d)).astype(dtype), None

        layers, last = params.values()
        h, _ = jax.lax.scan(body, x, layers)
        return h @ last["weight"] + last["bias"]

    return apply


STEP = "A gradient step compared with a hand-written scan"


def step_times(
    options: Options, sizes: list[tuple[int, int, int]], dtypes: tuple[str, ...], what: str = STEP
) -> tuple[Table, float, float]:
    """Step times, the operations and bytes that XLA counts, and the memory that it plans.

    Also returns the largest ratios of time and memory.
    """
    pairs = options.size(3, 31)
    columns = (
        "depth, width, batch",
        "dtype",
        "kcalc",
        "hand-written",
        "ratio",
        "operations",
        "bytes",
        "memory",
        "ratio",
        "with remat",
    )
    rows, ratios, shares = [], [], []
    for depth, width, batch in sizes:
        shaping = shaped(depth)
        for dtype in dtypes:
            model = kc.to_jax(shaping, width, dtype=dtype)
            params = model.init(0)
            x = jax.random.normal(jax.random.key(1), (batch, width)).astype(dtype)
            applies = (
                model.apply,
                hand_written(shaping.constants["tanh"], dtype),
                kc.to_jax(shaping, width, dtype=dtype, remat=True).apply,
            )
            ours, theirs, again = (
                gradient_step(apply).lower(params, x).compile() for apply in applies
            )
            both = {
                "ours": lambda step=ours, p=params, x=x: jax.block_until_ready(step(p, x)),
                "theirs": lambda step=theirs, p=params, x=x: jax.block_until_ready(step(p, x)),
            }
            found = rounds_of(both, pairs)
            ratios.append(paired_ratio(found["ours"], found["theirs"]))
            flops, moved = (
                ours.cost_analysis()[what] / theirs.cost_analysis()[what]
                for what in ("flops", "bytes accessed")
            )
            memory = [c.memory_analysis().temp_size_in_bytes / MiB for c in (ours, theirs, again)]
            shares.append(memory[0] / memory[1])
            walls = (seconds(median(found[name]).wall) for name in both)
            counts = (
                digits(flops),
                digits(moved),
                f"{memory[0]:.1f} MiB",
                digits(shares[-1]),
                f"{memory[2]:.1f} MiB",
            )
            rows.append((f"{depth}, {width}, {batch}", dtype, *walls, digits(ratios[-1]), *counts))
    caption = (
        f"{what}, for DKS tanh. Times are medians over {pairs} alternating pairs; the ratio of "
        "times is the median of the ratios of the pairs, which on a noisy machine differs from "
        "the ratio of the medians. Operations, bytes and memory are ratios of kcalc to the scan."
    )
    return Table(caption, columns, rows), max(ratios), max(shares)


def training(options: Options) -> Table:
    """Time per training step without compilation, for one and for many steps per dispatch."""
    from kcalc import training as train

    depth, count = options.size(10, 100), options.size(20, 200)
    split = train.fold(train.load("digits"), 0)
    settings = train.Settings("adam", learning_rate=1e-4, steps=count, evaluate_every=count)
    network = kc.architectures.vanilla(depth, "tanh")
    trainers, firsts = {}, {}
    for dispatch in (1, 50):
        model = kc.to_jax(kc.shape(network), {None: 64, network.outputs[0]: 10})
        trainers[dispatch] = train.Trainer(model, settings, steps_per_dispatch=min(dispatch, count))
        firsts[dispatch], _ = timed(lambda trainer=trainers[dispatch]: trainer.fit(split))
    found = rounds_of(
        {str(d): lambda trainer=t: trainer.fit(split) for d, t in trainers.items()},
        options.size(1, 5),
        warm=False,
    )
    rows = [
        (str(d), seconds(firsts[d].wall), seconds(median(found[str(d)]).wall / count))
        for d in trainers
    ]
    caption = (
        f"Training {depth} layers of DKS tanh, width 64, batch 64, Adam, {count} steps on digits"
    )
    return Table(
        caption, ("steps per dispatch", "first run, including compilation", "a step"), rows
    )
