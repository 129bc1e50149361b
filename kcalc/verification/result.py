"""The result of :func:`kcalc.verify_kernels`."""

from __future__ import annotations

import html
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ..fields.arguments import one_number
from ..foundation.errors import KcalcError, glimpse
from ..foundation.guests import DRAWINGS
from ..foundation.plain_arguments import choice
from ..foundation.printing import Tabled, plain, spread
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network.tokens import Tokens
from .statistics import MEASURED, NARROW, Power, Statistic, allowed, bias, root_mean_square
from .tangent_checks import (
    GradientCheck,
    Judged,
    TangentCheck,
    TextTable,
    numbers,
    place,
    power_dict,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .jacobians import Jacobians

Node = Hashable
Array = np.ndarray
UNJUDGED = f"no node has {NARROW} channels or more, so none is checked; use a larger width"


@dataclass(frozen=True, eq=False)
class Sample:
    """Statistics of the pairs in each draw, for one width.

    ``means`` and ``variances`` have shape (draws, nodes, quantities, cases). ``expected`` has no
    axis of draws, and ``known`` contains its standard errors.
    """

    width: int | None
    channels: tuple[int, ...]
    expected: Array
    means: Array
    variances: Array
    known: Array | float = 0.0


@dataclass(frozen=True)
class Deviation:
    """The q or c value of a node, compared with the map."""

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
class KernelCheck(Tabled):
    """Comparison of random networks with their kernel maps.

    The comparison covers q and c at every node, and any other quantities that were requested.
    ``c[i]``, ``q1[i]`` and ``q2[i]`` are the values of the inputs in case i (of the first input, if
    there are several).

    A network of finite width deviates from the maps by O(1/width) even in the mean. Enough draws
    therefore show a difference at any width.

    Attributes
    ----------
    nodes
        The nodes that were measured.
    draws
        The number of random networks.
    tangent
        The comparison of tangent kernels, or None if it was not measured; ``assumptions`` then give
        the reason.
    gradients
        The comparison of gradients, or None.
    jacobians
        The singular values of the last network, or None.
    assumptions
        The assumptions of the maps.
    tokens
        (number of tokens of an input, their cosine), or None without tokens.

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
    tokens: Tokens | None = None

    # -- numbers -----------------------------------------------------------------------------------

    @property
    def widths(self) -> tuple[int | None, ...]:
        """The widths that were compared; (None,) if all layers specify their width."""
        return tuple(sample.width for sample in self.samples)

    @property
    def quantities(self) -> tuple[str, ...]:
        """The measured quantities: ("q", "c"), or ("q1", "q2", "c") if the inputs have different q.

        For networks over tokens, "token_cosine" is added, once per input if the q values differ.
        """
        uniform = self.q1 == self.q2
        sizes, cosines = (
            (("q",), ("token_cosine",))
            if uniform
            else (("q1", "q2"), ("token_cosine1", "token_cosine2"))
        )
        return (*sizes, "c", *(cosines if self.tokens is not None else ()))

    def statistic(self, quantity: str = "c", width: int | None = None) -> Statistic:
        """Return the statistics of a quantity at every node, as arrays of shape (nodes, cases).

        Parameters
        ----------
        quantity
            The name of the quantity: "c", "q", or another measured quantity.
        width
            The width to report. Defaults to the last one.

        Returns
        -------
        Statistic
            Its expectation, mean, standard deviation and standard error.

        Raises
        ------
        KcalcError
            For an unknown quantity or width.

        """
        choice(quantity, "quantity", self.quantities)
        sample, k = self.samples[place(self.widths, width)], self.quantities.index(quantity)
        expected = sample.expected[:, k]
        scale = np.abs(expected) if quantity[0] == "q" else np.maximum(np.abs(expected), 1e-2)
        known = sample.known[:, k] if isinstance(sample.known, Array) else sample.known
        return Statistic.of(
            expected, sample.means[:, :, k], sample.variances[:, :, k], self.epsilon, scale, known
        )

    def judged(self, width: int | None = None) -> Array:
        """Return a mask of the nodes that are checked.

        Inputs, which are exact, and nodes with fewer than 16 channels are not checked.

        Parameters
        ----------
        width
            The width to report. Defaults to the last one.

        Returns
        -------
        Array
            A boolean array with one entry per node.

        """
        sample = self.samples[place(self.widths, width)]
        return np.array(
            [
                node not in self.inputs and k >= NARROW
                for node, k in zip(self.nodes, sample.channels, strict=True)
            ]
        )

    @cached_property
    def deviations(self) -> tuple[Deviation, ...]:
        """The deviations of all checked nodes, quantities, widths and cases, largest |z| first."""
        found: list[Deviation] = []
        for width in self.widths:
            rows = np.flatnonzero(self.judged(width))
            for quantity in self.quantities:
                s = self.statistic(quantity, width)
                columns = [a.tolist() for a in (s.expected, s.mean, s.error, s.z, s.p)]
                found += [
                    Deviation(
                        self.nodes[i], quantity, width, c, *(column[i][j] for column in columns)
                    )
                    for i in rows
                    for j, c in enumerate(self.c)
                ]
        return tuple(sorted(found, key=lambda one: -abs(one.z)))

    @property
    def worst(self) -> Deviation:
        """The deviation with the largest |z|.

        Raises: KcalcError if no node has 16 channels or more.
        """
        if not self.deviations:
            raise KcalcError(UNJUDGED)
        return self.deviations[0]

    @property
    def p(self) -> float:
        """The p-value of the worst deviation under the hypothesis that the maps are exact.

        The p-value is Bonferroni-corrected for the number of comparisons. Layers are correlated, so
        it is conservative.
        """
        return min(1.0, len(self.deviations) * self.worst.p)

    def allowed(self, errors: float = 4.0) -> float:
        """Return the largest |z| of a q or c value that does not count as a deviation.

        The bound depends on the number of draws and comparisons; see ``verification.statistics``.

        Parameters
        ----------
        errors
            The number of standard errors for a single Gaussian.

        Returns
        -------
        float
            The bound on |z|.

        """
        most = one_number(errors, "errors")
        if most < 0:
            raise KcalcError(
                f"errors is a number of standard errors and must be >= 0, got {glimpse(errors)}"
            )
        return allowed(self.draws, len(self.deviations), most)

    def deviating(self, errors: float = 4.0, slack: float = 0.0) -> tuple[Deviation, ...]:
        """Return the q and c values that deviate from the map beyond ``errors`` and ``slack``.

        Parameters
        ----------
        errors
            The number of standard errors for a single Gaussian; :meth:`allowed` adapts it to the
            number of draws and comparisons.
        slack
            An additional allowance for the O(1/width) effects of finite width.

        Returns
        -------
        tuple[Deviation, ...]
            One entry per deviating value; empty if the check passes.

        """
        most, slack = self.allowed(errors), one_number(slack, "slack")
        return tuple(
            d
            for d in self.deviations
            if abs(d.z) > most and abs(d.mean - d.expected) > most * d.error + slack
        )

    @property
    def passed(self) -> bool | None:
        """Whether all compared quantities are within four standard errors of the theory.

        The quantities are q, c and, if they were compared, the tangent kernel and the gradients.

        Each of these checks has the error rate of one Gaussian at four standard errors (6e-5),
        whatever the number of cases; see :meth:`allowed`. The result is None, not True, if no q or
        c value was checked and nothing else deviates.
        """
        if not all(part.passed for part in self._parts) or self.deviating():
            return False
        return True if self.deviations else None

    @property
    def _parts(self) -> list[Judged]:
        """The tangent kernel check and the gradient check, if these quantities were compared."""
        return [part for part in (self.tangent, self.gradients) if part is not None]

    def largest_error(self, quantity: str = "c", width: int | None = None) -> float:
        """Return the largest standard error among the checked nodes.

        Parameters
        ----------
        quantity
            The name of the quantity: "c", "q", or another measured quantity.
        width
            The width to report. Defaults to the last one.

        Returns
        -------
        float
            The standard error, in the units of q or c.

        Raises
        ------
        KcalcError
            If no node is checked.

        """
        if not self.judged(width).any():
            raise KcalcError(UNJUDGED)
        return float(self.statistic(quantity, width).error[self.judged(width)].max())

    def _deviations(self, quantity: str) -> tuple[list[Array], list[Array]]:
        k = self.quantities.index(choice(quantity, "quantity", self.quantities))
        grown = np.all([self.judged(w) for w in self.widths], axis=0)
        if len(self.samples) > 1:
            grown &= np.ptp([sample.channels for sample in self.samples], axis=0) > 0
        if not grown.any():
            raise KcalcError(
                f"no node has {NARROW} or more channels at every width and grows with the width, "
                "so there is no power of the width to fit; pass more or larger widths="
            )
        own = [(s.means - s.expected)[:, grown, k].reshape(self.draws, -1) for s in self.samples]
        return own, [s.variances[:, grown, k].reshape(self.draws, -1) for s in self.samples]

    def fluctuation(self, quantity: str = "c") -> Power:
        """Return the RMS deviation of one pair in one network from the map, over all nodes.

        The deviation scales approximately like width^-1/2.

        Parameters
        ----------
        quantity
            The name of the quantity: "c", "q", or another measured quantity.

        Returns
        -------
        Power
            The value at each width, with the fitted power.

        """
        return root_mean_square(*self._deviations(quantity), numbers(self.widths))

    def bias(self, quantity: str = "c") -> Power:
        """Return the RMS of the mean deviation over nodes, corrected for noise.

        The result scales approximately like width^-1.

        Parameters
        ----------
        quantity
            The name of the quantity: "c", "q", or another measured quantity.

        Returns
        -------
        Power
            The value at each width, with the fitted power.

        """
        return bias(self._deviations(quantity)[0], numbers(self.widths))

    # -- display -----------------------------------------------------------------------------------

    def rows_of(self, quantity: str = "c", width: int | None = None) -> TextTable:
        """Return a table of one quantity with a row per node and case.

        The columns are the map, mean, fluctuation, standard error and z.

        Parameters
        ----------
        quantity
            The name of the quantity: "c", "q", or another measured quantity.
        width
            The width to report. Defaults to the last one.

        Returns
        -------
        TextTable
            A table that prints as text.

        """
        s = self.statistic(quantity, width)
        rows = [
            (str(node), f"{c:g}", *s.cells((i, j), ".6f"))
            for i, node in enumerate(self.nodes)
            for j, c in enumerate(self.c)
        ]
        head = ("node", "input c", "map", "mean", "fluctuation", "error", "z")
        return TextTable(head, tuple(rows))

    @property
    def rows(self) -> TextTable:
        """The table of c values at the last width."""
        return self.rows_of()

    def _frame(self) -> dict[str, Any]:
        parts: list[dict[str, Any]] = []
        for width, quantity in product(self.widths, self.quantities):
            s = self.statistic(quantity, width)
            cases: dict[str, Any] = {
                "node": np.array([*map(str, self.nodes)])[:, None],
                "input c": np.array(self.c),
            }
            of = {"quantity": quantity, "width": math.nan if width is None else width}
            parts.append(spread(of | cases | {name: getattr(s, name) for name in MEASURED}))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _powers(self, quantity: str) -> tuple[Power, Power]:
        """Return (fluctuation, bias); both are nan if no node is checked at all widths."""
        try:
            return self.fluctuation(quantity), self.bias(quantity)
        except KcalcError:
            nothing = Power(None, None, *2 * (tuple(math.nan for _ in self.widths),))
            return nothing, nothing

    def summary(self) -> TextTable:
        """Return a table with a row per quantity and width.

        The columns are the largest |z|, the standard error, the fluctuation and the bias. With
        several widths, another row gives the powers of the width with which the fluctuation and the
        bias scale. Rows for the tangent kernel and the gradients follow, relative to the theory.

        Returns
        -------
        TextTable
            A table that prints as text.

        """
        rows: list[tuple[str, ...]] = []
        for quantity in self.quantities:
            greatest = []
            for width in self.widths:
                s, judged = self.statistic(quantity, width), self.judged(width)
                z, error = np.abs(s.z[judged]), s.error[judged]
                greatest.append((_most(z), _most(error)))
            rows += _rows(quantity, self.widths, greatest, *self._powers(quantity))
        tangent, gradients = self.tangent, self.gradients
        if tangent is not None:
            greatest = [
                (np.abs(s.z).max(), (s.error / tangent.size(width)).max())
                for width, s in zip(tangent.widths, tangent.compared.values(), strict=True)
            ]
            powers = tangent.fluctuation, tangent.gap
            rows += _rows("NTK, relative", tangent.widths, greatest, *powers)
        for name, s in ({} if gradients is None else gradients.modes).items():
            known = s.expected > 0
            error, off, one = (
                values[known] / s.expected[known]
                for values in (s.error, s.mean - s.expected, s.std)
            )
            powers = (
                Power(None, None, (np.sqrt((v**2).mean()) if v.size else math.nan,), ())
                for v in (one, off)
            )
            mode = f", {name}" if len(gradients.modes) > 1 else ""  # pyright: ignore[reportOptionalMemberAccess]
            greatest = [(np.nanmax(np.abs(s.z)), _most(error))]
            rows += _rows(f"gradients{mode}, relative", (gradients.width,), greatest, *powers)  # pyright: ignore[reportOptionalMemberAccess]
        return TextTable(
            ("", "width", "greatest |z|", "greatest error", "deviation of one draw", "of the mean"),
            tuple(rows),
        )

    def _worst_check(self) -> Judged | None:
        """The tangent kernel or gradient check that deviates most; None if q or c deviates more."""
        most = abs(self.worst.z) / self.allowed() if self.deviations else 0.0
        worst = max(self._parts, key=lambda part: part.worst / part.allowed, default=None)
        return worst if worst is not None and worst.worst / worst.allowed > most else None

    def _verdict(self) -> str:
        said = {True: "passed", False: "deviates", None: "nothing judged"}[self.passed]
        of = f"{self.draws} draws x {self.pairs} {'pair' if self.pairs == 1 else 'pairs'}: {said}"
        part = self._worst_check()
        if part is not None and (self.deviations or not part.passed):
            return f"{of}; worst: {part.worst_text} (allowed |z| {part.allowed:.1f})"
        if not self.deviations:
            return f"{of} ({UNJUDGED})"
        count = (
            "1 comparison" if len(self.deviations) == 1 else f"{len(self.deviations)} comparisons"
        )
        return (
            f"{of}; worst: {self.worst} ({count}, allowed |z| {self.allowed():.1f}, p = "
            f"{self.p:.2g})"
        )

    def __str__(self) -> str:
        return f"{self._verdict()}\n{self.summary()}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._verdict())}</p>{self.summary()._repr_html_()}"

    def __repr__(self) -> str:
        part = self._worst_check()
        worst = f"worst |z| {abs(self.worst.z):.2f}" if self.deviations else "no node judged"
        if part is not None and self.deviations:
            worst = f"worst |z| {part.worst:.2f} of {part.what}"
        said = {True: ", passed", False: ", deviates", None: ""}[self.passed]
        return (
            f"KernelCheck({len(self.nodes)} nodes, widths {self.widths}, {self.draws} draws, "
            f"{worst}{said})"
        )

    def plot(self, ax: Sequence[Axes] | None = None) -> Figure:
        """Plot q and c values by layer with their fluctuations and the maps.

        Parameters
        ----------
        ax
            The Matplotlib Axes to draw on. By default, a new figure is made.

        Returns
        -------
        Figure
            The Matplotlib figure.

        """
        return DRAWINGS["KernelCheck"](self, ax)

    def to_dict(self) -> dict[str, Any]:
        """Convert everything except the individual draws to plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        values = {
            quantity: [
                {"width": width} | {name: getattr(s, name) for name in MEASURED}
                for width in self.widths
                for s in [self.statistic(quantity, width)]
            ]
            for quantity in self.quantities
        }
        powers = {
            q: dict(zip(("fluctuation", "bias"), map(power_dict, self._powers(q)), strict=True))
            for q in self.quantities
        }
        notes = [{"node": str(a.node), "kind": a.kind, "text": a.text} for a in self.assumptions]
        names = ("nodes", "c", "q1", "q2", "draws", "pairs")
        out = {"passed": self.passed, "allowed": self.allowed()}
        out |= {name: getattr(self, name) for name in names} | {"nodes": [*map(str, self.nodes)]}
        if self.tokens is not None:
            out |= {"tokens": self.tokens.count, "token_cosine": self.tokens.cosine}
        out |= {"values": values, "powers": powers, "assumptions": notes}
        if self.tangent is not None:
            found = {"fluctuation": self.tangent.fluctuation, "gap": self.tangent.gap}
            out["tangent"] = {"passed": self.tangent.passed} | {
                name: power_dict(power) for name, power in found.items()
            }
        if self.gradients is not None:
            modes = self.gradients.to_dict()
            out["gradients"] = modes.pop("each token")
            if modes:
                out["gradient_modes"] = modes
        return plain(out | ({} if self.jacobians is None else {"jacobians": self.jacobians}))


def _cell(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _most(values: Array) -> float:
    return float(values.max()) if values.size else math.nan


def _rows(
    name: str,
    widths: Sequence[int | None],
    greatest: Sequence[tuple[float, float]],
    spread: Power,
    mean: Power,
) -> list[tuple[str, ...]]:
    """Make a row of the summary for each width and, for several widths, a row with the powers.

    ``greatest``: the largest |z| and the largest standard error at each width.
    """
    rows = [
        (
            name,
            "" if width is None else str(width),
            _cell(z, ".2f"),
            *(_cell(value, ".2g") for value in sizes),
        )
        for width, (z, error), *deviations in zip(
            widths, greatest, spread.values, mean.values, strict=True
        )
        for sizes in [(error, *deviations)]
    ]
    return [*rows, (name, "power", "", "", str(spread), str(mean))] if len(widths) > 1 else rows
