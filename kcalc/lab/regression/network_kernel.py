"""The kernel of an infinitely wide network, as a scikit-learn kernel.

Importing this module imports scikit-learn.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, overload

import numpy as np
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from ... import Network, ntk
from ... import layers as L
from ...calculi import PARAMETERIZATIONS
from ...fields.arguments import one_number
from ...foundation.errors import KcalcError, without_option
from ...foundation.plain_arguments import choice, whole
from ...network import require_network
from .algebra import diagonal, gram
from .kept import KeptKernel, kept_kernel

Array = np.ndarray
KINDS = ("ntk", "nngp")
# fourth-order central differences for the first derivative
STENCIL = (
    (-2, 1 / 12),
    (-1, -2 / 3),
    (1, 2 / 3),
    (2, -1 / 12),
)
_KEPT = 1 << 28  # number of bytes for the matrices of one kernel
STEP = 0.01  # in theta, because a depth-D kernel scales as sigma^(2 D)


class NetworkKernel(Kernel):
    """The NTK or NNGP of a network as a scikit-learn kernel.

    It works in ``GaussianProcessRegressor``, ``GaussianProcessClassifier`` and ``SVC(kernel=...)``,
    in sums and products of kernels, and in pipelines and grid searches (``kernel__sigma_w``).

    Kernel values are equal to ``kc.ntk(network).matrix``. Gradients with respect to theta are
    fourth-order central differences, accurate to about 1e-9. ``theta`` contains the logarithms of
    ``sigma_w`` and ``sigma_b``; sigma_b = 0 has no logarithm and stays 0.

    Attributes
    ----------
    network
        A :class:`kcalc.Network` with one input and one output.
    kind
        "ntk" or "nngp".
    sigma_w
        The weight scale of every Affine layer. None keeps the values of the network.
    sigma_b
        The bias scale of every Affine layer. None keeps the values of the network.
    sigma_w_bounds
        The search bounds for ``sigma_w``; "fixed" keeps it constant.
    sigma_b_bounds
        The search bounds for ``sigma_b``; "fixed" keeps it constant.
    parameterization
        See :func:`kcalc.ntk`.
    features
        See :func:`kcalc.ntk`.
    q
        The q value assumed for all rows, or None.

    """

    def __init__(
        self,
        network: Network,
        kind: str = "ntk",
        sigma_w: float | None = None,
        sigma_b: float | None = None,
        sigma_w_bounds: Any = (0.5, 2.0),
        sigma_b_bounds: Any = (1e-3, 2.0),
        parameterization: str = "ntk",
        features: int | None = None,
        q: float | None = None,
    ) -> None:
        self.network = network
        self.kind = kind
        self.sigma_w = sigma_w
        self.sigma_b = sigma_b
        self.sigma_w_bounds = sigma_w_bounds
        self.sigma_b_bounds = sigma_b_bounds
        self.parameterization = parameterization
        self.features = features
        self.q = q

    @property
    def hyperparameter_sigma_b(self) -> Hyperparameter:
        """The hyperparameter sigma_b of all Affine layers."""
        return _hyperparameter("sigma_b", self.sigma_b, self.sigma_b_bounds)

    @property
    def hyperparameter_sigma_w(self) -> Hyperparameter:
        """The hyperparameter sigma_w of all Affine layers."""
        return _hyperparameter("sigma_w", self.sigma_w, self.sigma_w_bounds)

    @overload
    def __call__(self, X: Any, Y: Any = None, eval_gradient: Literal[False] = False) -> Array: ...
    @overload
    def __call__(
        self, X: Any, Y: Any = None, *, eval_gradient: Literal[True]
    ) -> tuple[Array, Array]: ...
    def __call__(
        self, X: Any, Y: Any = None, eval_gradient: bool = False
    ) -> Array | tuple[Array, Array]:
        """Return K(X, Y), with shape (n, m).

        With ``eval_gradient``, also return the gradient with respect to theta, with shape (n, n,
        len(theta)).

        Raises: KcalcError under the same conditions as ``matrix``.
        """
        value = self._matrix(X, Y)
        if not eval_gradient:
            return value
        if Y is not None:
            raise KcalcError(
                "the gradient with respect to theta is available only for K(X, X); omit Y"
            )
        free = [h.name for h in self.hyperparameters if not h.fixed]
        return value, np.stack(
            [self._slope(X, name) for name in free], axis=-1
        ) if free else np.empty((*value.shape, 0))

    @without_option()
    def diag(self, X: Any) -> Array:
        """Return K(x, x) for every row x of ``X``, with shape (n,).

        Parameters
        ----------
        X
            The rows of data, (n, features).

        Returns
        -------
        Array
            The diagonal of the kernel matrix.

        """
        function, rows = self._function(), np.asarray(X, dtype=float)
        return np.asarray(
            diagonal(function, rows)
            if self.q is None
            else function.kernel.at_angle(np.zeros(len(rows)), self.q)
        )

    def is_stationary(self) -> bool:
        """Return False, because the kernel does not depend only on x - y.

        Returns
        -------
        bool
            Always False.

        """
        return False

    @without_option()
    def _matrix(self, X: Any, Y: Any = None) -> Array:
        """Return a copy of the kernel matrix, because scikit-learn writes to it."""
        return np.array(gram(self._function(), X, Y))

    def _slope(self, X: Any, name: str) -> Array:
        """Return dK / d log(name)."""
        step = STEP / (2 * len(self.network.nodes_of(L.Affine)) + 2)
        total = np.zeros((len(X), len(X)))
        for count, weight in STENCIL:
            moved = self._with(**{name: getattr(self, name) * float(np.exp(count * step))})
            total += weight / step * moved._matrix(X)
        return total

    def _with(self, **changes: Any) -> NetworkKernel:
        return type(self)(**(self.get_params() | changes))

    def _function(self) -> KeptKernel:
        """Return the network's kernel for the current hyperparameters."""
        choice(self.kind, "kind of kernel", KINDS)
        require_network(self.network)
        choice(self.parameterization, "parameterization", PARAMETERIZATIONS)
        features = None if self.features is None else whole(self.features, "features", 1)
        values = {
            name: one_number(getattr(self, name), name)
            for name in ("sigma_w", "sigma_b")
            if getattr(self, name) is not None
        }
        numbers = tuple(values.items())
        tangent = _kernel(self.network, numbers, self.parameterization, features, self.q)
        return tangent if self.kind == "ntk" else tangent.nngp

    def __repr__(self) -> str:
        given = [
            f"{name}={value:.3g}"
            for name in ("sigma_w", "sigma_b")
            if (value := getattr(self, name)) is not None
        ]
        return f"NetworkKernel({', '.join([f'{len(self.network)} nodes', self.kind, *given])})"


def _hyperparameter(name: str, value: float | None, bounds: Any) -> Hyperparameter:
    free = value is not None and value > 0
    return Hyperparameter(name, "numeric", bounds if free else "fixed")


@lru_cache(maxsize=16)
def _kernel(
    network: Network,
    values: tuple[tuple[str, float], ...],
    parameterization: str,
    features: int | None,
    q: float | None,
) -> Any:
    """Return the result of ``kc.ntk`` for the network with these values in every Affine layer.

    The result is cached with its tables and matrices, because scikit-learn copies kernels often.
    """
    given = dict(values)

    def changed(_: Any, layer: L.Affine) -> L.Affine:
        own = {name: value for name, value in given.items() if name != "sigma_b" or layer.bias}
        return replace(layer, **own)

    kernel = ntk(
        network.map_layers(changed, L.Affine) if given else network, parameterization, features
    )
    return kept_kernel(kernel, _KEPT, q=q)
