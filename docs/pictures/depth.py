"""The picture of the README: C maps at growing depth, with common initialisations and shaped.

``python docs/pictures/depth.py [FOLDER]`` writes ``depth-light.svg`` and ``depth-dark.svg``.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import kcalc as kc

HERE = Path(__file__).parent
DEPTHS = (1, 3, 10, 30, 100)
# ink, identity, the curves from shallow to deep, all of contrast 3 and more on their background
COLOURS = {
    "light": ("#1f2328", "#6e7781", ("#7596c9", "#5b82bd", "#3f6ba9", "#235391", "#0b3a75")),
    "dark": ("#e6edf3", "#8b949e", ("#41618f", "#5a7fb3", "#7a9fd2", "#a3c2ec", "#d3e4ff")),
}


@cache
def shaped() -> kc.Activation:
    """One activation, made for a hundred layers, at all depths."""
    return (
        kc.shape(kc.architectures.vanilla(100, "tanh"), method="dks", zeta=1.5)
        .constants["tanh"]
        .transformed
    )


def networks(depth: int) -> dict[str, kc.Network]:
    """Title of the panel: the network of that depth."""
    vanilla = kc.architectures.vanilla
    return {
        "ReLU, gain √2 (He):\nall inputs become alike": vanilla(depth, "relu", sigma_w=2**0.5),
        "tanh, gain 5/3 (PyTorch):\nnearly all pairs become orthogonal": vanilla(
            depth, "tanh", sigma_w=5 / 3
        ),
        "tanh, shaped by kcalc (DKS):\nangles survive": vanilla(depth, shaped()),
    }


def draw(ink: str, identity: str, colours: tuple[str, ...]) -> Figure:
    """Three panels, five depths each."""
    figure = Figure(figsize=(9.6, 3.9), layout="compressed")
    panels = figure.subplots(1, 3, sharey=True)
    c = np.cos(np.linspace(0.0, np.pi, 401))  # dense near c = 1 and c = -1, where maps are steep
    for depth, colour in zip(DEPTHS, colours, strict=True):
        for axes, (title, network) in zip(panels, networks(depth).items(), strict=True):
            axes.plot(
                c,
                kc.c_map(network)(c),
                color=colour,
                linewidth=1.8,
                label=f"{depth}" if depth > 1 else "1 layer",
            )
            axes.set_title(title, fontsize=11, color=ink)
    for axes in panels:
        dress(axes, ink, identity)
    panels[0].set_ylabel("cosine of two outputs", color=ink)
    panels[0].legend(loc="lower right", fontsize=9, frameon=False, labelcolor=ink)
    return figure


def dress(axes: Axes, ink: str, identity: str) -> None:
    """The diagonal, labels and colours of a panel."""
    axes.plot([-1, 1], [-1, 1], "--", color=identity, linewidth=1, zorder=0)
    axes.set(
        xlabel="cosine of two inputs",
        xlim=(-1, 1),
        ylim=(-1.02, 1.02),
        aspect="equal",
        xticks=(-1, 0, 1),
        yticks=(-1, 0, 1),
    )
    axes.xaxis.label.set_color(ink)
    axes.tick_params(colors=ink)
    axes.patch.set_alpha(0)
    axes.spines[:].set_color(identity)


def write(folder: Path) -> list[Path]:
    """Both pictures; returns their paths."""
    written = []
    for name, (ink, identity, colours) in COLOURS.items():
        path = folder / f"depth-{name}.svg"
        with mpl.rc_context({"svg.hashsalt": path.name}):
            draw(ink, identity, colours).savefig(path, transparent=True, metadata={"Date": None})
        written.append(path)
    return written


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
