"""The picture of the architecture page: the spine, its guests and its clients.

``python docs/pictures/house.py [FOLDER]`` writes ``house-light.svg`` and ``house-dark.svg``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

HERE = Path(__file__).parent
# matplotlib's own fonts: a system may have another version of the same font
REGULAR, BOLD = (
    Path(mpl.get_data_path()) / "fonts" / "ttf" / f"DejaVuSans{style}.ttf"
    for style in ("", "-Bold")
)
# ink, faint ink, spine, guests, clients
COLOURS = {
    "light": ("#1f2328", "#57606a", "#cfe1f7", "#e3f1dd", "#f5e6cf"),
    "dark": ("#e6edf3", "#9da7b3", "#1d3b5f", "#24432a", "#50401f"),
}
SPINE = [
    ("calculi", "kernel maps, NTK, slopes, subnetworks"),
    ("network", "layers, primitives, folds, builders"),
    ("activations", "the catalogue, local maps"),
    ("gaussian, maps", "expectations; maps as results"),
    ("fields", "number systems, jets, tables"),
    ("foundation", "errors, checks, printing, registries"),
]
GUESTS = [
    ("tokens", "attention, class tokens"),
    ("positions", "pairs of locations"),
    ("finite width", "moments, scaling, bounds"),
    ("certified", "Arb balls"),
    ("learnable", "kernels in JAX"),
    ("matrices", "Gram matrices"),
    ("plotting", "drawings of results"),
    ("backend, verification", "run and measure"),
    ("bridges", "read, edit, write models"),
]
CLIENTS = "Clients take public names only: claims, lab (audit, transfer, report ...), command line"


def box(ax: Axes, place: tuple[float, float, float, float], colour: str) -> None:
    """A rounded box; ``place``: left, bottom, width, height."""
    left, bottom, width, height = place
    style = "round,pad=0,rounding_size=0.08"
    ax.add_patch(
        FancyBboxPatch((left, bottom), width, height, boxstyle=style, fc=colour, ec="none")
    )


def room(
    ax: Axes,
    place: tuple[float, float, float, float],
    colours: tuple[str, str, str],
    texts: tuple[str, str],
) -> None:
    """A box with a name and what it holds; ``colours``: of the box, the name and the rest."""
    box(ax, place, colours[0])
    left, middle = place[0] + 0.15, place[1] + place[3] / 2
    ax.text(left, middle + 0.11, texts[0], color=colours[1], font=BOLD, va="center", size=9)
    ax.text(left, middle - 0.13, texts[1], color=colours[2], va="center", font=REGULAR, size=7.5)


def arrow(ax: Axes, ends: tuple[tuple[float, float], tuple[float, float]], ink: str) -> None:
    """An arrow from a room to what it imports."""
    ax.annotate("", xy=ends[1], xytext=ends[0], arrowprops={"arrowstyle": "-|>", "color": ink})


def draw(ink: str, faint: str, spine: str, guests: str, clients: str) -> Figure:
    """The figure in one set of colours."""
    figure = Figure(figsize=(7.6, 5.4))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 10), ylim=(0, 7.1), aspect="equal")
    ax.axis("off")
    box(ax, (0.2, 6.35, 9.6, 0.55), clients)
    ax.text(5, 6.62, CLIENTS, color=ink, ha="center", va="center", font=REGULAR, size=7.5)
    ax.text(0.2, 6.0, "Spine: imports no guest", color=ink, font=BOLD, size=9)
    ax.text(6.3, 6.0, "Guests: import the spine", color=ink, font=BOLD, size=9)
    room(
        ax,
        (0.2, 5.25, 3.9, 0.6),
        (spine, ink, faint),
        ("shaping", "constants that make networks train"),
    )
    for i, texts in enumerate(SPINE):
        room(ax, (0.2, 4.45 - 0.8 * i + 0.0, 3.9, 0.6), (spine, ink, faint), texts)
        arrow(ax, ((2.1, 5.22 - 0.8 * i), (2.1, 5.08 - 0.8 * i)), ink)
    for i, texts in enumerate(GUESTS):
        room(ax, (6.3, 5.3 - 0.61 * i, 3.5, 0.52), (guests, ink, faint), texts)
    arrow(ax, ((6.25, 3.9), (4.2, 3.9)), ink)
    ax.text(5.2, 4.02, "imports", color=ink, ha="center", va="bottom", font=REGULAR, size=8)
    ax.annotate(
        "",
        xy=(6.25, 2.3),
        xytext=(4.2, 2.3),
        arrowprops={"arrowstyle": "-|>", "color": ink, "linestyle": "--"},
    )
    ax.text(
        5.2,
        2.42,
        "asks registries\nby key",
        color=ink,
        ha="center",
        va="bottom",
        font=REGULAR,
        size=8,
    )
    ax.text(
        5.2, 2.18, "wiring.py\nfills them", color=faint, ha="center", va="top", font=REGULAR, size=8
    )
    return figure


def main(folder: Path) -> None:
    """Write both files."""
    with mpl.rc_context({"svg.hashsalt": "kcalc", "svg.fonttype": "path"}):
        for name, colours in COLOURS.items():
            figure = draw(*colours)
            figure.savefig(folder / f"house-{name}.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
