"""Network kernels for scikit-learn, which is imported when a kernel is created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Network
from ...foundation.extras import imported

if TYPE_CHECKING:
    from .network_kernel import NetworkKernel

__all__ = ["sklearn_kernel"]


def sklearn_kernel(
    network: Network,
    kind: str = "ntk",
    sigma_w: float | None = None,
    sigma_b: float | None = None,
    sigma_w_bounds: Any = (0.5, 2.0),
    sigma_b_bounds: Any = (1e-3, 2.0),
    parameterization: str = "ntk",
    features: int | None = None,
    q: float | None = None,
) -> NetworkKernel:
    """Return a kernel object for scikit-learn.

    It works in ``GaussianProcessRegressor(kernel=...)``, ``SVC(kernel=...)``, and in sums and
    products with scikit-learn's kernels.

    See :class:`kcalc.lab.regression.network_kernel.NetworkKernel`. For ``kernel="precomputed"``,
    use ``kc.ntk(net).matrix(X, Y)``.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    kind
        "ntk" or "nngp".
    sigma_w, sigma_b
        Values for all Affine layers. Gaussian process regressors and classifiers optimise them as
        hyperparameters. None keeps the values of the network.
    sigma_w_bounds
        The search bounds for ``sigma_w``, or "fixed".
    sigma_b_bounds
        The search bounds for ``sigma_b``, or "fixed".
    parameterization, features
        See :func:`kcalc.ntk`.
    q
        The q value assumed for all rows, or None.

    Returns
    -------
    NetworkKernel
        The kernel object.

    Raises
    ------
    KcalcError
        If scikit-learn is not installed.

    """
    imported("sklearn.gaussian_process")
    from .network_kernel import NetworkKernel

    return NetworkKernel(
        network,
        kind,
        sigma_w,
        sigma_b,
        sigma_w_bounds,
        sigma_b_bounds,
        parameterization,
        features,
        q,
    )
