"""Kernels as differentiable JAX functions of the data, sigma_w, sigma_b and activation constants.

They can be used to maximise the marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..activations.traced import split
from ..fields.arguments import real_array
from ..fields.jax_field import is_jax, jax_field
from ..fields.jets import Jet
from ..fields.tables.angles import angular_nodes, interpolated
from ..foundation.errors import KcalcError, without_option
from ..foundation.extras import imported
from ..foundation.plain_arguments import choice, truth
from ..foundation.printing import Shown, plain, shown
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..matrices.gram.options import check_means, check_widths
from ..matrices.spectrum import ridge_value
from ..network.compose import interpret
from ..network.layers import Affine, Nonlinear
from ..network.network import Network, require_numbers
from .kernel_matrix import MatrixKernel
from .learnable_parameters import (
    Params,
    activations_of,
    by_name,
    checked_params,
    common_level,
    gaps_of,
    is_double,
    is_traced,
    leaves,
    numbers_of,
    rows_of,
)
from .learnable_tangent import Learnt, learnable_tangent
from .ntk import TangentReading, ntk
from .tangent import refuse_jumps

if TYPE_CHECKING:
    from jax import Array

Node = Hashable
KINDS = ("ntk", "nngp", "both")


@without_option()
def learnable_kernel(
    network: Network, parameterization: str = "ntk", features: int | None = None
) -> LearnableKernel:
    """Return the NNGP and NTK of a network as a differentiable JAX function.

    The function depends on the data, sigma_w, sigma_b and the constants of activations.

    The function returns the same values as :func:`kcalc.ntk` for the same arguments.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    parameterization
        "ntk" or "standard", as for :func:`kcalc.ntk`.
    features
        The width of layers that do not specify one, for "standard".

    Returns
    -------
    LearnableKernel
        A function of parameters and data. Its ``init`` returns the network's parameters.

    Raises
    ------
    KcalcError
        For networks with several inputs or outputs, symbols, or activations that jump, and if the
        tangent calculus does not apply.

    """
    K = ntk(network, parameterization, features)
    return LearnableKernel(network.written_out(), K.reading.fan_in)


@dataclass(frozen=True, eq=False)
class LearnableKernel(Shown):
    """The NNGP and NTK of a network as a pure function ``kernel(params, X, Y=None, kind="ntk")``.

    It supports jit, grad and vmap over params and X. ``params`` is
    ``{"sigma_w": s, "sigma_b": s, "constants": c}``, where each entry is optional. ``s`` is one
    value for all Affine layers or {node name: value}; ``c`` is {node name: {"input_scale": ...,
    "input_shift": ..., "output_scale": ..., "output_shift": ...}}. Values that are omitted come
    from the network. :meth:`init` returns the complete ``params``. Node names are ``str(node)``.
    """

    network: Network
    fan_in: Mapping[Node, int] | None = None

    def __post_init__(self) -> None:
        if len(self.network.inputs) != 1 or len(self.network.outputs) != 1:
            raise KcalcError("a learnable kernel needs a network with one input and one output")
        require_numbers(self.network)
        for node in self.network.nodes_of(Nonlinear):
            refuse_jumps(self.network.layer(node).activation, node)
        self._validate()

    def init(self, shared: bool = False) -> dict[str, Any]:
        """Return the network's own values as ``params``.

        Parameters
        ----------
        shared
            Whether to return one sigma_w and one sigma_b for all Affine layers, taken from the last
            layer.

        Returns
        -------
        dict[str, Any]
            The parameters, the first argument of a call.

        """
        layer = self.network.layer
        own = {
            sigma: {
                name: float(getattr(layer(node), sigma))
                for name, node in by_name(self.network, Affine).items()
            }
            for sigma in ("sigma_w", "sigma_b")
        }
        out: dict[str, Any] = (
            {name: [*table.values()][-1] for name, table in own.items()}
            if truth(shared, "shared")
            else dict(own)
        )
        return out | {
            "constants": {
                name: split(layer(node).activation)[1]
                for name, node in by_name(self.network, Nonlinear).items()
                if node not in self._fixed
            }
        }

    def __call__(
        self, params: Params, X: Any, Y: Any = None, kind: str = "ntk", uniform: bool | None = None
    ) -> Array:
        """Return the kernel between the rows of X (N, d) and Y (M, d) as a JAX array.

        Y defaults to X. The result has the precision of the data. For NumPy float64 or integer
        arrays and for lists, it is computed in float64, with an error of about 1e-10, whether
        ``jax_enable_x64`` is on or off. The same holds for calls with any JAX float64 array. For
        NumPy and JAX float32 data, the result is float32, with an error of about 1e-4. The same
        holds for the arguments of a jitted or vmapped function while x64 is off, because JAX has
        rounded them. Gradients have the type of the argument. If x64 is off, float64 results
        support reverse-mode differentiation (grad, jacrev, hessian) but not jvp or jacfwd, and JAX
        rounds later operations on them to float32. :meth:`log_marginal_likelihood` is computed in
        float64 throughout.

        For rows with c > .99, 1 - c is computed from their difference, so angles of near-duplicates
        have an absolute error of 1e-15 (for traced rows, only if N M d <= 2^27; otherwise 1e-8).

        ``uniform``: whether all rows have the same mean square |x|^2/d. The kernel is then a
        function of the angle, which is cheap to interpolate at any depth; otherwise the recursion
        runs over all pairs. By default, this is determined from the data; if X is traced, it is
        False. Gradients at coinciding rows are finite: they omit the one-sided slope of the kernel
        in the angle.

        Returns: an (N, M) array, or (NNGP, NTK) for ``kind="both"``.

        Raises: KcalcError for invalid parameters and rows, and for results that are not finite,
        unless JAX traces them.
        """
        choice(kind, "kind of kernel", KINDS)
        given = checked_params(params, self.network, self._fixed)
        first = rows_of(X, "X")
        second = first if Y is None else rows_of(Y, "Y")
        check_widths(self._matrix_kernel, first.shape[1], second.shape[1])
        double = is_double([X] if Y is None else [X, Y], leaves(given))
        guard = doubled(double)
        with _precision(double):
            sizes = [
                (rows * rows).mean(axis=1) for rows in ([first] if Y is None else [first, second])
            ]
            for rows, size, what in zip((first, second), sizes, "XY", strict=False):
                if not is_traced(rows):
                    check_means(self._matrix_kernel, rows.mean(axis=1), size, what)
            level = common_level(sizes, uniform, not double)
            mode, same = "pairs" if level is None else "angles", Y is None

            def kernels(numbers: Any, rows: Any, made: Any) -> Any:
                made = _pairs(rows[0], rows[1], mode, same) if made is None else made
                return self._compiled(numbers, *made, mode, same)

            rows = (first, second)
            moving = any(is_traced(part) for part in rows)
            data = (
                (_typed(rows, double), None)
                if moving
                else ((), _typed(_pairs(first, second, mode, same), double))
            )
            both = guard(kernels)(_typed(given, double), *data)
            self._refuse_nan(both)
            return both if kind == "both" else both[KINDS.index(kind) == 0]

    def log_marginal_likelihood(
        self,
        params: Params,
        X: Any,
        y: Any,
        noise: Any,
        kind: str = "nngp",
        uniform: bool | None = None,
    ) -> Array:
        """Compute ``log N(y | 0, K + noise I)``, summed over the columns of y.

        The result is differentiable in params, X and noise.

        The result is nan if K + noise I is not positive definite (so that gradient steps raise no
        errors).

        Parameters
        ----------
        params
            The parameters, in the form that :meth:`init` returns.
        X
            The rows of data, (n, features).
        y
            The targets, (n,) or (n, outputs).
        noise
            The variance added to the diagonal.
        kind
            "ntk" or "nngp".
        uniform
            Whether all rows have the same q value; None determines it from the data.

        Returns
        -------
        Array
            A JAX scalar, in nats.

        """
        choice(kind, "kind of kernel", KINDS[:2])
        y = y if is_jax(y) else real_array(y, "y")
        if y.ndim not in (1, 2):
            raise KcalcError(f"y must have shape (N,) or (N, k), got {tuple(y.shape)}")
        noise = noise if is_jax(noise) else ridge_value(noise, "noise")
        given = checked_params(params, self.network, self._fixed)
        double = is_double([X], [*leaves(given), y, noise])
        guard = doubled(double)

        def likelihood(numbers: Any, moving: Any, targets: Any, variance: Any) -> Any:
            return _log_normal(
                self(numbers, X if moving is None else moving, kind=kind, uniform=uniform),
                targets,
                variance,
            )

        with _precision(double):
            targets, variance = _typed((y, noise), double)
            return guard(likelihood)(
                _typed(given, double), X if is_traced(X) else None, targets, variance
            )

    @cached_property
    def _matrix_kernel(self) -> MatrixKernel:
        """The network's kernel matrix, used to check rows."""
        return MatrixKernel(TangentReading(self.network, self.fan_in, False), None)

    def _validate(self) -> None:
        """Trace once, with and without constants, so unsupported layers fail here."""
        jax = imported("jax")
        jnp = jax.numpy

        gap, q1, q2 = (
            jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 2), (2, 1), (1, 2))
        )
        fixed: dict[Node, str] = {}
        jax.eval_shape(lambda u, q, p: self._kernels({}, u, q, p, "pairs", fixed), gap, q1, q2)
        self.__dict__["_fixed"] = fixed
        numbers = jax.tree.map(jnp.float32, self.init())
        jax.eval_shape(
            lambda params, u, q, p: self._kernels(params, u, q, p, "pairs"), numbers, gap, q1, q2
        )

    @property
    def _fixed(self) -> dict[Node, str]:
        """{nonlinear node: the reason why its constants cannot be set}."""
        return self.__dict__["_fixed"]

    @cached_property
    def _compiled(self) -> Any:
        import jax

        return jax.jit(self._matrices, static_argnums=(4, 5))

    def _matrices(
        self, params: Params, gap: Any, q1: Any, q2: Any, mode: str, same: bool
    ) -> tuple[Any, Any]:
        """Return (NNGP, NTK) of all pairs of rows.

        ``same``: whether both sets of rows are the same, so that pairs on the diagonal are
        identical inputs.
        """
        import jax.numpy as jnp

        if mode == "angles":
            nodes = jnp.asarray(angular_nodes(), gap.dtype)
            curves = self._kernels(params, 2 * jnp.sin(nodes / 2) ** 2, q1, q1, mode)
            theta = jax_field().angle(gap)
            nngp, tangent = (interpolated(curve, theta) for curve in curves)
            return nngp, tangent
        nngp, tangent = self._kernels(params, gap, q1, q2, mode)
        if not same:
            return nngp, tangent
        own = self._kernels(params, jnp.zeros_like(q1[:, 0]), q1[:, 0], q1[:, 0], "equal")
        diagonal = jnp.eye(gap.shape[0], dtype=bool)
        return jnp.where(diagonal, own[0][:, None], nngp), jnp.where(
            diagonal, own[1][:, None], tangent
        )

    def _kernels(
        self,
        params: Params,
        gap: Any,
        q1: Any,
        q2: Any,
        mode: str,
        fixed: dict[Node, str] | None = None,
    ) -> tuple[Any, Any]:
        """Return (NNGP, NTK) at given 1 - c and q.

        ``mode``: "pairs", "angles" (one q value) or "equal" (gaps of 0).
        """
        sigma_w, sigma_b = (
            numbers_of(params, name, self.network) for name in ("sigma_w", "sigma_b")
        )
        chosen, uniform = activations_of(params, self.network), mode != "pairs"
        learnt = Learnt(sigma_w, sigma_b, chosen)
        calculus = learnable_tangent(
            learnt, self.fan_in, uniform, mode == "equal", {} if fixed is None else fixed
        )
        (node,) = self.network.inputs
        start = calculus.tangent.start(node, q1, q1 if uniform else q2, Jet((gap, gap * 0)))
        states = interpret(self.network, calculus, {node: start})
        return calculus.tangent.kernels(states[self.network.outputs[0]])

    def _refuse_nan(self, kernels: tuple[Any, Any]) -> None:
        import jax.numpy as jnp

        if any(is_traced(part) for part in kernels) or all(
            bool(jnp.all(jnp.isfinite(part))) for part in kernels
        ):
            return
        names = sorted(
            {self.network.layer(node).activation.name for node in self.network.nodes_of(Nonlinear)}
        )  # type: ignore[attr-defined]
        raise KcalcError(
            "the kernel is not finite. Either q values are beyond the range of floats, or the "
            f"Hermite series of an activation ({', '.join(names)}) is too long at these q values, "
            "or some of its kinks are unknown. Use rows of smaller norm, a smaller sigma_w or "
            "input_scale, or kc.ntk"
        )

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the kernel at the network's own parameter values."""
        from .ntk import ntk

        return ntk(self.network).assumptions

    def to_dict(self) -> dict[str, Any]:
        """Return the network's own parameter values and the assumptions as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {"parameters": plain(self.init()), "assumptions": plain(self.assumptions)}

    def _rows(self) -> list[tuple[str, ...]]:
        own = self.init()
        body = (
            (node, shown(own["sigma_w"][node]), shown(own["sigma_b"][node]))
            for node in own["sigma_w"]
        )
        return [("Affine", "sigma_w", "sigma_b"), *body]

    def __repr__(self) -> str:
        return f"LearnableKernel({len(self.network)} nodes)"


def _precision(double: bool) -> AbstractContextManager[Any]:
    import jax

    return jax.enable_x64(True) if double else nullcontext()


def _typed(tree: Any, double: bool) -> Any:
    """Return JAX arrays unchanged, and other values as JAX arrays of the given precision."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(
        lambda v: v if is_jax(v) else jnp.asarray(v, jnp.float64 if double else jnp.float32), tree
    )


def doubled(double: bool) -> Any:
    """Return a decorator that differentiates pytree functions in float64 while JAX's x64 is off.

    JAX runs the backward pass after the function, outside its x64 context, and would otherwise
    round some of the arrays.
    """
    import jax

    if not double or jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        return lambda function: function

    def guarded(inner: Any) -> Any:
        def function(*given: Any) -> Any:
            with jax.enable_x64(True):  # JAX may call it later
                return whole(*given)

        def whole(*given: Any) -> Any:
            return inner(
                *jax.tree.map(lambda v: v.astype("float64") if v.dtype == np.float32 else v, given)
            )

        wrapped = jax.custom_vjp(function)

        def forth(*given: Any) -> Any:
            with jax.enable_x64(True):
                out, pull = jax.vjp(function, *given)
                return out, (
                    pull,
                    jax.tree.map(lambda v: v[..., :0].ravel() if v.ndim else v[None][:0], out),
                )

        def back(kept: Any, slopes: Any) -> Any:
            with jax.enable_x64(True):
                return kept[0](
                    jax.tree.map(lambda slope, like: slope.astype(like.dtype), slopes, kept[1])
                )

        wrapped.defvjp(forth, back)
        return wrapped

    return guarded


def _pairs(first: Any, second: Any, mode: str, same: bool) -> tuple[Any, Any, Any]:
    """Return (1 - c, q1, q2) of all pairs of rows."""
    one, two = ((rows * rows).mean(axis=1) for rows in (first, second))
    q = (one[:, None], two[None, :]) if mode == "pairs" else (one.mean(), one.mean())
    return (gaps_of(first, second, same), *q)


def _log_normal(kernel: Any, y: Any, noise: Any) -> Any:
    """Return log N(y | 0, K + noise I), summed over the columns of y."""
    import jax.numpy as jnp
    from jax.scipy.linalg import cho_solve

    targets = jnp.asarray(y, kernel.dtype)
    if targets.shape[:1] != kernel.shape[:1]:
        raise KcalcError(
            f"y has {targets.shape[0] if targets.ndim else 1} rows, but X has {kernel.shape[0]}"
        )
    targets = targets.reshape(kernel.shape[0], -1)
    factor = jnp.linalg.cholesky(kernel + noise * jnp.eye(kernel.shape[0], dtype=kernel.dtype))
    fit = jnp.sum(targets * cho_solve((factor, True), targets))
    volume = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
    return -0.5 * (fit + targets.shape[1] * (volume + kernel.shape[0] * np.log(2 * np.pi)))
