"""The result of ``smoothness``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...fields.arguments import one_number
from ...foundation.errors import KcalcError
from ...foundation.guests import DRAWINGS
from ...foundation.printing import Shown, plain, text_table
from ...foundation.process_state import cached_property
from ...maps.maps import Assumption
from ...network.network import Network
from .hypotheses import Hypothesis
from .logs import NONE, Gain, number, plus, shown
from .losses import Loss
from .lower import PathPiece
from .parameters import ParameterSet
from .upper import Bound

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Node = Hashable
_HEAD = ("layer", "|W|", "|DP|", "|Df|", "sigma(J) >=", "|J| <=", "part of lambda")


@dataclass(frozen=True)
class LayerBound:
    """Bounds on one Affine layer.

    ``set``: its parameters. The other fields are natural logs. ``own`` >= |Df|, where Df is the
    derivative of the layer with respect to its parameters, for all examples together; ``gain``:
    bounds on the Jacobian from the layer to the output; ``sigma``: the smallest singular value of
    the data that the layer reads; ``least`` <= the smallest singular value of Df.
    """

    node: Node
    set: ParameterSet
    own: float
    gain: Gain
    sigma: float
    least: float

    @property
    def part(self) -> float:
        """The log of lambda(Df) prod lambda(Jf), the layer's term in Prop. 4.6."""
        return 2 * (self.least + self.gain.smallest)

    @property
    def lipschitz(self) -> float:
        """A bound on the derivative of F with respect to the layer's parameters."""
        return number(self.own + self.gain.largest)


@dataclass(frozen=True, eq=False, repr=False)
class Smoothness(Shown):
    """Bounds on the map F from parameters to outputs on the data, and on the loss.

    Norms of F are Frobenius norms. The bounds hold over the parameter set that ``assumptions``
    describes. The attributes below are natural logarithms, so that deep networks do not overflow.
    The properties are plain numbers, inf if they overflow (the printed text uses powers of ten).

    The result prints as a table of the Affine layers. ``|W|`` is an upper bound on the spectral
    norm of the weights. ``|DP|`` and ``|Df|`` are upper bounds on operator norms for all data: DP
    is the derivative of W = P(w) with respect to the parameters w, and Df is the derivative of the
    layer with respect to its parameters. ``sigma(J)`` and ``|J|`` bound the singular values of the
    Jacobian from the layer to the output from below and above. ``part of lambda`` is the layer's
    term in the lower bound of lambda(DF).

    Attributes
    ----------
    bounds
        The bounds on F and on the loss.
    gains
        The bounds on the Jacobians between layers.
    pieces
        The bounds on the pieces of the network.
    layers
        The bounds on the Affine layers.

    """

    network: Network
    output: Node
    examples: int
    loss: Loss
    bounds: Mapping[Node, Bound]
    gains: Mapping[Node, Gain]
    pieces: tuple[PathPiece, ...]
    layers: Mapping[Node, LayerBound]
    residual: float | None
    rough: Mapping[Node, str]
    hypotheses: tuple[Hypothesis, ...]
    notes: tuple[Assumption, ...]
    most = 20

    # -- upper bounds ------------------------------------------------------------------------------

    @property
    def input_lipschitz(self) -> dict[Node, float]:
        """{input: Lipschitz constant of the output for that input}, for any fixed parameters."""
        return {
            node: number(float(value)) for node, value in self.bounds[self.output].inputs.items()
        }

    @property
    def parameter_lipschitz(self) -> float:
        """A bound on |DF|, for all examples together."""
        return number(float(self.bounds[self.output].slope[0]))

    @property
    def parameter_curvature(self) -> float:
        """A bound on |D^2 F|, which is a Lipschitz constant of DF.

        Raises: KcalcError if DF is not Lipschitz, naming node and reason.
        """
        self._require_smooth()
        return number(float(self.bounds[self.output].bend[0]))

    @property
    def size(self) -> float:
        """A bound on |F|, for all examples together."""
        return number(float(self.bounds[self.output].size[0]))

    @cached_property
    def log_beta(self) -> float:
        """The log of :attr:`beta`."""
        self._require_smooth()
        if self.residual is None:
            raise KcalcError(
                f"the curvature of the loss {self.loss.name!r} grows with the residual; pass "
                "level= (a bound on the loss) or targets="
            )
        out = self.bounds[self.output]
        first = math.log(self.loss.curvature) + 2 * float(out.slope[0])
        return float(plus(first, self.residual + float(out.bend[0]))) - math.log(self.examples)

    @property
    def beta(self) -> float:
        """A Lipschitz constant of the loss's gradient.

        The constant is ``(sup|D^2 c| |DF|^2 + |D gamma| N |D^2 F|) / N``.

        It is valid on the parameter set and, with ``level``, on its sublevel set. Raises:
        KcalcError if some derivative is not Lipschitz, or if neither level nor targets bound the
        residual.
        """
        return number(self.log_beta)

    @property
    def step_size(self) -> float:
        """The bound 2 / beta on the learning rate [Theorem 2.3].

        Any smaller learning rate decreases the loss at every step that stays in the parameter set.
        """
        return number(math.log(2) - self.log_beta)

    def _require_smooth(self) -> None:
        if self.rough:
            node, why = next(iter(self.rough.items()))
            raise KcalcError(
                f"node {node!r}: {why}; the gradient of the loss is not Lipschitz, so beta and "
                "the step size do not exist"
            )

    # -- lower bounds ------------------------------------------------------------------------------

    @cached_property
    def log_regularity(self) -> float:
        """The log of :attr:`regularity`."""
        parts = [layer.part for layer in self.layers.values() if layer.part > NONE]
        return float(plus(*parts)) if parts else NONE

    @property
    def regularity(self) -> float:
        """A lower bound on lambda(DF), the smallest eigenvalue of DF DF^T.

        The bound is ``sum_l lambda(Df_l) prod_(j>l) lambda(Jf_j)`` [Prop. 4.6].
        """
        return number(self.log_regularity)

    @property
    def ingredients(self) -> dict[Node, dict[str, float]]:
        """{layer: its contribution to lambda(DF), and the factors of this contribution}.

        The factors are the smallest singular values of the layer's data, of DP, of Df, and of the
        Jacobian from the layer to the output.
        """
        return {
            node: {
                "sigma_data": number(one.sigma),
                "least_first": one.set.least_first,
                "least_derivative": number(one.least),
                "least_jacobian": number(one.gain.smallest),
                "part": number(one.part),
            }
            for node, one in self.layers.items()
        }

    @property
    def blocks(self) -> dict[tuple[Node, Node], tuple[float, float]]:
        """{(entry, exit): (lower, upper) bounds on the singular values of d exit / d entry}.

        Entry and exit are consecutive nodes that every path crosses.
        """
        return {
            (p.entry, p.exit): (number(p.gain.smallest), number(p.gain.largest))
            for p in self.pieces
        }

    @property
    def pl_constant(self) -> float | None:
        """The constant mu lambda in ``|grad l|^2 >= mu lambda (l - inf gamma)`` [Theorem 2.4].

        The inequality holds over the parameter set. The constant is None for losses without a mu.
        """
        if self.loss.pl is None:
            return None
        return self.loss.pl / self.examples * self.regularity

    def rate(self, step: Any = None) -> float:
        """The factor by which l - l* shrinks per step.

        The factor is ``1 - mu lambda eta (1 - beta eta / 2)``, with eta = 1/beta by default
        [Theorem 2.3].

        The rate holds as long as descent stays in the parameter set.

        Parameters
        ----------
        step
            The step size eta, in (0, 2/beta); None means 1/beta.

        Returns
        -------
        float
            The factor per step. The loss decreases if it is below 1.

        Raises
        ------
        KcalcError
            For eta outside (0, 2/beta), and if beta or mu does not exist.

        """
        if self.pl_constant is None:
            raise KcalcError(f"the loss {self.loss.name!r} has no PL constant: {self.loss.remark}")
        eta = self.step_size / 2 if step is None else one_number(step, "step")
        if not 0 < eta < self.step_size:
            raise KcalcError(
                f"the step must lie in (0, 2/beta) = (0, {self.step_size:.6g}), got {eta}"
            )
        return 1 - self.pl_constant * eta * (1 - self.beta * eta / 2)

    # -- display -----------------------------------------------------------------------------------

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The parameter set, the assumptions of the rules, and the hypotheses."""
        kinds = {True: "exact", False: "heuristic", None: "convention"}
        return (
            *self.notes,
            *(
                Assumption("network", f"{h.name}: {h.text}", kinds[h.holds])
                for h in self.hypotheses
            ),
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the bounds on the Jacobian from every layer to the output.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["Smoothness"](self, ax=ax)

    def _value_or_none(self, name: str) -> float | None:
        try:
            return getattr(self, name)
        except KcalcError:
            return None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data.

        Constants that do not exist are None, and large numbers are stored as logarithms.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        out = self.bounds[self.output]
        logs = {
            "input_lipschitz": {str(n): float(v) for n, v in out.inputs.items()},
            "parameter_lipschitz": float(out.slope[0]),
        }
        logs |= {"beta": self._value_or_none("log_beta"), "regularity": self.log_regularity}
        rows = [
            {
                "node": str(n),
                "spectral": one.set.spectral,
                "first": one.set.first,
                "second": one.set.second,
                "log_derivative": one.own,
                "log_smallest": one.gain.smallest,
                "log_largest": one.gain.largest,
                "log_part": one.part,
            }
            for n, one in self.layers.items()
        ]
        found = {
            "output": str(self.output),
            "examples": self.examples,
            "loss": self.loss.name,
            "parameter_curvature": self._value_or_none("parameter_curvature"),
            "step_size": self._value_or_none("step_size"),
            "pl_constant": self.pl_constant,
            "logs": logs,
            "layers": rows,
            "hypotheses": [
                {"name": h.name, "holds": h.holds, "text": h.text} for h in self.hypotheses
            ],
            "assumptions": plain(self.assumptions),
        }
        return _finite(found)

    def _frame(self) -> list[dict[str, Any]]:
        return self.to_dict()["layers"]

    def _rows(self) -> list[tuple[str, ...]]:
        body = [
            (
                str(n),
                f"{one.set.spectral:.4g}",
                f"{one.set.first:.4g}",
                shown(one.own),
                shown(one.gain.smallest),
                shown(one.gain.largest),
                shown(one.part),
            )
            for n, one in self.layers.items()
        ]
        return [_HEAD, *body]

    def _below(self) -> list[str]:
        out = self.bounds[self.output]
        lines = [(f"Lipschitz in {node}", shown(float(v))) for node, v in out.inputs.items()]
        lines += [
            ("|DF| <=", shown(float(out.slope[0]))),
            ("lambda(DF) >=", shown(self.log_regularity)),
        ]
        lines += [("|D2F| <=", "none" if self.rough else shown(float(out.bend[0])))]
        beta = self._value_or_none("log_beta")
        lines += [
            ("beta", "none" if beta is None else shown(beta)),
            ("step size <", "none" if beta is None else shown(math.log(2) - beta)),
        ]
        pl = "none" if self.pl_constant is None else f"{self.pl_constant:.5g}"
        lines += [(f"PL constant, {self.loss.name}", pl)]
        return ["", *text_table(lines).splitlines(), "", *map(str, self.hypotheses)]

    def __repr__(self) -> str:
        out = self.bounds[self.output]
        return (
            f"Smoothness({len(self.layers)} layers, |DF| <= {shown(float(out.slope[0]))}, "
            f"lambda(DF) >= {shown(self.log_regularity)})"
        )


def _finite(value: Any) -> Any:
    """Plain data in which infinities and nan are text."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
