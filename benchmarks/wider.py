"""``python -m benchmarks.wider [--only NAME ...]``: narrow architectures, measured at width 512.

Some models of ``benchmarks/architectures.py`` have layers with 8 to 64 channels, in which q varies
much from draw to draw, but predictions hold for large widths. This benchmark measures the same
architectures at full depth with more channels, and one model at the image size for which it was
designed. It writes ``benchmarks/WIDER.md``.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import kcalc as kc

from . import kept
from .__main__ import say
from .architectures import NAMED, WIDTH, Architecture
from .book import Table, write
from .copies import Copy, copied
from .models import shaped

HERE = Path(__file__).resolve().parent
KEPT = HERE / ".wider.jsonl"
SIZE, SECONDS = 32, 30.0


def mobilenet() -> nn.Module:
    """MobileNetV3-Large with 512 more channels in every layer, including the squeeze layers."""
    from torchvision.models import mobilenetv3 as source
    from torchvision.ops.misc import SqueezeExcitation

    setting, last = source._mobilenet_v3_conf("mobilenet_v3_large")
    for block in setting:
        block.input_channels += WIDTH
        block.expanded_channels += WIDTH
        block.out_channels += WIDTH

    def gate(channels: int, squeezed: int) -> nn.Module:
        wide = max(squeezed, WIDTH)
        return SqueezeExcitation(channels, wide, scale_activation=nn.Hardsigmoid)

    return source.MobileNetV3(setting, last, block=partial(source.InvertedResidual, se_layer=gate))


def efficientnet() -> nn.Module:
    """EfficientNet-B0 with 496 more channels between its blocks, and six times as many inside."""
    from torchvision.models import efficientnet as source

    setting, last = source._efficientnet_conf("efficientnet_b0", width_mult=1.0, depth_mult=1.0)
    for block in setting:
        block.input_channels += WIDTH - 16
        block.out_channels += WIDTH - 16
    return source.EfficientNet(setting, 0.2, last_channel=last)


def regnet() -> nn.Module:
    """RegNetY-400MF with 512 to 960 channels per stage, in groups of 64."""
    from torchvision.models import regnet as source

    blocks = source.BlockParams(
        depths=[1, 3, 6, 6],
        widths=[512, 640, 768, 960],
        group_widths=[64] * 4,
        bottleneck_multipliers=[1.0] * 4,
        strides=[2] * 4,
        se_ratio=0.25,
    )
    return source.RegNet(blocks, stem_width=WIDTH)


def ghostnet() -> nn.Module:
    """GhostNet with 1024 more channels everywhere; a ghost module computes half of them from the
    other half.
    """
    from timm.models.ghostnet import GhostNet

    def wide(channels: int) -> float:
        return (channels + 2 * WIDTH) / 32

    stages = [
        [(3, 16, 16, 0, 1)],
        [(3, 48, 24, 0, 2)],
        [(3, 72, 24, 0, 1)],
        [(5, 72, 40, 0.25, 2)],
        [(5, 120, 40, 0.25, 1)],
        [(3, 240, 80, 0, 2)],
        [(3, k, 80, 0, 1) for k in (200, 184, 184)] + [(3, k, 112, 0.25, 1) for k in (480, 672)],
        [(5, 672, 160, 0.25, 2)],
        [(5, 960, 160, ratio, 1) for ratio in (0, 0.25, 0, 0.25)],
    ]
    setting = [[[k, wide(e), wide(c), r, s] for k, e, c, r, s in stage] for stage in stages]
    return GhostNet(setting, width=32)


def seresnet() -> nn.Module:
    """SE-ResNet-50 with 512 channels in the narrow layers and 2048 in the wide layers of all
    stages.
    """
    from timm.layers.squeeze_excite import SEModule
    from timm.models.resnet import Bottleneck, ResNet

    gates = {"attn_layer": partial(SEModule, rd_ratio=0.25)}
    stem = {"stem_type": "deep", "stem_width": WIDTH}
    block: Any = Bottleneck
    return ResNet(block, (3, 4, 6, 3), channels=(WIDTH,) * 4, block_args=gates, **stem)


VARIANTS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "regnet_y_400mf": (regnet, SIZE),
    "mobilenet_v3_large": (mobilenet, SIZE),
    "ghostnet_100": (ghostnet, SIZE),
    "efficientnet_b0": (efficientnet, SIZE),
    "res2net50_26w_4s": (NAMED["res2net50_26w_4s"].build, 224),
    "seresnet50": (seresnet, SIZE),
}


def measured(name: str) -> dict[str, Any]:
    """The shaped copy of a variant, its narrowest layer and its parameter count."""
    torch.set_num_threads(1)
    build, size = VARIANTS[name]
    entry = Architecture(name, NAMED[name].library, build, ((2, 3, size, size),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = entry.model()
        reading = kc.read(model, *entry.example())
        cell, found = shaped(reading, "dks")
        copy = copied(entry, model, reading, found, SECONDS)
    layers = reading.network.nodes_of(kc.layers.Affine)
    widths = (reading.network.features[node] for node in layers)
    narrowest = min(width for width in widths if width is not None)
    count = sum(parameter.numel() for parameter in model.parameters())
    return asdict(copy) | {"how": str(cell), "narrowest": narrowest, "count": count}


def texts(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    if "failed" in found:
        return name, "", "", "", found["failed"], ""
    build, size = VARIANTS[name]
    told = (build.__doc__ or "As it is").rstrip(".")
    parts = {key: value for key, value in found.items() if key not in ("how", "narrowest", "count")}
    copy = Copy(**parts)
    counted = f"{found['count'] / 1e6:.0f} million"
    return (
        f"{name} ({NAMED[name].library})",
        f"{told}; images of {size} x {size}",
        str(found["narrowest"]),
        counted,
        found["how"],
        f"{copy} ({copy.draws} draws)",
    )


def page(rows: dict[str, Any]) -> str:
    """The whole text."""
    table = Table(
        "As in `benchmarks/MODELS.md`, the table shows the measured q of shaped copies at the "
        f"last node with at least {WIDTH} channels, divided by the predicted q, for orthogonal "
        "weights and inputs that are equal at all locations. Bold: the ratio deviates from 1 by "
        "more than 10 % and by more than three standard errors.",
        ("architecture", "variant", "narrowest layer", "parameters", "dks", "`apply_to`"),
        [texts(name, found) for name, found in rows.items()],
    )
    head = (
        f"Written by `python -m benchmarks.wider` with kcalc {kc.__version__}, PyTorch "
        f"{torch.__version__}. The page shows widened versions of models that have narrow layers. "
        "It also shows one model whose mean pooling counts the zeros around the image, at the "
        "image size for which the model was designed."
    )
    return "\n\n".join(["# Real architectures at width 512", head, table.markdown()])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wider", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    options = parser.parse_args()
    names = [name for name in VARIANTS if options.only is None or name in options.only]

    def show(name: str, found: dict[str, Any]) -> None:
        say(" | ".join(texts(name, found)))

    file = KEPT if options.only is None else None
    text = page(kept.measured(measured, names, file, show)) + "\n"
    if options.only is None:
        write(text, HERE / "WIDER.md")
        KEPT.unlink(missing_ok=True)
    else:
        print(text)


if __name__ == "__main__":
    main()
