"""Kernels on images, for ``spatial="exact"``."""

from __future__ import annotations

from typing import Any

from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import choice
from ...network.network import Network
from .maps import WEIGHTS, SpatialKernelMap, SpatialTangentKernel, spatial_reading
from .plan import tap_widths

SPATIAL = ("delta", "exact")


def c_map(network: Network, assume_independent: bool, **options: Any) -> SpatialKernelMap:
    """Compute :func:`kcalc.c_map` over the locations of images."""
    shape, weights = _of_images(options)
    return SpatialKernelMap(spatial_reading(network, shape, weights, assume_independent))


def ntk(
    network: Network,
    parameterization: str,
    features: int | None,
    assume_independent: bool,
    **options: Any,
) -> SpatialTangentKernel:
    """Compute :func:`kcalc.ntk` over the locations of images."""
    shape, weights = _of_images(options)
    widths = None if parameterization == "ntk" else tap_widths(network, features)
    return SpatialTangentKernel(
        spatial_reading(network, shape, weights, assume_independent, widths, tangent=True)
    )


def _of_images(options: dict[str, Any]) -> tuple[Any, str]:
    """Return the image shape and the distribution of weights.

    Raises: KcalcError for unknown values of options, for ``image_shape`` or ``weights`` with
    "delta", and for tokens.
    """
    spatial, shape = options.pop("spatial", "delta"), options.pop("image_shape", None)
    weights = options.pop("weights", "dense")
    choice(spatial, "spatial", SPATIAL)
    choice(weights, "weights", WEIGHTS)
    if spatial == "delta":
        raise KcalcError(
            "image_shape= and weights= need spatial='exact'; pass spatial='exact' as well, or "
            "omit both"
        )
    if options:
        raise KcalcError(
            f"{next(iter(options))}= applies only to exchangeable tokens; with spatial='exact', "
            "pass image_shape=(tokens,)"
        )
    return shape, weights
