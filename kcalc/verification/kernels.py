"""Compare a compiled network with theory: ``kc.verify_kernels(model)``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backend import Model, Orthogonal
from ..backend.initialisers import Mirrored, random_bits
from ..backend.model import as_model
from ..calculi.gradients import gradients as infinite_gradients
from ..calculi.ntk import ntk
from ..calculi.tangent import parameter_nodes
from ..fields.arguments import q_pair
from ..foundation.errors import KcalcError, glimpse
from ..foundation.guests import READINGS
from ..foundation.plain_arguments import items, whole
from ..maps.maps import Assumption
from ..network.layers import Affine, Dropout, Pool
from ..network.network import Network
from ..network.tokens import read_tokens
from .empirical_ntk import Jacobian, contracted
from .inputs import InputPairs, plan_shapes
from .jacobians import layer_jacobians
from .preparation import refuse_heuristics, with_model_widths
from .probes import Probes, measure
from .result import KernelCheck, Sample
from .statistics import NARROW
from .tangent_checks import GradientCheck, TangentCheck

if TYPE_CHECKING:
    from ..calculi.attention.sampling import Sampling

Node = Hashable
Array = Any

EQUAL = (
    "all locations of an image have the same vector, so mean and max pooling act as the identity, "
    "as in the maps"
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
    """Measure q and c at every node and compare them with the Q and C maps.

    The measurements average over random weights and inputs.

    For networks over tokens, c is the cosine between two sequences at the same position. Every node
    has a further quantity, "token_cosine", the cosine between tokens of one sequence. Gradients are
    compared in two modes: the mean and the difference over tokens. Token ids are drawn as vectors
    over the vocabulary (rotated one-hot vectors). The embeddings of these vectors have the same
    distribution as the embeddings of ids. If attention is causal or positions distinguish tokens,
    maps and gradients are sampled as specified by ``sampling``, and z includes their standard
    errors. The tangent kernel is not compared in this case.

    Parameters
    ----------
    model
        A :class:`kcalc.Model`, as :func:`kcalc.to_jax` returns it.
    c, q
        The c and q values of the inputs: scalars, sequences of equal length (one entry per case),
        or dictionaries {input: scalar or sequence}. ``q`` is 1 by default. Use ``q1`` and ``q2`` if
        the two inputs differ. The random inputs have exactly these values at every position.
    q1
        The q value of the first input, > 0.
    q2
        The q value of the second input, > 0. Defaults to ``q1``.
    draws
        The number of random networks. Each receives ``pairs`` random pairs; standard errors are
        over networks.
    pairs
        The number of random pairs of inputs per network and case.
    widths
        The widths to compare. Defaults to the width of the model.
    key
        A JAX random key or an integer.
    tangent
        Whether to compare the empirical NTK of one output channel with :func:`kcalc.ntk`.
    gradients
        Whether to compare |d out / d node|^2 with :func:`kcalc.gradients`.
    jacobians
        Whether to compute the singular values of the Jacobians of the last network drawn.
    heuristic
        Whether to continue if the maps or the weights are only approximate.
    memory
        The bound on working memory, in bytes.
    tokens, token_cosine
        The number of tokens of an input, and their pairwise cosine, 0 by default.
    sampling
        A :class:`kcalc.Sampling` that specifies how attention is sampled. By default, attention is
        sampled only if no exact rule exists.

    Returns
    -------
    KernelCheck
        Measured and predicted values, with standard errors.

    Raises
    ------
    KcalcError
        If a value is outside its domain, ``draws`` is less than 2, a feature map vanishes or
        overflows, or the theory does not describe the model (the message names the node). The error
        is also raised if ``widths`` is passed although every layer specifies its width.

    References
    ----------
    [TAT App. E.1, Fig. 4; DKS App. K]

    """
    import jax

    as_model(model)
    draws, pairs = whole(draws, "draws", 2), whole(pairs, "pairs", 1)
    memory = whole(memory, "memory", 1)
    cases = InputPairs.of(model.network, c, *q_pair(q1, q2, q))
    given = read_tokens(tokens, token_cosine)
    models = [model] if widths is None else _at_widths(model, widths)
    if given is not None:
        if jacobians:
            raise KcalcError(
                "singular values of Jacobians are not available for tokens; drop jacobians= or "
                "tokens="
            )
        over = READINGS.answering(
            "sequences", tokens=tokens, token_cosine=token_cosine, sampling=sampling
        )
        assert over is not None
        cases, models = over(cases, models, pairs)
    elif sampling is not None:
        raise KcalcError(
            "sampling= sets how attention over tokens is sampled in kernel maps; also pass the "
            "number of tokens as tokens="
        )
    if tangent or gradients:
        _refuse_masks(model.network)
    work = [_Work(one, cases, pairs, heuristic, tangent, gradients) for one in models]
    bits = random_bits(key)
    found = [one.run(bits, draws, memory) for one in work]
    last, first = work[-1], model.network.inputs[0]
    spectra = None
    if jacobians:
        chosen = jax.random.split(bits, draws)[-1]
        start_q = float(cases.q1[first][0])
        spectra = layer_jacobians(last.model, key=chosen, q=start_q, heuristic=heuristic)
    c_, q1_, q2_ = (tuple(v[first].tolist()) for v in (cases.c, cases.q1, cases.q2))
    return KernelCheck(
        last.nodes,
        model.network.inputs,
        c_,
        q1_,
        q2_,
        draws,
        pairs,
        tuple(one.sample(result) for one, result in zip(work, found, strict=True)),
        last.epsilon,
        last.notes(),
        _tangents(work, found),
        last.gradient_check(found[-1]),
        spectra,
        given,
    )


def _refuse_masks(network: Network) -> None:
    """Reject gradient checks of networks with active dropout.

    Gradients are measured in evaluation mode, without dropout masks.
    """
    for node in network.nodes_of(Dropout):
        if network.layer(node).active:
            raise KcalcError(
                f"node {node!r} is an active Dropout, for which only q and c can be measured; "
                "pass tangent=False and gradients=False"
            )


def _at_widths(model: Model, widths: Sequence[int]) -> list[Model]:
    given = [whole(width, "a width", 1) for width in items(widths, "widths")]
    if len(set(given)) != len(given) or not given:
        raise KcalcError(f"widths must be different positive integers, got {glimpse(widths)}")
    affine = [n for n in model.network.nodes_of(Affine) if n not in model.features]
    if all(model.network.layer(node).features is not None for node in affine):
        raise KcalcError(
            "every layer specifies its width, so widths= has no effect; build the network and the "
            "model without features"
        )
    return [
        model._function(
            ("width", w),
            None,
            lambda w=w: replace(model, default_features=w, _plans={}, _compiled={}),
        )
        for w in given
    ]


def _tangents(work: Sequence[_Work], found: Sequence[dict[str, np.ndarray]]) -> TangentCheck | None:
    expected = tuple(one.theory for one in work if one.theory is not None)
    if len(expected) < len(work):
        return None
    samples = tuple(result["tangent"] for result in found)
    widths = tuple(one.model.default_features for one in work)
    return TangentCheck(widths, work[0].affine, expected, samples, work[0].epsilon)


class _Work:
    """Compute the expected values for one width, and measure random networks of this width."""

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
        self.shapes = cases.shapes(model)
        cases.check(self.shapes)
        self.plan = model._plan_of(plan_shapes(self.shapes))
        self.network = with_model_widths(model, self.plan)
        self.nodes = tuple(self.network)
        self.channels = tuple(
            self.shapes[n][-1] if n in self.shapes else self.plan.nodes[n].shape.channels
            for n in self.nodes
        )
        self.expected, self.known, notes = cases.values(self.network, heuristic)
        self.remarks = list(refuse_heuristics(model, self.network, self.plan, heuristic, notes))
        self.epsilon = float(jnp.finfo(model.dtype).eps)
        affine = parameter_nodes(self.network)
        self.affine = tuple(
            node for entry in self.plan.tensors for node in entry.nodes if node in affine
        )
        self.theory: np.ndarray | None = (
            self._theory("the tangent kernel was", self._tangent_theory) if tangent else None
        )
        self.slopes: tuple[tuple[Node, ...], np.ndarray, np.ndarray] | None = (
            self._theory("gradients were", self._gradient_theory) if gradients else None
        )

    # -- expected values ---------------------------------------------------------------------------

    def _theory(self, what: str, make: Callable[[], Any]) -> Any:
        """Return the expected values, or note why they do not exist and return None."""
        try:
            return make()
        except KcalcError as error:
            self.remarks.append(Assumption("network", f"{what} not compared: {error}"))
            return None

    def _tangent_theory(self) -> np.ndarray:
        """Compute the expected tangent kernel, shape (Affine nodes, kinds, cases).

        Raises: KcalcError if the theory does not cover this kernel.
        """
        network, cases = self.network, (self.cases.c, self.cases.q1, self.cases.q2)
        first = [values[network.inputs[0]] for values in cases]
        others = [
            np.array_equal(one, own)
            for values, one in zip(cases, first, strict=True)
            for own in values.values()
        ]
        reasons = {
            "the network has several outputs": len(network.outputs) > 1,
            "the inputs have different c or q values": not all(others),
            "weighted mean pooling has separate weights": any(
                network.layer(n).kind == "weighted_mean" for n in network.nodes_of(Pool)
            ),
        }
        for reason, holds in reasons.items():
            if holds:
                raise KcalcError(reason)
        kernel = ntk(
            network,
            self.model.parameterization.name,
            assume_independent=self.heuristic,
            **self.cases.alike,
        )
        c, one, two = first
        ends = (np.ones_like(c), one), (np.ones_like(c), two), (c, one, two)
        kinds = [kernel.by_layer(*pair) for pair in ends]
        return np.array(
            [[np.broadcast_to(kind[node], c.shape) for kind in kinds] for node in self.affine]
        )

    def _gradient_theory(self) -> tuple[tuple[Node, ...], np.ndarray, np.ndarray]:
        """Return the nodes, the expected gradients at these nodes, and their standard errors.

        The arrays have shape (nodes,), or (nodes, 3) for networks over tokens. The three entries
        include the mean and the difference mode, with nan for modes that a node does not have.
        """
        cases = self.cases
        found = infinite_gradients(
            self.network,
            {n: float(v[0]) for n, v in cases.q1.items()},
            self.network.outputs[0],
            assume_independent=self.heuristic,
            **cases.asked,
        )
        nodes = tuple(
            node
            for node in self.network
            if found.nodes.get(node, 0) > 0 and node not in self.model.id_inputs
        )
        modes = {"nodes": found.nodes, "mean": found.mean, "difference": found.difference}
        tables = {name: table for name, table in modes.items() if table is not None}
        errors = cases.errors(found)
        expected = [[table.get(node, np.nan) for table in tables.values()] for node in nodes]
        known = [[errors.get(name, {}).get(node, 0.0) for name in tables] for node in nodes]
        rows = slice(None) if cases.alike else 0
        return nodes, np.array(expected)[:, rows], np.array(known)[:, rows]

    def notes(self) -> tuple[Assumption, ...]:
        """Return the assumptions behind the comparison."""
        found = list(self.remarks)
        if self.cases.equal and self.model.image_shapes:
            found.append(Assumption("network", EQUAL))
        for node, k in zip(self.nodes, self.channels, strict=True):
            if k < NARROW and node not in self.network.inputs:
                text = f"has only {k} channels, so its c values are measured but not checked"
                found.append(Assumption(node, text))
        return tuple(found)

    # -- measured values ---------------------------------------------------------------------------

    def run(self, key: Array, draws: int, memory: int) -> dict[str, np.ndarray]:
        """Measure all draws and return {statistic: array with draws on axis 0}.

        Raises: a KcalcError that names the node if a feature map vanishes or overflows.
        """
        import jax

        measured = self.theory is not None, None if self.slopes is None else self.slopes[0]
        together = self._together(draws, memory)
        purpose = ("verify", *self.cases.key, self.pairs, together, *measured)
        keys = jax.random.split(key, draws)
        found = measure(self.model, self.plan, purpose, self._one, keys, together)
        # vectors over the vocabulary have squared length q instead of mean square q
        for node in self.model.id_inputs if self.cases.alike else ():
            sizes = found["pairs"][:, self.nodes.index(node), :, : 1 if self.cases.uniform else 2]
            sizes *= np.array([[1.0], [self.shapes[node][-1]]])[..., None] * self.shapes[node][-1]
        bad = np.argwhere(~np.isfinite(found["pairs"]))
        if bad.size:
            draw, node = int(bad[:, 0].min()), self.nodes[int(bad[:, 1].min())]
            raise KcalcError(
                f"node {node!r}: its feature map vanishes or overflows in draw {draw} of "
                f"{draws}, so its c value is undefined; use a larger width, a smaller q, or "
                "a dtype of higher precision"
            )
        return found

    def _together(self, draws: int, memory: int) -> int:
        """Return how many draws run at once: the largest divisor of ``draws`` that fits in memory.

        For orthogonal weights on a CPU the result is 1, because batched QR is slow there.
        """
        import jax

        laws = [law.half if isinstance(law, Mirrored) else law for law in self.model.laws.values()]
        if jax.default_backend() == "cpu" and any(isinstance(law, Orthogonal) for law in laws):
            return 1
        parameters = sum(
            int(np.prod(entry.shape(own)))
            for entry in self.plan.tensors
            for own in self.plan.nodes[entry.nodes[0]].tensors.values()
        )
        shapes = [*self.shapes.values(), *(n.shape.axes for n in self.plan.nodes.values())]
        widest = max(int(np.prod(shape)) for shape in shapes)
        copies = 3 + 4 * (self.theory is not None) + 2 * (self.slopes is not None)
        one = 4 * (copies * parameters + 8 * self.cases.cases * self.pairs * widest)
        fits = int(np.clip(memory // one, 1, draws))
        return max(k for k in range(1, fits + 1) if draws % k == 0)

    def _one(self, key: Array) -> dict[str, Array]:
        """Draw one network, and measure pairs of inputs and the other requested quantities."""
        import jax

        ours, weights = jax.random.split(key)
        cases = self.cases
        inputs = cases.draw(ours, self.model, self.shapes, self.pairs)
        params = self.plan.draw(weights, self.model._dtype)
        probes, statistics = (
            Probes(self.model, self.plan),
            partial(cases.statistics, uniform=cases.uniform),
        )
        masks = jax.random.fold_in(key, 2)
        found = {"pairs": probes.measured(params, inputs, statistics, self.nodes, masks)}
        if self.theory is not None:
            found["tangent"] = self._tangent(params, {n: x[:, 0] for n, x in inputs.items()})
        if self.slopes is not None:
            found["gradients"] = cases.gradients(probes, params, inputs, self.slopes[0], ours)
        return found

    def _tangent(self, params: Any, inputs: Mapping[Node, Array]) -> Array:
        """Measure the tangent kernel of the first channel at the first position.

        Returns: an array of shape (Affine nodes, kinds, cases).
        """
        import jax
        import jax.numpy as jnp

        jacobian = Jacobian(self.model, self.plan, self.network.outputs[0], self._counted)
        leaves = [nodes for nodes, _ in jacobian.leaves if nodes[0] in self.affine]

        def case(arrays: list[Array]) -> Array:
            rows = jacobian.rows(params, dict(zip(inputs, arrays, strict=True)), jnp.zeros(1, int))
            sums: dict[Node, Array] = {}
            for nodes, p in zip(leaves, contracted(rows, rows, "trace"), strict=True):
                part = jnp.stack([p[0, 0], p[1, 1], p[0, 1]], axis=-1)
                sums[nodes[0]] = sums.get(nodes[0], 0) + part
            return jnp.concatenate(list(sums.values()))

        return jnp.moveaxis(jax.lax.map(case, list(inputs.values())), 0, -1)

    def _counted(self, node: Node, leaf: str, values: Array) -> Array | None:
        """Select the parameters that the theory counts.

        For Delta-initialised convolutions, only the centre taps count.
        """
        if node not in self.affine:
            return None
        fan = self.plan.fans.get(node)
        window = None if fan is None else fan.window
        if leaf == "weight" and window and self.plan.laws[node].delta:
            return values[:, :, :, window[0] // 2, window[1] // 2]
        return values

    # -- results -----------------------------------------------------------------------------------

    def sample(self, found: dict[str, np.ndarray]) -> Sample:
        """Return the statistics of the input pairs."""
        values, width = found["pairs"], self.model.default_features
        means, variances = values[:, :, 0], values[:, :, 1]
        return Sample(width, self.channels, self.expected, means, variances, self.known)

    def gradient_check(self, found: dict[str, np.ndarray]) -> GradientCheck | None:
        """Compare the measured gradients with the gradients at infinite width."""
        if self.slopes is None:
            return None
        (nodes, *theory), width = self.slopes, self.model.default_features
        return GradientCheck.of(width, nodes, theory, found["gradients"], self.epsilon)
