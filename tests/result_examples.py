"""One of every public result.

By public function where there is one, and by attribute for what results hand out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

import kcalc as kc
from kcalc import training, verification

L = kc.layers
A = kc.architectures


@cache
def vanilla() -> kc.Network:
    return A.vanilla(5, activation="tanh")


@cache
def relu() -> kc.Network:
    return A.vanilla(4, features=8)


@cache
def residual() -> kc.Network:
    branch = kc.chain(L.Nonlinear("relu"), L.Affine(8), L.Nonlinear("relu"), L.Affine(8))
    return kc.chain(
        L.Input(8), L.Affine(8), kc.residual(branch, 0.6), L.Nonlinear("relu"), L.Affine(8)
    )


@cache
def data() -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(12, 8))
    return X, np.sin(X[:, 0])


@cache
def model() -> tuple[kc.Model, Any, np.ndarray]:
    import jax

    made = kc.to_jax(relu(), features=8)
    x = data()[0].astype(np.float32)
    return made, made.init(jax.random.PRNGKey(0), x), x


@cache
def shaped() -> kc.Shaping:
    return kc.shape(vanilla(), zeta=1.5)


@cache
def ntk() -> Any:
    return kc.ntk(vanilla())


def tanh() -> Any:
    return kc.activation("tanh")


def block() -> kc.Network:
    return kc.chain(L.Input(), L.Affine(sigma_w=1.2, sigma_b=0.3), L.Nonlinear("tanh"))


def block_of_relu() -> kc.Network:
    return kc.chain(L.Input(8), L.Affine(8), L.Nonlinear("relu"))


@cache
def comparison() -> training.Comparison:
    curve = ((0, 0.1, 0.1), (10, 0.8, 0.7), (20, 0.99, 0.96))
    results = [
        training.Result(label, 0.1, seed, "a", curve, 0.96, 1.0)
        for label in ("dks tanh", "relu")
        for seed in (0, 1)
    ]
    return training.Comparison("a comparison", tuple(results))


def run() -> training.Run:
    record = training.runs.Record
    names = record.__dataclass_fields__
    history = tuple(record(**dict.fromkeys(names, 0.5) | {"step": step}) for step in (0, 10, 20))
    return training.Run(training.Settings(), history, None, None)


# {public function: its arguments, or their makers}
CALLS: dict[str, tuple[Any, ...]] = {
    "activation_bounds": (tanh,),
    "token_map": (vanilla, 8),
    "node_values": (vanilla, [0.1, 0.2]),
    "depth_laws": (lambda: A.transformer_stack(2, 8, 2), 4),
    "learnable_kernel": (lambda: A.vanilla(2),),
    "c_map": (vanilla,),
    "q_map": (vanilla,),
    "depth_profile": (vanilla,),
    "gradients": (vanilla,),
    "jacobian_spectrum": (vanilla,),
    "moments": (relu,),
    "scaling": (relu,),
    "maximal_c_value": (residual,),
    "maximal_curvature": (residual,),
    "maximal_slope": (residual,),
    "subnetworks": (residual,),
    "depth_limit": (block,),
    "equivalent_parameters": (shaped,),
    "moments_at_depth": (block_of_relu,),
    "crelu_budget": (64, 10),
    "critical_point": ("gelu",),
    "equilibrium": (0.01, 0.1),
    "moe_statistics": (4, 2, 1.0),
    "residual_spectrum": (1.0, 1.0, 0.5),
    "vanilla_maps": ("relu",),
}


def called(name: str) -> Any:
    return getattr(kc, name)(*(one() if callable(one) else one for one in CALLS[name]))


# {name: maker}: the key begins with the public name that makes it
RESULTS: dict[str, Callable[[], Any]] = {
    **{name: partial(called, name) for name in CALLS},
    "activation.c_map": lambda: tanh().c_map,
    "activation.q_map": lambda: tanh().q_map,
    "Network": vanilla,
    "activation": tanh,
    "activation.transformed": lambda: tanh().transformed(0.5, 0.1, 2, -0.3),
    "activation.c_map.derivative": lambda: tanh().c_map.derivative(1),
    "activation.c_map.table": lambda: tanh().c_map.table(),
    "activation.q_map.table": lambda: tanh().q_map.table(),
    "activation.c_map.ball": lambda: tanh().c_map.ball(0.5),
    "activation.c_map.fixed_points": lambda: tanh().c_map.fixed_points()[0],
    "audit": lambda: kc.audit(torch_model, (2, 8)),
    "Sampling": kc.Sampling,
    "tied_readout": lambda: kc.tied_readout(A.gpt2(1, 8, 2, 20, 4, causal=False), tokens=4),
    "ntk.tokens": lambda: kc.ntk(vanilla(), tokens=np.eye(3)),
    "token_phases": lambda: kc.token_phases(
        A.transformer_stack(2, 8, 2, placement="post"),
        4,
        values=np.array([0.5, 1.0]),
        scores=np.array([0.5, 1.0]),
    ),
    "token_map.table": lambda: kc.token_map(vanilla(), 8).table(),
    "c_map.derivative": lambda: kc.c_map(vanilla()).derivative(1),
    "c_map.expr": lambda: kc.c_map(residual()).expr,
    "c_map.spatial": lambda: kc.c_map(A.lenet(), spatial="exact"),
    "compare": lambda: kc.compare([vanilla(), A.vanilla(2)], ["relu", "tanh"]),
    "coordinate_check": lambda: kc.coordinate_check(
        A.vanilla(2), data()[0], 3, widths=(16, 32), draws=2
    ),
    "depth_stability": lambda: kc.depth_stability(block_of_relu(), features=8),
    "fluctuations": lambda: kc.fluctuations(vanilla(), features=16),
    "gaussian_process": lambda: kc.gaussian_process(ntk().nngp, *data(), noise=0.1),
    "gradients.tokens": lambda: kc.gradients(
        A.gpt2(1, 8, 2, 20, 4), tokens=4, sampling=kc.Sampling(2, 2)
    ),
    "hessian_blocks": lambda: kc.hessian_blocks(
        A.vanilla(2, features=8), features=8, draws=2, batch=4
    ),
    "kernel_regression": lambda: kc.kernel_regression(ntk(), *data(), ridge=0.1),
    "lsuv": lambda: kc.lsuv(*model()),
    "maximal": lambda: kc.maximal(residual(), kc.activation("relu").c_map),
    "maximal_slope.bounds": lambda: kc.maximal_slope(residual()).bounds(1.1),
    "ntk": ntk,
    "ntk.nngp": lambda: ntk().nngp,
    "ntk.layers": lambda: next(iter(ntk().layers.values())),
    "ntk.regime": lambda: ntk().regime(),
    "ntk.regime.limit": lambda: kc.ntk(A.vanilla(20)).regime().limit,
    "ntk.spectrum": lambda: kc.kernel_regression(ntk(), *data(), ridge=0.1).spectrum,
    "ntk.spatial": lambda: kc.ntk(A.lenet(), spatial="exact"),
    "phase_diagram": lambda: kc.phase_diagram("tanh", np.linspace(0.5, 3, 6), np.linspace(0, 1, 5)),
    "read": lambda: kc.read(torch_model(), (2, 8)),
    "residual_blocks": lambda: kc.residual_blocks(residual())[0],
    "scale_output": lambda: kc.scale_output(*model()),
    "shape": shaped,
    "shape.constants": lambda: shaped().constants,
    "shape.constants[]": lambda: shaped().constants["tanh"],
    "shape.all_solutions": lambda: shaped().all_solutions["tanh"],
    "shape.tat": lambda: kc.shape(A.vanilla(20), method="tat", eta=0.9),
    "shape.eoc": lambda: kc.shape(vanilla(), method="eoc", sigma_b=0.1),
    "shape.geometric": lambda: kc.shape(A.lenet(), method="geometric"),
    "shape.edits": lambda: torch_edits(),
    "shape.regions": lambda: kc.shape(kc.read(torch_sorted(), (2, 8)), zeta=1.2),
    "smoothness": lambda: kc.smoothness(
        A.vanilla(2, activation="tanh", features=4), features=4, radius=1.0
    ),
    "subnetworks[]": lambda: kc.subnetworks(residual())[0],
    "to_jax": lambda: model()[0],
    "transfer": lambda: kc.transfer(perceptron, batch()[0], base=4, to=8),
    "transfer.parameters": lambda: kc.transfer(vanilla())["affine_1.weight"],
    "trained_coordinates": lambda: kc.trained_coordinates(
        perceptron, *batch(), 0.1, (4, 8), "sgd", steps=1, seeds=2
    ),
    "transfer_check": lambda: kc.transfer_check(
        perceptron, *batch(), (0.1, 0.2, 0.4), (4, 8), "sgd", steps=2, seeds=5
    ),
    "training_curve": lambda: kc.training_curve(ntk(), *data()),
    "verify_kernels": lambda: kc.verify_kernels(
        kc.to_jax(relu(), features=8), draws=4, gradients=False, tangent=False
    ),
    "wli": lambda: kc.wli(*model()),
    "claims.verify": lambda: kc.claims.verify([kc.claims.all()[0].id]),
    "claims.all": lambda: kc.claims.all()[0],
    "claims.verify.findings": lambda: kc.claims.verify([kc.claims.all()[0].id]).findings[0],
    "training.Comparison": comparison,
    "training.Run": run,
    "verification.training_spectra": lambda: verification.training_spectra(
        A.vanilla(2, features=8), data()[0], [0, 1] * 6, steps=2
    ),
    "verification.variance_spectra": lambda: verification.variance_spectra(relu(), draws=2),
    "verification.layer_jacobians": lambda: verification.layer_jacobians(model()[0]),
}


def perceptron(width: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))


@cache
def batch() -> tuple[Any, Any]:
    import torch

    X, y = data()
    return torch.tensor(X[:4], dtype=torch.float32), torch.tensor((y[:4] > 0).astype(int))


@cache
def torch_shaped() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


@cache
def torch_edits() -> Any:
    return kc.shape(kc.read(torch_shaped(), (2, 8)), zeta=1.2).edits


@cache
def torch_sorted() -> Any:
    from modern_zoo import Model

    return Model(lambda m, x: m.layers(x).sort(-1)[0], layers=torch_shaped())


def torch_model() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
