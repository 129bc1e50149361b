"""The parts of a :class:`KernelCheck`: tables, the tangent kernel, gradients."""

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
ROWS = 40  # of a printed table; those between are left out


@dataclass(frozen=True)
class TextTable:
    """Rows of text under a head, for a terminal or a notebook."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return text_table((self.head, *self.rows), ROWS)

    def __repr__(self) -> str:
        return f"Table({len(self.rows)} rows: {', '.join(self.head)})"

    def _repr_html_(self) -> str:
        return html_table((self.head, *self.rows), most=ROWS)


class Judged:
    """Statistics that are judged together, ``compared``: {the name of each: it}."""

    what: ClassVar[str]

    @property
    def compared(self) -> dict[str, Statistic]:
        """The statistics."""
        raise NotImplementedError

    def place(self, name: str, at: Any) -> str:
        """The quantity of a statistic at an index, as text."""
        raise NotImplementedError

    def _worst(self) -> tuple[str, Statistic]:
        return max(self.compared.items(), key=lambda item: np.nanmax(np.abs(item[1].z)))

    @property
    def worst(self) -> float:
        """The largest |z| of all comparisons."""
        return float(np.nanmax(np.abs(self._worst()[1].z)))

    @property
    def worst_text(self) -> str:
        """The value at the largest |z|, as text."""
        name, s = self._worst()
        at = np.unravel_index(np.nanargmax(np.abs(s.z)), s.z.shape)
        return f"{self.place(name, at)}: {s.text(at)}"

    @property
    def allowed(self) -> float:
        """The |z| that :attr:`passed` allows.

        It corresponds to four Gaussian standard errors for all comparisons together.
        """
        every = list(self.compared.values())
        return allowed(every[0].draws, sum(s.z.size for s in every))

    @property
    def passed(self) -> bool:
        """Whether the means are those of infinite width, as far as the draws tell."""
        return self.worst <= self.allowed

    def _verdict(self) -> str:
        return (
            f"greatest |z| {self.worst:.2f} (allowed {self.allowed:.1f}), "
            f"{'passed' if self.passed else 'deviates'}"
        )


@dataclass(frozen=True, eq=False)
class TangentCheck(Judged):
    """The tangent kernel of networks as they were drawn against the analytic one.

    Arrays per width are (draws, Affine nodes, kinds, cases), kinds being ``Theta(x1, x1)``,
    ``Theta(x2, x2)``, ``Theta(x1, x2)``.
    """

    KINDS = ("x1, x1", "x2, x2", "x1, x2")
    what: ClassVar[str] = "the tangent kernel"

    widths: tuple[int | None, ...]
    nodes: tuple[Node, ...]
    expected: tuple[Array, ...]
    samples: tuple[Array, ...]
    epsilon: float = 0.0

    def total(self, width: int | None = None) -> Statistic:
        """The whole kernel, shape (kinds, cases)."""
        i = place(self.widths, width)
        return self._statistic(self.expected[i].sum(axis=0), self.samples[i].sum(axis=1))

    def layers(self, width: int | None = None) -> Statistic:
        """Every Affine's part, shape (nodes, kinds, cases)."""
        i = place(self.widths, width)
        return self._statistic(self.expected[i], self.samples[i])

    def _statistic(self, expected: Array, samples: Array) -> Statistic:
        """Rounding errors are relative to ``sqrt(Theta(x1, x1) Theta(x2, x2))`` for all kinds."""
        size = np.sqrt(np.abs(expected[..., :1, :] * expected[..., 1:2, :]))
        return Statistic.of(expected, samples, 0.0, self.epsilon, size)

    @property
    def compared(self) -> dict[str, Statistic]:
        """{width in words: the whole kernel}."""
        return {
            "" if width is None else f" at width {width}": self.total(width)
            for width in self.widths
        }

    def place(self, name: str, at: Any) -> str:
        return f"tangent kernel of ({self.KINDS[at[0]]}){name}"

    def size(self, width: int | None = None) -> Array:
        """The scale of deviations, ``sqrt(Theta(x1, x1) Theta(x2, x2))``, shape (cases,)."""
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
        """The relative deviation of one network from the analytic kernel; about width^-1/2."""
        return root_mean_square(self._relative(), [0.0] * len(self.samples), numbers(self.widths))

    @property
    def gap(self) -> Power:
        """The relative deviation of the mean over networks; about width^-1 [Huang, Yau 2020]."""
        return bias(self._relative(), numbers(self.widths))

    def __repr__(self) -> str:
        return f"TangentCheck({len(self.nodes)} Affine layers, {self._verdict()})"


@dataclass(frozen=True, eq=False)
class GradientCheck(Judged, Tabled):
    """|d out_k / d node|^2 against its expectation at infinite width, for the first q value.

    It is summed over the node's channels. Over tokens ``mean`` and ``difference`` are the gradients
    in these modes, see :class:`kcalc.calculi.gradients.Gradients`; None for networks without
    tokens, and nan at nodes of one token, which have no difference.
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
        """From ``samples``, (draws, nodes) or, with the modes, (draws, nodes, 3).

        ``theory``: expectations, and their standard errors.
        """
        expected, known = theory
        if expected.ndim == 1:
            return cls(width, nodes, Statistic.of(expected, samples, 0.0, epsilon))
        # the difference mode may vanish beside the others
        size = np.nanmax(np.abs(expected), axis=1)
        modes = [
            Statistic.of(expected[:, k], samples[:, :, k], 0.0, epsilon, size, known[:, k])
            for k in range(3)
        ]
        return cls(width, nodes, *modes)

    @property
    def modes(self) -> dict[str, Statistic]:
        """{"each token", "mean", "difference": their statistics}.

        Only the first for networks without tokens.
        """
        every = {"each token": self.statistic, "mean": self.mean, "difference": self.difference}
        return {name: found for name, found in every.items() if found is not None}

    compared = modes

    def place(self, name: str, at: Any) -> str:
        mode = "" if self.modes[name] is self.statistic else f" ({name} mode)"
        return f"|gradient|^2 at {self.nodes[at[0]]}{mode}"

    @property
    def growth(self) -> float:
        """The largest mean over the smallest one."""
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
        """{mode: {node: {"expected", "mean", "error"}}}, without nodes that the mode lacks."""
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
        """A row per node, over tokens per node and mode."""
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
    """A power with its values, as a dictionary."""
    return {"exponent": power.exponent, "error": power.error, "values": power.values}


def place(widths: Sequence[int | None], width: int | None) -> int:
    """The index of a measured width, the last for None.

    Raises: KcalcError for one that was not measured.
    """
    if width is None:
        return len(widths) - 1
    if isinstance(width, bool) or not is_key(width, widths):
        raise KcalcError(f"width {glimpse(width)} was not measured; the widths are {tuple(widths)}")
    return tuple(widths).index(width)


def numbers(widths: Sequence[int | None]) -> list[int]:
    """Widths as numbers, 0 for None."""
    return [0 if width is None else width for width in widths]
