"""The kernels of a network for scikit-learn, which is imported when one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import KcalcError
from ..network import Network

if TYPE_CHECKING:
    from .network_kernel import NetworkKernel

__all__ = ["sklearn_kernel"]


def sklearn_kernel(
    network: Network, kind: str = "ntk", sigma_w: float | None = None, sigma_b: float | None = None, **options: Any
) -> NetworkKernel:
    """A kernel object for scikit-learn: ``GaussianProcessRegressor(kernel=...)``, ``SVC(kernel=...)``, sums and products with its kernels.

    kind: "ntk" or "nngp". sigma_w, sigma_b: values for all Affine layers, hyperparameters that GPR and GPC optimise; None keeps the
    network's own. options: ``sigma_w_bounds``, ``sigma_b_bounds``, ``parameterization``, ``features``, ``q`` (count angles alone).
    See :class:`kcalc.regression.network_kernel.NetworkKernel`. For ``kernel="precomputed"`` use ``kc.ntk(net).matrix(X, Y)``.

    Raises: KcalcError where scikit-learn is not installed.
    """
    try:
        from .network_kernel import NetworkKernel
    except ImportError as error:
        raise KcalcError(f"scikit-learn is needed for this ({error}); pip install 'kcalc[train]'") from None
    return NetworkKernel(network, kind=kind, sigma_w=sigma_w, sigma_b=sigma_b, **options)
