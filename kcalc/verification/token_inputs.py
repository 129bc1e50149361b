"""Pairs of sequences for networks over tokens, with exact token mean squares and cosines."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..backend import Model
from ..calculi.attention.gradients import SampledGradients
from ..calculi.attention.maps import TokenValue
from ..calculi.attention.sampling import Sampling, read_sampling
from ..calculi.attention.values import SampledValue
from ..calculi.global_maps import node_values
from ..calculi.gradients import Gradients
from ..foundation.errors import KcalcError
from ..maps.maps import Assumption
from ..network.layers import Embedding
from ..network.network import Network
from ..network.tokens import Tokens, read_tokens
from .inputs import InputPairs
from .probes import Probes
from .token_probes import token_gradients, token_statistics

Node = Hashable
Array = Any


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenPairs(InputPairs):
    """Pairs of sequences of exchangeable tokens.

    The inherited c values are cosines between the two sequences at the same position. ``tokens``
    contains the number of tokens and the cosine between any two tokens of a sequence. ``sampling``
    specifies how attention is sampled in kernel maps.
    """

    tokens: Tokens
    sampling: Sampling | None = None

    @classmethod
    def over(cls, pairs: InputPairs, tokens: Tokens, sampling: Sampling | None) -> TokenPairs:
        """Create pairs of sequences with the c and q values of ``pairs``."""
        return cls(
            c=pairs.c, q1=pairs.q1, q2=pairs.q2, uniform=pairs.uniform, equal=False,
            tokens=tokens, sampling=sampling,
        )  # fmt: skip

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, *self.alike.values()

    @property
    def alike(self) -> dict[str, Any]:
        return {"tokens": self.tokens.count, "token_cosine": self.tokens.cosine}

    @property
    def asked(self) -> dict[str, Any]:
        return {"sampling": self.sampling, **self.alike}

    def errors(self, found: Gradients) -> dict[str, dict[Node, float]]:
        return found.errors if isinstance(found, SampledGradients) else {}

    def gradients(
        self, probes: Probes, params: Any, inputs: Mapping[Node, Array], nodes: Any, key: Array
    ) -> Array:
        """Measure gradients and their two modes, shape (nodes, 3); see :func:`token_gradients`."""
        first = {n: x[0, :, 0] for n, x in inputs.items()}
        return token_gradients(probes.model, probes.plan, params, first, nodes, key)

    statistics = staticmethod(token_statistics)

    def shapes(self, model: Model) -> dict[Node, tuple[int, ...]]:
        return token_shapes(model, self.tokens.count)

    def draw(
        self, key: Array, model: Model, shapes: Mapping[Node, tuple[int, ...]], pairs: int
    ) -> dict[Node, Array]:
        """Draw sequences with random directions and exact inner products.

        Inputs of embeddings are vectors over the vocabulary with squared length q. The embedding of
        such a vector has the same distribution as the embedding of a token id. Returns: {input:
        array of shape (cases, pairs, 2, tokens, 1, channels)}.
        """
        import jax
        import jax.numpy as jnp

        found: dict[Node, Array] = {}
        for i, (node, shape) in enumerate(shapes.items()):
            wide, channels = jnp.promote_types(model.dtype, jnp.float32), shape[-1]
            roots = self._roots(node)
            extent = (self.cases, pairs, channels, roots.shape[-1])
            directions = jnp.linalg.qr(jax.random.normal(jax.random.fold_in(key, i), extent, wide))[
                0
            ]
            size = 1.0 if node in model.id_inputs else channels**0.5
            x = size * jnp.einsum("csk,cpnk->cpsn", jnp.asarray(roots, wide), directions)
            found[node] = x.reshape(self.cases, pairs, 2, *shape).astype(model.dtype)
        return found

    def _roots(self, node: Node) -> np.ndarray:
        """Return square roots of the token covariances of a pair, (cases, 2 tokens, rank)."""
        count, cosine = self.tokens.count, self.tokens.cosine
        own = np.full((count, count), cosine) + (1 - cosine) * np.eye(count)
        found = []
        for c, one, two in zip(self.c[node], self.q1[node], self.q2[node], strict=True):
            pair = np.array([[one, c * np.sqrt(one * two)], [c * np.sqrt(one * two), two]])
            sizes, vectors = np.linalg.eigh(np.kron(pair, own))
            found.append(vectors * np.sqrt(np.maximum(sizes, 0.0)))
        roots = np.stack(found)
        return roots[:, :, np.abs(roots).max(axis=(0, 1)) > 1e-12]

    def check(self, shapes: Mapping[Node, tuple[int, ...]]) -> None:
        """Raise a KcalcError for inputs with too few channels for their tokens."""
        for node, shape in shapes.items():
            needed = self._roots(node).shape[-1]
            if shape[-1] < needed:
                raise KcalcError(
                    f"the input {node!r} has {shape[-1]} channels (or ids of its vocabulary), but "
                    f"two sequences "
                    f"of {self.tokens.count} tokens span {needed} dimensions; use at least as many "
                    f"channels, or fewer tokens"
                )

    def values(
        self, network: Network, heuristic: bool
    ) -> tuple[np.ndarray, np.ndarray, tuple[Assumption, ...]]:
        """Evaluate the kernel maps.

        Quantities are (q, c, token cosine), or (q1, q2, c, both token cosines) for unequal q.
        Returns: the values and their standard errors, shape (nodes, quantities, cases), and the
        assumptions. Raises: KcalcError if q is unequal and attention is sampled.
        """
        found: list[np.ndarray] = []
        notes: dict[Assumption, None] = {}
        for case in range(self.cases):
            c, one, two = (
                _joint({n: float(v[case]) for n, v in values.items()})
                for values in (self.c, self.q1, self.q2)
            )
            told: Any = node_values(
                network, c, one, None if self.uniform else two, heuristic,
                sampling=self.sampling, **self.alike,
            )  # fmt: skip
            notes |= dict.fromkeys(told.assumptions)
            rows = [self._row(told[node], node) for node in network]
            found.append(np.array(rows, float))
        values = np.stack(found, axis=-1)
        return values[:, :, 0], values[:, :, 1], tuple(notes)

    def _row(self, value: SampledValue | TokenValue, node: Node) -> list[tuple[Any, Any]]:
        """Return (value, standard error) for each quantity."""
        if isinstance(value, TokenValue):
            q1, q2, c, one, two = value
            row = (q1, c, one) if self.uniform else (q1, q2, c, one, two)
            return [(number, 0.0) for number in row]
        if not self.uniform:
            raise KcalcError(
                f"node {node!r}: sampled attention is only available if both sequences have the "
                f"same q value; pass q= instead of q1= and q2="
            )
        q, q_error, cosine, error, c, c_error = value
        alone = cosine is None  # there is one token, or tokens were pooled
        return [(q, q_error), (c, c_error), (1.0, 0.0) if alone else (cosine, error)]


def _joint(values: dict[Node, float]) -> Any:
    """Return the common value of all inputs, or the dictionary itself if they differ."""
    numbers = set(values.values())
    return numbers.pop() if len(numbers) == 1 else values


def sequences(
    cases: InputPairs,
    models: Sequence[Model],
    pairs: int,
    *,
    tokens: int,
    token_cosine: float | None = None,
    sampling: Sampling | None = None,
) -> tuple[TokenPairs, list[Model]]:
    """Return pairs of sequences with the c and q values of ``cases``, and models that read them."""
    given = read_tokens(tokens, token_cosine)
    assert given is not None
    read = None if sampling is None else read_sampling(sampling)
    cut = [
        one._function(
            ("tokens", given.count, pairs), None, partial(over_tokens, one, given.count, pairs)
        )
        for one in models
    ]
    return TokenPairs.over(cases, given, read), cut


def over_tokens(model: Model, count: int, pairs: int) -> Model:
    """Adapt a model to inputs with ``count`` tokens, and reduce its vocabularies.

    Vocabularies are cut to the size that ``pairs`` pairs can use. Raises: KcalcError if an input
    does not have ``count`` positions.
    """

    def cut(_: Node, layer: Any) -> Any:
        if layer.vocabulary is None:
            return layer
        return replace(layer, vocabulary=min(layer.vocabulary, 2 * count * pairs))

    shapes = {node: (count, 1) for node in model.network.inputs if node not in model.id_inputs}
    for node, shape in model.image_shapes.items():
        if prod(shape) != count:
            raise KcalcError(
                f"the input {node!r} has {prod(shape)} locations, but tokens= is {count}; these "
                f"numbers must agree"
            )
    smaller = model.network.map_layers(cut, Embedding)
    return replace(
        model,
        network=smaller,
        image_shapes=shapes | dict(model.image_shapes),
        _plans={},
        _compiled={},
    )


def token_shapes(model: Model, count: int) -> dict[Node, tuple[int, ...]]:
    """Return {input: (tokens, 1, channels)}; for ids, channels is the size of the vocabulary.

    Raises: KcalcError if the number of channels of an input is not known.
    """
    ids, network = model.id_inputs, model.network
    tables = {
        node: max(
            network.layer(table).vocabulary or 0
            for table in network.nodes_of(Embedding)
            if node in network.parents(table)
        )
        for node in ids
    }
    lacking = next((node for node in ids if not tables[node]), None)
    if lacking is not None:
        raise KcalcError(
            f"the vocabulary size of the token ids {lacking!r} is unknown; pass it as "
            "L.Embedding(features, vocabulary)"
        )
    shapes: dict[Node, tuple[int, ...]] = {}
    for node in network.inputs:
        *locations, channels = (tables[node],) if node in ids else model._stated(node).axes
        shapes[node] = (*(locations or (count, 1)), channels)
    return shapes
