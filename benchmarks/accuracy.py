"""Accuracy instead of time: ``python -m benchmarks.accuracy [--only rolled precision kernels digits
optimizers]``.

Prints the tables of benchmarks/ACCURACY.md, which takes about an hour on two cores, mostly for
training. The optimisers include K-FAC if kfac-jax works with the installed jax.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kcalc as kc
from kcalc import training
from kcalc.lab.training import Comparison, Settings

from .book import Table
from .sections.compiled import gradient_step, shaped

SETTINGS = Settings(optimizer="adam", steps=500, batch_size=64, evaluate_every=25)


def relative(found: Any, expected: Any) -> float:
    """The largest difference divided by the largest entry."""
    a, b = (np.asarray(v, float) for v in (found, expected))
    return float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-30))


def rolled(options: argparse.Namespace) -> list[Table]:
    """Rolled networks compared with unrolled networks with the same weights."""
    rows = []
    resnet = kc.shape(kc.architectures.rescaled_resnet(12), "softplus", method="dks").network
    for name, network in {
        "100 layers, tanh, DKS": shaped(100).network,
        "36-layer rescaled ResNet, softplus, DKS": resnet,
    }.items():
        model, plain = kc.to_jax(network, 64), kc.to_jax(network, 64, rolled=False)
        x = jax.random.normal(jax.random.key(1), (32, 64))
        params, own = model.init(0), plain.init(0)
        gap = relative(model.apply(params, x), plain.apply(own, x))
        slopes = [gradient_step(m.apply)(p, x)[1] for m, p in ((model, params), (plain, own))]
        by_node = [m.unstack(g) for m, g in zip((model, plain), slopes, strict=True)]
        worst = max(
            relative(by_node[0][n][leaf], v)
            for n, leaves in by_node[1].items()
            for leaf, v in leaves.items()
        )
        rows.append((name, f"{gap:.1e}", f"{worst:.1e}"))
    caption = (
        "The table compares rolled and unrolled networks with the same weights. It shows the "
        "largest difference, relative to the largest entry."
    )
    return [Table(caption, ("network", "output", "gradient"), rows)]


def precision(options: argparse.Namespace) -> list[Table]:
    """Single and half precision compared with float64."""
    rows = []
    shaping, x = shaped(100), np.random.default_rng(0).standard_normal((32, 64))
    exact = kc.to_jax(shaping, 64, dtype="float64")
    truth = exact.init(0)
    with jax.enable_x64(True):
        loss = jax.value_and_grad(lambda p: (exact.apply(p, x) ** 2).mean())
        output, slope = np.asarray(exact.apply(truth, x)), jax.tree.map(np.asarray, loss(truth)[1])
    for dtype in ("float32", "bfloat16", "float16"):
        model = kc.to_jax(shaping, 64, dtype=dtype)
        params = jax.tree.map(
            lambda leaf, d=dtype: jnp.asarray(np.asarray(leaf, np.float32)).astype(d), truth
        )
        found = gradient_step(model.apply)(params, jnp.asarray(x, dtype))[1]
        gap = max(
            relative(a, b)
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(slope), strict=True)
        )
        rows.append((dtype, f"{relative(model.apply(params, x), output):.1e}", f"{gap:.1e}"))
    caption = (
        "The next table shows the errors in lower precision for 100 layers of DKS tanh at width "
        "64, relative to float64 with the same weights."
    )
    return [Table(caption, ("dtype", "output", "gradient"), rows)]


def kernels(options: argparse.Namespace) -> list[Table]:
    """Measured c values of random networks compared with the C map."""
    rows = []
    methods: dict[str, dict[str, Any]] = {
        "relu": {"method": "tat", "eta": 0.9},
        "softplus": {"method": "dks", "zeta": 10.0},
    }
    for weights in ("gaussian", "orthogonal"):
        for name, method in methods.items():
            model = kc.to_jax(
                kc.shape(kc.architectures.vanilla(100), name, **method), weights=weights
            )
            for width in options.widths:
                case = f"{name} ({method['method'].upper()}), {weights}, {width}"
                rows.append((case, *_kernel_cells(model, width, options.draws)))
    columns = (
        "activation, weights, width",
        "error, c = 0",
        "c = .8",
        "greatest abs z",
        "mean - map there",
        "beyond 4 errors",
        "deviation",
        "bias",
    )
    caption = (
        f"Measured c values in networks of 100 layers compared with the C map: {options.draws} "
        "draws and 64 pairs of inputs with c = 0 and with c = .8"
    )
    return [Table(caption, columns, rows)]


def _kernel_cells(model: Any, width: int, draws: int) -> tuple[str, ...]:
    check = kc.verify_kernels(
        model, (0.0, 0.8), draws=draws, pairs=64, widths=[width], tangent=False, gradients=False
    )
    s, judged, bias = check.statistic("c"), check.judged(), check.bias("c").values[0]
    beyond = sum(d.quantity == "c" for d in check.deviating())
    first = next(d for d in check.deviations if d.quantity == "c")
    errors = (f"{e:.4f}" for e in s.error[judged].max(axis=0))
    where = (
        f"{abs(first.z):.2f}",
        f"{first.mean - first.expected:+.4f}",
        f"{beyond} of {2 * judged.sum()}",
    )
    return (
        *errors,
        *where,
        f"{check.fluctuation('c').values[0]:.3f}",
        "-" if np.isnan(bias) else f"{bias:.4f}",
    )


def digits(options: argparse.Namespace) -> list[Table]:
    """Training of deep networks without shortcuts, shaped by DKS and TAT."""
    vanilla = kc.architectures.vanilla
    tanh, relu = vanilla(100, "tanh"), vanilla(100, "relu")
    resnet = kc.architectures.rescaled_resnet(16, 3, 0.8, "relu")
    networks = {
        "100 layers, DKS tanh": kc.shape(tanh),
        "100 layers, DKS softplus": kc.shape(tanh, "softplus"),
        "100 layers, TAT relu": kc.shape(relu, method="tat"),
        "rescaled ResNet, 50 layers, TAT relu": kc.shape(
            training.classifier(resnet, 10), method="tat"
        ),
        "100 layers, He relu": kc.shape(relu, method="he"),
        "100 layers, plain tanh": tanh,
        "2-layer He relu MLP": kc.shape(vanilla(1, "relu"), method="he"),
    }
    return [_compared("networks", networks, SETTINGS, 5)]


def optimizers(options: argparse.Namespace) -> list[Table]:
    """Compare SGD, Adam, Muon and K-FAC."""
    network = {"100 layers, DKS tanh": kc.shape(kc.architectures.vanilla(100, "tanh"))}
    tables = []
    for name in training.OPTIMISERS:
        try:
            tables.append(_compared(name, network, replace(SETTINGS, optimizer=name), 3))
        except kc.KcalcError as error:  # K-FAC works only with some versions of jax
            print(f"{name}: {error}\n")
    return tables


def _compared(title: str, networks: dict[str, Any], settings: Settings, seeds: int) -> Table:
    splits = [training.digits(fold) for fold in range(5)]
    found = training.compare(networks, splits, settings, seeds)
    columns = ("network", "learning rate", "test %", "+-", "train %", "steps to 95 %", "diverged")
    return Table(f"{title}, 5 folds, {seeds} runs per learning rate", columns, _rows(found))


def _rows(found: Comparison) -> list[tuple[str, ...]]:
    return [
        (
            row.label,
            f"{row.learning_rate:g}{' (end of the grid)' if row.at_the_edge else ''}",
            f"{100 * row.accuracy:.2f}",
            f"{100 * row.error:.2f}",
            f"{100 * row.train_accuracy:.2f}",
            "-" if row.steps_to_goal is None else str(row.steps_to_goal),
            f"{row.diverged} of {row.runs}",
        )
        for row in found.rows
    ]


TABLES = {
    "rolled": rolled,
    "precision": precision,
    "kernels": kernels,
    "digits": digits,
    "optimizers": optimizers,
}


def main() -> None:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy", description=(__doc__ or "").split("\n")[0]
    )
    options.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    options.add_argument("--draws", type=int, default=50)
    options.add_argument("--widths", type=int, nargs="+", default=[30, 100, 300])
    chosen = options.parse_args()
    for name in chosen.only:
        for table in TABLES[name](chosen):
            print(table.markdown(), "\n", flush=True)


if __name__ == "__main__":
    main()
