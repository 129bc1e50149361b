"""Depth profiles: the stream, branches, tokens, scores and gradients at each block."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calculi.attention.gradients import SampledGradients, gradients_at
from ..calculi.attention.sampling import Sampling, read_sampling
from ..calculi.attention.softmax_rows import chi_squared, factor
from ..calculi.attention.values import SampledValues, with_error
from ..fields.arguments import cosine_array, one_q
from ..foundation.errors import KcalcError
from ..foundation.guests import DRAWINGS, SHAPING, MissingGuest
from ..foundation.plain_arguments import truth
from ..foundation.printing import Tabled, html_table, marked, plain, shown, text_table
from ..gaussian.softmax import row_entropy
from ..maps.maps import Approximable, Assumption
from ..network import primitives as P
from ..network.compose import require_network
from ..network.layers import Attend, Sum
from ..network.network import Network, chosen_output, sum_weights
from .traces import DepthTrace, depth_trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Node = Hashable
Array = np.ndarray
SCORES = ("score_variance", "entropy")
AROUND = 3  # number of neighbouring blocks in the estimate of the error of a block
ROUNDING = 1e-12  # values with a smaller relative error count as exact
COLUMNS = (
    "q",
    "branch",
    "token_cosine",
    "c",
    *SCORES,
    "gradient_mean",
    "gradient_difference",
    "stream_q",
    "stream_gradient",
)


@dataclass(frozen=True, repr=False, eq=False)
class DepthProfile(Tabled, Approximable):
    """Quantities of a network after each of its blocks, as arrays of shape (blocks + 1,).

    Row 0 is the stream before the first block, with nan for quantities that belong to a block.
    Quantities that do not apply to the network are None. With several residual streams
    (:func:`kcalc.architectures.hyper_connected`), a row is a sub-layer and the stream is the mean
    of all streams; ``gradient_mean`` and ``gradient_difference`` refer to the sum of the gradients
    of all streams.

    Attributes
    ----------
    nodes
        The node to which each row belongs.
    q
        The mean square of the stream.
    branch
        The mean square that the branches of the block add to the stream, with their weights in the
        sums of the trunk.
    token_cosine
        The cosine between two tokens of one input.
    c
        The cosine between two inputs at the same position; shape (blocks + 1, cosines) for several
        cosines.
    score_variance
        The variance of the attention scores of a row about their mean, which is ``G_s (H_s - H_d)``
        for exchangeable tokens.
    entropy
        The expected entropy of a row of softmax weights in nats, at most ``ln T``. If a block has
        several attention layers, this and ``score_variance`` are means over them.
    gradient_mean, gradient_difference
        The two modes of ``E|d out / d node|^2`` as in :func:`kcalc.gradients`. Without tokens,
        these are the squared gradient and None.
    errors
        {name: standard errors} if attention is sampled. Attributes such as ``q_error`` return them.
    assumptions
        The assumptions of the values.
    stream_q, stream_gradient
        The mean square of each stream and ``E|d out / d stream|^2``, shape (sub-layers + 1,
        streams).
    forgetting_rate
        The factor lambda_2 per sub-layer by which differences between streams shrink. It is the
        second largest eigenvalue modulus of H. If H varies, it is the second largest eigenvalue
        modulus of the product of the L matrices H, to the power 1/L.
    half_life
        The number of sub-layers that halve these differences, ``ln 2 / -ln lambda_2``.

    """

    nodes: tuple[Node, ...]
    q: Array
    branch: Array
    token_cosine: Array | None
    c: Array
    score_variance: Array | None
    entropy: Array | None
    gradient_mean: Array | None
    gradient_difference: Array | None
    errors: Mapping[str, Array]
    assumptions: tuple[Assumption, ...]
    stream_q: Array | None = None
    stream_gradient: Array | None = None
    forgetting_rate: float | None = None
    half_life: float | None = None

    def __getattr__(self, name: str) -> Any:
        """Return standard errors such as ``q_error``; None if the values are exact."""
        if name.endswith("_error") and name.removesuffix("_error") in COLUMNS:
            return self.errors.get(name.removesuffix("_error"))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def columns(self) -> dict[str, Array]:
        """Return {name: values} for the quantities that apply to the network."""
        found = {name: getattr(self, name) for name in COLUMNS}
        return {name: array for name, array in found.items() if array is not None}

    def plot(self, ax: Sequence[Axes] | None = None) -> Figure:
        """Plot sizes, cosines, scores and gradients over the blocks, in two to four panels.

        Parameters
        ----------
        ax
            A sequence of Axes, one per panel; None creates a new figure.

        Returns
        -------
        Figure
            A Matplotlib figure.

        """
        return DRAWINGS["DepthProfile"](self, ax)

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain data; values that are not finite become None.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        errors = {f"{name}_error": array for name, array in self.errors.items()}
        mixing = {
            name: number
            for name in ("forgetting_rate", "half_life")
            if (number := getattr(self, name)) is not None
        }
        return plain(
            {"nodes": self.nodes, **self.columns, **errors, **mixing}
            | {"assumptions": self.assumptions}
        )

    def _frame(self) -> dict[str, Any]:
        out: dict[str, Any] = {"node": [str(node) for node in self.nodes]}
        for name, array in self.columns.items():
            wide = array if array.ndim == 2 else array[:, None]
            for k in range(wide.shape[1]):
                out[name if wide.shape[1] == 1 else f"{name}_{k + 1}"] = wide[:, k]
        return out | {f"{name}_error": array for name, array in self.errors.items()}

    def _rows(self) -> list[tuple[str, ...]]:
        texts = [[str(node) for node in self.nodes]]
        for name, array in self.columns.items():
            errors = self.errors.get(name, np.zeros(len(self.nodes)))
            texts.append(
                [
                    shown(value)
                    if np.ndim(value)
                    else ""
                    if np.isnan(value)
                    else with_error(float(value), float(error))
                    for value, error in zip(array, errors, strict=True)
                ]
            )
        head = ("node", *(name.replace("_", " ") for name in self.columns))
        return [head, *zip(*texts, strict=True)]

    def __repr__(self) -> str:
        return f"DepthProfile({marked(f'{len(self.nodes) - 1} blocks', self)})"

    def __str__(self) -> str:
        if self.forgetting_rate is None:
            return text_table(self._rows())
        return (
            f"{text_table(self._rows())}\nforgetting rate lambda_2 = {self.forgetting_rate:.6g} "
            f"per sub-layer, half-life {self.half_life:.4g} sub-layers"
        )

    def _repr_html_(self) -> str:
        return html_table(self._rows(), repr(self))


def depth_profile(
    network: Network,
    c: Any = 0.0,
    *,
    q: float = 1.0,
    tokens: Any = None,
    token_cosine: float | None = None,
    sampling: Sampling | None = None,
    output: Node | None = None,
    backward: bool = True,
) -> DepthProfile:
    """Compute sizes, cosines, scores and gradients of a network, block by block.

    Blocks are the repeated pieces of the trunk, and pieces that end in a residual sum; attention
    and its MLP form one block. For a network without blocks, the rows are the nodes on all paths.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    c
        The cosine between two inputs: a scalar or an array.
    q
        The mean square of the inputs.
    tokens, token_cosine, sampling
        As in :func:`kcalc.node_values`. If attention is sampled, values have standard errors and
        ``c`` must be a scalar.
    output
        The output whose gradients are computed; required if there are several.
    backward
        Whether to compute gradients.

    Returns
    -------
    DepthProfile
        Every quantity, before the first block and after each block.

    Raises
    ------
    KcalcError
        In the same cases as :func:`kcalc.node_values`.

    """
    require_network(network)
    cosines = np.asarray(cosine_array(c))
    if cosines.size == 0 or cosines.ndim > 1:
        raise KcalcError(
            f"c must be a cosine or a list of cosines, got an array of shape {cosines.shape}"
        )
    sampling = None if sampling is None else read_sampling(sampling)
    options = {"tokens": tokens, "token_cosine": token_cosine, "sampling": sampling}
    several = _of_streams(network, cosines, float(one_q(q)), options, output, backward)
    if several is not None:
        return several
    trace = depth_trace(network, np.atleast_1d(cosines).ravel(), float(one_q(q)), **options)
    rows = trace.blocks
    scores, score_errors = _scores(network, trace, tokens)
    modes, mode_errors, notes = (
        _modes(network, trace, chosen_output(network, output), q, options)
        if truth(backward, "backward")
        else ({}, {}, ())
    )
    token_cosines = None if trace.token_cosine is None else trace.token_cosine[rows]
    errors = {name: array[rows] for name, array in trace.errors.items()}
    if errors:  # treat the errors of branches as fully correlated
        errors["branch"] = _branches(network, trace, trace.errors["q"])
    found = DepthProfile(
        tuple(trace.nodes[i] for i in rows),
        trace.q[rows],
        _branches(network, trace, trace.q),
        token_cosines,
        trace.values[rows, 0] if cosines.ndim == 0 else trace.values[rows],
        scores.get("score_variance"),
        scores.get("entropy"),
        modes.get("mean"),
        modes.get("difference"),
        errors | score_errors | mode_errors,
        (*trace.assumptions, *notes),
    )
    if sampling is not None and sampling.error is None:
        return found
    sizes = _sizes(found.columns)
    levelled = {name: _levelled(sizes[name], array) for name, array in found.errors.items()}
    return replace(found, errors=levelled)


def _of_streams(network: Network, *arguments: Any) -> DepthProfile | None:
    """Return the profile of a network with several streams; None for other networks."""
    try:
        guest = SHAPING["profile of streams"]
    except MissingGuest:
        return None
    found = guest(network, *arguments)
    return None if found is None else DepthProfile(**found)


def _sizes(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return the scale of errors: 1 for cosines; for gradients, the larger of the two modes."""
    own = {
        name: np.abs(array if array.ndim == 1 else array[:, 0]) for name, array in columns.items()
    }
    ones = {name: np.ones(len(own[name])) for name in ("c", "token_cosine") if name in own}
    modes = [name for name in ("gradient_mean", "gradient_difference") if name in own]
    greater = np.fmax.reduce([own[name] for name in modes]) if modes else None
    sizes: dict[str, Any] = {**own, **ones, **dict.fromkeys(modes, greater)}
    return sizes


def _levelled(sizes: Array, errors: Array) -> Array:
    """Increase errors from few chains to at least the root mean square of neighbouring errors.

    Chains that agree by chance at one block rarely agree at its neighbours. The mean is over errors
    relative to ``sizes``; exact values stay exact.
    """
    rows = np.flatnonzero((sizes > 0) & (errors > ROUNDING * sizes))
    squares, out = (errors[rows] / sizes[rows]) ** 2, errors.copy()
    for place, row in enumerate(rows):
        around = squares[max(0, place - AROUND) : place + AROUND + 1].mean()
        out[row] = max(errors[row], float(around**0.5 * sizes[row]))
    return out


def trunk_sums(network: Network) -> dict[Node, tuple[tuple[Node, Any], list[tuple[Node, Any]]]]:
    """Return {sum on the trunk: ((shortcut, its weight), [(branch, its weight), ...])}.

    The shortcut is the addend with the fewest nodes on its longest path from an input.
    """
    level: dict[Node, int] = {}
    for node, _, parents in network.steps():
        level[node] = 1 + max((level[parent] for parent in parents), default=0)
    out = {}
    for node in network.cut_nodes():
        layer = network.layer(node)
        if isinstance(layer, Sum) and len(network.parents(node)) > 1:
            addends = list(
                zip(
                    network.parents(node),
                    sum_weights(layer, len(network.parents(node))),
                    strict=True,
                )
            )
            shortcut = min(addends, key=lambda addend: level[addend[0]])
            out[node] = (shortcut, [addend for addend in addends if addend is not shortcut])
    return out


def _of_blocks(trace: DepthTrace, values: Mapping[Node, float], mean: bool) -> Array:
    """Return sums or means of node values over each block; nan for blocks without such nodes."""
    row = {node: i for i, node in enumerate(trace.nodes)}
    held: list[list[float]] = [[] for _ in trace.blocks]
    for node, value in values.items():
        place = int(np.searchsorted(trace.blocks, row[node]))
        if 0 < place < len(held):
            held[place].append(value)
    combined = np.mean if mean else np.sum
    return np.array([float(combined(part)) if part else np.nan for part in held])


def _branches(network: Network, trace: DepthTrace, sizes: Array) -> Array:
    """Return the contribution of the branches of each block, for node values ``sizes``."""
    size = dict(zip(trace.nodes, sizes, strict=True))
    added = {
        node: sum(float(weight) ** 2 * size[branch] for branch, weight in branches)
        for node, (_, branches) in trunk_sums(network).items()
    }
    return _of_blocks(trace, added, mean=False)


def _scores(
    network: Network, trace: DepthTrace, tokens: Any
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return {quantity: values by block} and {quantity: standard errors} for attention scores.

    The quantities are "score_variance" and "entropy".
    """
    found: dict[Node, tuple[float, ...]] = {}
    for node in network.nodes_of(Attend):
        op: Any = network.operations_of(node)[-1].primitive
        reads = network.parents(node)[:2]
        if isinstance(trace.found, SampledValues):
            one, error, two, other = trace.found.scores[node]
            found[node] = (one, two, error, other)
        else:
            found[node] = _exact(op, trace.found, reads, int(tokens))
    if not found:
        return {}, {}
    columns = [
        _of_blocks(trace, {node: row[k] for node, row in found.items()}, mean=True)
        for k in range(4)
    ]
    names = [name for name, part in zip(SCORES, columns, strict=False) if np.isfinite(part).any()]
    values = {name: columns[SCORES.index(name)] for name in names}
    if not isinstance(trace.found, SampledValues):
        return values, {}
    return values, {name: columns[2 + SCORES.index(name)] for name in names}


def _exact(op: P.Attend, values: Any, reads: Sequence[Node], count: int) -> tuple[float, ...]:
    """Return (score variance, entropy, 0, 0) for exchangeable tokens."""
    queries, keys = (values[node] for node in reads)
    gap = float(np.ravel(1 - keys.token_cosine1)[0])
    size = float(np.ravel(queries.q1 * keys.q1)[0])
    variance = float(factor(op)) * size * gap
    if op.normaliser != "softmax" or op.sink:
        return variance, np.nan, 0.0, 0.0
    if op.wide is False:
        shares, weights = chi_squared(op.key_width or 1)
        entropy = float(weights @ [row_entropy(count, variance * share) for share in shares])
    else:
        entropy = row_entropy(count, variance)
    return variance, entropy, 0.0, 0.0


def _modes(
    network: Network, trace: DepthTrace, output: Node, q: float, options: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, Array], tuple[Assumption, ...]]:
    """Return {mode: squared gradients at the rows}, their errors, and assumptions."""
    nodes = [trace.nodes[i] for i in trace.blocks]
    try:
        found = gradients_at(network, nodes, float(one_q(q)), output, options)
    except KcalcError as error:
        return {}, {}, (Assumption("network", f"no gradients: {error}", "convention"),)

    def rows(table: Mapping[Node, float]) -> Array:
        return np.array([table.get(node, np.nan) for node in nodes])

    tables = {"mean": found.nodes if found.mean is None else found.mean}
    tables |= {} if found.difference is None else {"difference": found.difference}
    errors = found.errors if isinstance(found, SampledGradients) else {}
    notes = tuple(note for note in found.assumptions if note not in trace.assumptions)
    return (
        {name: rows(table) for name, table in tables.items()},
        {f"gradient_{name}": rows(errors[name]) for name in tables if name in errors},
        notes,
    )
