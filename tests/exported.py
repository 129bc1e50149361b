"""What the tests of exported code share.

Every activation in one network, the text of it, and how far two functions are apart.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import sympy as sp

import kcalc as kc
from kcalc.interchange.writers import WRITERS, Content, content_of
from kcalc.shaping import ConstantsTable

x = sp.Symbol("x", real=True)
TYPED = (
    sp.sin(x) + x / 3,
    x * sp.tanh(sp.log(1 + sp.exp(x))),
    sp.Piecewise(
        (x**2 / 4 + x, x < 0), (sp.log(1 + x), x < 3), (sp.sqrt(x) + sp.log(4) - sp.sqrt(3), True)
    ),
    sp.Max(x, sp.Abs(x) / 3, sp.sin(x)),
    sp.Abs(x) * sp.erf(x),
    sp.Heaviside(x - 1) * x + sp.sign(-x) / 5,
    sp.Piecewise((1, sp.Eq(x, 0)), (sp.sin(x) / x, True)),
    x * sp.erfc(-x) / 2,
    sp.Min(sp.exp(x), 1 + x),
    sp.log(2 * sp.exp(x) + 3),
    sp.asinh(x) * sp.atan(x),
    sp.exp(x) / (1 + sp.exp(x)) ** 2,
)
# (*window, in, out)
KERNELS = (
    (64, 64),
    (48, 96),
    (96, 48),
    (3, 3, 40, 40),
    (5, 24, 60),
    (1, 1, 40, 8),
)
LAWS = tuple((shape, groups) for shape in KERNELS for groups in (1, 4))
FEW = (((40, 24), 1), ((3, 3, 16, 32), 4))  # where every shape is compiled


def activations() -> list[Any]:
    """Every registered activation and the typed ones, plain and transformed as DKS and TAT
    transform them.
    """
    plain = [
        *map(kc.activation, kc.activations.names()),
        *(kc.activation(expr, name=f"typed {index}") for index, expr in enumerate(TYPED)),
    ]
    return [
        *plain,
        *(
            phi.transformed(0.17526, 0.58838, 3.90635, -0.51743)
            for phi in plain
            if phi.name != "identity"
        ),
    ]


@cache
def everything() -> Content:
    """A content that holds them all."""
    steps: list[Any] = [("x", kc.layers.Input(), ())]
    for index, phi in enumerate(activations()):
        steps += [
            (f"a{index}", kc.layers.Affine(), (steps[-1][0],)),
            (f"n{index}", kc.layers.Nonlinear(phi), (f"a{index}",)),
        ]
    shaping = SimpleNamespace(
        method="dks",
        options={},
        network=kc.Network.from_steps(steps),
        constants=ConstantsTable({}),
        targets={},
        global_targets={},
        values={},
        residuals={},
        warnings=(),
    )
    return content_of(shaping, "0")


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


def module(target: str) -> dict[str, Any]:
    """The names in the module of all activations."""
    return load(WRITERS[target].text(everything()))


def points(phi: Any) -> np.ndarray:
    """Where to compare: |x| <= 30, moved away from kinks by more than rounding.

    Always as many, so that nothing is compiled twice.
    """
    grid = np.linspace(-30, 30, 1201)
    near = [any(abs(t - k) < 1e-4 * (1 + abs(k)) for k in phi.kink_points) for t in grid]
    return np.where(near, grid + 3e-4 * (1 + np.abs(grid)), grid)


def size(phi: Any, values: np.ndarray) -> np.ndarray:
    """What an error is measured against.

    1, the value, or the terms that the transformation adds up.
    """
    least = np.maximum(1.0, np.abs(values))
    if phi.transformation is None:
        return least
    scale, shift = float(phi.transformation.output_scale), float(phi.transformation.output_shift)
    return np.maximum(least, abs(scale) * (np.abs(values / scale - shift) + abs(shift)))


def check_law(draw: Any, orthogonal: bool, delta: bool = True, cases: Any = LAWS) -> None:
    """Mean, variance, orthogonality and place of initial weights.

    ``draw(shape, groups)`` gives kernels (*window, in / groups, out).
    """
    for shape, groups in cases:
        inner = (*shape[:-2], shape[-2] // groups, shape[-1])
        weight = np.asarray(draw(inner, groups), dtype=float)
        assert weight.shape == inner
        window, (k, total) = inner[:-2], inner[-2:]
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
        if orthogonal:
            m = total // groups
            for group in range(groups):
                part = centre[:, group * m : (group + 1) * m]
                gram = part @ part.T if k <= m else part.T @ part
                assert np.allclose(gram, max(m / k, 1) * np.eye(min(k, m)), atol=1e-4)


def check_locations(
    function: Any,
    channels_first: bool = False,
    variants: tuple[str, ...] = ("mean_norm", "constant", "none"),
    dtype: Any = np.float64,
    shapes: Any = ((3, 4, 5, 6), (2, 7, 3), (4, 9)),
) -> None:
    """Per-location normalisation against kcalc's own, for images, sequences and vectors, and for
    numbers of any size.
    """
    rng = np.random.default_rng(5)
    small, rounding = (1e-120, 1e-14) if dtype == np.float64 else (1e-20, 2e-6)
    for shape in shapes:
        for scale in (1.0, small, 1 / small):
            given = (scale * rng.standard_normal(shape)).astype(dtype)
            for extra in variants:
                wanted = kc.normalise_locations(given.astype(float), extra)
                found = np.asarray(
                    function(np.moveaxis(given, -1, 1) if channels_first else given, extra)
                )
                found = np.moveaxis(found, 1, -1) if channels_first else found
                assert found.dtype == dtype and found.shape == wanted.shape
                assert np.allclose(found, wanted, rtol=rounding, atol=rounding)


def run_onnx(model: Any, name: str, *values: np.ndarray) -> np.ndarray:
    """A function of an exported ONNX model, called by a model of its own."""
    import onnxruntime
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(values[0].dtype)
    names = [f"x{index}" for index in range(len(values))]
    inputs = [
        helper.make_tensor_value_info(n, kind, v.shape) for n, v in zip(names, values, strict=True)
    ]
    node = helper.make_node(name, names, ["y"], domain="kcalc")
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_tensor_value_info("y", kind, [None] * values[0].ndim)]
    )
    function = next(f for f in model.functions if f.name == name)
    alone = helper.make_model(
        graph, functions=[function], opset_imports=model.opset_import, ir_version=model.ir_version
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(
        alone.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(zip(names, values, strict=True)))[0]
