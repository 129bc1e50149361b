"""``kc.fluctuations``: fluctuations of q and c values in random networks of finite width.

In such networks, q and c scatter around the values that the kernel maps predict.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...fields.arguments import one_cosine, one_q
from ...foundation.errors import KcalcError
from ...foundation.guests import DRAWINGS
from ...foundation.keyed import Keyed
from ...foundation.plain_arguments import choice
from ...foundation.printing import Rows, Shown, filled_columns, marked, plain
from ...foundation.process_state import cached_property
from ...maps.maps import Approximable, Assumption
from ...network.compose import require_network
from ...network.network import Network, require_numbers
from ...network.primitives import Fresh, Post, owner
from ..widths import with_widths
from .channels import SAMPLES, ChannelKernels
from .homogeneous import chain_fluctuations, is_chain
from .propagation import Propagation
from .reading import FunctionRules
from .tangent import TangentVariance, q_shifts, tangent_variance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Node = Hashable
WEIGHTS = ("gaussian", "orthogonal")
LARGE = 0.25
LEAST, MOST = 1e-60, 1e60  # range of q values of inputs


@dataclass(frozen=True)
class Fluctuation:
    """The q value of a node and its variance over random weights.

    Attributes
    ----------
    q
        The q value at infinite width.
    relative
        Var q / q^2.
    log_variance
        Var log q.
    c
        The c value at infinite width; None for one input.
    c_variance
        Var c; None for one input.

    """

    q: float
    relative: float
    log_variance: float
    c: float | Any = None
    c_variance: float | Any = None


@dataclass(frozen=True, repr=False)
class Fluctuations(Keyed[Fluctuation], Shown, Approximable):
    """Variances of q values (and c values) over random weights, for every node at finite width.

    Attributes
    ----------
    q
        The mean square of the inputs.
    exact
        Whether ``relative`` and ``log_variance`` are exact at any width (chains of positively
        homogeneous activations). Otherwise both are computed to leading order in 1/width, where
        they are equal.

    """

    network: Network
    weights: str
    nodes: dict[Node, Fluctuation]
    exact: bool
    assumptions: tuple[Assumption, ...]
    q: float
    most = 40

    @property
    def out(self) -> Fluctuation:
        """The fluctuations at the output (the last output, if there are several)."""
        return self.nodes[self.network.outputs[-1]]

    @cached_property
    def tangent_variance(self) -> TangentVariance:
        """Var Theta / (E Theta)^2 for the tangent kernel of one input, to order 1/width.

        The computation supports Gaussian weights, dense layers, activations of their outputs, and
        sums of a stream with outputs of dense layers. Raises: KcalcError naming the node where the
        calculus stops.
        """
        if self.weights != "gaussian":
            raise KcalcError(
                "the variance of the tangent kernel is available only for Gaussian weights; call "
                "kc.fluctuations(net, weights='gaussian')"
            )
        return tangent_variance(self.network, self.q)

    @cached_property
    def q_shift(self) -> dict[Node, float]:
        """{node: mean q value minus q value at infinite width}, to first order in 1/width.

        Raises: KcalcError naming the node where the calculus stops.
        """
        return q_shifts(
            self.network, self.q, {n: f.relative * f.q**2 for n, f in self.nodes.items()}
        )

    @property
    def _entries(self) -> dict[Node, Fluctuation]:
        return self.nodes

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw Var log q over the nodes.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["Fluctuations"]({"": self}, ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "weights": self.weights,
            "q": self.q,
            "exact": self.exact,
            "nodes": {str(n): asdict(f) for n, f in self.nodes.items()},
            "assumptions": plain(self.assumptions),
        }

    def _frame(self) -> list[dict[str, Any]]:
        return [{"node": str(node)} | asdict(found) for node, found in self.nodes.items()]

    def _rows(self) -> Rows:
        body = (
            (str(n), *(("" if v is None else f"{v:.6g}") for v in asdict(f).values()))
            for n, f in self.nodes.items()
        )
        return filled_columns([("node", "q", "Var q/q^2", "Var log q", "c", "Var c"), *body])

    def _below(self) -> list[str]:
        return [f"inputs: q = {self.q:.6g}"]

    def __repr__(self) -> str:
        how = "exact" if self.exact else "leading order"
        about = (
            f"{len(self.nodes)} nodes, {self.weights}, Var log q = {self.out.log_variance:.4g} at "
            f"the output, {how}"
        )
        return f"Fluctuations({marked(about, self)})"


def fluctuations(
    network: Network, features: Any = None, weights: str = "gaussian", q: Any = 1, c: Any = None
) -> Fluctuations:
    """Compute Var q / q^2, Var log q and Var c at every node of a network of finite width.

    Weights are Gaussian or orthogonal, and any activation may be used.

    To leading order in 1/width, a layer of n channels maps v = Var q / q^2 to (q Q'/Q)^2 v + (E
    phi^4/Q^2 - 1)/n. Orthogonal weights subtract 2 (q Q'/Q)^2/n (times outputs/inputs in layers
    with fewer outputs than inputs). Sums and concatenations need the covariances between all
    feature maps in use. The relative error of the leading order is about depth/width. Results for q
    are exact in chains of positively homogeneous activations: each layer multiplies 1 + v by 1 + (E
    phi^4/(E phi^2)^2 - 1)/n, and the contributions of the layers to Var log q add up. Var log q is
    conditional on no layer being all 0 (n rectified values are all 0 with probability 2^-n).

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    features
        One width, or {node: width}, for layers whose width is not set.
    weights
        The distribution of the weights, "gaussian" or "orthogonal".
    q
        The mean square of all inputs.
    c
        The cosine between two inputs; None means one input and no c values.

    Returns
    -------
    Fluctuations
        The variances at every node.

    Raises
    ------
    KcalcError
        For missing widths, other weight distributions, layers without a rule (NoRule), symbols, and
        invalid q or c.

    References
    ----------
    [DKS App. K; TAT App. E and Fig. 4; Per-layer gradient, Lemma 2]

    """
    require_network(network)
    choice(weights, "weights", WEIGHTS)
    sized = with_widths(network, features)
    require_numbers(sized)
    level, cosine = one_q(q), None if c is None else one_cosine(c)
    if not LEAST <= level <= MOST:
        raise KcalcError(
            f"q = {level:g} is too large or too small to be squared in double precision; use a "
            f"value between {LEAST:g} and {MOST:g}"
        )
    reading = FunctionRules(sized)
    groups = reading.run()
    channels = ChannelKernels(level, cosine, weights == "orthogonal")
    found = Propagation(reading.functions, groups, channels).run()
    exact = is_chain(sized) and (weights == "gaussian" or _never_narrower(sized))
    chain = chain_fluctuations(sized, weights == "orthogonal") if exact else {}
    nodes = {node: _fluctuation(*found[node], chain.get(node)) for node, _, _ in sized.steps()}
    notes = tuple(_assumptions(sized, weights, nodes, exact, channels))
    return Fluctuations(sized, weights, nodes, exact, notes, level)


def _fluctuation(
    q: float, c: float | None, spread: np.ndarray, chain: tuple[float, float] | None
) -> Fluctuation:
    relative = max(float(spread[0, 0]), 0.0) / q**2
    log_variance = relative
    if chain is not None:
        relative, log_variance = math.expm1(min(chain[0], 700.0)), chain[1]
    if c is None:
        return Fluctuation(q, relative, log_variance)
    slope = np.array([-c / 2, 1.0, -c / 2]) / q
    return Fluctuation(q, relative, log_variance, c, max(float(slope @ spread @ slope), 0.0))


def _never_narrower(network: Network) -> bool:
    return all(op.features >= op.reads for _, op, _ in network.operations if isinstance(op, Fresh))


def _dead(network: Network) -> list[str]:
    """Return the assumption that no layer outputs only zeros; empty if this is nearly certain."""
    silent: list[float] = []
    for node, op, _ in network.operations:
        if isinstance(op, Post):
            sides = [float(abs(op.activation(x))) for x in (-1.0, 1.0)]
            silent += [2.0 ** -int(network.features[owner(node)] or 1)] if 0.0 in sides else []
    total = sum(silent)
    return (
        [
            "Var log q is conditional on no layer being entirely 0; the probability of the other "
            f"draws is at most {total:.3g}"
        ]
        if total > 1e-12
        else []
    )


def _assumptions(
    network: Network,
    weights: str,
    nodes: dict[Node, Fluctuation],
    exact: bool,
    channels: ChannelKernels,
) -> list[Assumption]:
    size = f"the inputs have q = {channels.q:.6g}"
    notes = [
        Assumption("network", f"weights are {weights} and independent across layers; {size}"),
        *network.assumptions,
    ]
    if exact:
        notes.append(
            Assumption(
                "network",
                "in a chain of positively homogeneous activations, the variances of q are exact "
                "at any width",
                "exact",
            )
        )
        notes += [Assumption("network", text, "exact") for text in _dead(network)]
    if not exact or channels.c is not None:
        what = "variances of c are" if exact else "variances are"
        notes.append(Assumption("network", f"{what} computed to leading order in 1/width"))
        far = max(
            nodes,
            key=lambda node: max(
                nodes[node].relative if not exact else 0.0, nodes[node].c_variance or 0.0
            ),
        )
        worst = max(nodes[far].relative if not exact else 0.0, nodes[far].c_variance or 0.0)
        if worst > LARGE:
            text = (
                f"variances reach {worst:.3g}, which is not small: the leading order is only a "
                "rough estimate; it improves with width"
            )
            notes.append(Assumption(far, text, "heuristic"))
    if channels.sampled:
        text = (
            f"covariances between feature maps that share Gaussians are estimated from {SAMPLES} "
            "sampled channels, with an error of about 1%"
        )
        notes.append(Assumption("network", text))
    return notes
