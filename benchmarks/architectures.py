"""Real architectures in PyTorch.

Models of torchvision, timm and transformers, built from their configurations without trained
weights, and some models defined in this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 512


@dataclass(frozen=True)
class Architecture:
    """A model and the shapes of its inputs.

    ``library`` is the package of the model, or "" for models of this file. ``attends`` says whether
    the model has softmax attention. ``ids`` is the size of the vocabulary for integer inputs.
    """

    name: str
    library: str
    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    attends: bool = False
    ids: int = 0

    def model(self, seed: int = 0) -> nn.Module:
        """The model with random weights from its own initialiser, in evaluation mode."""
        torch.manual_seed(seed)
        return self.build().eval()

    def example(self, seed: int = 0) -> tuple[Tensor, ...]:
        """Inputs with independent standard normal entries, or ids drawn without replacement."""
        random = torch.Generator().manual_seed(seed)
        if self.ids:
            (rows, tokens), *rest = self.shapes
            drawn = [torch.randperm(self.ids, generator=random)[:tokens] for _ in range(rows)]
            return (torch.stack(drawn), *(torch.randn(s, generator=random) for s in rest))
        return tuple(torch.randn(shape, generator=random) for shape in self.shapes)


# -- models defined here ---------------------------------------------------------------------------


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Ronneberger et al. 2015: transposed convolutions, skip concatenations, BatchNorm."""

    def __init__(self, width: int = 64, depth: int = 3, classes: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.stem = _twice(3, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), _twice(w, 2 * w)) for w in widths[:-1]
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[:-1])
        self.join = nn.ModuleList(_twice(2 * w, w) for w in widths[:-1])
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.stem(x)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([levels.pop(), up(x)], dim=1))
        return self.out(x)


class VAE(nn.Module):
    """A convolutional variational autoencoder, which decodes the mean of its code."""

    def __init__(self, width: int = 64, code: int = WIDTH) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.mean, self.variance = (nn.Linear(2 * width * 64, code) for _ in range(2))
        self.open = nn.Linear(code, 2 * width * 64)
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encode(x)
        mean, variance = self.mean(h), self.variance(h)
        return self.decode(F.relu(self.open(mean)).view(x.shape[0], -1, 8, 8)), mean, variance


class DLRM(nn.Module):
    """Naumov et al. 2019: embeddings of ids, an MLP for numbers, and their inner products."""

    def __init__(self, tables: int = 4, rows: int = 100, width: int = WIDTH) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, WIDTH), nn.ReLU(), nn.Linear(WIDTH, width), nn.ReLU()
        )
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        x = self.bottom(numbers)
        rows = [x, *(table(ids[:, i]) for i, table in enumerate(self.tables))]
        stacked = torch.stack(rows, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        row, column = torch.tril_indices(len(rows), len(rows), -1)
        return self.top(torch.cat([x, products[:, row, column]], dim=1))


class Recommender(nn.Module):
    """Cheng et al. 2016: an MLP that reads embeddings of several ids together with numbers."""

    def __init__(self, rows: int = 100, width: int = 128) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(rows, width), nn.Embedding(rows, width)
        self.deep = nn.Sequential(
            nn.Linear(2 * width + 13, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 1),
        )

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        return self.deep(torch.cat([self.user(ids[:, 0]), self.item(ids[:, 1]), numbers], dim=1))


class FiLM(nn.Module):
    """Perez et al. 2018: residual blocks with gains and offsets computed from a condition."""

    def __init__(self, width: int = 128, condition: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.first, self.second = (
            nn.ModuleList(nn.Conv2d(width, width, size, padding=size // 2) for _ in range(blocks))
            for size in (1, 3)
        )
        self.films = nn.ModuleList(nn.Linear(condition, 2 * width) for _ in range(blocks))
        self.head = nn.Linear(width, WIDTH)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for first, second, film in zip(self.first, self.second, self.films, strict=True):
            x = F.relu(first(x))
            gain, offset = film(condition)[:, :, None, None].chunk(2, dim=1)
            x = x + F.relu(gain * second(x) + offset)
        return self.head(x.mean((2, 3)))


class TimedResNet(nn.Module):
    """The residual blocks of diffusion models, which add a time embedding to each example."""

    def __init__(self, width: int = 128, blocks: int = 2) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.first, self.second = (
            nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(blocks))
            for _ in range(2)
        )
        self.shifts = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(2 * blocks))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x, t = self.stem(x), self.time(t[:, None])
        for i, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            h = first(F.silu(self.norms[2 * i](x))) + self.shifts[i](F.silu(t))[:, :, None, None]
            x = x + second(F.silu(self.norms[2 * i + 1](h)))
        return self.out(x)


class WaveNet(nn.Module):
    """van den Oord et al. 2016: gated dilated causal convolutions, residual and skip sums."""

    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, width, 1)
        self.filters, self.gates = (
            nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**i) for i in range(layers))
            for _ in range(2)
        )
        self.residual, self.skip = (
            nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers)) for _ in range(2)
        )
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.stem(x), 0
        for i, (kept, gate) in enumerate(zip(self.filters, self.gates, strict=True)):
            padded = F.pad(x, (2**i, 0))
            h = torch.tanh(kept(padded)) * torch.sigmoid(gate(padded))
            total = total + self.skip[i](h)
            x = x + self.residual[i](h)
        return self.head(total)


class Highway(nn.Module):
    """Srivastava et al. 2015: a gate that mixes a layer's output with its input."""

    def __init__(self, width: int = WIDTH, depth: int = 4) -> None:
        super().__init__()
        self.stem, self.out = nn.Linear(64, width), nn.Linear(width, width)
        self.layers, self.gates = (
            nn.ModuleList(nn.Linear(width, width) for _ in range(depth)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer, gate in zip(self.layers, self.gates, strict=True):
            opened = torch.sigmoid(gate(x))
            x = opened * torch.relu(layer(x)) + (1 - opened) * x
        return self.out(x)


class PixelShuffleNet(nn.Module):
    """Shi et al. 2016: super-resolution by a convolution and a pixel shuffle."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 5, padding=2),
            nn.Tanh(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(width, 4 * width, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


# -- list of models --------------------------------------------------------------------------------


def _vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchvision import models

        return models.get_model(name, weights=None, **options)

    return build


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, **options)

    return build


class _Hidden(nn.Module):
    """A model of the transformers library as a function of ids."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(ids).last_hidden_state


SMALL = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 400}
GPT = {"n_embd": WIDTH, "n_layer": 2, "n_head": 8, "vocab_size": 400}
WIDE = {"intermediate_size": 2 * WIDTH, "num_key_value_heads": 4}
T5 = {"d_model": WIDTH, "num_layers": 2, "num_heads": 8, "vocab_size": 400}
DISTIL = {"dim": WIDTH, "n_layers": 2, "n_heads": 8, "hidden_dim": 1024, "vocab_size": 400}


def _hidden(name: str, config: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**options, use_cache=False, pad_token_id=0)
        return _Hidden(getattr(transformers, name)(made))

    return build


IMAGE = (2, 3, 64, 64)
IDS = (2, 16)


def _own(name: str, build: Callable[[], nn.Module], *shapes: Any, ids: int = 0) -> Architecture:
    return Architecture(name, "", build, shapes, ids=ids)


def _images(
    library: str, names: str, size: int = 64, attends: bool = False, **options: Any
) -> list[Architecture]:
    make = {"torchvision": _vision, "timm": _timm}[library]
    shapes = ((2, 3, size, size),)
    return [
        Architecture(name, library, make(name, **options), shapes, attends)
        for name in names.split()
    ]


def _texts(rows: dict[str, tuple[str, dict[str, Any]]]) -> list[Architecture]:
    return [
        Architecture(name, "transformers", _hidden(name, config, options), (IDS,), True, 400)
        for name, (config, options) in rows.items()
    ]


ARCHITECTURES: tuple[Architecture, ...] = (
    _own("U-Net", UNet, (2, 3, 32, 32)),
    _own("VAE", VAE, (2, 3, 32, 32)),
    _own("DLRM", DLRM, (2, 4), (2, 13), ids=100),
    _own("Recommender", Recommender, (2, 2), (2, 13), ids=100),
    _own("FiLM", FiLM, (2, 3, 16, 16), (2, 32)),
    _own("Diffusion ResNet", TimedResNet, (2, 3, 16, 16), (2,)),
    _own("WaveNet", WaveNet, (2, 1, 64)),
    _own("Highway", Highway, (2, 64)),
    _own("ESPCN", PixelShuffleNet, (2, 3, 16, 16)),
    *_images("torchvision", "resnet50 resnext50_32x4d"),
    *_images("torchvision", "googlenet", init_weights=True),
    *_images("torchvision", "squeezenet1_1 densenet121 mobilenet_v2 mobilenet_v3_large"),
    *_images("torchvision", "efficientnet_b0 regnet_y_400mf mnasnet1_0 shufflenet_v2_x1_0"),
    *_images("torchvision", "alexnet convnext_tiny"),
    *_images("torchvision", "fcn_resnet50 lraspp_mobilenet_v3_large", weights_backbone=None),
    *_images("timm", "resnetv2_50 repvgg_a0 dpn48b ghostnet_100 nfnet_l0 convmixer_768_32"),
    *_images("timm", "hrnet_w18_small res2net50_26w_4s seresnet50 cspresnet50 dla34 xception41"),
    *_images("timm", "vgg16_bn ese_vovnet19b_dw selecsls42 convnextv2_atto poolformer_s12"),
    *_images("timm", "resnest14d skresnet18 inception_v4", 96),
    *_images("timm", "mixer_s32_224 resmlp_12_224 gmlp_ti16_224", 224),
    *_images("torchvision", "vit_b_16", 224, True),
    *_images("torchvision", "swin_t", 64, True),
    *_images("timm", "deit_tiny_patch16_224 cait_xxs24_224 xcit_nano_12_p16_224", 224, True),
    *_images("timm", "maxvit_tiny_tf_224 coatnet_0_224", 224, True),
    *_texts(
        {
            "GPT2Model": ("GPT2Config", GPT),
            "BertModel": ("BertConfig", SMALL),
            "RobertaModel": ("RobertaConfig", SMALL),
            "DistilBertModel": ("DistilBertConfig", DISTIL),
            "T5EncoderModel": ("T5Config", T5),
            "LlamaModel": ("LlamaConfig", SMALL | WIDE),
            "MistralModel": ("MistralConfig", SMALL | WIDE),
            "Qwen2Model": ("Qwen2Config", SMALL | WIDE),
            "GPTNeoXModel": ("GPTNeoXConfig", SMALL),
        }
    ),
)
NAMED = {entry.name: entry for entry in ARCHITECTURES}
