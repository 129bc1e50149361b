"""Arguments of a learnable kernel: parameters and rows, checked unless JAX traces them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from ..activations.traced import NAMES, TracedMaps, traced
from ..fields.arguments import raw_array
from ..fields.jax_field import is_jax
from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.plain_arguments import choice, truth
from ..network.layers import Affine, Layer, Nonlinear
from ..network.network import Network

Node = Hashable
Params = Mapping[str, Any]
GROUPS = ("sigma_w", "sigma_b", "constants")
CLOSE = 0.01  # smaller gaps 1 - c are computed from the difference of the rows
DIFFERENCES = 1 << 27  # the largest N M d for which gaps of traced rows are computed in this way


# -- parameters ------------------------------------------------------------------------------------


def by_name(network: Network, kind: type[Layer]) -> dict[str, Node]:
    """Return {name: node} for the nodes of one kind."""
    return {str(node): node for node in network.nodes_of(kind)}


def is_traced(value: Any) -> bool:
    """Whether JAX traces the value, so it cannot be checked."""
    from jax.core import Tracer

    return isinstance(value, Tracer)


def leaves(params: Params) -> list[Any]:
    """Return all numbers in the parameters."""
    out: list[Any] = []
    for value in params.values():
        out.extend(leaves(value) if isinstance(value, Mapping) else [value])
    return out


def checked_params(params: Any, network: Network, fixed: Mapping[Node, str]) -> dict[str, Any]:
    """Check the parameters and return them as plain dictionaries.

    ``fixed``: {nonlinear node: the reason why its constants cannot be set}. Raises: KcalcError for
    unknown names, values that are not a single real number, and values that the layers do not
    allow.
    """
    shape = 'a mapping {"sigma_w": ..., "sigma_b": ..., "constants": ...}, each entry optional'
    if not isinstance(params, Mapping):
        raise KcalcError(
            f"the parameters of the kernel must be {shape}, got {glimpse(params)}; pass {{}} to "
            "keep the network's values"
        )
    for key in params:
        choice(key, "kernel parameter", GROUPS)
    out: dict[str, Any] = {}
    for name in ("sigma_w", "sigma_b"):
        if params.get(name) is not None:
            out[name] = _sigmas(params[name], name, network)
    if params.get("constants") is not None:
        out["constants"] = _constants(params["constants"], network, fixed)
    return out


def _sigmas(given: Any, name: str, network: Network) -> Any:
    lowest = "> 0" if name == "sigma_w" else ">= 0"
    if not isinstance(given, Mapping):
        return _number(given, name, lowest)
    nodes = by_name(network, Affine)
    for key in given:
        if str(key) not in nodes:
            raise unknown("Affine layer", key, nodes)
    return {str(key): _number(value, f"{name} of {key}", lowest) for key, value in given.items()}


def _constants(
    given: Any, network: Network, fixed: Mapping[Node, str]
) -> dict[str, dict[str, Any]]:
    nodes = by_name(network, Nonlinear)
    if not isinstance(given, Mapping):
        raise KcalcError(
            "constants must be a mapping {nonlinear layer: {constant: number}}, got "
            f"{given!r:.60}"
        )
    out = {}
    for key, constants in given.items():
        if str(key) not in nodes:
            raise unknown("nonlinear layer", key, nodes)
        if not isinstance(constants, Mapping):
            raise KcalcError(
                f"the constants of {key} must be a mapping {{constant: number}} "
                f"({', '.join(NAMES)}), got {constants!r:.60}"
            )
        for name in constants:
            choice(name, "activation constant", NAMES)
        if constants and nodes[str(key)] in fixed:
            raise KcalcError(f"node {key!r}: {fixed[nodes[str(key)]]}; omit its constants")
        wanted = {name: "not zero" if "scale" in name else "" for name in constants}
        out[str(key)] = {
            name: _number(value, f"{name} of {key}", wanted[name])
            for name, value in constants.items()
        }
    return out


def _number(value: Any, what: str, wanted: str) -> Any:
    """Check a number and return it unchanged.

    Raises KcalcError unless it is a single real number with the property ``wanted``.
    """
    if not is_jax(value):
        try:
            array = np.asarray(value)
        except (TypeError, ValueError):
            array = np.asarray("")
        if array.dtype.kind not in "iuf":
            raise KcalcError(f"{what} must be a single real number, got {value!r:.60}")
    else:
        array = value
    if array.ndim or np.dtype(array.dtype).kind in "bc":
        raise KcalcError(
            f"{what} must be a single real number, got an array of dtype {array.dtype} and shape "
            f"{array.shape}"
        )
    if is_traced(value):
        return value
    number = float(array)
    if not np.isfinite(number):
        raise KcalcError(f"{what} must be finite, got {number}")
    if {"> 0": number <= 0, ">= 0": number < 0, "not zero": number == 0}.get(wanted, False):
        raise KcalcError(
            f"{what} must {'not be zero' if wanted == 'not zero' else f'be {wanted}'}, got "
            f"{number:g}"
        )
    return value


def numbers_of(params: Params, name: str, network: Network) -> dict[Node, Any]:
    """Return {Affine node: sigma} for the parameter ``name``, "sigma_w" or "sigma_b"."""
    given = params.get(name)
    nodes = by_name(network, Affine)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {
            node: given for node in nodes.values() if name == "sigma_w" or network.layer(node).bias
        }  # type: ignore[attr-defined]
    return {nodes[key]: value for key, value in given.items()}


def activations_of(params: Params, network: Network) -> dict[Node, TracedMaps]:
    """Return {nonlinear node: its activation with the given constants}, if they are given."""
    nodes = by_name(network, Nonlinear)
    given = params.get("constants") or {}
    chosen = {nodes[key]: constants for key, constants in given.items() if constants}
    return {
        node: traced(network.layer(node).activation, constants)
        for node, constants in chosen.items()
    }  # type: ignore[attr-defined]


# -- rows ------------------------------------------------------------------------------------------


def is_double(data: list[Any], numbers: list[Any]) -> bool:
    """Whether to compute in double precision.

    True for NumPy float64, NumPy integers and lists in ``data``, and for JAX float64 anywhere.
    """
    if any(is_jax(x) and x.dtype == np.float64 for x in (*data, *numbers)):
        return True
    return any(
        not is_jax(x) and getattr(x, "dtype", np.dtype(float)) not in (np.float32, np.float16)
        for x in data
    )


def rows_of(X: Any, what: str) -> Any:
    """Check rows and return them as a float64 NumPy array, or as a JAX array if traced.

    Raises: KcalcError for other shapes and types, and for rows that are zero or not finite.
    """
    import jax.numpy as jnp

    if is_traced(X):
        array: Any = X if jnp.issubdtype(X.dtype, jnp.floating) else X * 1.0
    else:
        array = raw_array(X, what)
    if np.dtype(array.dtype).kind in "bcOSU":
        raise KcalcError(f"{what} must contain real numbers, got an array of dtype {array.dtype}")
    if array.ndim != 2 or not array.shape[0] or not array.shape[1]:
        raise KcalcError(
            f"{what} must contain one input per row and have shape (N, d), got shape {array.shape}"
        )
    if is_traced(array):
        return array
    array = array.astype(np.float64)
    with np.errstate(over="ignore"):
        norms = np.sum(array * array, axis=1)
    bad = np.flatnonzero(~np.isfinite(norms) | (norms == 0))
    if bad.size:
        raise KcalcError(
            f"row {bad[0]} of {what} is zero or not finite, so it has no direction; remove it"
        )
    return array


def common_level(sizes: list[Any], wanted: Any, single: bool) -> Any:
    """Return the common mean square of all rows, or None if rows differ.

    Raises: KcalcError if rows differ although ``wanted`` is True.
    """
    wanted = None if wanted is None else truth(wanted, "uniform")
    if wanted is False or (wanted is None and any(is_traced(s) for s in sizes)):
        return None
    level = sizes[0].mean()
    if any(is_traced(s) for s in sizes):
        return level
    spread = max(float(np.max(np.abs(s / level - 1))) for s in sizes)
    if spread <= (1e-5 if single else 1e-12):
        return level
    if wanted:
        raise KcalcError(
            "uniform=True needs rows with the same norm, but their mean squares have a relative "
            f"difference of {spread:.1e}; omit uniform=, or rescale the rows to the same norm"
        )
    return None


def gaps_of(first: Any, second: Any, same: bool) -> Any:
    """Return 1 - c of all pairs of rows, computed from differences of rows if c > .99.

    ``same``: whether both sets of rows are the same, so that the diagonal is exactly 0.
    """
    if is_traced(first) or is_traced(second):
        return _traced_gaps(first, second, same)
    u, v = (rows / np.sqrt(np.sum(rows * rows, axis=1))[:, None] for rows in (first, second))
    gap = np.clip(1 - u @ v.T, 0.0, 2.0)
    i, j = np.nonzero(gap < CLOSE)
    step = max(1, (1 << 22) // u.shape[1])
    for start in range(0, len(i), step):
        some = slice(start, start + step)
        gap[i[some], j[some]] = np.sum((u[i[some]] - v[j[some]]) ** 2, axis=1) / 2
    if same:
        np.fill_diagonal(gap, 0.0)
    return gap


def _traced_gaps(first: Any, second: Any, same: bool) -> Any:
    import jax
    import jax.numpy as jnp

    u, v = (
        rows / jnp.sqrt(jnp.sum(jnp.asarray(rows) ** 2, axis=1))[:, None]
        for rows in (first, second)
    )
    gap = 1 - jnp.matmul(u, v.T, precision="highest")
    if u.shape[0] * v.shape[0] * u.shape[1] <= DIFFERENCES:
        apart = jax.lax.map(jax.checkpoint(lambda row: jnp.sum((row - v) ** 2, axis=1) / 2), u)
        gap = jnp.where(gap < CLOSE, apart, gap)
    gap = jnp.where(gap < 0, 0.0, jnp.where(gap > 2, 2.0, gap))
    return jnp.where(jnp.eye(u.shape[0], dtype=bool), 0.0, gap) if same else gap
