"""``python -m benchmarks.forwards [--only NAME ...]``: q and c measured.

Compares the forward passes of library models with 1024 channels, with new weights from their own
initialisers, with kcalc's predictions for the same inputs. The table shows means over draws and z,
the difference in standard errors. Needs torchvision, timm and transformers.
"""

from __future__ import annotations

import argparse
import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import kcalc as kc

from . import convolutional, kept
from .__main__ import say
from .architectures import _Hidden
from .book import Table, write

HERE = Path(__file__).resolve().parent
KEPT = HERE / ".forwards.jsonl"  # rows of an unfinished run
WIDTH, TOKENS, VOCABULARY, SPECIAL = 1024, 8, 100, 10
COSINE, DRAWS, LIMIT = 0.5, 16, 3.5
SPATIAL = ("images", "tokens")
APART = 10_000  # offset between the seeds of weights and of inputs


@dataclass(frozen=True)
class Model:
    """A model: ``build`` makes it with new weights.

    ``library`` is the package of the model, or "" for models defined here. ``reads`` is "rows",
    "ids", "images" or "tokens".
    """

    name: str
    library: str
    build: Callable[[], nn.Module]
    reads: str = "rows"


@dataclass(frozen=True)
class Compared:
    """A prediction with its error, and the mean over draws with its standard error."""

    quantity: str
    predicted: float
    uncertain: float
    measured: float
    error: float

    @property
    def z(self) -> float:
        """The difference in standard errors; 0 if both agree up to rounding."""
        apart = self.measured - self.predicted
        spread = math.hypot(self.error, self.uncertain)
        return 0.0 if abs(apart) < 1e-5 * abs(self.predicted) else apart / max(spread, 1e-12)


# -- the models ------------------------------------------------------------------------------------


def _made(module: str, name: str, *arguments: Any, **options: Any) -> nn.Module:
    return getattr(importlib.import_module(module), name)(*arguments, **options)


def _rows(module: str, name: str, *arguments: Any, label: str = "", **options: Any) -> Model:
    build = partial(_made, module, name, *arguments, **options)
    return Model(label or name, module.partition(".")[0], build)


def _mlp(activation: str, norm: type[nn.Module] | None = None) -> Model:
    options = {"activation_layer": getattr(nn, activation), "norm_layer": norm, "inplace": None}
    label = f"MLP, {activation}" + (f", {norm.__name__}" if norm else "")
    return _rows("torchvision.ops", "MLP", WIDTH, [WIDTH] * 4, label=label, **options)


def _text(family: str, model: str = "", **options: Any) -> Model:
    def build() -> nn.Module:
        library = importlib.import_module("transformers")
        config = getattr(library, f"{family}Config")(vocab_size=VOCABULARY, **options)
        config.use_cache = False
        return _Hidden(getattr(library, model or f"{family}Model")(config))

    return Model(model or f"{family}Model", "transformers", build, "ids")


HIDDEN = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 16}
BERT = HIDDEN | {"intermediate_size": 2 * WIDTH, "pad_token_id": 0}
LLAMA = HIDDEN | {"intermediate_size": 2 * WIDTH, "num_key_value_heads": 8, "pad_token_id": 0}
GPT = {"n_embd": WIDTH, "n_layer": 1, "n_head": 16}
DISTIL = {"dim": WIDTH, "n_layers": 1, "n_heads": 16, "hidden_dim": 2 * WIDTH}
T5 = {"d_model": WIDTH, "d_kv": 64, "d_ff": 2 * WIDTH, "num_layers": 1, "num_heads": 16}
OPT = HIDDEN | {"ffn_dim": 2 * WIDTH, "word_embed_proj_dim": WIDTH, "pad_token_id": 0}
NEO = {"hidden_size": WIDTH, "num_layers": 1, "num_heads": 16, "attention_types": [[["global"], 1]]}

MODELS: tuple[Model, ...] = (
    *map(_mlp, ("ReLU", "GELU", "SiLU", "Mish", "Softplus", "Tanh", "ELU", "Hardswish")),
    _mlp("GELU", nn.LayerNorm),
    _mlp("ReLU", nn.RMSNorm),
    _rows("timm.layers", "Mlp", WIDTH, 4 * WIDTH),
    _rows("timm.layers", "GluMlp", WIDTH, 2 * WIDTH),
    _rows("timm.layers", "SwiGLU", WIDTH, 2 * WIDTH),
    _rows("timm.layers", "SwiGLUPacked", WIDTH, 2 * WIDTH),
    _text("Bert", **BERT),
    _text("Roberta", **BERT),
    _text("Electra", **BERT, embedding_size=WIDTH),
    _text("XLMRoberta", **BERT),
    _text("DistilBert", **DISTIL, pad_token_id=0),
    _text("T5", "T5EncoderModel", **T5),
    _text("GPT2", **GPT),
    _text("GPTNeo", **NEO),
    _text("GPTNeoX", **HIDDEN, intermediate_size=2 * WIDTH),
    _text("OPT", **OPT),
    _text("Llama", **LLAMA),
    _text("Mistral", **LLAMA),
    _text("Qwen2", **LLAMA),
    _text("Qwen3", **LLAMA, head_dim=64),
    _text("Phi", **HIDDEN, intermediate_size=2 * WIDTH),
    _text("StableLm", **LLAMA),
    _text("Starcoder2", **LLAMA),
    _text("Olmo", **LLAMA),
    _text("Gemma", **LLAMA, head_dim=64),
    *(
        Model(name, library, build, "tokens" if "Mixer" in name else "images")
        for name, (library, build) in convolutional.BLOCKS.items()
    ),
)


# -- the comparison --------------------------------------------------------------------------------


def inputs_of(model: Model) -> torch.Tensor:
    """Two rows or images with q = 1 and cosine c, or two sequences without a common id."""
    if model.reads in SPATIAL:
        return convolutional.images() if model.reads == "images" else convolutional.tokens()
    random = torch.Generator().manual_seed(0)
    if model.reads == "ids":
        ids = SPECIAL + torch.randperm(VOCABULARY - SPECIAL, generator=random)
        return ids[: 2 * TOKENS].reshape(2, TOKENS)
    x = torch.linalg.qr(torch.randn((WIDTH, 2), generator=random))[0].T * WIDTH**0.5
    return torch.stack([x[0], COSINE * x[0] + (1 - COSINE**2) ** 0.5 * x[1]])


def predictions(
    model: Model, reading: Any, x: torch.Tensor, seed: int
) -> dict[Any, tuple[Any, Any, bool]]:
    """{node: (covariance of all tokens of both inputs, its error, whether it is exact)}."""
    network = reading.network
    if model.reads in SPATIAL:
        return convolutional.predictions(reading, x)
    if model.reads == "rows":
        found = kc.node_values(network, COSINE)
        said = kc.c_map(network).assumptions
        values = {
            node: (np.array([[v.q1, v.c * (v.q1 * v.q2) ** 0.5], [v.c * v.q1, v.q2]]), np.zeros(()))
            for node, v in found.items()
        }
    else:
        found = kc.node_values(network, tokens=x.numpy(), sampling=kc.Sampling(seed=seed))
        said = found.assumptions
        values = {
            node: tuple(np.reshape(part, (2 * part.shape[1],) * 2) for part in pair)
            for node, pair in found.covariances.items()
        }
    exact = not any(a.kind == "heuristic" for a in said)
    return {node: (*pair, exact) for node, pair in values.items()}


def watched(model: nn.Module, reading: Any, nodes: Sequence[Any]) -> list[str]:
    """The last wide layer that is a module of the model, and the output."""
    modules = dict(model.named_modules())
    features = reading.network.features
    wide = [
        str(node)
        for node in nodes
        if isinstance(reading.network.layer(node), kc.layers.Affine)
        and str(node) in modules
        and isinstance(features[node], int)
        and features[node] >= WIDTH
    ]
    return wide[-1:]


def forward(model: nn.Module, x: torch.Tensor, names: Sequence[str]) -> list[np.ndarray]:
    """The outputs of the modules and of the model, as arrays (2, locations, channels)."""
    found: dict[str, torch.Tensor] = {}
    handles = [
        module.register_forward_hook(lambda m, i, y, name=name: found.update({name: y.clone()}))
        for name, module in model.named_modules()
        if name in names
    ]
    with torch.no_grad():
        end = model.eval()(x)
    for handle in handles:
        handle.remove()
    arrays = [*(found[name] for name in names), end]
    arrays = [y.movedim(1, -1) if y.ndim == 4 and y.shape[1] >= WIDTH else y for y in arrays]
    return [y.reshape(2, -1, y.shape[-1]).double().numpy() for y in arrays]


def covariance(y: np.ndarray) -> np.ndarray:
    flat = y.reshape(-1, y.shape[-1])
    return flat @ flat.T / flat.shape[-1]


def without_epsilon(model: nn.Module) -> nn.Module:
    """The model with negligible epsilons in its norms, as the maps assume."""
    for module in model.modules():
        for name in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 1e-12)
    return model


def deviations(k: np.ndarray, error: np.ndarray) -> tuple[float, float]:
    """Bounds on the errors of q and c from the errors of the covariance."""
    if not error.ndim:
        return 0.0, 0.0
    q, half = np.diag(error).mean(), len(k) // 2
    crossed = np.mean([error[i, half + i] for i in range(half)])
    return float(q), float((q + crossed) / np.diag(k).mean())


def q_and_c(k: np.ndarray) -> tuple[float, float]:
    """The mean q over all tokens, and the mean cosine of corresponding tokens of the two inputs."""
    q, half = np.diag(k), len(k) // 2
    cosines = [k[i, half + i] / (q[i] * q[half + i]) ** 0.5 for i in range(half)]
    return float(q.mean()), float(np.mean(cosines))


def compared(model: Model, draws: int = DRAWS) -> tuple[list[Compared], bool]:
    """q and c at the last wide layer and at the output, and whether the readings are exact.

    Every draw is read separately; the error is the standard error of the mean difference.
    """
    x = inputs_of(model)
    expected, found, uncertain = [], [], []
    exact, names, end = True, [], None
    for seed in range(draws):
        torch.manual_seed(APART + seed)
        drawn = without_epsilon(model.build().eval())
        reading = kc.read(drawn, x)
        values = predictions(model, reading, x, seed)
        (end,) = reading.network.outputs
        names = [name for name in watched(drawn, reading, [*values]) if name != str(end)]
        chosen = [values[node] for node in (*names, end)]
        exact &= all(said for _, _, said in chosen)
        exact &= model.reads in SPATIAL or not reading.notes
        expected.append([q_and_c(k) for k, _, _ in chosen])
        uncertain.append([deviations(k, error) for k, error, _ in chosen])
        found.append([q_and_c(covariance(y)) for y in forward(drawn, x, names)])
    apart = np.array(found) - np.array(expected)
    error = apart.std(0, ddof=1) / draws**0.5
    sampled = np.square(uncertain).mean(0) ** 0.5 / draws**0.5
    out = [
        Compared(
            f"{quantity} at {node}",
            float(np.mean([row[place][k] for row in expected])),
            float(sampled[place, k]),
            float(np.mean([row[place][k] for row in found])),
            float(error[place, k]),
        )
        for place, node in enumerate((*names, end))
        for k, quantity in enumerate("qc")
    ]
    return out, exact


# -- the page --------------------------------------------------------------------------------------


def rows_of(name: str) -> list[tuple[str, ...]]:
    """The table lines of a model, computed in a separate process."""
    (model,) = (m for m in MODELS if m.name == name)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found, exact = compared(model)
        except kc.KcalcError as error:
            return [(model.name, model.library, "refused", str(error)[:90], "", "", "")]
    return [
        (
            model.name,
            model.library,
            "exact" if exact else "heuristic",
            row.quantity,
            f"{row.predicted:.5g}" + (f" ± {row.uncertain:.0e}" if row.uncertain > 1e-12 else ""),
            f"{row.measured:.5g} ± {row.error:.1e}",
            f"**{row.z:.1f}**" if abs(row.z) > LIMIT else f"{row.z:.1f}",
        )
        for row in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forwards", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument(
        "--output", type=Path, help="default benchmarks/FORWARDS.md; with --only, printed"
    )
    options = parser.parse_args()
    names = [m.name for m in MODELS if options.only is None or m.name in options.only]
    output = options.output or (None if options.only else HERE / "FORWARDS.md")
    file = KEPT if options.only is None else None
    found = kept.measured(
        rows_of,
        names,
        file,
        lambda name, lines: [say(" | ".join(line)) for line in lines_of(name, lines)],
    )
    text = page([line for name in names for line in lines_of(name, found[name])]) + "\n"
    if output is None:
        print(text)
    else:
        write(text, output)
        KEPT.unlink(missing_ok=True)


def lines_of(name: str, found: Any) -> list[tuple[str, ...]]:
    """The table lines for the result of a process."""
    if isinstance(found, dict):
        return [(name, "", "not finished", found["failed"][:90], "", "", "")]
    return [tuple(line) for line in found]


def page(rows: Sequence[tuple[str, ...]]) -> str:
    """The whole text."""
    models = {row[0] for row in rows}
    exact = [float(row[-1].strip("*")) for row in rows if row[2] == "exact"]
    worst = max(map(abs, exact), default=0.0)
    table = Table(
        f"This page compares predicted and measured values for {len(models)} models with {WIDTH} "
        "or more channels. Each model has new weights from its own initialisers. The measured "
        f"value is the mean over {DRAWS} draws; the prediction uses what kcalc read from each "
        "draw. The tables show the standard error of the difference. The maps ignore the epsilons "
        "of norms, so these are set to 1e-12. Models that take vectors get two inputs with q = 1 "
        f"and cosine {COSINE}. Models that take images get two images of {convolutional.SIZE} x "
        f"{convolutional.SIZE} positions, with q = 1 and the same cosine at each position. Models "
        f"that take ids get two sequences of {TOKENS} tokens without a common id. q is the mean "
        "over all positions, and c is the mean over corresponding positions of the two inputs. "
        'The maps for images use `spatial="exact"`. BatchNorm is in evaluation mode, in which it '
        f"is the identity in new models. The largest |z| of the {len(exact)} exact quantities is "
        f"{worst:.1f}.",
        ("model", "from", "reading", "quantity", "predicted", "measured", "z"),
        rows,
    )
    return "\n\n".join(["# Forward passes compared with predictions", table.markdown()])


if __name__ == "__main__":
    main()
