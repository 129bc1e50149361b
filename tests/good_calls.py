"""One good call of every public function and method, for tests that spoil them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from good_arguments import Good, good, path_to
from good_training import TRAINING, TRAINING_EXAMPLES, TRAINING_METHODS
from result_examples import (
    batch,
    block,
    block_of_relu,
    data,
    model,
    ntk,
    perceptron,
    relu,
    residual,
    shaped,
    torch_edits,
    torch_model,
    torch_shaped,
    torch_sorted,
    vanilla,
)

import kcalc as kc

L = kc.layers
A = kc.architectures


def x(rows: int = 3, columns: int = 8) -> np.ndarray:
    return data()[0][:rows, :columns]


@cache
def locked() -> str:
    path = path_to("baseline.lock")
    kc.audit(torch_model, (2, 8)).lock(path)
    return path


def y() -> np.ndarray:
    return data()[1][:3]


@cache
def saved() -> str:
    path = path_to("network.json")
    kc.save_json(vanilla(), path)
    return path


@cache
def saved_edits() -> str:
    path = path_to("edits.json")
    torch_edits().save(path)
    return path


def batch_norms() -> kc.Network:
    return kc.chain(L.Input(8), L.Affine(8), L.BatchNorm(), L.Nonlinear("relu"), L.Affine(8))


def resized() -> kc.Network:
    return A.wide_resnet(10)


FUNCTIONS: dict[str, Callable[[], Good]] = {
    "Network": lambda: good(vanilla().graph),
    "Network.from_steps": lambda: good(list(vanilla().steps())),
    "activation": lambda: good("tanh"),
    "activation_bounds": lambda: good(kc.activation("tanh")),
    "audit": lambda: good(torch_model, (2, 8)),
    "averaging_shortcuts": lambda: good(resized()),
    "c_map": lambda: good(vanilla()),
    "chain": lambda: good(L.Input(), L.Affine()),
    "compare": lambda: good(vanilla(), "relu"),
    "coordinate_check": lambda: good(A.vanilla(1), x(), 2, widths=(4, 8), draws=2),
    "crelu_budget": lambda: good(64, 10),
    "depth_limit": lambda: good(block()),
    "depth_stability": lambda: good(block_of_relu(), features=8),
    "empirical_ntk": lambda: good(*model()[:2], x()),
    "equivalent_parameters": lambda: good(shaped()),
    "expectation": lambda: good("tanh"),
    "fluctuations": lambda: good(vanilla(), features=16),
    "gain": lambda: good("tanh"),
    "gaussian_process": lambda: good(ntk().nngp, x(), y(), noise=0.1),
    "gradients": lambda: good(vanilla()),
    "hessian_blocks": lambda: good(A.vanilla(1, features=4), features=4, draws=2, batch=2),
    "kept_kernel": lambda: good(ntk()),
    "kernel_regression": lambda: good(ntk(), x(), y(), ridge=0.1),
    "large_batch": lambda: good(batch_norms()),
    "learnable_kernel": lambda: good(A.vanilla(2)),
    "apply_edits": lambda: good(copy.deepcopy(torch_shaped()), torch_edits()),
    "load_edits": lambda: good(saved_edits()),
    "load_json": lambda: good(saved()),
    "lsuv": lambda: good(*model()),
    "maximal": lambda: good(residual(), lambda psi: psi),
    "maximal_c_value": lambda: good(residual()),
    "maximal_curvature": lambda: good(residual()),
    "maximal_slope": lambda: good(residual()),
    "moments": lambda: good(relu()),
    "moments_at_depth": lambda: good(block_of_relu(), features=8),
    "node_values": lambda: good(vanilla()),
    "normalise_locations": lambda: good(x()),
    "ntk": lambda: good(vanilla()),
    "pair_expectation": lambda: good("relu", "relu", 0.5),
    "phase_diagram": lambda: good("erf", [1.0, 2.0], [0.0, 0.5]),
    "q_map": lambda: good(vanilla()),
    "Sampling": lambda: good(),
    "depth_laws": lambda: good(kc.architectures.transformer_stack(2, 8, 2), 4),
    "token_gain": lambda: good(
        kc.architectures.transformer_stack(2, 8, 2, placement="post"), 4, "values", slope=0.7
    ),
    "token_phases": lambda: good(
        kc.architectures.transformer_stack(2, 8, 2, placement="post"),
        4,
        values=np.array([0.5, 1.0]),
        scores=np.array([0.5, 1.0]),
    ),
    "depth_profile": lambda: good(kc.architectures.gpt2(1, 8, 2, 20, 4, causal=False), tokens=4),
    "tied_readout": lambda: good(kc.architectures.gpt2(1, 8, 2, 20, 4, causal=False), tokens=4),
    "token_map": lambda: good(vanilla(), 8),
    "q_values": lambda: good(vanilla()),
    "read": lambda: good(torch_model(), (2, 8)),
    "repeat": lambda: good(L.Affine(), 2),
    "report": lambda: good(A.vanilla(1), None),
    "residual": lambda: good(L.Affine()),
    "residual_blocks": lambda: good(residual()),
    "residual_spectrum": lambda: good(1.0),
    "save_json": lambda: good(vanilla(), path_to("saved.json")),
    "scale_output": lambda: good(*model()),
    "scaling": lambda: good(relu()),
    "shape": lambda: good(vanilla(), zeta=1.5),
    "skip_network": lambda: good(width=4),
    "sklearn_kernel": lambda: good(vanilla()),
    "slope_polynomial": lambda: good(vanilla()),
    "smoothness": lambda: good(A.vanilla(1, activation="tanh", features=4), radius=1.0),
    "subnetworks": lambda: good(residual()),
    "to_jax": lambda: good(relu(), features=8),
    "trained_coordinates": lambda: good(perceptron, *batch(), 0.1, (4, 8), "sgd", steps=1, seeds=2),
    "transfer": lambda: good(vanilla(), base=64, to=256),
    "transfer_check": lambda: good(
        perceptron, *batch(), (0.1, 0.2, 0.4), (4, 8), "sgd", steps=1, batch=2, seeds=1
    ),
    "training_curve": lambda: good(ntk(), x(), y()),
    "vanilla_maps": lambda: good("relu"),
    "verify_kernels": lambda: good(
        kc.to_jax(relu(), features=8), draws=2, gradients=False, tangent=False
    ),
    "with_residual_weights": lambda: good(residual(), 0.8),
    "wli": lambda: good(*model()),
    "layers.Input": lambda: good(),
    "layers.Affine": lambda: good(),
    "layers.Nonlinear": lambda: good("tanh"),
    "layers.Sum": lambda: good(),
    "layers.Concat": lambda: good(),
    "layers.Scale": lambda: good(2),
    "layers.BatchNorm": lambda: good(),
    "layers.GroupNorm": lambda: good(),
    "layers.TokenMix": lambda: good([[1.0]]),
    "layers.Pool": lambda: good("max"),
    "layers.Resize": lambda: good(2),
    "layers.PixelShuffle": lambda: good(2),
    "layers.Dropout": lambda: good(0.5),
    "layers.Opaque": lambda: good("a", "b"),
    "layers.Attend": lambda: good(),
    "layers.Embedding": lambda: good(),
    "layers.GatedUnit": lambda: good("swish"),
    "layers.Positions": lambda: good(),
    "layers.ClassToken": lambda: good(),
    "activations.abrelu": lambda: good(1, 0.5),
    "activations.celu": lambda: good(),
    "activations.combine": lambda: good(
        [(1, kc.activation("tanh"), 1), (1, kc.activation("erf"), 1)]
    ),
    "activations.exponential_linear": lambda: good("e"),
    "activations.gabor": lambda: good(),
    "activations.gaussian": lambda: good(),
    "activations.hard_shrink": lambda: good(),
    "activations.hermite": lambda: good(3),
    "activations.leaky_relu": lambda: good(),
    "activations.multiply": lambda: good(kc.activation("tanh"), kc.activation("erf")),
    "activations.rectified_power": lambda: good(2),
    "activations.scaled_erf": lambda: good(1),
    "activations.snake": lambda: good(),
    "activations.trelu": lambda: good(0.3),
    "architectures.alexnet": lambda: good(hidden=8),
    "architectures.bert": lambda: good(1, 8, 2),
    "architectures.gpt2": lambda: good(1, 8, 2),
    "architectures.llama": lambda: good(1, 8, 2),
    "architectures.t5": lambda: good(1, 8, 2),
    "architectures.vit": lambda: good(1, 8, 2),
    "architectures.convnext": lambda: good(1, features=8),
    "architectures.densenet": lambda: good(2),
    "architectures.gated_mlp": lambda: good(1),
    "architectures.layernorm_resnet": lambda: good(50),
    "architectures.lenet": lambda: good(),
    "architectures.preactivation_resnet50": lambda: good(width=8),
    "architectures.preconditioned_block": lambda: good(8, 8, 8),
    "architectures.rescaled_resnet": lambda: good(2),
    "architectures.resnet_v2": lambda: good(50),
    "architectures.transformer": lambda: good(1, [np.eye(3)]),
    "architectures.transformer_stack": lambda: good(1, 8, 2, gains={"queries": 2.0}),
    "architectures.vanilla": lambda: good(3),
    "architectures.wide_resnet": lambda: good(10),
    "token_mixing.covariance": lambda: good(np.eye(2), "it", 0.0),
    "token_mixing.exponential": lambda: good(3, [0.2, 0.1]),
    "token_mixing.preserving": lambda: good(np.eye(2), np.eye(2)),
    "token_mixing.rescaled": lambda: good(np.eye(2), np.eye(2)),
    "token_mixing.uniform": lambda: good(3, [0.2, 0.4]),
    "token_mixing.value_skip": lambda: good(3),
    "symbols.slope_of": lambda: good("n"),
    "claims.all": lambda: good(),
    "claims.check": lambda: good(kc.claims.get("DKS-dist")),
    "claims.errata": lambda: good("skips"),
    "claims.get": lambda: good("DKS-dist"),
    "claims.verify": lambda: good(["DKS-dist"]),
    **TRAINING,
}


def plain_parameters() -> dict[Any, Any]:
    net = shaped().network
    nodes = net.nodes_of(L.Affine)
    return {node: (np.ones((2, 2)), np.zeros(2)) for node in nodes}


def spatial(images: int = 2) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(images, 32, 32, 1))


# calls by the name of the method, or by class and name where the class takes other things
METHODS: dict[str, Callable[[], Good]] = {
    "__call__": lambda: good(0.5),
    "at_angle": lambda: good(0.5),
    "gap_at_angle": lambda: good(0.5),
    "derivative": lambda: good(),
    "ball": lambda: good(0.5),
    "by_layer": lambda: good(0.5),
    "series": lambda: good(4),
    "tail": lambda: good(4),
    "symbolic": lambda: good(),
    "table": lambda: good(),
    "fixed_points": lambda: good(),
    "q_derivative": lambda: good(),
    "plot": lambda: good(),
    "draw": lambda: good(),
    "to_dict": lambda: good(),
    "regime": lambda: good(),
    "matrix": lambda: good(x()),
    "matrix_method": lambda: good(x()),
    "matrices": lambda: good(x()),
    "condition_number": lambda: good(x()),
    "inverse": lambda: good(1.5),
    "active": lambda: good(1.05),
    "forward_bound": lambda: good(1.05),
    "longest_path_bound": lambda: good(1.05),
    "bounds": lambda: good(),
    "predict": lambda: good(x()),
    "with_ridge": lambda: good(0.2),
    "predict_from": lambda: good(np.ones((2, 12))),
    "mean_and_covariance": lambda: good(x()),
    "mean_and_variance": lambda: good(x()),
    "sample": lambda: good(x()),
    "q_values": lambda: good(spatial()),
    "c_values": lambda: good(spatial()[0], spatial()[1]),
    "histogram": lambda: good(),
    "CMap.plot": lambda: good(labels="m", points=21, looks=None),
    "QMap.plot": lambda: good(labels="m", low=0.5, high=2.0, points=21),
    "Network.named": lambda: good("two layers"),
    "latex": lambda: good(),
    "shown": lambda: good(),
    "Network.draw": lambda: good(
        regions=None, labels=True, max_nodes=40, collapse=None, columns=None, legend=True
    ),
    # networks
    "Network.isomorphic": lambda: good(vanilla()),
    "Network.layer": lambda: good("affine_1"),
    "Network.operations_of": lambda: good("affine_1"),
    "Network.parents": lambda: good("affine_1"),
    "Network.map_layers": lambda: good(lambda _, layer: layer),
    "Network.nodes_of": lambda: good(L.Affine),
    "Network.relabelled": lambda: good({"affine_1": "first"}),
    "Activation.subs": lambda: good({}),
    "Network.subs": lambda: good({}),
    "Network.with_notes": lambda: good([]),
    "Network.without": lambda: good([]),
    "Network.without_normalization": lambda: good(L.BatchNorm),
    "Network.from_steps": lambda: good(list(vanilla().steps())),
    # activations
    "Activation.c_expr": lambda: good(0.5),
    "Activation.composed": lambda: good(kc.activation("erf")),
    "Activation.cross": lambda: good(kc.activation("erf")),
    "Activation.derivative_expr": lambda: good(),
    "Activation.jump_sizes": lambda: good(0),
    "Activation.jumps": lambda: good(),
    "Activation.mean": lambda: good(),
    "Activation.mean_slope": lambda: good(),
    "Activation.numeric": lambda: good(),
    "Activation.q_expr": lambda: good(),
    "Activation.q_slope": lambda: good(),
    "Activation.second_moment": lambda: good(),
    "Activation.transformed": lambda: good(),
    # maps and their parts
    "Table.gap": lambda: good(0.5),
    "Table.slope": lambda: good(0.5),
    "QTable.slope": lambda: good(0.5),
    "TokenTable.gap": lambda: good(0.5),
    "TokenTable.slope": lambda: good(0.5),
    "TokenTable.verify": lambda: good(20),
    "QTable.verify": lambda: good(20),
    "Table.verify": lambda: good(20),
    "Enclosure.contains": lambda: good(0.5),
    "Composition.evaluate": lambda: good({"c": 0.5}),
    "SpatialKernelMap.__call__": lambda: good(spatial()),
    "SpatialKernelMap.matrix": lambda: good(spatial()),
    "SpatialTangentKernel.__call__": lambda: good(spatial()),
    "SpatialTangentKernel.matrix": lambda: good(spatial()),
    "SpatialTangentKernel.both": lambda: good(spatial()),
    "SpatialTangentKernel.layer_kernel": lambda: good("affine_1", spatial()),
    "LearnableKernel.__call__": lambda: good(kc.learnable_kernel(A.vanilla(2)).init(), x()),
    "LearnableKernel.init": lambda: good(),
    "LearnableKernel.log_marginal_likelihood": lambda: good(
        kc.learnable_kernel(A.vanilla(2)).init(), x(), y(), 0.1
    ),
    "Maximal.inverse": lambda: good(1.5, 1.0, 2.0),
    "MaximalCurvature.inverse": lambda: good(0.5),
    "MaximalCValue.active": lambda: good(0.5),
    "MaximalSlope.__call__": lambda: good(1.05),
    "MaximalSlope.slope_to": lambda: good("affine_1", 1.05),
    "MaximalCurvature.__call__": lambda: good(0.1),
    "MaximalCValue.inverse": lambda: good(0.5),
    "Limit.matrix": lambda: good(3),
    "TrainingCurve.of": lambda: good(np.eye(3), [1.0, 2.0, 3.0]),
    "TrainingCurve.expected_loss": lambda: good(1.0),
    "TrainingCurve.expected_test_loss": lambda: good(1.0, y()[:2]),
    "TrainingCurve.loss": lambda: good(1.0),
    "TrainingCurve.plotted_times": lambda: good(),
    "TrainingCurve.predict": lambda: good(1.0),
    "TrainingCurve.predict_test": lambda: good(1.0),
    "TrainingCurve.test_loss": lambda: good(1.0, y()[:2]),
    "TrainingCurve.variance_test": lambda: good(1.0),
    "Spectrum.effective_dimension": lambda: good(0.1),
    # audits
    "Audit.changes": lambda: good(locked()),
    "Audit.check": lambda: good(),
    "Audit.found": lambda: good(),
    "Audit.lock": lambda: good(path_to("init.lock")),
    "Audit.save": lambda: good(path_to("audit.json")),
    # finite width
    "Fluctuations.__getitem__": lambda: good("affine_1"),
    "Moments.subs": lambda: good({}),
    "Moments.width_for": lambda: good(0.5),
    "DepthMoments.jacobian": lambda: good("affine_1", 1),
    "DepthMoments.stability": lambda: good(),
    "Smoothness.rate": lambda: good(),
    "ResidualSpectrum.cdf": lambda: good(0.5),
    "ResidualSpectrum.density": lambda: good(0.5),
    # shaping
    "Shaping.apply_to": lambda: good(torch_shaped(), (2, 8)),
    "Edits.__getitem__": lambda: good("1"),
    "Edits.only": lambda: good("activation"),
    "Edits.save": lambda: good(path_to("edits.json")),
    "Reading.cut": lambda: good(["1"]),
    "RegionalShaping.export": lambda: good("json"),
    "RegionalShaping.apply_to": lambda: good(torch_sorted(), (2, 8)),
    "Shaping.compare": lambda: good(shaped()),
    "Shaping.export": lambda: good("numpy"),
    "ConstantsTable.__getitem__": lambda: good("tanh"),
    "ConstantsTable.get": lambda: good("tanh"),
    "EquivalentParameters.arrays": lambda: good(plain_parameters()),
    "VanillaMaps.flow": lambda: good(0.5, 3),
    # programs and measurements
    "Model.apply": lambda: good(*model()[1:]),
    "Model.trace": lambda: good(*model()[1:]),
    "Model.init": lambda: good(0),
    "Model.init_state": lambda: good(),
    "Model.inputs_of": lambda: good(model()[2]),
    "Model.node_params": lambda: good(model()[1], "affine_1"),
    "Model.plan": lambda: good(),
    "Model.stack": lambda: good(model()[0].unstack(model()[1])),
    "Model.unstack": lambda: good(model()[1]),
    "CoordinateCheck.deviates": lambda: good("affine_1"),
    "ParameterRule.exponent": lambda: good("learning_rate"),
    "TrainedCoordinates.steady": lambda: good("output"),
    "Transfer.__getitem__": lambda: good("0.weight"),
    "Transfer.optax": lambda: good(0.1),
    "Transfer.param_groups": lambda: good(perceptron(8), 0.1),
    "Transfer.rescale": lambda: good(perceptron(8)),
    "TransferCheck.crossing_shift": lambda: good(0.5),
    "KernelCheck.allowed": lambda: good(),
    "KernelCheck.bias": lambda: good(),
    "KernelCheck.deviating": lambda: good(),
    "KernelCheck.fluctuation": lambda: good(),
    "KernelCheck.judged": lambda: good(),
    "KernelCheck.largest_error": lambda: good(),
    "KernelCheck.statistic": lambda: good(),
    "KernelCheck.rows_of": lambda: good(),
    "Report.__getitem__": lambda: good("DKS-suo"),
    "Report.details": lambda: good(),
    "Comparison.best_rate": lambda: good("relu"),
    "Comparison.curve": lambda: good("relu"),
    "Comparison.of": lambda: good("relu"),
    "Comparison.rates": lambda: good("relu"),
    "Comparison.save_table": lambda: good(path_to("table.csv")),
    "Run.steps_to": lambda: good(0.9),
    **TRAINING_METHODS,
}

# hooks between the parts of the library, which hand each other states, fields and jets
HOOKS = {
    "beside",
    "edits_on",
    "strengths",
    "steepness",
    "refuse_rough",
    "Keyed.get",  # takes any name, as of a dictionary
    "ball_gaps",
    "ball_values",
    "gaps",
    "values",
    "cross_drop",
    "jax_values",
    "mean_slope_series",
    "q_product_series",
    "q_series",
    "refuse_numeric_only",
    "refuse_symbols",
    "taylor",
    "Enclosure.checked",
    "Enclosure.of",
    "Finding.of",
}


MORE: dict[
    str, Callable[[], Any]
] = {  # beside those of tests/result_examples.py, where some methods need others
    "moments.open": lambda: kc.moments(A.vanilla(2), features=8),
    "training_curve.tested": lambda: kc.training_curve(ntk(), x(), y(), x(2)),
    "verify_kernels.wide": lambda: kc.verify_kernels(
        kc.to_jax(A.vanilla(1)), draws=3, widths=(16, 32), gradients=False, tangent=False
    ),
    "smoothness.level": lambda: kc.smoothness(
        A.vanilla(1, activation="tanh", features=4), radius=0.1, level=0.5
    ),
    "shape.read": lambda: kc.shape(kc.read(torch_shaped(), (2, 8)).network, zeta=1.2),
    "shape.edge": lambda: kc.shape(
        A.transformer_stack(1, 8, 2),
        method="edge",
        tokens=4,
        growth=1.5,
        token_slope=0.9,
        score_variance=0.5,
    ),
    **TRAINING_EXAMPLES,
}

# the results in tests/result_examples.py that have methods of their own
EXAMPLES = (
    "Network",
    "activation",
    "audit",
    "activation.c_map",
    "activation.q_map",
    "activation.c_map.derivative",
    "activation.c_map.table",
    "activation.q_map.table",
    "verification.training_spectra",
    "verification.variance_spectra",
    "activation.c_map.ball",
    "c_map",
    "c_map.derivative",
    "q_map",
    "c_map.expr",
    "c_map.spatial",
    "compare",
    "coordinate_check",
    "equivalent_parameters",
    "fluctuations",
    "gaussian_process",
    "gradients",
    "hessian_blocks",
    "kernel_regression",
    "learnable_kernel",
    "maximal",
    "maximal_c_value",
    "maximal_curvature",
    "maximal_slope",
    "moments.open",
    "moments_at_depth",
    "ntk",
    "read",
    "ntk.regime",
    "ntk.regime.limit",
    "ntk.spectrum",
    "ntk.spatial",
    "phase_diagram",
    "residual_spectrum",
    "scaling",
    "trained_coordinates",
    "token_map",
    "token_map.table",
    "token_phases",
    "depth_profile",
    "transfer",
    "transfer.parameters",
    "transfer_check",
    "shape.read",
    "shape.regions",
    "shape.constants",
    "shape.edits",
    "shape.geometric",
    "smoothness.level",
    "subnetworks",
    "to_jax",
    "training_curve.tested",
    "vanilla_maps",
    "verify_kernels.wide",
    "claims.verify",
    "training.Comparison",
    "training.Run",
    *TRAINING_EXAMPLES,
    "verification.layer_jacobians",
)


def methods(label: str, example: Any) -> Iterator[tuple[str, str]]:
    """(label, name) for every public method of a result that takes something and is no hook."""
    kind = type(example)
    for name in dir(kind):
        if name.startswith("_") and name not in ("__call__", "__getitem__"):
            continue
        found = inspect.getattr_static(kind, name)
        found = getattr(kind, name) if isinstance(found, classmethod | staticmethod) else found
        if not inspect.isfunction(found) and not inspect.ismethod(found):
            continue
        parameters = [p for p in inspect.signature(found).parameters if p != "self"]
        if (
            parameters
            and name not in HOOKS
            and not any(f"{cls.__name__}.{name}" in HOOKS for cls in kind.__mro__)
        ):
            yield f"{label}.{name}", name


def good_method(kind: type, name: str) -> Good:
    for cls in kind.__mro__:
        if f"{cls.__name__}.{name}" in METHODS:
            return METHODS[f"{cls.__name__}.{name}"]()
    return METHODS[name]()
