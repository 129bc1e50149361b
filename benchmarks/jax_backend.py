"""Compiled networks: ``python benchmarks/jax_backend.py [--only compile step rolled precision kernels gpu] [--unrolled 1000] [--pairs 31]``

Compile times are of the gradient of a mean square over all parameters, traced, lowered and compiled, a model of its own in every round,
the best of the rounds (depths alternate).  Steps are the same gradient step of kcalc's function and of a hand-written ``lax.scan`` over
the same parameters, timed in pairs whose order alternates; the median of the ratios counts.  Kernels are :func:`kcalc.verify_kernels` on
100 layers.  The last table needs a GPU and is left out without one; the others run on whatever JAX runs on.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kcalc as kc

MiB = 2.0**20


def gradient_step(apply: Callable[..., Any]) -> Any:
    """The value and gradient of the mean square of the output."""
    return jax.jit(jax.value_and_grad(lambda p, x: (apply(p, x).astype(jnp.float32) ** 2).mean()))


def shaped(depth: int) -> Any:
    """Plain tanh network under DKS."""
    return kc.shape(kc.architectures.vanilla(depth), "tanh", method="dks")


def compiled(network: Any, width: int, batch: int, **options: Any) -> tuple[float, float, float]:
    """(seconds to make the model, to trace and compile by the clock, the latter in CPU time)."""
    start = time.perf_counter()
    model = kc.to_jax(network, width, **options)
    params = jax.eval_shape(lambda: model.init(0))
    made = time.perf_counter()
    clock = time.process_time()
    gradient_step(model.apply).lower(params, jnp.ones((batch, width), model.dtype)).compile()
    return made - start, time.perf_counter() - made, time.process_time() - clock


def compile_times(options: argparse.Namespace) -> None:
    print("\nCompile time of a gradient step, width 64 (seconds; best of the rounds)\n")
    print("| network | model | compilation | CPU |")
    print("|---|---|---|---|")
    networks = {depth: kc.architectures.vanilla(depth, "tanh") for depth in (50, 1000)}
    blocks = {count: kc.shape(kc.architectures.rescaled_resnet(count), "tanh", method="dks").network for count in (16, 333)}
    compiled(networks[50], 64, 32)  # the first call of a process also sets up XLA
    cases: dict[str, tuple[Any, dict[str, Any]]] = {f"plain, {d} layers": (n, {}) for d, n in networks.items()}
    cases |= {f"rescaled ResNet, {count} blocks": (n, {}) for count, n in blocks.items()}
    best: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, (network, more) in cases.items():
            found = compiled(network, 64, 32, **more)
            best[name] = [min(a, b) for a, b in zip(found, best.get(name, found), strict=True)]
    unrolled = f"plain, {options.unrolled} layers, unrolled"
    best[unrolled] = list(compiled(kc.architectures.vanilla(options.unrolled, "tanh"), 64, 32, rolled=False))
    for name, row in best.items():
        print(f"| {name} | " + " | ".join(f"{v:.2f}" for v in row) + " |", flush=True)
    shallow, deep = best["plain, 50 layers"], best["plain, 1000 layers"]
    print(f"\n1000 layers / 50 layers: {deep[1] / shallow[1]:.2f} (CPU {deep[2] / shallow[2]:.2f}); wanted <= 1.5")
    scale = 1000 / options.unrolled
    note = "" if scale == 1 else f", scaled up by {scale:.1f} (compilation grows faster than that)"
    print(f"unrolled / rolled at 1000 layers: {scale * best[unrolled][1] / deep[1]:.0f}{note}; wanted >= 5")


def hand_written(constants: Any, dtype: Any) -> Callable[..., Any]:
    """The same network, written as anybody would: a scan over (weight, bias), then the readout."""
    a, b, g, d = (float(v) for v in (constants.alpha, constants.beta, constants.gamma, constants.delta))

    def apply(params: Any, x: Any) -> Any:
        def body(h: Any, layer: Any) -> Any:
            z = h @ layer["weight"] + layer["bias"]
            return (g * (jnp.tanh(a * z.astype(jnp.float32) + b) + d)).astype(dtype), None

        layers, last = params.values()
        h, _ = jax.lax.scan(body, x, layers)
        return h @ last["weight"] + last["bias"]

    return apply


def raced(ours: Any, theirs: Any, params: Any, x: Any, pairs: int) -> tuple[float, float, float]:
    """(median of ours, of theirs, median ratio) in seconds, over pairs whose order alternates."""
    for step in (ours, theirs):
        jax.block_until_ready(step(params, x))
    times: list[tuple[float, float]] = []
    for i in range(pairs):
        pair = {}
        for name in ("ours", "theirs") if i % 2 else ("theirs", "ours"):
            start = time.perf_counter()
            jax.block_until_ready((ours if name == "ours" else theirs)(params, x))
            pair[name] = time.perf_counter() - start
        times.append((pair["ours"], pair["theirs"]))
    a, b = zip(*times, strict=True)
    return statistics.median(a), statistics.median(b), statistics.median(x / y for x, y in times)


def step_rows(options: argparse.Namespace, sizes: list[tuple[int, int, int]], dtypes: tuple[str, ...]) -> None:
    """Rows of step times, of the operations and bytes XLA counts, and of the memory it plans."""
    print("| depth, width, batch | dtype | ours ms | hand-written ms | ratio | FLOPs ratio | bytes ratio | MiB | ratio | MiB with remat |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for depth, width, batch in sizes:
        shaping = shaped(depth)
        for dtype in dtypes:
            model = kc.to_jax(shaping, width, dtype=dtype)
            params, x = model.init(0), jax.random.normal(jax.random.key(1), (batch, width)).astype(dtype)
            applies = model.apply, hand_written(shaping.constants["tanh"], dtype), kc.to_jax(shaping, width, dtype=dtype, remat=True).apply
            ours, theirs, again = (gradient_step(apply).lower(params, x).compile() for apply in applies)
            a, b, ratio = raced(ours, theirs, params, x, options.pairs)
            flops, moved = ([c.cost_analysis()[what] for c in (ours, theirs)] for what in ("flops", "bytes accessed"))
            memory = [c.memory_analysis().temp_size_in_bytes / MiB for c in (ours, theirs, again)]
            cells = (
                f"{depth}, {width}, {batch} | {dtype} | {1e3 * a:.1f} | {1e3 * b:.1f} | {ratio:.3f} | {flops[0] / flops[1]:.3f} | "
                f"{moved[0] / moved[1]:.3f} | {memory[0]:.1f} | {memory[0] / memory[1]:.3f} | {memory[2]:.1f}"
            )
            print(f"| {cells} |", flush=True)


def step_times(options: argparse.Namespace) -> None:
    print(f"\nA gradient step against a hand-written scan, DKS tanh, float32 (medians of {options.pairs} alternating pairs)\n")
    step_rows(options, [(100, 256, 64), (1000, 64, 32)], ("float32",))


def rolled_or_not(options: argparse.Namespace) -> None:
    print("\nRolled against unrolled, the same weights: largest difference, relative to the largest entry\n")
    print("| network | output | gradient |")
    print("|---|---|---|")
    resnet = kc.shape(kc.architectures.rescaled_resnet(12), "softplus", method="dks").network
    for name, network in {"100 layers, tanh, DKS": shaped(100).network, "36-layer rescaled ResNet, softplus, DKS": resnet}.items():
        rolled, plain = kc.to_jax(network, 64), kc.to_jax(network, 64, rolled=False)
        x = jax.random.normal(jax.random.key(1), (32, 64))
        params, own = rolled.init(0), plain.init(0)
        gaps = [relative(rolled.apply(params, x), plain.apply(own, x))]
        slopes = [gradient_step(m.apply)(p, x)[1] for m, p in ((rolled, params), (plain, own))]
        by_node = [m.unstack(g) for m, g in zip((rolled, plain), slopes, strict=True)]
        gaps.append(max(relative(by_node[0][n][leaf], v) for n, leaves in by_node[1].items() for leaf, v in leaves.items()))
        print(f"| {name} | " + " | ".join(f"{gap:.1e}" for gap in gaps) + " |", flush=True)


def relative(found: Any, expected: Any) -> float:
    """The largest difference over the largest entry."""
    a, b = (np.asarray(v, float) for v in (found, expected))
    return float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-30))


def precisions(options: argparse.Namespace) -> None:
    print("\nPrecision: outputs against float64 with the same weights, 100 layers of DKS tanh, width 64\n")
    print("| dtype | output | gradient |")
    print("|---|---|---|")
    shaping, x = shaped(100), np.random.default_rng(0).standard_normal((32, 64))
    exact = kc.to_jax(shaping, 64, dtype="float64")
    truth = exact.init(0)
    with jax.enable_x64(True):
        loss = jax.value_and_grad(lambda p: (exact.apply(p, x) ** 2).mean())
        output, slope = np.asarray(exact.apply(truth, x)), jax.tree.map(np.asarray, loss(truth)[1])
    for dtype in ("float32", "bfloat16", "float16"):
        model = kc.to_jax(shaping, 64, dtype=dtype)
        params = jax.tree.map(lambda leaf, d=dtype: jnp.asarray(np.asarray(leaf, np.float32)).astype(d), truth)
        found = gradient_step(model.apply)(params, jnp.asarray(x, dtype))[1]
        gap = max(relative(a, b) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(slope), strict=True))
        print(f"| {dtype} | {relative(model.apply(params, x), output):.1e} | {gap:.1e} |", flush=True)


def kernels(options: argparse.Namespace) -> None:
    print(
        f"\nEmpirical c values of 100 layers against the C map: {options.draws} draws x 64 pairs, inputs with c = 0 and .8\n\n"
        "Errors and z over all layers; deviation: root mean square of one pair in one network; bias: of the mean, noise taken out.\n"
    )
    head = ("error, c = 0", "c = .8", "greatest abs z", "mean - map there", "beyond 4 errors", "deviation", "bias", "seconds")
    print(f"| activation, weights, width | {' | '.join(head)} |\n{'|---' * (len(head) + 1)}|")
    methods: dict[str, dict[str, Any]] = {"relu": {"method": "tat", "eta": 0.9}, "softplus": {"method": "dks", "zeta": 10.0}}
    for weights in ("gaussian", "orthogonal"):
        powers = []
        for name, method in methods.items():
            model = kc.to_jax(kc.shape(kc.architectures.vanilla(100), name, **method), weights=weights)
            spread = 0.0
            for width in options.widths:
                start = time.perf_counter()
                check = kc.verify_kernels(model, (0.0, 0.8), draws=options.draws, pairs=64, widths=[width], tangent=False, gradients=False)
                s, judged, bias = check.statistic("c"), check.judged(), check.bias("c").values[0]
                beyond = sum(d.quantity == "c" for d in check.deviating())
                first = next(d for d in check.deviations if d.quantity == "c")
                errors = " | ".join(f"{e:.4f}" for e in s.error[judged].max(axis=0))
                spread, seconds = check.fluctuation("c").values[0], time.perf_counter() - start
                cells = (
                    f"{errors} | {abs(first.z):.2f} | {first.mean - first.expected:+.4f} | {beyond} of {2 * judged.sum()} | "
                    f"{spread:.3f} | {'-' if np.isnan(bias) else f'{bias:.4f}'} | {seconds:.0f}"
                )
                print(f"| {name}, {weights}, {width} | {cells} |", flush=True)
            powers.append(spread)
        print(f"| deviation of DKS softplus / TAT relu, {weights}, {options.widths[-1]} | | | | | | {powers[1] / powers[0]:.2f} | | |")


def gpu(options: argparse.Namespace) -> None:
    if jax.default_backend() != "gpu":
        print("\nNo GPU here: its table is left out.")
        return
    print(f"\nOn {jax.devices()[0].device_kind}: a gradient step against a hand-written scan\n")
    step_rows(options, [(100, 256, 64), (100, 1024, 1024), (1000, 1024, 256)], ("float32", "bfloat16"))


TABLES = {"compile": compile_times, "step": step_times, "rolled": rolled_or_not, "precision": precisions, "kernels": kernels, "gpu": gpu}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--unrolled", type=int, default=1000, help="layers of the unrolled network")
    options.add_argument("--pairs", type=int, default=31, help="alternating pairs of steps")
    options.add_argument("--draws", type=int, default=50)
    options.add_argument("--widths", type=int, nargs="*", default=[30, 100, 300])
    chosen = options.parse_args()
    for name in chosen.only:
        TABLES[name](chosen)


if __name__ == "__main__":
    main()
