"""``python -m benchmarks.transformers [--only NAME ...] [--draws N]``: every block measured.

Models of the transformers library with 12 heads of 64 channels are drawn many times by their own
initialisers. The first table compares q, the token cosine, the cosine of two inputs and both
gradient modes, at the stream before every norm, with kcalc's values from one reading of the model.
The second table shows the time to read the models at full size.
"""

from __future__ import annotations

import argparse
import importlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import kcalc as kc

from .__main__ import say
from .architectures import _Hidden
from .book import Table, write
from .forwards import without_epsilon

HERE = Path(__file__).resolve().parent
WIDTH, HEADS, BLOCKS, TOKENS, SEQUENCES, DRAWS = 768, 12, 2, 8, 8, 40
MOST_Z, MOST_SHARE, SMALLEST = 4.5, 0.015, 0.05
SIDE, PATCH = 32, 8
SAMPLING = kc.Sampling(draws=60, chains=10)
QUANTITIES = ("q", "token cosine", "c", "gradient, mean mode", "gradient, difference mode")


@dataclass(frozen=True)
class Model:
    """A model of the library: its class, its configuration here, and its configuration at full size
    if not the default.

    ``patches`` means that it reads images, with exchangeable patches as tokens.
    """

    name: str
    config: str
    here: dict[str, Any]
    full: dict[str, Any]
    patches: bool = False

    def build(self, full: bool = False) -> nn.Module:
        """The model with new weights, including class tokens and positions that start as zeros."""
        library = importlib.import_module("transformers")
        config = getattr(library, self.config)(**(self.full if full else self.here))
        config.use_cache = False
        model = getattr(library, self.name)(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.startswith("embeddings.") and not parameter.any() and parameter.ndim == 3:
                    parameter.normal_(std=0.02)
        return _Hidden(model).eval()

    def inputs(self, full: bool = False) -> torch.Tensor:
        """Sequences that share half of their ids, or images with cosine 1/2."""
        random = torch.Generator().manual_seed(0)
        if not self.patches:
            ids = 10 + torch.randperm(900, generator=random)[: SEQUENCES * TOKENS]
            ids = ids.reshape(SEQUENCES, TOKENS)
            ids[:, ::2] = ids[:1, ::2]
            return ids
        if full:
            return torch.randn((2, 3, 224, 224), generator=random)
        rows = 3 * PATCH**2
        basis = torch.linalg.qr(torch.randn((rows, rows), generator=random))[0] * rows**0.5
        count = (SIDE // PATCH) ** 2
        own = basis[: count * (SEQUENCES + 1)].reshape(SEQUENCES + 1, count, rows)
        patches = (own[:1] + own[1:]) / 2**0.5
        return torch.nn.functional.fold(patches.mT, SIDE, PATCH, stride=PATCH)


SIZES = {"hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS}
IDS = {"vocab_size": 1000, "pad_token_id": 0}
IMAGES = SIZES | {"intermediate_size": 2 * WIDTH, "image_size": SIDE, "patch_size": PATCH}
MODELS = (
    Model("GPT2Model", "GPT2Config", {"n_layer": BLOCKS, "vocab_size": 1000}, {}),
    Model(
        "LlamaModel",
        "LlamaConfig",
        SIZES | IDS | {"intermediate_size": 2 * WIDTH, "num_key_value_heads": HEADS},
        SIZES | {"num_hidden_layers": 12, "intermediate_size": 2048},
    ),
    Model("BertModel", "BertConfig", SIZES | IDS | {"intermediate_size": 2 * WIDTH}, {}),
    Model(
        "T5EncoderModel",
        "T5Config",
        IDS
        | {"d_model": WIDTH, "d_ff": 2 * WIDTH, "num_layers": BLOCKS, "num_heads": HEADS}
        | {"d_kv": 64},
        {"d_model": WIDTH, "d_ff": 3072, "num_layers": 12, "num_heads": HEADS, "d_kv": 64},
    ),
    Model("ViTModel", "ViTConfig", IMAGES, {}, True),
    Model("DeiTModel", "DeiTConfig", IMAGES, {}, True),
)


# -- predicted -------------------------------------------------------------------------------------


def nominal(network: kc.Network, config: Any) -> kc.Network:
    """Give single vectors, such as the token type, the sigma of their initialiser.

    The mean square of a single draw would be off by some per cent.
    """
    single = (kc.layers.Positions, kc.layers.ClassToken)
    if not network.nodes_of(*single):
        return network
    sigma = config.initializer_range
    return network.map_layers(lambda _, layer: replace(layer, sigma=sigma), *single)


def streams(model: nn.Module, network: kc.Network) -> dict[str, Any]:
    """{norm of the model: the node before it}, and "" for the output."""
    kinds = [*network.nodes_of(kc.layers.LayerNorm), *network.nodes_of(kc.layers.RMSNorm)]
    paths = [name for name, module in model.named_modules() if "Norm" in type(module).__name__]
    found = {}
    for node in kinds:
        path = next(p for p in paths if str(node) == p or str(node).startswith(f"{p}."))
        found[path] = network.parents(node)[0]
    return found | {"": network.outputs[0]}


def predicted(
    network: kc.Network, tokens: Any, nodes: Sequence[Any]
) -> dict[Any, list[tuple[float, float]]]:
    """{node: (value, error)} for every quantity."""
    many = isinstance(tokens, np.ndarray)
    given: dict[str, Any] = {"tokens": tokens, "sampling": SAMPLING}
    values: Any = (
        kc.node_values(network, **given) if many else kc.node_values(network, 0.5, **given)
    )
    gradients: Any = kc.gradients(network, **given)
    out = {}
    for node in nodes:
        v = values[node]
        own = [(v.q, v.q_error), (v.token_cosine, v.token_cosine_error), (v.c, v.c_error)]
        modes = [
            (getattr(gradients, mode)[node], gradients.errors[mode][node])
            for mode in ("mean", "difference")
        ]
        out[node] = own + modes
    return out


# -- measured --------------------------------------------------------------------------------------


def measured(model: nn.Module, x: torch.Tensor, paths: Sequence[str], seed: int) -> np.ndarray:
    """Every quantity at the inputs of the modules, for one draw, (paths, quantities)."""
    found: dict[str, torch.Tensor] = {}

    def keep(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            inputs[0].retain_grad()
            found[path] = inputs[0]

        return hook

    handles = [
        module.register_forward_pre_hook(keep(path))
        for path, module in model.named_modules()
        if path and path in paths
    ]
    end = model(x)
    end.retain_grad()
    found[""] = end
    normal = torch.randn(end.shape, generator=torch.Generator().manual_seed(seed))
    (end * normal).sum().div(math.sqrt(end.shape[1] * end.shape[2])).backward()
    for handle in handles:
        handle.remove()
    return np.array([quantities(found[path]) for path in paths])


def quantities(stream: torch.Tensor) -> list[float]:
    """q, mean cosines between tokens and between sequences, and gradient modes of one stream."""
    x, g = (part.detach().double().numpy() for part in (stream, stream.grad))
    count, tokens, width = x.shape
    gram = np.einsum("sic,tjc->sitj", x, x) / width
    size = np.sqrt(np.einsum("sisi->si", gram))
    cosines = gram / size[:, :, None, None] / size
    own = np.einsum("sisj->sij", cosines)[:, ~np.eye(tokens, dtype=bool)].mean()
    across = np.einsum("siti->sti", cosines)[~np.eye(count, dtype=bool)].mean()
    whole = np.square(g).sum(axis=(1, 2)).mean()
    mean = np.square(g.sum(axis=1)).sum(axis=1).mean()
    return [(size**2).mean(), own, across, mean, (tokens * whole - mean) / (tokens - 1)]


@dataclass(frozen=True)
class Compared:
    """One quantity at one stream: predicted and measured, each with its error."""

    place: str
    quantity: str
    predicted: float
    own_error: float
    measured: float
    error: float

    @property
    def z(self) -> float:
        """The difference in standard errors."""
        spread = math.hypot(self.error, self.own_error)
        apart = self.measured - self.predicted
        return apart / spread if abs(apart) > 1e-6 * abs(self.predicted) else 0.0

    @property
    def share(self) -> float:
        """The difference relative to the prediction, or for cosines to .05 if that is larger."""
        cosine = self.quantity in QUANTITIES[1:3]
        size = max(abs(self.predicted), SMALLEST) if cosine else abs(self.predicted)
        return (self.measured - self.predicted) / size

    @property
    def far(self) -> bool:
        """Whether the difference exceeds both 4.5 standard errors and 1.5 %."""
        return abs(self.z) > MOST_Z and abs(self.share) > MOST_SHARE


def compared(model: Model, draws: int = DRAWS) -> Iterator[Compared]:
    """Every quantity at every stream."""
    x, rows, paths = model.inputs(), [], []
    expected: dict[Any, list[tuple[float, float]]] = {}
    places: dict[str, Any] = {}
    for seed in range(draws):
        torch.manual_seed(seed)
        drawn: Any = without_epsilon(model.build())
        if not rows:
            network = nominal(kc.read(drawn, x).network, drawn.body.config)
            places = streams(drawn, network)
            paths = list(places)
            tokens = (SIDE // PATCH) ** 2 if model.patches else x.numpy()
            expected = predicted(network, tokens, list(places.values()))
        rows.append(measured(drawn, x, paths, seed))
    mean, error = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / draws**0.5
    for n, path in enumerate(paths):
        for k, quantity in enumerate(QUANTITIES):
            value = expected[places[path]][k]
            yield Compared(path or "output", quantity, *value, mean[n, k], error[n, k])


# -- the page --------------------------------------------------------------------------------------


def reading(model: Model) -> tuple[str, ...]:
    """Time to read a model at full size."""
    torch.manual_seed(0)
    made, x = model.build(True), model.inputs(True)
    start, processor = time.perf_counter(), time.process_time()
    found = kc.read(made, x)
    wall, processor = time.perf_counter() - start, time.process_time() - processor
    parameters = sum(p.numel() for p in made.parameters()) / 1e6
    opaque = len(found.network.nodes_of(kc.layers.Opaque))
    texts = (f"{parameters:.0f} M", str(len(found.network)), str(opaque), str(found.fidelity))
    return (model.name, *texts, f"{processor:.1f}", f"{wall:.1f}")


def page(found: dict[str, list[Compared]], times: Sequence[tuple[str, ...]], draws: int) -> str:
    """The whole text."""
    every = [one for rows in found.values() for one in rows]
    worst = max((abs(one.z) for one in every), default=0)
    most = max((abs(one.share) for one in every), default=0)
    far = sum(one.far for one in every)
    table = Table(
        f"The models have {WIDTH} channels, {HEADS} heads of size 64 and {BLOCKS} blocks. "
        f"Measured values are means over {draws} draws of the weights by the models' own "
        f"initialisers, with {SEQUENCES} inputs each. Inputs are sequences of {TOKENS} tokens "
        f"that have every other id in common, or images of {(SIDE // PATCH) ** 2} orthogonal "
        "patches with cosine 1/2 between any two images. Epsilons of norms are set to 1e-12. "
        "Class tokens and positions that start as zeros are replaced by random draws. Each cell "
        "shows the prediction, the deviation of the measured mean, and z in parentheses. "
        f"Gradients are those of one output channel, averaged over channels. Of {len(every)} "
        f"numbers, {far} deviate by more than {MOST_Z} standard errors and 1.5 % (bold). The "
        f"largest |z| is {worst:.1f}, and the largest deviation is {most:.1%}.",
        ("model", "in front of", *QUANTITIES),
        [(name, *row) for name, rows in found.items() for row in _cells(rows)],
    )
    sizes = ("model", "parameters", "nodes", "opaque", "fidelity", "processor [s]", "wall [s]")
    caption = "Time to read models at full size, with 12 blocks of 768 channels and 12 heads:"
    return "\n\n".join(
        ["# Transformers compared with their forward and backward passes", table.markdown()]
        + ([Table(caption, sizes, times).markdown()] if times else [])
    )


def _cells(rows: Sequence[Compared]) -> Iterator[tuple[str, ...]]:
    for start in range(0, len(rows), len(QUANTITIES)):
        own = rows[start : start + len(QUANTITIES)]
        texts = [f"{one.predicted:.4g} {one.share:+.1%} ({one.z:.1f})" for one in own]
        yield (
            own[0].place,
            *(f"**{text}**" if one.far else text for text, one in zip(texts, own, strict=True)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transformers", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--without-times", action="store_true")
    parser.add_argument(
        "--output", type=Path, help="default benchmarks/TRANSFORMERS.md; with --only, printed"
    )
    options = parser.parse_args()
    output = options.output or (None if options.only else HERE / "TRANSFORMERS.md")
    found: dict[str, list[Compared]] = {}
    times = []
    for model in MODELS:
        if options.only is not None and model.name not in options.only:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[model.name] = list(compared(model, options.draws))
            for row in _cells(found[model.name]):
                say(" | ".join((model.name, *row)))
            if not options.without_times:
                times.append(reading(model))
                say(" | ".join(times[-1]))
    text = page(found, times, options.draws) + "\n"
    if output is None:
        print(text)
    else:
        write(text, output)


if __name__ == "__main__":
    main()
