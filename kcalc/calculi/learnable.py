"""Kernels as differentiable JAX functions of the data, sigma_w, sigma_b and activation constants: for likelihoods to be climbed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..activations import Activation
from ..activations.jax_maps import precision
from ..activations.traced import NAMES, TracedActivation, split
from ..compose import fold
from ..errors import KcalcError, unknown
from ..gram.options import check_means, check_widths
from ..jax_field import is_jax, jax_field
from ..jets import Jet
from ..layers import Affine, Layer, Nonlinear
from ..network import Network, concat_channels, grouped_widths
from .angular_grid import angular_nodes, interpolated
from .freshness import Atom, Pair
from .kernel import Kernel
from .kernel_matrix import MatrixKernel
from .ntk import TangentReading, ntk
from .tangent import Tangent, refuse_jumps

Node = Hashable
Params = Mapping[str, Any]
KINDS = ("ntk", "nngp", "both")


def learnable_kernel(network: Network, parameterization: str = "ntk", features: int | None = None) -> LearnableKernel:
    """The NNGP and NTK of a network as a differentiable JAX function of the data, sigma_w, sigma_b and activation constants.

    Arguments as for :func:`kcalc.ntk`. Returns: a :class:`LearnableKernel`. Raises: KcalcError for several inputs or outputs, symbols,
    activations that jump, and where the tangent calculus does not apply.
    """
    K = ntk(network, parameterization, features)
    return LearnableKernel(network, K.reading.fan_in)


@dataclass(frozen=True, eq=False)
class LearnableKernel:
    """The NNGP and NTK of a network as a pure function ``kernel(params, X, Y=None, kind="ntk")``, for jit, grad and vmap over params and X.

    ``params`` is ``{"sigma_w": s, "sigma_b": s, "constants": c}``, each entry optional: ``s`` one number for all Affine layers or
    {node name: number}, ``c`` {node name: {"input_scale": ..., "input_shift": ..., "output_scale": ..., "output_shift": ...}}; what is not
    given keeps the network's value. :meth:`init` gives them all. Node names are ``str(node)``.
    """

    network: Network
    fan_in: Mapping[Node, int] | None = None

    def __post_init__(self) -> None:
        if len(self.network.inputs) != 1 or len(self.network.outputs) != 1:
            raise KcalcError("a learnable kernel needs a network with one input and one output")
        if self.network.free_symbols:
            raise KcalcError("the network has symbols; put in numbers with net.subs before learning")
        for node in self.network.nodes_of(Nonlinear):
            refuse_jumps(self.network.layer(node), node)  # type: ignore[arg-type]

    def init(self, shared: bool = False) -> dict[str, Any]:
        """The network's own numbers. ``shared``: one sigma_w and one sigma_b for all Affine layers, those of the last one."""
        layers: dict[str, Any] = {str(node): self.network.layer(node) for node in self.network.nodes_of(Affine)}
        own = {name: {node: float(getattr(layer, name)) for node, layer in layers.items()} for name in ("sigma_w", "sigma_b")}
        out: dict[str, Any] = {name: [*table.values()][-1] for name, table in own.items()} if shared else dict(own)
        nodes: dict[str, Any] = {str(node): self.network.layer(node) for node in self.network.nodes_of(Nonlinear)}
        return out | {"constants": {node: split(layer.activation)[1] for node, layer in nodes.items()}}

    def __call__(self, params: Params, X: Any, Y: Any = None, kind: str = "ntk", uniform: bool | None = None) -> Any:
        """The kernel between the rows of X (N, d) and of Y (M, d; None: X), in the precision of X: float64 arrays give 1e-10, float32 1e-4.

        ``uniform``: whether all rows have one mean square |x|^2/d. Then the kernel is one function of the angle, made by interpolation at
        any depth for little; otherwise the recursion runs over all pairs. None: as the data say, False where X is traced.
        Gradients at coinciding rows are finite: the kernel's one-sided slope does not count there.
        Returns: (N, M); for ``kind="both"`` (NNGP, NTK). Raises: KcalcError for unknown parameters, bad shapes, zero rows or nan.
        """
        import jax
        import jax.numpy as jnp

        if kind not in KINDS:
            raise unknown("kind of kernel", kind, KINDS)
        with precision(X, *([] if Y is None else [Y]), *_leaves(params)):
            first = _rows(X, "X")
            second = first if Y is None else _rows(Y, "Y")
            check_widths(self._matrix_kernel, first.shape[1], second.shape[1])
            sizes = [jnp.mean(a * a, axis=1) for a in ([first] if Y is None else [first, second])]
            for rows, size, what in zip((first, second), sizes, "XY", strict=False):
                if not _is_traced(rows):
                    check_means(self._matrix_kernel, np.asarray(jnp.mean(rows, axis=1)), np.asarray(size), what)
            level = _uniform(sizes, uniform)
            params = jax.tree.map(jnp.asarray, dict(params))
            kernels = self._compiled
            gap = _gaps(first, second, sizes[0], sizes[-1], Y is None)
            if level is None:
                both = kernels(params, gap, sizes[0][:, None], sizes[-1][None, :], uniform=False)
                if Y is None:  # a row and itself: exactly the same q, and a gap of exactly 0 at every layer
                    own = kernels(params, jnp.zeros_like(sizes[0]), sizes[0], sizes[0], uniform=True)
                    both = tuple(jnp.where(jnp.eye(len(one), dtype=bool), one[:, None], all_) for one, all_ in zip(own, both, strict=True))
            else:
                nodes = jnp.asarray(angular_nodes(), first.dtype)
                curves = kernels(params, 2 * jnp.sin(nodes / 2) ** 2, level, level, uniform=True)
                theta = jax_field().angle(gap)
                both = tuple(interpolated(curve, theta) for curve in curves)
            return both if kind == "both" else both[KINDS.index(kind) == 0]

    def log_marginal_likelihood(self, params: Params, X: Any, y: Any, noise: Any, kind: str = "nngp", uniform: bool | None = None) -> Any:
        """``log N(y | 0, K + noise I)``, y of shape (N,) or (N, k) (summed over columns): differentiable in params, X and noise.

        nan where K + noise I is not positive definite (a gradient step may not raise); ``noise`` is the variance added to the diagonal.
        """
        import jax.numpy as jnp
        from jax.scipy.linalg import cho_solve

        with precision(X, y, *_leaves(params)):
            kernel = self(params, X, kind=kind, uniform=uniform)
            targets = jnp.asarray(y, kernel.dtype)
            if targets.shape[:1] != kernel.shape[:1]:
                raise KcalcError(f"y has {targets.shape[0] if targets.ndim else 1} rows, X {kernel.shape[0]}")
            targets = targets.reshape(kernel.shape[0], -1)
            factor = jnp.linalg.cholesky(kernel + noise * jnp.eye(kernel.shape[0], dtype=kernel.dtype))
            fit = jnp.sum(targets * cho_solve((factor, True), targets))
            volume = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
            return -0.5 * (fit + targets.shape[1] * (volume + kernel.shape[0] * np.log(2 * np.pi)))

    @cached_property
    def _matrix_kernel(self) -> MatrixKernel:
        """What knows which rows the network takes."""
        return MatrixKernel(TangentReading(self.network, self.fan_in, False), None)

    @cached_property
    def _compiled(self) -> Any:
        import jax

        return jax.jit(self._kernels, static_argnames="uniform")

    def _kernels(self, params: Params, gap: Any, q1: Any, q2: Any, uniform: bool) -> tuple[Any, Any]:
        sigma_w, sigma_b = (_numbers(params, name, self.network) for name in ("sigma_w", "sigma_b"))
        traced = _activations(params, self.network)
        channels, widths = concat_channels(self.network), grouped_widths(self.network)
        kernel = LearnableTangent(jax_field(), uniform, True, channels, False, widths, None, self.fan_in, {}, sigma_w, sigma_b, traced)
        (node,) = self.network.inputs
        states = fold(self.network, kernel, {node: kernel.start(node, q1, q1 if uniform else q2, Jet((gap, gap * 0)))})  # pyright: ignore
        return kernel.kernels(states[self.network.outputs[0]])

    def __repr__(self) -> str:
        return f"LearnableKernel({len(self.network)} nodes)"


@dataclass
class LearnableTangent(Tangent):
    """The tangent calculus over JAX arrays with sigma_w, sigma_b and activations of the caller."""

    sigma_w: Mapping[Node, Any] = field(default_factory=dict)
    sigma_b: Mapping[Node, Any] = field(default_factory=dict)
    activations: Mapping[Node, TracedActivation] = field(default_factory=dict)

    def _sigmas(self, layer: Affine, node: Node) -> tuple[Any, Any]:
        own = super()._sigmas(layer, node)
        return self.sigma_w.get(node, own[0]), self.sigma_b.get(node, own[1])

    def _post(self, phi: Activation, source: Atom, scale: Any, node: Node) -> Pair:
        chosen: Any = self.activations.get(node)
        if chosen is None:
            chosen = phi if closed_in_jax(phi) else TracedActivation.of(phi, {})
        return Kernel._post(self, chosen, source, scale, node)

    def _local_q(self, phi: Any, q: Any) -> tuple[Any, Any]:
        if isinstance(phi, TracedActivation):
            return phi.second_moment(q), phi.mean(q)
        return super()._local_q(phi, q)

    def _local_gap(self, phi: Any, gap: Jet, q1: Any, q2: Any) -> Jet:
        if not isinstance(phi, TracedActivation):
            return super()._local_gap(phi, gap, q1, q2)
        value, slope = phi.taylor(gap.value, q1, q2, self.uniform)
        return Jet((value, slope * gap.coefficients[1]))

    def _clipped(self, gap: Any) -> Any:
        import jax.numpy as jnp

        value = jnp.where(gap.value < 0, 0.0, jnp.where(gap.value > 2, 2.0, gap.value))
        return Jet((value, *gap.coefficients[1:]))


def closed_in_jax(phi: Activation) -> bool:
    """Whether an activation's C and C' have closed forms that JAX can trace in c and q."""
    known = phi.closed_in_numpy and phi._closed_gap(0.5, 1.0, 1.0, jax_field()) is not None
    return known and phi._closed_derivatives(0.5, 1.0, 1.0, jax_field()) is not None


# -- parameters and data -----------------------------------------------------------------------------------------------------------------


def _leaves(params: Params) -> list[Any]:
    out: list[Any] = []
    for value in params.values():
        out.extend(_leaves(value) if isinstance(value, Mapping) else [value])
    return out


def _numbers(params: Params, name: str, network: Network) -> dict[Node, Any]:
    """{Affine node: value} of those that are given. Raises: KcalcError for unknown names."""
    for key in params:
        if key not in ("sigma_w", "sigma_b", "constants"):
            raise unknown("kernel parameter", key, ("sigma_w", "sigma_b", "constants"))
    given = params.get(name)
    nodes: dict[str, Node] = {str(node): node for node in network.nodes_of(Affine)}
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        biased = [node for node in nodes.values() if name == "sigma_w" or network.layer(node).bias]  # type: ignore[attr-defined]
        return {node: _number(given, name) for node in biased}
    for key in given:
        if str(key) not in nodes:
            raise unknown("Affine layer", key, nodes)
    return {nodes[str(key)]: _number(value, f"{name} of {key}") for key, value in given.items()}


def _number(value: Any, what: str) -> Any:
    import jax.numpy as jnp

    array = value if is_jax(value) else jnp.asarray(value)
    if array.ndim or not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise KcalcError(f"{what} must be one real number, got an array of shape {array.shape}")
    return array * 1.0


def _activations(params: Params, network: Network) -> dict[Node, TracedActivation]:
    given = params.get("constants") or {}
    nodes: dict[str, Any] = {str(node): node for node in network.nodes_of(Nonlinear)}
    out = {}
    for key, constants in given.items():
        if str(key) not in nodes:
            raise unknown("nonlinear layer", key, nodes)
        layer: Layer = network.layer(nodes[str(key)])
        wrong = [name for name in constants if name not in NAMES]
        if wrong:
            raise unknown("activation constant", wrong[0], NAMES)
        numbers = {name: _number(value, f"{name} of {key}") for name, value in constants.items()}
        out[nodes[str(key)]] = TracedActivation.of(layer.activation, numbers)  # type: ignore[attr-defined]
    return out


def _is_traced(value: Any) -> bool:
    from jax.core import Tracer

    return isinstance(value, Tracer)


def _rows(X: Any, what: str) -> Any:
    import jax.numpy as jnp

    array = X if is_jax(X) else jnp.asarray(X)
    if array.ndim != 2 or not array.shape[0] or not array.shape[1]:
        raise KcalcError(f"{what} must hold one input per row, shape (N, d), got shape {array.shape}")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array * 1.0
    if not _is_traced(array):
        norms = np.asarray(jnp.sum(array * array, axis=1))
        if not np.all(np.isfinite(norms)) or np.any(norms == 0):
            bad = int(np.flatnonzero(~np.isfinite(norms) | (norms == 0))[0])
            raise KcalcError(f"row {bad} of {what} is zero or not finite, so it has no direction; drop it")
    return array


def _uniform(sizes: list[Any], wanted: bool | None) -> Any:
    """The common mean square, or None where rows differ."""
    import jax.numpy as jnp

    if wanted is False or (wanted is None and any(_is_traced(s) for s in sizes)):
        return None
    level = jnp.mean(sizes[0])
    if any(_is_traced(s) for s in sizes):
        return level
    spread = max(float(jnp.max(jnp.abs(s / level - 1))) for s in sizes)
    allowed = 1e-12 if level.dtype == jnp.float64 else 1e-5
    if spread <= allowed:
        return level
    if wanted:
        raise KcalcError(f"uniform=True, but the rows' mean squares differ by {spread:.1e}, relatively; leave uniform=None, or rescale")
    return None


def _gaps(first: Any, second: Any, q1: Any, q2: Any, same: bool) -> Any:
    """1 - c of all pairs of rows, exactly 0 on the diagonal where both sets are one."""
    import jax.numpy as jnp

    d = first.shape[1]
    gap = 1 - (first / jnp.sqrt(q1 * d)[:, None]) @ (second / jnp.sqrt(q2 * d)[:, None]).T
    gap = jnp.where(gap < 0, 0.0, jnp.where(gap > 2, 2.0, gap))
    return jnp.where(jnp.eye(first.shape[0], dtype=bool), 0.0, gap) if same else gap
