"""A compiled network against its own theory: ``kc.verify_kernels(model)``."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..backend import Model, Orthogonal
from ..backend.initialisers import Mirrored, random_bits
from ..calculi.attention.sampled import Sampling, read_sampling
from ..calculi.attention.structure import read_tokens
from ..calculi.global_maps import c_map, node_values
from ..calculi.gradients import SampledGradients
from ..calculi.gradients import gradients as infinite_gradients
from ..calculi.ntk import ntk
from ..calculi.tangent import parameter_nodes
from ..fields.arguments import q_pair
from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import items, whole
from ..maps.maps import Assumption
from ..network.layers import Affine, Pool
from .empirical_ntk import Jacobian, contracted
from .inputs import InputPairs, input_shapes
from .jacobians import Jacobians, layer_jacobians
from .preparation import refuse_heuristics, with_model_widths
from .probes import Shifts, measure, measured_nodes, pair_statistics
from .result import KernelCheck, Sample
from .statistics import NARROW
from .tangent_checks import GradientCheck, TangentCheck
from .token_inputs import TokenPairs, over_tokens, plan_shapes, token_shapes
from .token_probes import token_gradients, token_statistics

Node = Hashable
Array = Any

EQUAL = (
    "all locations of an image hold one vector, so that mean and max pooling are the identity, as "
    "in the maps"
)


def verify_kernels(
    model: Model,
    c: Any = 0.5,
    q1: Any = None,
    q2: Any = None,
    draws: int = 50,
    pairs: int = 1,
    widths: Sequence[int] | None = None,
    key: Any = 0,
    tangent: bool = True,
    gradients: bool = True,
    jacobians: bool = False,
    heuristic: bool = False,
    memory: int = 2**29,
    *,
    q: Any = None,
    tokens: int | None = None,
    token_cosine: float | None = None,
    sampling: Sampling | None = None,
) -> KernelCheck:
    """Measure q and c at every node, and compare with the Q and C maps.

    The measurement is over random weights and inputs. Parameters: ``c`` and ``q`` (default 1;
    ``q1`` and ``q2`` where two inputs differ) are the values of the inputs, numbers or rows of
    equal length (a case each), or {input: such}; random inputs have them exactly, at every
    location. ``draws`` networks see ``pairs`` random pairs each; standard errors are over networks.
    ``widths`` sets the layers that leave theirs open, and gives powers of the width. ``tangent``
    compares the empirical NTK (one output channel) with :func:`kcalc.ntk`, ``gradients`` |d out / d
    node|^2 with :func:`kcalc.gradients`; ``jacobians`` adds singular values of the last network
    drawn. ``heuristic=True`` goes on where the maps, or the weights, only approximate; ``memory``
    bounds, in bytes, how many networks are drawn at once.

    ``tokens``, ``token_cosine``: for networks over tokens; inputs are sequences of so many tokens,
    any two of which have that cosine (0 by default), and c is that of two sequences at equal
    places. The cosine of tokens is a further quantity at every node, "token_cosine", and gradients
    are compared in both modes, mean and difference over tokens. Token ids are drawn as vectors over
    the vocabulary, turned one-hot vectors, whose embeddings have the same law. Where attention is
    causal, or positions tell tokens apart, maps and gradients are sampled as ``sampling`` says, and
    z counts their standard errors too; the tangent kernel is then not compared.

    Returns: a :class:`kcalc.verification.KernelCheck`.  [TAT App. E.1, Fig. 4; DKS App. K]
    Raises: KcalcError for values out of their domain, fewer than 2 draws, widths where none is
    open, feature maps that vanish or overflow; and where the theory does not describe the model,
    naming the node.
    """
    if not isinstance(model, Model):
        raise KcalcError(
            f"expected a model, got {type(model).__name__}; make one with kc.to_jax(network, "
            f"features)"
        )
    draws = whole(draws, "draws", 2)
    pairs = whole(pairs, "pairs", 1)
    memory = whole(memory, "memory", 1)
    cases = InputPairs.of(model.network, c, *q_pair(q1, q2, q))
    given = read_tokens(tokens, token_cosine)
    models = [model] if widths is None else _at_widths(model, widths)
    if given is not None:
        if jacobians:
            raise KcalcError(
                "singular values of Jacobians are not measured over tokens; drop jacobians= or "
                "tokens="
            )
        cases = TokenPairs.over(cases, given, None if sampling is None else read_sampling(sampling))
        models = [_over_tokens(one, given.count, pairs) for one in models]
    elif sampling is not None:
        raise KcalcError(
            "sampling= is how attention over tokens is sampled in kernel maps; say how many "
            "tokens there are, tokens="
        )
    work = [_Work(one, cases, pairs, heuristic, tangent, gradients) for one in models]
    found = [one.run(random_bits(key), draws, memory) for one in work]
    samples = tuple(one.sample(result) for one, result in zip(work, found, strict=True))
    last = work[-1]
    own = (
        cases.c[model.network.inputs[0]],
        cases.q1[model.network.inputs[0]],
        cases.q2[model.network.inputs[0]],
    )
    c_, q1_, q2_ = (tuple(v.tolist()) for v in own)
    return KernelCheck(
        last.nodes,
        model.network.inputs,
        c_,
        q1_,
        q2_,
        draws,
        pairs,
        samples,
        last.epsilon,
        last.notes(),
        _tangents(work, found),
        last.gradient_check(found[-1]),
        _singular_values(last, cases, key, draws) if jacobians else None,
        given,
    )


def _at_widths(model: Model, widths: Sequence[int]) -> list[Model]:
    given = [whole(width, "a width", 1) for width in items(widths, "widths")]
    if len(set(given)) != len(given) or not given:
        raise KcalcError(f"widths must be different positive whole numbers, got {glimpse(widths)}")
    open_nodes = [
        node
        for node in model.network.nodes_of(Affine)
        if getattr(model.network.layer(node), "features", None) is None
        and node not in model.features
    ]
    if not open_nodes:
        raise KcalcError(
            "no layer leaves its width open, so widths= changes nothing; build the network and "
            "the model without features"
        )
    return [
        model._function(
            ("width", w),
            None,
            lambda w=w: replace(model, default_features=w, _plans={}, _compiled={}),
        )
        for w in given
    ]


def _over_tokens(model: Model, count: int, pairs: int) -> Model:
    """The model over so many tokens, made once."""
    return model._function(("tokens", count, pairs), None, lambda: over_tokens(model, count, pairs))


def _singular_values(work: _Work, cases: InputPairs, key: Any, draws: int) -> Jacobians:
    import jax

    chosen = jax.random.split(random_bits(key), draws)[-1]
    first = float(cases.q1[work.network.inputs[0]][0])
    return layer_jacobians(work.model, key=chosen, q=first, heuristic=work.heuristic)


def _tangents(work: Sequence[_Work], found: Sequence[dict[str, np.ndarray]]) -> TangentCheck | None:
    if any(one.theory is None for one in work):
        return None
    expected = tuple(one.theory for one in work if one.theory is not None)
    samples = tuple(result["tangent"] for result in found)
    return TangentCheck(
        tuple(one.width for one in work), work[0].affine, expected, samples, work[0].epsilon
    )


@dataclass(frozen=True)
class _Gradients:
    """Expected gradients at ``nodes``.

    ``expected``: (nodes,), over tokens (nodes, 3) with the mean and the difference mode, nan where
    a node has none; ``known``: their standard errors.
    """

    nodes: tuple[Node, ...]
    expected: np.ndarray
    known: np.ndarray


class _Work:
    """One width: the expected values, and the function of one draw."""

    def __init__(
        self,
        model: Model,
        cases: InputPairs,
        pairs: int,
        heuristic: bool,
        tangent: bool,
        gradients: bool,
    ) -> None:
        import jax.numpy as jnp

        self.model, self.cases, self.pairs, self.heuristic = model, cases, pairs, heuristic
        self.tokens = cases.tokens.count if isinstance(cases, TokenPairs) else None
        self.shapes = (
            input_shapes(model) if self.tokens is None else token_shapes(model, self.tokens)
        )
        cases.check(self.shapes)
        self.plan = (
            model.plan() if self.tokens is None else model._plan_of(plan_shapes(self.shapes))
        )
        self.network = with_model_widths(model, self.plan)
        self.nodes = tuple(self.network)
        self.known: np.ndarray | float = 0.0
        self.expected, notes = self._expected()
        self.remarks = list(refuse_heuristics(model, self.network, self.plan, heuristic, notes))
        rows = {node: i for i, node in enumerate(measured_nodes(self.plan))}
        self.order = [rows[node] for node in self.nodes]
        self.epsilon = float(jnp.finfo(model.dtype).eps)
        affine = parameter_nodes(self.network)
        self.affine = tuple(
            node for entry in self.plan.tensors for node in entry.nodes if node in affine
        )
        self.theory = self._tangent_theory() if tangent else None
        self.slopes = self._gradient_theory() if gradients else None

    @property
    def width(self) -> int | None:
        """The width of open layers."""
        return self.model.default_features

    # -- expected values ---------------------------------------------------------------------------

    def _expected(self) -> tuple[np.ndarray, tuple[Assumption, ...]]:
        """(nodes, quantities, cases), and the assumptions of the maps."""
        cases = self.cases
        if isinstance(cases, TokenPairs):
            found, self.known, notes = cases.values(self.network, self.heuristic)
            return found, notes
        values = node_values(
            self.network,
            cases.c,
            cases.q1,
            None if cases.uniform else cases.q2,
            assume_independent=self.heuristic,
        )
        rows = []
        for node in self.nodes:
            q1, q2, c = (
                np.broadcast_to(np.asarray(v, float), (cases.cases,)) for v in values[node]
            )
            rows.append(np.stack([q1, c] if cases.uniform else [q1, q2, c]))
        return np.stack(rows), c_map(self.network, assume_independent=self.heuristic).assumptions

    def _tangent_theory(self) -> np.ndarray | None:
        """(Affine nodes, kinds, cases), None where there is nothing to compare with."""
        cases, inputs = self.cases, self.network.inputs
        reason = None
        if len(self.network.outputs) > 1:
            reason = "the network has several outputs"
        elif any(
            not np.array_equal(v[inputs[0]], v[n])
            for v in (cases.c, cases.q1, cases.q2)
            for n in inputs
        ):
            reason = "the inputs have different c or q values"
        elif any(
            getattr(self.network.layer(n), "kind", "") == "weighted_mean"
            for n in self.network.nodes_of(Pool)
        ):
            reason = "weighted mean pooling has weights of its own"
        if reason is None:
            c, one, two = (v[inputs[0]] for v in (cases.c, cases.q1, cases.q2))
            try:
                kernel = ntk(
                    self.network,
                    self.model.parameterization.name,
                    assume_independent=self.heuristic,
                    **self._alike,
                )
                kinds = [
                    kernel.by_layer(np.ones_like(c), one),
                    kernel.by_layer(np.ones_like(c), two),
                    kernel.by_layer(c, one, two),
                ]
            except KcalcError as error:
                reason = str(error)
            else:
                return np.stack(
                    [
                        np.stack([np.broadcast_to(kind[node], c.shape) for kind in kinds])
                        for node in self.affine
                    ]
                )
        self.remarks.append(Assumption("network", f"the tangent kernel was not compared: {reason}"))
        return None

    def _gradient_theory(self) -> _Gradients | None:
        cases = self.cases
        try:
            found = infinite_gradients(
                self.network,
                {n: float(v[0]) for n, v in cases.q1.items()},
                self.network.outputs[0],
                assume_independent=self.heuristic,
                sampling=cases.sampling if isinstance(cases, TokenPairs) else None,
                **self._alike,
            )
        except KcalcError as error:
            self.remarks.append(Assumption("network", f"gradients were not compared: {error}"))
            return None
        nodes = tuple(
            node
            for node in self.network
            if found.nodes.get(node, 0) > 0 and node not in self.model.id_inputs
        )
        modes = {"nodes": found.nodes, "mean": found.mean, "difference": found.difference}
        tables = {name: table for name, table in modes.items() if table is not None}
        errors = found.errors if isinstance(found, SampledGradients) else {}
        expected = [[table.get(node, np.nan) for table in tables.values()] for node in nodes]
        known = [[errors.get(name, {}).get(node, 0.0) for name in tables] for node in nodes]
        rows = 0 if self.tokens is None else slice(None)
        return _Gradients(nodes, np.array(expected)[:, rows], np.array(known)[:, rows])

    @property
    def _alike(self) -> dict[str, Any]:
        """The tokens, as theory is told of them."""
        cases = self.cases
        return (
            {"tokens": cases.tokens.count, "token_cosine": cases.tokens.cosine}
            if isinstance(cases, TokenPairs)
            else {}
        )

    def notes(self) -> tuple[Assumption, ...]:
        """The assumptions of the comparison."""
        found = list(self.remarks)
        if self.cases.equal and self.model.image_shapes:
            found.append(Assumption("network", EQUAL))
        for node, k in zip(self.nodes, self._channels(), strict=True):
            if k < NARROW and node not in self.network.inputs:
                text = (
                    f"{k} channels: its c values are cosines of few numbers, so they are measured "
                    f"but not judged"
                )
                found.append(Assumption(node, text))
        return tuple(found)

    def _channels(self) -> tuple[int, ...]:
        plan, shapes = self.plan, self.shapes
        return tuple(
            shapes[n][-1] if n in shapes else plan.nodes[n].shape.channels for n in self.nodes
        )

    # -- measured values ---------------------------------------------------------------------------

    def run(self, key: Array, draws: int, memory: int) -> dict[str, np.ndarray]:
        """{statistic: array of draws on axis 0}.

        Raises: KcalcError naming the node where a feature map vanishes or overflows.
        """
        import jax

        with self.model.measuring():
            together = self._together(draws, memory)
            every = self._compiled(together)
            found = {
                name: np.asarray(v, float)
                for name, v in every(jax.random.split(key, draws)).items()
            }
        found["pairs"] = found["pairs"][:, self.order]
        # of squared length q, not of mean square q
        for node in self.model.id_inputs if self.tokens is not None else ():
            sizes = found["pairs"][:, self.nodes.index(node), :, : 1 if self.cases.uniform else 2]
            sizes *= np.array([[1.0], [self.shapes[node][-1]]])[..., None] * self.shapes[node][-1]
        bad = np.argwhere(~np.isfinite(found["pairs"]))
        if bad.size:
            draw, node = int(bad[:, 0].min()), self.nodes[int(bad[:, 1].min())]
            raise KcalcError(
                f"node {node!r}: its feature map vanishes or overflows in draw {draw} of {draws}, "
                f"so it has no c value; "
                "use a greater width, a smaller q, or a higher dtype"
            )
        return found

    def _compiled(self, together: int) -> Any:
        """The function of the keys of all draws, kept with the model.

        Another key does not compile it again.
        """
        import jax

        every = [
            v for values in (self.cases.c, self.cases.q1, self.cases.q2) for v in values.values()
        ]
        measured = self.theory is not None, None if self.slopes is None else self.slopes.nodes
        purpose = (
            "verify",
            *(tuple(v.tolist()) for v in every),
            self.pairs,
            together,
            *measured,
            *self._alike.values(),
        )
        batch = together if together > 1 else None
        return self.model._function(
            purpose,
            self.plan,
            lambda: jax.jit(lambda keys: jax.lax.map(self._one, keys, batch_size=batch)),
        )

    def _together(self, draws: int, memory: int) -> int:
        """How many draws run at once: a divisor of them that fits the memory.

        QR on CPUs is slow in batches.
        """
        import jax

        laws = [law.half if isinstance(law, Mirrored) else law for law in self.model.laws.values()]
        if jax.default_backend() == "cpu" and any(isinstance(law, Orthogonal) for law in laws):
            return 1
        tensors = [
            (entry, own)
            for entry in self.plan.tensors
            for own in self.plan.nodes[entry.nodes[0]].tensors.values()
        ]
        parameters = sum(int(np.prod(entry.shape(own))) for entry, own in tensors)
        widest = max(
            [
                *(int(np.prod(s)) for s in self.shapes.values()),
                *(int(np.prod(n.shape.axes)) for n in self.plan.nodes.values()),
            ]
        )
        copies = 3 + (4 if self.theory is not None else 0) + (2 if self.slopes is not None else 0)
        one = 4 * (copies * parameters + 8 * self.cases.cases * self.pairs * widest)
        fits = int(np.clip(memory // one, 1, draws))
        return max(k for k in range(1, fits + 1) if draws % k == 0)

    def _one(self, key: Array) -> dict[str, Array]:
        """One network: statistics of pairs, and the further ones asked for."""
        import jax

        ours, weights = jax.random.split(key)
        inputs = self.cases.draw(ours, self.model, self.shapes, self.pairs)
        params = self.plan.draw(weights, self.model._dtype)
        statistics = pair_statistics if self.tokens is None else token_statistics
        found = {"pairs": measure(self.plan, params, inputs, self.cases.uniform, statistics)}
        if self.theory is not None:
            found["tangent"] = self._tangent(params, {n: x[:, 0] for n, x in inputs.items()})
        if self.slopes is not None:
            found["gradients"] = self._slopes(ours, params, inputs)
        return found

    def _tangent(self, params: Any, inputs: Mapping[Node, Array]) -> Array:
        """(Affine nodes, kinds, cases), of the first channel at the first location."""
        import jax
        import jax.numpy as jnp

        jacobian = Jacobian(self.model, self.plan, self.network.outputs[0], self._counted)
        leaves = [nodes for nodes, leaf in jacobian.leaves() if nodes[0] in self.affine]

        def case(arrays: list[Array]) -> Array:
            rows = jacobian.rows(params, dict(zip(inputs, arrays, strict=True)), jnp.zeros(1, int))
            parts = [
                jnp.stack([p[0, 0], p[1, 1], p[0, 1]], axis=-1)
                for p in contracted(rows, rows, "trace")
            ]
            sums: dict[Node, Array] = {}
            for nodes, part in zip(leaves, parts, strict=True):
                sums[nodes[0]] = sums.get(nodes[0], 0) + part
            return jnp.concatenate(list(sums.values()))

        return jnp.moveaxis(jax.lax.map(case, list(inputs.values())), 0, -1)

    def _counted(self, node: Node, leaf: str, values: Array) -> Array | None:
        """The parameters that theory counts: of Delta-initialised convolutions the centre tap."""
        if node not in self.affine:
            return None
        fan = self.plan.fans.get(node)
        window = None if fan is None else fan.window
        if leaf == "weight" and window and self.plan.laws[node].delta:
            return values[:, :, :, window[0] // 2, window[1] // 2]
        return values

    def _slopes(self, key: Array, params: Any, inputs: Mapping[Node, Array]) -> Array:
        """|d out / d node|^2 for every node the theory speaks of; over tokens with both modes."""
        assert self.slopes is not None
        if self.tokens is None:
            return self._gradients(params, {n: x[0, 0, 0] for n, x in inputs.items()})
        return token_gradients(
            self.model,
            self.plan,
            params,
            {n: x[0, :, 0] for n, x in inputs.items()},
            self.slopes.nodes,
            key,
        )

    def _gradients(self, params: Any, inputs: Mapping[Node, Array]) -> Array:
        """|d out_0 / d node|^2 for every node the theory speaks of."""
        import jax
        import jax.numpy as jnp

        assert self.slopes is not None
        shifts = Shifts(self.model, self.plan)
        slopes = jax.grad(
            lambda s: shifts.run(params, inputs, s)[self.network.outputs[0]].reshape(-1)[0]
        )(shifts.zeros())
        squares = [(g.astype(jnp.promote_types(g.dtype, jnp.float32)) ** 2).sum(-1) for g in slopes]
        return shifts.gather(squares, self.slopes.nodes)

    # -- results -----------------------------------------------------------------------------------

    def sample(self, found: dict[str, np.ndarray]) -> Sample:
        """The statistics of pairs."""
        values = found["pairs"]
        return Sample(
            self.width,
            self._channels(),
            self.expected,
            values[:, :, 0],
            values[:, :, 1],
            self.known,
        )

    def gradient_check(self, found: dict[str, np.ndarray]) -> GradientCheck | None:
        """Gradients against those at infinite width."""
        if self.slopes is None:
            return None
        return GradientCheck.of(
            self.width,
            self.slopes.nodes,
            (self.slopes.expected, self.slopes.known),
            found["gradients"],
            self.epsilon,
        )
