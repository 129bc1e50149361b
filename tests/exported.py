"""What the tests of exported code share.

Every activation in one network, the text of it, and how far two functions are apart.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

import kcalc as kc
from kcalc.interchange.writers import WRITERS, Content, content_of
from kcalc.shaping import ConstantsTable

# (*window, in, out) and a number of groups
LAWS = (((40, 24), 1), ((3, 3, 16, 32), 4), ((5, 24, 24), 1))


def content(network: Any, **changes: Any) -> Content:
    """What writers are given of a shaping that has nothing but a network and ``changes``."""
    tables = ("options", "targets", "global_targets", "values", "residuals")
    told: dict[str, Any] = {name: {} for name in tables}
    told |= {"method": "dks", "warnings": (), "network": network, "constants": ConstantsTable({})}
    return content_of(SimpleNamespace(**told | changes), "0")


def chained(phis: Any) -> Content:
    """The content of a chain of layers with activations, ``n0``, ``n1`` ..."""
    steps: list[Any] = [("x", kc.layers.Input(), ())]
    for i, phi in enumerate(phis):
        steps += [
            (f"a{i}", kc.layers.Affine(), (steps[-1][0],)),
            (f"n{i}", kc.layers.Nonlinear(phi), (f"a{i}",)),
        ]
    return content(kc.Network.from_steps(steps))


@cache
def everything() -> Content:
    """Every registered activation, plain and transformed as DKS and TAT transform it."""
    plain = [*map(kc.activation, kc.activations.names())]
    changed = (phi for phi in plain if phi.name != "identity")
    return chained(
        [*plain, *(phi.transformed(0.17526, 0.58838, 3.90635, -0.51743) for phi in changed)]
    )


def in_double(function: Any) -> Any:
    """A function of JAX arrays as one of NumPy arrays, in double precision."""
    import jax

    def run(*values: Any) -> np.ndarray:
        with jax.enable_x64(True):
            arrays = (jax.numpy.asarray(v) if isinstance(v, np.ndarray) else v for v in values)
            return np.asarray(function(*arrays))

    return run


def load(source: str) -> dict[str, Any]:
    """The names that exported source defines."""
    names: dict[str, Any] = {"__name__": "exported"}
    exec(compile(source, "exported.py", "exec"), names)
    return names


@cache
def module(target: str) -> dict[str, Any]:
    """The names in the module of all activations."""
    return load(WRITERS[target].text(everything()))


def check_law(draw: Any, orthogonal: bool, delta: bool = True) -> None:
    """Mean, variance, orthogonality and place of initial weights.

    ``draw(shape, groups)`` gives kernels (*window, in / groups, out).
    """
    for shape, groups in LAWS:
        *window, k, total = inner = (*shape[:-2], shape[-2] // groups, shape[-1])
        weight = np.asarray(draw(inner, groups), dtype=float)
        assert weight.shape == inner
        centre = weight[tuple(extent // 2 for extent in window)]
        if delta:
            assert np.count_nonzero(weight) == np.count_nonzero(centre) > 0
        entries = centre if delta else weight
        variance = 1 / (k if delta else k * np.prod(window))
        count = entries.size
        assert abs(entries.mean()) < 5 * np.sqrt(variance / count)
        assert abs((entries**2).mean() / variance - 1) < (
            1e-5 if orthogonal else 5 * np.sqrt(2 / count)
        )
        for part in np.split(centre, groups, axis=1) if orthogonal else ():
            m = total // groups
            gram = part @ part.T if k <= m else part.T @ part
            assert np.allclose(gram, max(m / k, 1) * np.eye(min(k, m)), atol=1e-4)


def check_weights(draw: Any) -> None:
    """Both laws on the central tap; ``draw(name, shape, groups)`` gives kernels."""
    for name in ("delta_orthogonal", "delta_gaussian"):
        check_law(partial(draw, name), "orthogonal" in name)
        even = np.asarray(draw(name, (2, 4, 8, 8), 1))
        assert np.count_nonzero(even) == np.count_nonzero(even[1, 2]) == 64


def check_locations(
    function: Any,
    variants: tuple[str, ...] = ("mean_norm", "constant", "none"),
    channels_first: bool = False,
    dtype: Any = np.float64,
) -> None:
    """Per-location normalisation against kcalc's own, for images, sequences and vectors, and for
    numbers of any size.
    """
    rng, axis = np.random.default_rng(5), 1 if channels_first else -1
    small, rounding = (1e-120, 1e-14) if dtype == np.float64 else (1e-20, 2e-6)
    for shape, scale, extra in product(((3, 4, 5, 6), (4, 9)), (1.0, small, 1 / small), variants):
        given = (scale * rng.standard_normal(shape)).astype(dtype)
        wanted = kc.normalise_locations(given.astype(float), extra)
        found = np.moveaxis(np.asarray(function(np.moveaxis(given, -1, axis), extra)), axis, -1)
        assert found.dtype == dtype and found.shape == wanted.shape
        assert np.allclose(found, wanted, rtol=rounding, atol=rounding)


def run_onnx(model: Any, name: str, *values: np.ndarray) -> np.ndarray:
    """A function of an exported ONNX model, called by a model of its own."""
    from onnx import helper
    from onnx_graphs import ran

    names = [f"x{index}" for index in range(len(values))]
    given = dict(zip(names, values, strict=True))

    def typed(name: str, shape: Any) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(values[0].dtype)
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        [helper.make_node(name, names, ["y"], domain="kcalc")],
        "g",
        [typed(n, v.shape) for n, v in given.items()],
        [typed("y", [None] * values[0].ndim)],
    )
    alone = helper.make_model(
        graph,
        functions=[f for f in model.functions if f.name == name],
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
    return ran(alone, *values)[0]
