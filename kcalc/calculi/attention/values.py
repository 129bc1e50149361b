"""Values over tokens that are followed separately.

This module reads the tokens of an input, runs the chains, and tabulates their values.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ...fields.jets import Jet
from ...foundation.errors import KcalcError, glimpse
from ...foundation.keyed import Keyed
from ...foundation.printing import Tabled, html_table, marked, plain, text_table
from ...foundation.progress import progress
from ...maps.maps import INFINITE_WIDTH, Approximable, Assumption
from ...network.compose import interpret_through
from ...network.layers import Attend, Embedding
from ...network.network import Network
from ...network.notes import beyond_masks
from ..varying import varying_values
from .exchangeable import Relation, TokenState
from .sampled import Sampled, token_kernel
from .sampling import Draws, Sampling, read_sampling, said, until_accurate, worst_of

Node = Hashable
Array = np.ndarray
MOST_PLACES = 4096
MOST_NUMBERS = 1 << 25  # entries of covariances that are stored: 512 MB with their errors
KEPT = 4  # number of gaps whose sums are cached
ROUNDING = 1e-14  # smaller values print as 0; smaller errors, absolute or relative, are not printed


class SampledValue(NamedTuple):
    """The values at one node, each with its standard error over the chains.

    ``q`` is the mean over tokens, and ``token_cosine`` is the mean over pairs of different tokens
    of one sequence. ``c`` is the mean over equal positions of two sequences, or None for one
    sequence.
    """

    q: float
    q_error: float
    token_cosine: float | None
    token_cosine_error: float | None
    c: float | None
    c_error: float | None

    def texts(self) -> tuple[str, ...]:
        """Return ``q``, ``token_cosine`` and ``c``, each with its error, for a table."""
        return tuple(with_error(*self[k : k + 2]) for k in (0, 2, 4))


def with_error(value: float | None, error: float | None) -> str:
    """Format a value with its standard error, or without it if the value is exact."""
    if value is None or error is None:
        return ""
    if abs(value) < ROUNDING:
        value = 0.0
    exact = error < ROUNDING * max(abs(value), 1)
    return f"{value:.6g}" if exact else f"{value:.5g} +- {error:.1g}"


@dataclass(frozen=True)
class SampledValues(Keyed[SampledValue], Tabled, Approximable):
    """{node: :class:`SampledValue`} for a network with sampled attention.

    Covariances are arrays (sequences, tokens, sequences, tokens). An entry is the mean over
    channels of the product of the values at two tokens. For large networks over many tokens, only
    the covariances of the outputs are kept.

    Attributes
    ----------
    covariances
        {node: (mean, standard error)}.
    scores
        {attention: (variance of the scores of a row, its error, entropy of a row, its error)}, only
        in depth profiles.

    """

    nodes: dict[Node, SampledValue]
    covariances: dict[Node, tuple[Array, Array]]
    assumptions: tuple[Assumption, ...]
    scores: dict[Node, tuple[float, ...]] = field(default_factory=dict, repr=False)

    @property
    def worst(self) -> float:
        """The largest error: relative for q, variances and entropies, absolute for cosines."""
        values = self.nodes.values()
        relative = [(v.q_error, v.q) for v in values]
        relative += [pair for s in self.scores.values() for pair in (s[:2][::-1], s[2:][::-1])]
        plain = [e or 0.0 for v in values for e in (v.token_cosine_error, v.c_error)]
        return max(worst_of(*np.array(relative).T), worst_of(np.array(plain)))

    @property
    def _entries(self) -> dict[Node, SampledValue]:
        return self.nodes

    def _frame(self) -> list[dict[str, Any]]:
        return [{"node": str(node), **value._asdict()} for node, value in self.nodes.items()]

    def _rows(self) -> list[tuple[str, ...]]:
        rows = ((str(n), *v.texts()) for n, v in self.nodes.items())
        return [("node", "q", "token cosine", "c"), *rows]

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the covariances as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return plain(
            {
                "nodes": {n: v._asdict() for n, v in self.nodes.items()},
                "assumptions": self.assumptions,
            }
        )

    def __repr__(self) -> str:
        return f"SampledValues({marked(f'{len(self)} nodes', self)})"

    def __str__(self) -> str:
        return text_table(self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows(), repr(self))


def token_covariance(tokens: Any, network: Network) -> tuple[Array, int]:
    """Return the covariance of all tokens of one or several sequences, and the number of sequences.

    ``tokens`` is a covariance (T, T), integer token ids (T,) or (N, T), or inputs (N, T, features).
    Equal ids are the same token, and different ids are independent. Raises: KcalcError for other
    arrays, and for covariances that are not positive semidefinite.
    """
    try:
        given = np.asarray(tokens)
        numbers = np.real(given).astype(float)
    except Exception:  # user objects may raise anything as they are read
        raise KcalcError(
            "tokens must be a number, a covariance, token ids or an array of inputs, got "
            f"{glimpse(tokens)}"
        ) from None
    if given.dtype.kind == "c" or given.size == 0 or not np.isfinite(numbers).all():
        raise KcalcError(
            "tokens must contain at least one number, and all of them must be finite and real"
        )
    if given.dtype.kind in "iu" and given.ndim in (1, 2):
        ids = np.atleast_2d(given)
        if len(ids) > 1 and np.array_equal(given, given.T) and (np.diagonal(given) > 0).all():
            raise KcalcError(
                "this array of tokens could be a covariance or token ids; pass a covariance as "
                "floats, or pass the sequences of ids in another order"
            )
        _check_ids(ids, network)
        _check_places(ids.size)
        return _checked((ids.ravel()[:, None] == ids.ravel()).astype(float), len(ids))
    if given.dtype.kind in "iu" and given.ndim > 2:
        raise KcalcError(
            f"token ids must have shape (T,) or (N, T), got integers of shape {given.shape}; all "
            "inputs of a network get the same ids, and inputs of shape (N, T, features) must be "
            "floats"
        )
    if given.ndim == 3:
        rows = numbers.reshape(-1, given.shape[-1])
        _check_places(len(rows))
        return _checked(rows @ rows.T / rows.shape[1], len(given))
    if given.ndim == 2 and given.shape[0] == given.shape[1]:
        _check_places(len(numbers))
        return _checked(numbers, 1)
    raise KcalcError(
        "tokens must be a covariance (T, T), integer token ids (T,) or (N, T), or inputs (N, T, "
        f"features), got an array of shape {given.shape}"
    )


def _check_ids(ids: Array, network: Network) -> None:
    """Reject ids beyond the range of the embeddings of the network."""
    if ids.min() < 0:
        raise KcalcError(f"token ids must be integers >= 0, got {ids.min()}")
    for node in network.nodes_of(Embedding):
        size = getattr(network.layer(node), "vocabulary", None)
        if isinstance(size, int) and ids.max() >= size:
            raise KcalcError(
                f"node {node!r} embeds the ids 0 to {size - 1}, but one of the tokens is "
                f"{ids.max()}"
            )


def _check_places(count: int) -> None:
    if count > MOST_PLACES:
        raise KcalcError(
            f"at most {MOST_PLACES} tokens in total can be followed one by one, got {count}; "
            "pass fewer tokens"
        )


def _checked(covariance: Array, sequences: int) -> tuple[Array, int]:
    if not np.allclose(covariance, covariance.T, rtol=1e-10, atol=0):
        raise KcalcError("a token covariance must be symmetric")
    least = float(np.linalg.eigvalsh(covariance)[0])
    if least < -1e-10 * float(np.abs(covariance).max()):
        raise KcalcError(
            "a token covariance must be positive semidefinite, but this one has the eigenvalue "
            f"{least:.4g}"
        )
    return covariance, sequences


def same_tokens(
    count: int, cosine: float, c: float | None, q1: float, q2: float
) -> tuple[Array, int]:
    """Return the covariance of one sequence of exchangeable tokens, or of two with cosine ``c``.

    Each sequence has ``count`` tokens.
    """
    _check_places(count if c is None else 2 * count)
    own = np.full((count, count), cosine) + (1 - cosine) * np.eye(count)
    if c is None:
        return q1 * own, 1
    across = c * np.sqrt(q1) * np.sqrt(q2)
    pair = np.array([[q1, across], [across, q2]])
    return np.kron(pair, own), 2


def sampled_values(
    network: Network,
    covariances: Mapping[Node, tuple[Array, int]],
    assume: bool,
    sampling: Sampling | None,
    profile: bool = False,
) -> SampledValues:
    """Return the values of every node.

    By default, attention is sampled only if no exact rule exists.

    ``profile``: include the scores of attention, but no covariances.
    """
    asked = read_sampling(sampling)

    def run(draws: Draws) -> tuple[SampledValues, float]:
        found = _round(network, covariances, assume, asked, draws, (sampling is None, profile))
        return found, found.worst

    found, missed = until_accurate(asked, run, profile)
    return replace(found, assumptions=(*found.assumptions, *missed))


def _round(
    network: Network,
    covariances: Mapping[Node, tuple[Array, int]],
    assume: bool,
    asked: Sampling,
    draws: Draws,
    options: tuple[bool, bool],
) -> SampledValues:
    """Return the values from the draws of one round; ``options`` is (exact rules, profile)."""
    (sequences,) = {count for _, count in covariances.values()}
    exact, profile = options
    kernel = Sampled(token_kernel(assume), draws, sequences, exact=exact, scores=profile)
    start = {node: kernel.start(node, covariance) for node, (covariance, _) in covariances.items()}
    places = max(len(covariance) for covariance, _ in covariances.values())
    few = len(network) * places**2 <= MOST_NUMBERS and not profile
    spreads: dict[Node, tuple[Array, Array]] = {}
    summary = _Summary(sequences, draws)

    def record(node: Node, state: TokenState) -> SampledValue:
        if few or node in network.outputs:
            spreads[node] = _spread(kernel.covariance(state), sequences, draws)
        return summary(*kernel.whole(state.relations[Relation.FIRST_INPUT]))

    total = len(network.nodes_of(Attend)) * len(draws.chains) * draws.count
    with np.errstate(all="ignore"), progress(total, "attention", "draw") as kernel.tick:
        values = interpret_through(network, kernel, start, record)
    scores = {
        node: tuple(float(x) for part in parts for x in draws.averaged(part))
        for node, parts in kernel.rows.items()
    }
    return SampledValues(values, spreads, assumptions_of(network, kernel, asked), scores)


def assumptions_of(network: Network, kernel: Sampled, asked: Sampling) -> tuple[Assumption, ...]:
    """Return the assumptions of a reading, including how attention was sampled."""
    drawn = (said(kernel.draws, asked),) if kernel.sampled else ()
    told = (*network.assumptions, *beyond_masks(network.notes, kernel.length))
    return (INFINITE_WIDTH, *drawn, *told, *varying_values(network), *kernel.notes.values())


def _spread(table: Array, sequences: int, draws: Draws) -> tuple[Array, Array]:
    shape = (sequences, table.shape[1] // sequences) * 2
    mean, error = draws.averaged(table)
    return mean.reshape(shape), error.reshape(shape)


class _Summary:
    """The values at nodes; sums over a gap that several nodes share are computed only once."""

    def __init__(self, sequences: int, draws: Draws) -> None:
        self.sequences, self.draws = sequences, draws
        self.known = dict[int, tuple[Array, tuple[Any, ...]]]()

    def __call__(self, q1: Array, q2: Array, gap: Jet) -> SampledValue:
        shape = gap.value.shape
        q = (
            np.broadcast_to(q1, (max(len(q1), shape[0]), shape[1], 1))[..., 0]
            if q1.shape[-1] == 1
            else np.diagonal(q1 + 0 * q2, axis1=1, axis2=2)
        )
        if id(gap.value) not in self.known:
            if len(self.known) >= KEPT:
                del self.known[next(iter(self.known))]
            self.known[id(gap.value)] = gap.value, self._cosines(gap.value)
        return SampledValue(*self._mean(q.mean(axis=1)), *self.known[id(gap.value)][1])

    def _mean(self, values: Array) -> tuple[float, float]:
        mean, error = self.draws.averaged(values)
        return float(mean), float(error)

    def _cosines(self, gap: Array) -> tuple[Any, ...]:
        """Return the token cosine and c, each with its error, or None for a missing value."""
        n = self.sequences
        places = gap.shape[-1] // n
        gaps = gap.reshape(-1, n, places, n, places)
        # 0 on the diagonal
        own = sum(gaps[:, k, :, k].sum(axis=(1, 2)) for k in range(n)) / n
        pairs = self._mean(1 - own / (places * (places - 1))) if places > 1 else (None, None)
        across = np.einsum("xsata->xst", gaps) / places
        other = ~np.eye(n, dtype=bool)
        two = self._mean(1 - across[:, other].mean(axis=1)) if n > 1 else (None, None)
        return *pairs, *two
