"""What :func:`kcalc.verify_kernels` returns."""

from __future__ import annotations

import html
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import KcalcError, unknown
from ..maps import Assumption
from .statistics import Power, Statistic, bias, root_mean_square

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .jacobians import Jacobians

Node = Hashable
Array = np.ndarray
NARROW = 16  # channels under which a cosine is that of few numbers


@dataclass(frozen=True)
class Table:
    """Rows of text under a head, for a terminal or a notebook."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        sizes = [max(len(row[i]) for row in (self.head, *self.rows)) for i in range(len(self.head))]
        lines = [
            "  ".join(cell.ljust(size) if i == 0 else cell.rjust(size) for i, (cell, size) in enumerate(zip(row, sizes, strict=True)))
            for row in (self.head, *self.rows)
        ]
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self) -> str:
        return f"Table({len(self.rows)} rows: {', '.join(self.head)})"

    def _repr_html_(self) -> str:
        rows = [("th", self.head), *(("td", row) for row in self.rows)]
        lines = ("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>" for tag, row in rows)
        return f"<table>{''.join(lines)}</table>"


@dataclass(frozen=True, eq=False)
class Sample:
    """One width: ``means`` and ``variances`` (draws, nodes, quantities, cases) of pairs in each draw, ``expected`` without the draws."""

    width: int | None
    channels: tuple[int, ...]
    expected: Array
    means: Array
    variances: Array


@dataclass(frozen=True)
class Deviation:
    """A node's q or c value, measured against the map."""

    node: Node
    quantity: str
    width: int | None
    c: float
    expected: float
    mean: float
    error: float
    z: float
    p: float

    def __str__(self) -> str:
        at = "" if self.width is None else f" at width {self.width}"
        values = f"{self.mean:.6g} +- {self.error:.2g}, map {self.expected:.6g} (z {self.z:+.2f})"
        return f"{self.quantity} of {self.node}{at}, c = {self.c:g}: {values}"


@dataclass(frozen=True, eq=False)
class TangentCheck:
    """The tangent kernel of networks as they were drawn against the analytic one.

    Arrays per width are (draws, Affine nodes, kinds, cases), kinds being ``Theta(x1, x1)``, ``Theta(x2, x2)``, ``Theta(x1, x2)``.
    """

    KINDS = ("x1, x1", "x2, x2", "x1, x2")

    widths: tuple[int | None, ...]
    nodes: tuple[Node, ...]
    expected: tuple[Array, ...]
    samples: tuple[Array, ...]
    epsilon: float = 0.0

    def total(self, width: int | None = None) -> Statistic:
        """The whole kernel, shape (kinds, cases)."""
        i = _place(self.widths, width)
        return Statistic.of(self.expected[i].sum(axis=0), self.samples[i].sum(axis=1), 0.0, self.epsilon)

    def layers(self, width: int | None = None) -> Statistic:
        """Every Affine's part, shape (nodes, kinds, cases)."""
        i = _place(self.widths, width)
        return Statistic.of(self.expected[i], self.samples[i], 0.0, self.epsilon)

    def size(self, width: int | None = None) -> Array:
        """What deviations are relative to, ``sqrt(Theta(x1, x1) Theta(x2, x2))``, shape (cases,)."""
        whole = self.expected[_place(self.widths, width)].sum(axis=0)
        return np.sqrt(whole[0] * whole[1])

    def _relative(self) -> list[Array]:
        pairs = zip(self.widths, self.samples, self.expected, strict=True)
        return [((s.sum(axis=1) - e.sum(axis=0)) / self.size(w)).reshape(s.shape[0], -1) for w, s, e in pairs]

    @property
    def fluctuation(self) -> Power:
        """The relative deviation of one network from the analytic kernel; about width^-1/2."""
        return root_mean_square(self._relative(), [0.0] * len(self.samples), _numbers(self.widths))

    @property
    def gap(self) -> Power:
        """The relative deviation of the mean over networks; about width^-1 [Huang, Yau 2020]."""
        return bias(self._relative(), _numbers(self.widths))

    def __repr__(self) -> str:
        worst = float(np.abs(self.total(self.widths[-1]).z).max())
        return f"TangentCheck({len(self.nodes)} Affine layers, greatest |z| {worst:.2f})"


@dataclass(frozen=True, eq=False)
class GradientCheck:
    """|d out_k / d node|^2, summed over the node's channels, against its expectation at infinite width; for the first q value."""

    width: int | None
    nodes: tuple[Node, ...]
    statistic: Statistic

    @property
    def growth(self) -> float:
        """The largest mean over the smallest one."""
        return float(self.statistic.mean.max() / self.statistic.mean.min())

    def __repr__(self) -> str:
        return f"GradientCheck({len(self.nodes)} nodes, growth {self.growth:.4g})"


@dataclass(frozen=True, eq=False)
class KernelCheck:
    """Networks as they are drawn against their kernel maps: q and c of every node, and what else was asked for.

    ``c[i]`` and ``q1[i]``, ``q2[i]`` are the values of the inputs in case i (of the first input, where there are several).  ``tangent``,
    ``gradients`` and ``jacobians`` are None where they were not measured; ``assumptions`` say why.
    A network of finite width deviates from the maps by O(1/width) even in the mean, so enough draws show a difference at any width.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    c: tuple[float, ...]
    q1: tuple[float, ...]
    q2: tuple[float, ...]
    draws: int
    pairs: int
    samples: tuple[Sample, ...]
    epsilon: float
    assumptions: tuple[Assumption, ...] = ()
    tangent: TangentCheck | None = None
    gradients: GradientCheck | None = None
    jacobians: Jacobians | None = None

    # -- numbers ---------------------------------------------------------------------------------------------------------------------

    @property
    def widths(self) -> tuple[int | None, ...]:
        """The widths, None where layers state their own."""
        return tuple(sample.width for sample in self.samples)

    @property
    def quantities(self) -> tuple[str, ...]:
        """("q", "c"), or ("q1", "q2", "c") where the inputs have different q."""
        return ("q", "c") if self.samples[0].means.shape[2] == 2 else ("q1", "q2", "c")

    def statistic(self, quantity: str = "c", width: int | None = None) -> Statistic:
        """A quantity at every node, arrays (nodes, cases); ``width=None`` is the last.  Raises: KcalcError for unknown ones."""
        if quantity not in self.quantities:
            raise unknown("quantity", quantity, self.quantities)
        sample, k = self.samples[_place(self.widths, width)], self.quantities.index(quantity)
        return Statistic.of(sample.expected[:, k], sample.means[:, :, k], sample.variances[:, :, k], self.epsilon)

    def judged(self, width: int | None = None) -> Array:
        """Which nodes count: not the inputs, which are exact, nor those with fewer than 16 channels."""
        sample = self.samples[_place(self.widths, width)]
        return np.array([node not in self.inputs and k >= NARROW for node, k in zip(self.nodes, sample.channels, strict=True)])

    @cached_property
    def deviations(self) -> tuple[Deviation, ...]:
        """Every judged node, quantity, width and case, the greatest |z| first."""
        found: list[Deviation] = []
        for width in self.widths:
            rows = np.flatnonzero(self.judged(width))
            for quantity in self.quantities:
                s = self.statistic(quantity, width)
                columns = [a.tolist() for a in (s.expected, s.mean, s.error, s.z, s.p)]
                found += [
                    Deviation(self.nodes[i], quantity, width, c, *(column[i][j] for column in columns))
                    for i in rows for j, c in enumerate(self.c)
                ]  # fmt: skip
        return tuple(sorted(found, key=lambda one: -abs(one.z)))

    @property
    def worst(self) -> Deviation:
        """The greatest |z|.  Raises: KcalcError where no node has 16 channels."""
        if not self.deviations:
            raise KcalcError(f"no node has {NARROW} channels or more, so none is judged; use a greater width")
        return self.deviations[0]

    @property
    def p(self) -> float:
        """How likely the worst deviation is with that many looks, had the maps been exact (Bonferroni; layers are correlated)."""
        return min(1.0, len(self.deviations) * self.worst.p)

    def deviating(self, errors: float = 4.0, slack: float = 0.0) -> tuple[Deviation, ...]:
        """Those further from the map than ``errors`` standard errors and ``slack``, which is room for the O(1/width) of finite width."""
        return tuple(d for d in self.deviations if abs(d.z) > errors and abs(d.mean - d.expected) > errors * d.error + slack)

    @property
    def passed(self) -> bool:
        """Whether all are within four standard errors."""
        return not self.deviating()

    def largest_error(self, quantity: str = "c", width: int | None = None) -> float:
        """The largest standard error of a judged node."""
        return float(self.statistic(quantity, width).error[self.judged(width)].max())

    def _deviations(self, quantity: str) -> tuple[list[Array], list[Array]]:
        k = self.quantities.index(quantity)
        grown = np.all([self.judged(w) for w in self.widths], axis=0)
        if len(self.samples) > 1:
            grown &= np.array([len(set(channels)) > 1 for channels in zip(*(s.channels for s in self.samples), strict=True)])
        if not grown.any():
            raise KcalcError("no node grows with the width, so there is no power of it")
        own = [(s.means - s.expected)[:, grown, k].reshape(self.draws, -1) for s in self.samples]
        return own, [s.variances[:, grown, k].reshape(self.draws, -1) for s in self.samples]

    def fluctuation(self, quantity: str = "c") -> Power:
        """The root mean square deviation of one pair in one network from the map, over all nodes; about width^-1/2."""
        return root_mean_square(*self._deviations(quantity), _numbers(self.widths))

    def bias(self, quantity: str = "c") -> Power:
        """The root mean square over nodes of the mean deviation, noise taken out; about width^-1."""
        return bias(self._deviations(quantity)[0], _numbers(self.widths))

    # -- to look at ------------------------------------------------------------------------------------------------------------------

    def table_of(self, quantity: str = "c", width: int | None = None) -> Table:
        """Map, mean, fluctuation, standard error and z of one quantity, a row per node and case."""
        s = self.statistic(quantity, width)
        head = ("node", "input c", "map", "mean", "fluctuation", "error", "z")
        forms = (".6f", ".6f", ".2g", ".2g", "+.2f")
        columns = list(zip((s.expected, s.mean, s.std, s.error, s.z), forms, strict=True))
        rows = [
            (str(node), f"{c:g}", *(format(float(values[i, j]), form) for values, form in columns))
            for i, node in enumerate(self.nodes)
            for j, c in enumerate(self.c)
        ]
        return Table(head, tuple(rows))

    @property
    def table(self) -> Table:
        """c values at the last width."""
        return self.table_of()

    def summary(self) -> Table:
        """A row per quantity and width: largest |z|, standard error, fluctuation and bias, with their powers of the width."""
        rows: list[tuple[str, ...]] = []
        for quantity in self.quantities:
            spread, mean = self.fluctuation(quantity), self.bias(quantity)
            for i, width in enumerate(self.widths):
                s, judged = self.statistic(quantity, width), self.judged(width)
                shown = "-" if np.isnan(mean.values[i]) else f"{mean.values[i]:.2g}"
                cells = (f"{np.abs(s.z[judged]).max():.2f}", f"{s.error[judged].max():.2g}", f"{spread.values[i]:.2g}", shown)
                rows.append((quantity, "" if width is None else str(width), *cells))
            if len(self.widths) > 1:
                rows.append((quantity, "power", "", "", str(spread), str(mean)))
        if self.tangent is not None:
            rows += self._tangent_rows(self.tangent)
        return Table(("", "width", "greatest |z|", "greatest error", "deviation of one draw", "of the mean"), tuple(rows))

    @staticmethod
    def _tangent_rows(tangent: TangentCheck) -> list[tuple[str, ...]]:
        spread, gap = tangent.fluctuation, tangent.gap
        rows: list[tuple[str, ...]] = []
        for i, width in enumerate(tangent.widths):
            s = tangent.total(width)
            shown = "-" if np.isnan(gap.values[i]) else f"{gap.values[i]:.2g}"
            cells = (f"{np.abs(s.z).max():.2f}", f"{(s.error / tangent.size(width)).max():.2g}", f"{spread.values[i]:.2g}", shown)
            rows.append(("NTK, relative", "" if width is None else str(width), *cells))
        if len(tangent.widths) > 1:
            rows.append(("NTK, relative", "power", "", "", str(spread), str(gap)))
        return rows

    def _verdict(self) -> str:
        looks = f"{len(self.deviations)} looks, p = {self.p:.2g}" if self.deviations else ""
        return f"{self.draws} draws x {self.pairs} pairs; worst: {self.worst} ({looks})" if self.deviations else f"{self.draws} draws"

    def __str__(self) -> str:
        return f"{self._verdict()}\n{self.summary()}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._verdict())}</p>{self.summary()._repr_html_()}"

    def __repr__(self) -> str:
        worst = f"worst |z| {abs(self.worst.z):.2f}" if self.deviations else "no node judged"
        return f"KernelCheck({len(self.nodes)} nodes, widths {self.widths}, {self.draws} draws, {worst})"

    def plot(self, axes: Sequence[Axes] | None = None) -> Array:
        """q and c values over the layers with their fluctuation against the maps; see :mod:`kcalc.verification.plots`."""
        from .plots import check_figure

        return check_figure(self, axes)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single draws, as plain data."""
        tables = {}
        for quantity in self.quantities:
            for width in self.widths:
                s = self.statistic(quantity, width)
                own = {name: getattr(s, name).tolist() for name in ("expected", "mean", "std", "error", "z")}
                tables.setdefault(quantity, []).append({"width": width} | own)
        powers = {q: {"fluctuation": _plain(self.fluctuation(q)), "bias": _plain(self.bias(q))} for q in self.quantities}
        notes = [{"node": str(a.node), "kind": a.kind, "text": a.text} for a in self.assumptions]
        out = {"nodes": list(map(str, self.nodes)), "c": self.c, "q1": self.q1, "q2": self.q2, "draws": self.draws, "pairs": self.pairs}
        more: dict[str, Any] = {"values": tables, "powers": powers, "assumptions": notes}
        if self.tangent is not None:
            more["tangent"] = {"fluctuation": _plain(self.tangent.fluctuation), "gap": _plain(self.tangent.gap)}
        if self.gradients is not None:
            g = self.gradients.statistic
            rows = zip(self.gradients.nodes, g.expected.tolist(), g.mean.tolist(), g.error.tolist(), strict=True)
            more["gradients"] = {str(node): dict(zip(("expected", "mean", "error"), row, strict=True)) for node, *row in rows}
        if self.jacobians is not None:
            more["jacobians"] = self.jacobians.to_dict()
        return out | more


def _plain(power: Power) -> Mapping[str, Any]:
    return {"exponent": power.exponent, "error": power.error, "values": [None if np.isnan(v) else v for v in power.values]}


def _place(widths: Sequence[int | None], width: int | None) -> int:
    if width is None:
        return len(widths) - 1
    if width not in widths:
        raise KcalcError(f"width {width!r} was not measured; the widths are {tuple(widths)}")
    return tuple(widths).index(width)


def _numbers(widths: Sequence[int | None]) -> list[int]:
    return [0 if width is None else width for width in widths]
