"""The parts of a :class:`KernelCheck`: tables, the tangent kernel, gradients."""

from __future__ import annotations

import html
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import is_key
from ..foundation.printing import Tabled, html_table, text_table
from .statistics import Power, Statistic, allowed, bias, root_mean_square

Node = Hashable
Array = np.ndarray
MEASURED = ("expected", "mean", "std", "error", "z")
ROWS = 40  # of a printed table; those between are left out


@dataclass(frozen=True)
class Table:
    """Rows of text under a head, for a terminal or a notebook."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return text_table((self.head, *self.rows), ROWS)

    def __repr__(self) -> str:
        return f"Table({len(self.rows)} rows: {', '.join(self.head)})"

    def _repr_html_(self) -> str:
        return html_table((self.head, *self.rows), most=ROWS)


@dataclass(frozen=True, eq=False)
class TangentCheck:
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
        expected = self.expected[i].sum(axis=0)
        return Statistic.of(
            expected, self.samples[i].sum(axis=1), 0.0, self.epsilon, _sizes(expected)
        )

    def layers(self, width: int | None = None) -> Statistic:
        """Every Affine's part, shape (nodes, kinds, cases)."""
        i = place(self.widths, width)
        return Statistic.of(
            self.expected[i], self.samples[i], 0.0, self.epsilon, _sizes(self.expected[i])
        )

    @property
    def worst(self) -> float:
        """The greatest |z| of the whole kernel, over widths, kinds and cases."""
        return max(float(np.abs(self.total(width).z).max()) for width in self.widths)

    @property
    def allowed(self) -> float:
        """The |z| that :attr:`passed` allows.

        It corresponds to four Gaussian standard errors for all comparisons together.
        """
        return allowed(
            self.samples[0].shape[0], sum(self.total(width).z.size for width in self.widths)
        )

    @property
    def passed(self) -> bool:
        """Whether the mean kernel is that of infinite width, as far as the draws tell."""
        return self.worst <= self.allowed

    @property
    def worst_text(self) -> str:
        """The kernel at the greatest |z|, in words."""
        width = max(self.widths, key=lambda width: np.abs(self.total(width).z).max())
        s = self.total(width)
        kind, case = np.unravel_index(np.argmax(np.abs(s.z)), s.z.shape)
        at = "" if width is None else f" at width {width}"
        return f"tangent kernel of ({self.KINDS[kind]}){at}: {s.text((kind, case))}"

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
        return f"TangentCheck({len(self.nodes)} Affine layers, {_verdict(self)})"


@dataclass(frozen=True, eq=False)
class GradientCheck(Tabled):
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
        theory: tuple[Array, Array],
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

        The first alone for networks without tokens.
        """
        every = {"each token": self.statistic, "mean": self.mean, "difference": self.difference}
        return {name: found for name, found in every.items() if found is not None}

    @property
    def growth(self) -> float:
        """The largest mean over the smallest one."""
        return float(self.statistic.mean.max() / self.statistic.mean.min())

    @property
    def worst(self) -> float:
        """The greatest |z| of a node."""
        return float(max(np.nanmax(np.abs(s.z)) for s in self.modes.values()))

    @property
    def worst_text(self) -> str:
        """The gradient at the greatest |z|, in words."""
        name, s = max(self.modes.items(), key=lambda item: np.nanmax(np.abs(item[1].z)))
        row = int(np.nanargmax(np.abs(s.z)))
        mode = f" ({name} mode)" if len(self.modes) > 1 and s is not self.statistic else ""
        return f"|gradient|^2 at {self.nodes[row]}{mode}: {s.text(row)}"

    @property
    def allowed(self) -> float:
        """The |z| that :attr:`passed` allows.

        It corresponds to four Gaussian standard errors for all nodes together.
        """
        return allowed(self.statistic.draws, len(self.nodes) * len(self.modes))

    @property
    def passed(self) -> bool:
        """Whether the mean squares are those of infinite width, as far as the draws tell."""
        return self.worst <= self.allowed

    def _frame(self) -> dict[str, Any]:
        tables = {
            name: np.concatenate([getattr(s, name) for s in self.modes.values()])
            for name in MEASURED
        }
        named = {"node": [*map(str, self.nodes)] * len(self.modes)}
        return (
            named
            | ({"mode": np.repeat([*self.modes], len(self.nodes))} if len(self.modes) > 1 else {})
            | tables
        )

    @property
    def rows(self) -> Table:
        """A row per node, over tokens per node and mode."""
        rows: list[tuple[str, ...]] = []
        for name, s in self.modes.items():
            columns = zip(
                (s.expected, s.mean, s.std, s.error, s.z),
                (".4g", ".4g", ".2g", ".2g", "+.2f"),
                strict=True,
            )
            cells = [[format(float(value), form) for value in values] for values, form in columns]
            mode = (name,) if len(self.modes) > 1 else ()
            rows += [
                (str(node), *mode, *(column[i] for column in cells))
                for i, node in enumerate(self.nodes)
                if np.isfinite(s.expected[i])
            ]
        mode = ("mode",) if len(self.modes) > 1 else ()
        return Table(
            ("node", *mode, "infinite width", "mean", "fluctuation", "error", "z"), tuple(rows)
        )

    def __str__(self) -> str:
        return f"|d out / d node|^2: {_verdict(self)}\n{self.rows}"

    def _repr_html_(self) -> str:
        return (
            f"<p>|d out / d node|<sup>2</sup>: "
            f"{html.escape(_verdict(self))}</p>{self.rows._repr_html_()}"
        )

    def __repr__(self) -> str:
        return f"GradientCheck({len(self.nodes)} nodes, growth {self.growth:.4g}, {_verdict(self)})"


def _verdict(check: TangentCheck | GradientCheck) -> str:
    return (
        f"greatest |z| {check.worst:.2f} (allowed {check.allowed:.1f}), "
        f"{'passed' if check.passed else 'deviates'}"
    )


def _sizes(expected: Array) -> Array:
    """The scale of rounding errors.

    ``sqrt(Theta(x1, x1) Theta(x2, x2))`` for all kinds, which are the last axis but one.
    """
    return np.broadcast_to(
        np.sqrt(np.abs(expected[..., :1, :] * expected[..., 1:2, :])), expected.shape
    )


def plain(power: Power) -> Mapping[str, Any]:
    """A power with its values as plain data, None for nan."""
    return {
        "exponent": power.exponent,
        "error": power.error,
        "values": [None if np.isnan(v) else v for v in power.values],
    }


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
