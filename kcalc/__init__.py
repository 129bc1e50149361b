"""kcalc: kernel calculus on neural networks.

Describe a network as a directed acyclic graph. kcalc derives its local and global Q/C maps and
slope polynomials, and from these the constants that make the network trainable. jax, matplotlib and
torch are imported only when they are used.
"""

from __future__ import annotations

import sys as _sys
from typing import TYPE_CHECKING, Any

from . import wiring as wiring
from .foundation.after_import import after_import
from .foundation.errors import FreshnessError, GraphError, KcalcError, NoRule, UnreachableTarget
from .foundation.guests import brought as _brought
from .foundation.moved import moved as _moved
from .version import __version__

if TYPE_CHECKING:
    from . import activations, claims
    from .activations import Activation, activation
    from .activations import gains as gains
    from .activations.gains import gain
    from .activations.gaussian_expectations import expectation, pair_expectation
    from .backend import (
        Model,
        coordinate_check,
        lsuv,
        normalise_locations,
        scale_output,
        to_jax,
        wli,
    )
    from .calculi.attention.maps import token_map
    from .calculi.attention.sampling import Sampling
    from .calculi.batches import large_batch
    from .calculi.comparison import MapComparison, compare
    from .calculi.fluctuations import Fluctuations, fluctuations
    from .calculi.global_maps import c_map, node_values, q_map, q_values
    from .calculi.gradients import Gradients, gradients
    from .calculi.learnable import learnable_kernel
    from .calculi.moments import Moments, crelu_budget, depth_stability, moments, moments_at_depth
    from .calculi.ntk import ntk
    from .calculi.scaling import Scaling, scaling
    from .calculi.slopes import slope_polynomial
    from .calculi.smoothness import (
        ResidualSpectrum,
        Smoothness,
        activation_bounds,
        residual_spectrum,
        smoothness,
    )
    from .calculi.subnetworks import (
        maximal,
        maximal_c_value,
        maximal_curvature,
        maximal_slope,
        subnetworks,
    )
    from .calculi.tied_readout import TiedReadout, tied_readout
    from .experts import MoEStatistics, moe_statistics
    from .foundation import symbols
    from .interchange import (
        Edits,
        Reading,
        apply_edits,
        load_edited,
        load_edits,
        load_json,
        read,
        save_json,
    )
    from .lab import regression as regression
    from .lab import training as training
    from .lab import widgets as widgets
    from .lab.audit import Audit, audit
    from .lab.regression import (
        gaussian_process,
        kept_kernel,
        kernel_regression,
        sklearn_kernel,
        training_curve,
    )
    from .lab.report import report
    from .lab.transfer import (
        Equilibrium,
        ParameterRule,
        TrainedCoordinates,
        Transfer,
        TransferCheck,
        abc_exponents,
        equilibrium,
        trained_coordinates,
        transfer,
        transfer_check,
    )
    from .matrices import spectrum as spectrum
    from .network import architectures, layers, token_mixing
    from .network.combinators import chain, repeat, residual
    from .network.network import Network
    from .network.skips import averaging_shortcuts, skip_network
    from .shaping import (
        Constants,
        RegionalShaping,
        Shaping,
        critical_point,
        depth_limit,
        equivalent_parameters,
        phase_diagram,
        residual_blocks,
        shape,
        vanilla_maps,
        with_residual_weights,
    )
    from .shaping.depth_laws import DepthLaws, depth_laws
    from .shaping.profiles import DepthProfile, depth_profile
    from .shaping.token_phases import token_gain, token_phases
    from .spectra import JacobianSpectrum, jacobian_spectrum
    from .streams import sinkhorn
    from .verification import empirical_ntk, hessian_blocks, verify_kernels

# modules that are imported when one of their names is first used
_ROOMS = {
    "activations": "Activation activation",
    "activations.gains": "gain",
    "activations.gaussian_expectations": "expectation pair_expectation",
    "backend": "Model coordinate_check lsuv normalise_locations scale_output to_jax wli",
    "calculi.attention.maps": "token_map",
    "calculi.attention.sampling": "Sampling",
    "calculi.batches": "large_batch",
    "calculi.comparison": "MapComparison compare",
    "calculi.fluctuations": "Fluctuations fluctuations",
    "calculi.global_maps": "c_map node_values q_map q_values",
    "calculi.gradients": "Gradients gradients",
    "calculi.learnable": "learnable_kernel",
    "calculi.moments": "Moments crelu_budget depth_stability moments moments_at_depth",
    "calculi.ntk": "ntk",
    "calculi.scaling": "Scaling scaling",
    "calculi.slopes": "slope_polynomial",
    "calculi.smoothness": "ResidualSpectrum Smoothness activation_bounds residual_spectrum "
    "smoothness",
    "calculi.subnetworks": "maximal maximal_c_value maximal_curvature maximal_slope subnetworks",
    "calculi.tied_readout": "TiedReadout tied_readout",
    "interchange": "Edits Reading apply_edits load_edited load_edits load_json read save_json",
    "experts": "MoEStatistics moe_statistics",
    "lab.audit": "Audit audit",
    "lab.regression": "gaussian_process kept_kernel kernel_regression sklearn_kernel "
    "training_curve",
    "lab.report": "report",
    "lab.transfer": "Equilibrium ParameterRule TrainedCoordinates Transfer TransferCheck "
    "abc_exponents equilibrium trained_coordinates transfer transfer_check",
    "network.combinators": "chain repeat residual",
    "network.network": "Network",
    "network.skips": "averaging_shortcuts skip_network",
    "shaping": "Constants RegionalShaping Shaping critical_point depth_limit equivalent_parameters "
    "phase_diagram residual_blocks shape vanilla_maps with_residual_weights",
    "shaping.depth_laws": "DepthLaws depth_laws",
    "shaping.profiles": "DepthProfile depth_profile",
    "shaping.token_phases": "token_gain token_phases",
    "spectra": "JacobianSpectrum jacobian_spectrum",
    "streams": "sinkhorn",
    "verification": "empirical_ntk hessian_blocks verify_kernels",
}
_PACKAGES = {"claims", "fields", "gaussian", "maps", "matrices", "plotting"}
_PACKAGES |= {room.partition(".")[0] for room in _ROOMS}
_MODULES = {
    "gains": "activations.gains",
    "spectrum": "matrices.spectrum",
    "symbols": "foundation.symbols",
    **{name: f"network.{name}" for name in ("architectures", "layers", "token_mixing")},
    **{name: f"lab.{name}" for name in ("regression", "training", "widgets")},
}
_PLACES = {name: name for name in _PACKAGES} | _MODULES
_PLACES |= {name: f"{room}:{name}" for room, names in _ROOMS.items() for name in names.split()}

__all__ = [
    "Activation",
    "Audit",
    "Constants",
    "DepthLaws",
    "DepthProfile",
    "Edits",
    "Equilibrium",
    "Fluctuations",
    "FreshnessError",
    "Gradients",
    "GraphError",
    "JacobianSpectrum",
    "KcalcError",
    "MapComparison",
    "MoEStatistics",
    "Model",
    "Moments",
    "Network",
    "NoRule",
    "ParameterRule",
    "Reading",
    "RegionalShaping",
    "ResidualSpectrum",
    "Sampling",
    "Scaling",
    "Shaping",
    "Smoothness",
    "TiedReadout",
    "TrainedCoordinates",
    "Transfer",
    "TransferCheck",
    "UnreachableTarget",
    "__version__",
    "abc_exponents",
    "activation",
    "activation_bounds",
    "activations",
    "apply_edits",
    "architectures",
    "audit",
    "averaging_shortcuts",
    "c_map",
    "chain",
    "claims",
    "compare",
    "coordinate_check",
    "crelu_budget",
    "critical_point",
    "depth_laws",
    "depth_limit",
    "depth_profile",
    "depth_stability",
    "empirical_ntk",
    "equilibrium",
    "equivalent_parameters",
    "expectation",
    "fluctuations",
    "gain",
    "gaussian_process",
    "gradients",
    "hessian_blocks",
    "jacobian_spectrum",
    "kept_kernel",
    "kernel_regression",
    "large_batch",
    "layers",
    "learnable_kernel",
    "load_edited",
    "load_edits",
    "load_json",
    "lsuv",
    "maximal",
    "maximal_c_value",
    "maximal_curvature",
    "maximal_slope",
    "moe_statistics",
    "moments",
    "moments_at_depth",
    "node_values",
    "normalise_locations",
    "ntk",
    "pair_expectation",
    "phase_diagram",
    "q_map",
    "q_values",
    "read",
    "repeat",
    "report",
    "residual",
    "residual_blocks",
    "residual_spectrum",
    "save_json",
    "scale_output",
    "scaling",
    "shape",
    "sinkhorn",
    "skip_network",
    "sklearn_kernel",
    "slope_polynomial",
    "smoothness",
    "subnetworks",
    "symbols",
    "tied_readout",
    "to_jax",
    "token_gain",
    "token_map",
    "token_mixing",
    "token_phases",
    "trained_coordinates",
    "training_curve",
    "transfer",
    "transfer_check",
    "vanilla_maps",
    "verify_kernels",
    "with_residual_weights",
    "wli",
]


after_import("keras", "interchange.jax_model.keras_models:register")
after_import("transformers", "interchange.unedited:register")
del after_import  # so that keras.models.load_model finds edited models in a new process


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=_sys.modules[__name__]
        )
    found = globals()[name] = _brought(_PLACES[name])
    return found


def __dir__() -> list[str]:
    return __all__


_moved(wiring.FORMER_MODULES)
