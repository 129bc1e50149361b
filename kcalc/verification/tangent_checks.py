"""The parts of a :class:`KernelCheck`: its tables, and checks of tangent kernels and gradients."""

from __future__ import annotations

import html
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import is_key
from ..foundation.printing import Tabled, html_table, text_table
from .statistics import MEASURED, Power, Statistic, allowed, bias, root_mean_square

Node = Hashable
Array = np.ndarray
ROWS = 40  # largest number of rows that a table prints; rows in the middle are left out


@dataclass(frozen=True)
class TextTable:
    """A text table with a header row, for a terminal or a notebook."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return text_table((self.head, *self.rows), ROWS)

    def __repr__(self) -> str:
        return f"Table({len(self.rows)} rows: {', '.join(self.head)})"

    def _repr_html_(self) -> str:
        return html_table((self.head, *self.rows), most=ROWS)


class Judged:
    """A group of statistics that passes or fails as a whole."""

    what: ClassVar[str]

    @property
    def compared(self) -> dict[str, Statistic]:
        """The statistics, as {name: statistic}."""
        raise NotImplementedError

    def place(self, name: str, at: Any) -> str:
        """Describe in words which quantity has this index in the statistic ``name``."""
        raise NotImplementedError

    def _worst(self) -> tuple[str, Statistic]:
        return max(self.compared.items(), key=lambda item: np.nanmax(np.abs(item[1].z)))

    @property
    def worst(self) -> float:
        """The largest |z| of all comparisons."""
        return float(np.nanmax(np.abs(self._worst()[1].z)))

    @property
    def worst_text(self) -> str:
        """The comparison with the largest |z|, as text."""
        name, s = self._worst()
        at = np.unravel_index(np.nanargmax(np.abs(s.z)), s.z.shape)
        return f"{self.place(name, at)}: {s.text(at)}"

    @property
    def allowed(self) -> float:
        """The largest |z| that :attr:`passed` allows.

        The bound corresponds to four Gaussian standard errors for all comparisons together.
        """
        every = list(self.compared.values())
        return allowed(every[0].draws, sum(s.z.size for s in every))

    @property
    def passed(self) -> bool:
        """Whether all means agree with the values at infinite width, given the number of draws."""
        return self.worst <= self.allowed

    def _verdict(self) -> str:
        return (
            f"greatest |z| {self.worst:.2f} (allowed {self.allowed:.1f}), "
            f"{'passed' if self.passed else 'deviates'}"
        )


@dataclass(frozen=True, eq=False)
class TangentCheck(Judged):
    """The tangent kernels of random networks, compared with the analytic kernel.

    For each width, the array of samples has shape (draws, Affine nodes, kinds, cases). The kinds
    are ``Theta(x1, x1)``, ``Theta(x2, x2)`` and ``Theta(x1, x2)``.
    """

    KINDS = ("x1, x1", "x2, x2", "x1, x2")
    what: ClassVar[str] = "the tangent kernel"

    widths: tuple[int | None, ...]
    nodes: tuple[Node, ...]
    expected: tuple[Array, ...]
    samples: tuple[Array, ...]
    epsilon: float = 0.0

    def total(self, width: int | None = None) -> Statistic:
        """Return the statistic of the whole kernel, shape (kinds, cases)."""
        i = place(self.widths, width)
        return self._statistic(self.expected[i].sum(axis=0), self.samples[i].sum(axis=1))

    def layers(self, width: int | None = None) -> Statistic:
        """Return the statistic of the contribution of each Affine, shape (nodes, kinds, cases)."""
        i = place(self.widths, width)
        return self._statistic(self.expected[i], self.samples[i])

    def _statistic(self, expected: Array, samples: Array) -> Statistic:
        """Create a statistic with rounding relative to ``sqrt(Theta(x1, x1) Theta(x2, x2))``."""
        size = np.sqrt(np.abs(expected[..., :1, :] * expected[..., 1:2, :]))
        return Statistic.of(expected, samples, 0.0, self.epsilon, size)

    @property
    def compared(self) -> dict[str, Statistic]:
        """The statistic of the whole kernel at each width, as {label of the width: statistic}."""
        return {
            "" if width is None else f" at width {width}": self.total(width)
            for width in self.widths
        }

    def place(self, name: str, at: Any) -> str:
        return f"tangent kernel of ({self.KINDS[at[0]]}){name}"

    def size(self, width: int | None = None) -> Array:
        """Return the scale of deviations, ``sqrt(Theta(x1, x1) Theta(x2, x2))``, shape (cases,)."""
        whole = self.expected[place(self.widths, width)].sum(axis=0)
        return np.sqrt(whole[0] * whole[1])

    def _relative(self) -> list[Array]:
        pairs = zip(self.widths, self.samples, self.expected, strict=True)
        return [
            ((s.sum(axis=1) - e.sum(axis=0)) / self.size(w)).reshape(s.shape[0], -1)
            for w, s, e in pairs
        ]

    @property
    def fluctuation(self) -> Power:
        """The relative deviation of one network from the analytic kernel, of order width^-1/2."""
        return root_mean_square(self._relative(), [0.0] * len(self.samples), numbers(self.widths))

    @property
    def gap(self) -> Power:
        """The relative deviation of the mean over networks, of order width^-1 [Huang, Yau 2020]."""
        return bias(self._relative(), numbers(self.widths))

    def __repr__(self) -> str:
        return f"TangentCheck({len(self.nodes)} Affine layers, {self._verdict()})"


@dataclass(frozen=True, eq=False)
class GradientCheck(Judged, Tabled):
    """|d out_k / d node|^2 compared with its expectation at infinite width.

    Squared gradients are summed over the channels of the node and measured for the first q value.
    For networks over tokens, ``mean`` and ``difference`` are the gradients in these modes; see
    :class:`kcalc.calculi.gradients.Gradients`. For other networks, both are None. ``difference`` is
    nan at nodes with a single token.
    """

    what: ClassVar[str] = "the gradients"
    width: int | None
    nodes: tuple[Node, ...]
    statistic: Statistic
    mean: Statistic | None = None
    difference: Statistic | None = None

    @classmethod
    def of(
        cls,
        width: int | None,
        nodes: tuple[Node, ...],
        theory: Sequence[Array],
        samples: Array,
        epsilon: float,
    ) -> GradientCheck:
        """Create the check from ``samples``, (draws, nodes) or, with modes, (draws, nodes, 3).

        ``theory`` contains the expectations and their standard errors.
        """
        expected, known = theory
        if expected.ndim == 1:
            return cls(width, nodes, Statistic.of(expected, samples, 0.0, epsilon))
        # rounding is relative to the largest mode, because the difference mode may vanish
        size = np.nanmax(np.abs(expected), axis=1)
        modes = [
            Statistic.of(expected[:, k], samples[:, :, k], 0.0, epsilon, size, known[:, k])
            for k in range(3)
        ]
        return cls(width, nodes, *modes)

    @property
    def modes(self) -> dict[str, Statistic]:
        """The statistics of the modes "each token", "mean" and "difference".

        Networks without tokens have only the first.
        """
        every = {"each token": self.statistic, "mean": self.mean, "difference": self.difference}
        return {name: found for name, found in every.items() if found is not None}

    compared = modes

    def place(self, name: str, at: Any) -> str:
        mode = "" if self.modes[name] is self.statistic else f" ({name} mode)"
        return f"|gradient|^2 at {self.nodes[at[0]]}{mode}"

    @property
    def growth(self) -> float:
        """The ratio of the largest to the smallest mean over all nodes."""
        return float(self.statistic.mean.max() / self.statistic.mean.min())

    def _frame(self) -> dict[str, Any]:
        modes = list(self.modes)
        named: dict[str, Any] = {"node": [*map(str, self.nodes)] * len(modes)}
        if len(modes) > 1:
            named["mode"] = np.repeat(modes, len(self.nodes))
        return named | {
            name: np.concatenate([getattr(s, name) for s in self.modes.values()])
            for name in MEASURED
        }

    def to_dict(self) -> dict[str, Any]:
        """Return {mode: {node: {"expected", "mean", "error"}}}.

        Nodes without a given mode are left out.
        """
        return {
            mode: {
                str(node): {name: getattr(s, name)[i] for name in ("expected", "mean", "error")}
                for i, node in enumerate(self.nodes)
                if not np.isnan(s.expected[i])
            }
            for mode, s in self.modes.items()
        }

    @property
    def rows(self) -> TextTable:
        """A table with a row per node or, for networks over tokens, per node and mode."""
        several = len(self.modes) > 1
        rows = [
            (str(node), *(mode,) * several, *s.cells(i, ".4g"))
            for mode, s in self.modes.items()
            for i, node in enumerate(self.nodes)
            if np.isfinite(s.expected[i])
        ]
        head = ("infinite width", "mean", "fluctuation", "error", "z")
        return TextTable(("node", *("mode",) * several, *head), tuple(rows))

    def __str__(self) -> str:
        return f"|d out / d node|^2: {self._verdict()}\n{self.rows}"

    def _repr_html_(self) -> str:
        return (
            f"<p>|d out / d node|<sup>2</sup>: "
            f"{html.escape(self._verdict())}</p>{self.rows._repr_html_()}"
        )

    def __repr__(self) -> str:
        verdict = self._verdict()
        return f"GradientCheck({len(self.nodes)} nodes, growth {self.growth:.4g}, {verdict})"


def power_dict(power: Power) -> dict[str, Any]:
    """Convert a fitted power and its values to a dictionary."""
    return {"exponent": power.exponent, "error": power.error, "values": power.values}


def place(widths: Sequence[int | None], width: int | None) -> int:
    """Return the index of a measured width, or of the last one if ``width`` is None.

    Raises: KcalcError for a width that was not measured.
    """
    if width is None:
        return len(widths) - 1
    if isinstance(width, bool) or not is_key(width, widths):
        raise KcalcError(f"width {glimpse(width)} was not measured; the widths are {tuple(widths)}")
    return tuple(widths).index(width)


def numbers(widths: Sequence[int | None]) -> list[int]:
    """Return the widths as integers, with 0 for None."""
    return [0 if width is None else width for width in widths]
