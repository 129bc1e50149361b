"""Deep transformers in training: ``python -m benchmarks.depth_training [--only NAME] [--quick]``.

Transformers of 32 blocks learn to predict the next character of Python's standard library. Every
run is saved in a file in ``--runs`` while it trains. Saved runs are not repeated, and the table and
the picture show all of them. Each variant trains with two rates for 500 steps; the better runs of
pre-norm and of the shaped network without shortcuts continue to 2500 steps.
"""

from __future__ import annotations

import argparse
import json
import math
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import nn
from torch.nn import functional

import kcalc as kc

L = kc.layers
HERE = Path(__file__).resolve().parent
BLOCKS, WIDTH, HIDDEN, HEADS, TOKENS, BATCH = 32, 64, 128, 2, 64, 8
WARM, SHORT, LONG, EVERY, HELD = 50, 500, 2500, 100, 64
SHOWN = (100, SHORT, 2 * SHORT, LONG)
CHARACTERS = 96
Array = Any


# -- networks --------------------------------------------------------------------------------------


def without_shortcuts() -> kc.Network:
    """Alternating attention and MLPs, without shortcuts and without norms in between."""
    steps: list[Any] = [
        ("ids", L.Input(), ()),
        ("embedding", L.Embedding(WIDTH, CHARACTERS), ("ids",)),
        ("positions", L.Positions("learned", length=TOKENS), ("embedding",)),
        ("embedding_norm", L.RMSNorm(), ("positions",)),
    ]
    below = "embedding_norm"
    for number in range(1, BLOCKS + 1):
        name = f"block_{number}."
        maps = [name + what for what in ("queries", "keys", "values")]
        steps += [(one, L.Affine(WIDTH), (below,)) for one in maps]
        steps += [
            (name + "attention", L.Attend(HEADS, WIDTH // HEADS, causal=True), tuple(maps)),
            (name + "output", L.Affine(WIDTH), (name + "attention",)),
            (name + "up", L.Affine(HIDDEN), (name + "output",)),
            (name + "activation", L.Nonlinear("gelu"), (name + "up",)),
            (name + "down", L.Affine(WIDTH), (name + "activation",)),
        ]
        below = name + "down"
    return kc.Network.from_steps(steps)


def shaped() -> kc.Network:
    """The network without shortcuts, with constants from ``method="edge"``."""
    found = kc.shape(
        without_shortcuts(), method="edge", centre=1, score_variance=0.01, tokens=TOKENS
    )
    return found.network


def without_biases(network: kc.Network) -> kc.Network:
    """The network without biases."""
    return network.map_layers(lambda _, layer: replace(layer, bias=False), L.Affine)


def unshaped() -> kc.Network:
    """The network without shortcuts, in which only the activations are scaled, to Q(1) = 1."""
    gain = float(kc.gain("gelu"))
    net = without_shortcuts()
    return net.map_layers(
        lambda node, layer: L.Affine(WIDTH, sigma_w=gain) if node.endswith("down") else layer,
        L.Affine,
    )


def pre_norm(std: float | None = None) -> kc.Network:
    """GPT-2 at this size. With ``std=None`` every weight has variance 1 / fan-in."""
    return kc.architectures.gpt2(
        BLOCKS, WIDTH, HEADS, CHARACTERS, TOKENS, HIDDEN, "gelu", std, depth_scaled=std is not None
    )


def deep_norm() -> kc.Network:
    """Post-norm with shortcut weights (2N)^(1/4) and smaller branches [Wang et al. 2022]."""
    along, smaller = (2 * BLOCKS) ** 0.25, (8 * BLOCKS) ** -0.25
    steps: list[Any] = []
    net = kc.architectures.bert(BLOCKS, WIDTH, HEADS, CHARACTERS, TOKENS, HIDDEN, std=None)
    for node, layer, parents in net.steps():
        if isinstance(layer, L.Affine) and not node.endswith(("queries", "keys")):
            layer = L.Affine(layer.features, sigma_w=smaller)
        elif isinstance(layer, L.Sum):
            layer = L.Sum((along, 1))
        elif isinstance(layer, L.Attend):
            layer = L.Attend(HEADS, WIDTH // HEADS, causal=True)
        steps.append((node, layer, parents))
    return kc.Network.from_steps(steps)


def any_init() -> kc.Network:
    """Pre-norm with the scales of AnyInit 0.4.0: ``E gelu^2 = 1``, and 1 / fan-in elsewhere.

    These are the scales that ``anyinit.initialize(model, "analytic")`` writes into a stack of
    ``torch.nn.TransformerEncoderLayer(norm_first=True, activation="gelu")``.
    """
    gelu = kc.activation("gelu")
    variance = brentq(lambda q: float(gelu.q_map(q)) - 1, 1.0, 4.0)
    return kc.architectures.transformer_stack(
        BLOCKS, WIDTH, HEADS, hidden=HIDDEN, vocabulary=CHARACTERS, length=TOKENS,
        gains={"up": math.sqrt(variance)}, attention={"causal": True},
    )  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A network, the distribution of its initial weights, and two rates."""

    build: Callable[[], kc.Network]
    law: str = "gaussian"
    rates: tuple[float, float] = (3e-3, 1e-3)


VARIANTS: dict[str, Variant] = {
    "pre-norm": Variant(pre_norm),
    "shaped, no shortcuts": Variant(shaped, "orthogonal", (5e-4, 3e-4)),
    "shaped, no biases": Variant(lambda: without_biases(shaped()), "orthogonal", (7e-4, 5e-4)),
    "unshaped, no shortcuts": Variant(unshaped, "orthogonal", (1e-3, 3e-4)),
    "GPT-2 scaled": Variant(lambda: pre_norm(0.02)),
    "DeepNorm": Variant(deep_norm),
    "AnyInit": Variant(any_init),
}
LONGER = ("pre-norm", "shaped, no shortcuts")


def sensitivity(network: kc.Network) -> float:
    """Relative change of the output for equal relative changes of all weight matrices.

    This is the sum over the matrices of ``sqrt(g q / q_end)``, where g is the larger mode of the
    squared gradient after the matrix. Masks are removed, so that tokens are exchangeable.
    """
    alike = network.map_layers(lambda _, layer: replace(layer, causal=False), L.Attend)
    found, values = kc.gradients(alike, tokens=TOKENS), kc.node_values(alike, tokens=TOKENS)
    assert found.mean is not None and found.difference is not None
    (end,) = network.outputs
    modes = {n: max(found.mean[n], found.difference[n]) for n in network.nodes_of(L.Affine)}
    return sum(math.sqrt(g * values[n].q1 / values[end].q1) for n, g in modes.items())


# -- a kcalc network in PyTorch --------------------------------------------------------------------


class Transformer(nn.Module):
    """A kcalc network over causal tokens, with trained norm gains and a readout."""

    def __init__(self, network: kc.Network, law: str, seed: int) -> None:
        super().__init__()
        self.network = network
        self.random = torch.Generator().manual_seed(seed)
        self.weights, self.biases = nn.ParameterDict(), nn.ParameterDict()
        self.functions: dict[Any, Any] = {}
        width: dict[Any, int] = {}
        for node, layer, parents in network.steps():
            width[node] = (
                getattr(layer, "features", None) or width.get(parents[0], 0) if parents else 0
            )
            name = node.replace(".", "_")
            if isinstance(layer, L.Embedding):
                self.weights[name] = self._normal(CHARACTERS, WIDTH, float(layer.sigma))
            elif isinstance(layer, L.Positions):
                rows = layer.length if layer.kind == "learned" else 1
                self.weights[name] = self._normal(rows, WIDTH, float(layer.sigma))
            elif isinstance(layer, L.Affine):
                self.weights[name] = self._affine(layer, width[parents[0]], law)
                if layer.bias:
                    self.biases[name] = nn.Parameter(torch.zeros(layer.features))
            elif isinstance(layer, L.LayerNorm | L.RMSNorm):
                self.weights[name] = nn.Parameter(torch.ones(WIDTH))
            elif isinstance(layer, L.Nonlinear):
                self.functions[node] = _function(layer.activation)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.readout = self._normal(WIDTH, CHARACTERS, WIDTH**-0.5)
        sees = torch.ones(TOKENS, TOKENS).tril()
        self.centre = sees / sees.sum(1, keepdim=True)

    def _normal(self, rows: int, columns: int, std: float) -> nn.Parameter:
        return nn.Parameter(std * torch.randn(rows, columns, generator=self.random))

    def _affine(self, layer: Any, reads: int, law: str) -> nn.Parameter:
        sigma = float(layer.sigma_w)
        if law == "gaussian":
            return self._normal(reads, layer.features, sigma * reads**-0.5)
        gain = sigma * max(1.0, (layer.features / reads) ** 0.5)
        weight = torch.empty(reads, layer.features)
        return nn.Parameter(nn.init.orthogonal_(weight, gain, generator=self.random))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next character at every position."""
        made: dict[Any, torch.Tensor] = {}
        for node, layer, parents in self.network.steps():
            read = [made[parent] for parent in parents]
            made[node] = ids if not parents else self._layer(node, layer, read)
        end = functional.rms_norm(made[node], (WIDTH,), self.gain)
        return end @ self.readout

    def _layer(self, node: str, layer: Any, read: list[torch.Tensor]) -> torch.Tensor:
        name, x = node.replace(".", "_"), read[0]
        if isinstance(layer, L.Affine):
            bias = self.biases[name] if layer.bias else None
            return functional.linear(x, self.weights[name].T, bias)
        if isinstance(layer, L.Nonlinear):
            return self.functions[node](x)
        if isinstance(layer, L.Sum):
            first, second = (float(w) for w in layer.weights or (1, 1))
            return torch.add(x if first == 1 else first * x, read[1], alpha=second)
        if isinstance(layer, L.Attend):
            return self._attend(layer, read)
        if isinstance(layer, L.LayerNorm):
            return functional.layer_norm(x, (WIDTH,), self.weights[name])
        if isinstance(layer, L.RMSNorm):
            return functional.rms_norm(x, (WIDTH,), self.weights[name])
        if isinstance(layer, L.Embedding):
            return self.weights[name][x]
        return x + self.weights[name]  # positions

    def _attend(self, layer: Any, read: list[torch.Tensor]) -> torch.Tensor:
        n, t, width = read[0].shape
        q, k, v = (x.view(n, t, layer.heads, -1).transpose(1, 2) for x in read)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        if layer.centre != 0:
            out = out - float(layer.centre) * (self.centre @ v)
        if layer.identity != 0:
            out = torch.add(out, v, alpha=float(layer.identity))
        return out.transpose(1, 2).reshape(n, t, width)


def _function(phi: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    from kcalc.interchange.torch_model.activation import torch_function

    return torch_function(phi)


# -- data and training -----------------------------------------------------------------------------


def characters() -> tuple[torch.Tensor, torch.Tensor]:
    """The standard library as character ids, split into training files and held-out files."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [file.read_text("utf-8", "replace") for file in files]
    order = np.random.default_rng(0).permutation(len(texts))
    known = {chr(code): code - 32 for code in range(32, 127)} | {"\n": 95}
    held = max(1, len(texts) // 10)

    def numbers(chosen: Array) -> torch.Tensor:
        joined = "\n".join(texts[k] for k in chosen)
        return torch.tensor([known[c] for c in joined if c in known])

    return numbers(order[held:]), numbers(order[:held])


def draw(data: torch.Tensor, count: int, random: torch.Generator) -> torch.Tensor:
    """Sequences of T + 1 characters from random positions."""
    starts = torch.randint(len(data) - TOKENS - 1, (count,), generator=random)
    return data[starts[:, None] + torch.arange(TOKENS + 1)]


def loss_of(model: Transformer, rows: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next character, in nats."""
    logits = model(rows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def train(name: str, rate: float, seed: int, steps: int, file: Path) -> None:
    """Train one run. It is saved at every evaluation, and resumed from the last saved state."""
    variant = VARIANTS[name]
    train_data, held = characters()
    model = Transformer(variant.build(), variant.law, seed)
    random = torch.Generator().manual_seed(1000 + seed)
    rows = draw(held, HELD, torch.Generator().manual_seed(7))
    optimiser = torch.optim.AdamW(model.parameters(), rate, (0.9, 0.99), weight_decay=0.01)
    run: dict[str, Any] = {"name": name, "rate": rate, "seed": seed, "steps": [], "loss": []}
    state, first = file.with_suffix(".pt"), 0
    if state.exists():
        kept = torch.load(state)
        run = kept["run"]
        model.load_state_dict(kept["model"])
        optimiser.load_state_dict(kept["optimiser"])
        random.set_state(kept["random"])
        first = run["steps"][-1] + 1
    began = time.process_time() - run.get("seconds", 0)
    for step in range(first, steps + 1):
        optimiser.param_groups[0]["lr"] = rate * min(1, step / WARM)
        if step:
            optimiser.zero_grad()
            loss_of(model, draw(train_data, BATCH, random)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        if step % EVERY and step != WARM:
            continue
        with torch.no_grad():
            run["loss"].append(round(float(loss_of(model, rows)), 5))
        run["steps"].append(step)
        run["seconds"] = round(time.process_time() - began)
        file.write_text(json.dumps(run) + "\n")
        print(f"{name}, rate {rate:g}, step {step}: {run['loss'][-1]:.4f}", flush=True)
        kept = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
        torch.save(kept | {"random": random.get_state(), "run": run}, state)
        if not math.isfinite(run["loss"][-1]):
            return


def is_done(file: Path, steps: int) -> bool:
    """Whether a saved run has this many steps, or ended because its loss was not finite."""
    if not file.exists():
        return False
    run = json.loads(file.read_text())
    return run["steps"][-1] >= steps or not math.isfinite(run["loss"][-1])


# -- runs, table and picture -----------------------------------------------------------------------


def file_of(folder: Path, name: str, rate: float, seed: int) -> Path:
    """The file of a run."""
    plain = "".join(c if c.isalnum() else "_" for c in name.lower())
    return folder / f"{plain}-{rate:g}-{seed}.json"


def runs_in(folder: Path) -> list[dict[str, Any]]:
    """All runs in a folder."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def best(runs: list[dict[str, Any]], name: str, steps: int) -> dict[str, Any] | None:
    """The run of a variant with the smallest loss after this many steps."""
    there = [run for run in runs if run["name"] == name and steps in run["steps"]]
    return min(there, key=lambda run: at(run, steps), default=None)


def at(run: dict[str, Any], steps: int) -> float:
    """The held-out loss of a run after this many steps; inf if it is not finite."""
    loss = run["loss"][run["steps"].index(steps)]
    return loss if math.isfinite(loss) else math.inf


def shown(loss: float) -> str:
    """A loss as text."""
    return f"{loss:.3f}" if math.isfinite(loss) else "not finite"


def excess(loss: float, other: float) -> str:
    """By how much a loss exceeds another loss, as text."""
    return f"{100 * (loss / other - 1):+.1f} %" if math.isfinite(loss) else "not finite"


def table(runs: list[dict[str, Any]]) -> str:
    """Held-out losses of all runs as Markdown, and by how much they exceed pre-norm's.

    The last columns show the last loss of a run, compared with pre-norm's loss after 500 steps.
    """
    head = [f"after {n} steps" for n in SHOWN]
    names = [
        "network",
        "rate",
        "seed",
        *head,
        "above pre-norm",
        "last loss",
        "above pre-norm at 500",
    ]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    base = best(runs, "pre-norm", SHORT)
    for name in VARIANTS:
        for run in (run for run in runs if run["name"] == name):
            cells, above = [], []
            for steps in SHOWN:
                own = at(run, steps) if steps in run["steps"] else None
                other = best(runs, "pre-norm", steps)
                cells.append("" if own is None else shown(own))
                if own is not None and other is not None and steps >= SHORT:
                    above.append(excess(own, at(other, steps)))
            end = at(run, run["steps"][-1])
            later = "" if base is None else excess(end, at(base, SHORT))
            row = [name, f"{run['rate']:g}", str(run["seed"]), *cells, ", ".join(above)]
            row += [f"{shown(end)} at {run['steps'][-1]}", later]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def steps_table() -> str:
    """For every variant, the sensitivity of the output to all weights, as Markdown."""
    rows = [f"| {name} | {sensitivity(VARIANTS[name].build()):.1f} |" for name in VARIANTS]
    return "\n".join(["| network | sensitivity to weights |", "|---|---|", *rows])


def picture(runs: list[dict[str, Any]], path: Path) -> None:
    """Plot loss curves, with a thick line for the longest run at the best rate of each variant."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    for number, name in enumerate(VARIANTS):
        own = [run for run in runs if run["name"] == name]
        rate = best(own, name, SHORT)
        chosen = max(own, key=lambda run: (run["rate"] == (rate or run)["rate"], len(run["steps"])))
        for run in own:
            steps = [max(step, 10) for step in run["steps"]]
            ax.plot(
                steps,
                run["loss"],
                color=f"C{number}",
                lw=1.8 if run is chosen else 0.7,
                label=f"{name}, rate {run['rate']:g}" if run is chosen else None,
            )
    ax.set(
        xscale="log",
        xlabel="steps",
        ylabel="loss on held-out files (nats per character)",
        ylim=(1.7, 3.7),
        xlim=(40, LONG),
    )
    ax.legend(fontsize=8)
    figure.savefig(path, dpi=130)


def report(folder: Path) -> None:
    """Write DEPTH_TRAINING.md and depth_training.png from the saved runs."""
    runs = runs_in(folder)
    picture(runs, HERE / "depth_training.png")
    page = HERE / "DEPTH_TRAINING.md"
    text = page.read_text() if page.exists() else MARK
    page.write_text(f"{text[: text.index(MARK)]}{MARK}\n\n{table(runs)}\n\n{steps_table()}\n")
    print(table(runs))


MARK = "<!-- written by python -m benchmarks.depth_training -->"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.depth_training", description=__doc__
    )
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument(
        "--quick", action="store_true", help="20 steps each; the pages are not written"
    )
    parser.add_argument("--runs", type=Path, default=HERE / "depth_runs", help="folder of runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, help="one rate instead of the variant's two rates")
    parser.add_argument(
        "--steps", type=int, help="number of steps of every run; no run is continued"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.runs.mkdir(parents=True, exist_ok=True)
    short = options.steps or (20 if options.quick else SHORT)
    for name in options.only:
        for rate in (options.rate,) if options.rate else VARIANTS[name].rates:
            file = file_of(options.runs, name, rate, options.seed)
            if not is_done(file, short):
                train(name, rate, options.seed, short, file)
    if not (options.quick or options.steps):
        for name in (name for name in LONGER if name in options.only):
            chosen = best(runs_in(options.runs), name, SHORT)
            if chosen is not None:
                file = file_of(options.runs, name, chosen["rate"], chosen["seed"])
                train(name, chosen["rate"], chosen["seed"], LONG, file)
    if not options.quick:
        report(options.runs)


if __name__ == "__main__":
    main()
