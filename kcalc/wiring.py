"""Register the objects that each optional part of kcalc (a "guest") provides.

No other module names the guests. Objects are registered by their location as text, and a guest is
imported when one of its objects is first used. ``print(kcalc.wiring.table())`` shows everything
that is registered.
"""

from __future__ import annotations

from .foundation.guests import (
    ARCHITECTURES,
    DRAWINGS,
    FORMER,
    KERNELS,
    LAYERS,
    METHODS,
    MODELS,
    READINGS,
    REGISTRIES,
    RULES,
    SHAPED,
    SHAPING,
)

READINGS.register(
    "images",
    {"spatial": "delta", "image_shape": None, "weights": "dense"},
    [("calculi.spatial.readings", "c_map ntk")],
)
READINGS.register(
    "tokens",
    {"tokens": None, "token_cosine": None, "sampling": None},
    [
        ("calculi.attention.maps", "c_map q_map q_values node_values"),
        ("calculi.attention.tangent", "ntk"),
        ("calculi.attention.gradients", "gradients"),
        ("calculi.attention.structure", "tells_tokens_apart"),
        ("verification.token_inputs", "sequences"),
    ],
)
RULES.register(("arrays", "Attend"), "calculi.attention.arrays:attend")
for calculus, rule in (
    ("kernel maps", "mixed"),
    ("tangent kernels", "with_tangent"),
    ("gradients", "sent_back"),
):
    RULES.register((calculus, "Route"), f"experts.rules:{rule}")
for name in ("MoE", "Route"):
    LAYERS.register(name, f"experts.layers:{name}")
for name in ("bert", "gpt2", "llama", "t5", "transformer_stack", "vit"):
    ARCHITECTURES.register(name, f"network.architectures.transformers:{name}")
ARCHITECTURES.register("hyper_connected", "streams.architecture:hyper_connected")

SHAPING_METHODS = {
    "dks": "shaping.dks:dks",
    "tat": "shaping.tat:tat",
    "eoc": "shaping.eoc:eoc",
    "nf": "shaping.normaliser_free:normaliser_free",
    "residual_weights": "shaping.residual_weights:residual_weights",
    "self_normalising": "shaping.self_normalising:self_normalising",
    "looks_linear": "shaping.looks_linear:looks_linear",
    "normalisation": "shaping.scales:normalisation",
    "geometric": "finite_width:geometric",
    "edge": "shaping.transformer_edge:edge",
    "he": "shaping.scales:he",
    "lecun": "shaping.scales:lecun",
    "glorot": "shaping.scales:glorot",
    "fan_out": "shaping.scales:fan_out",
}
OF_STREAMS = {"profile of streams": "streams.profile:stream_profile"}
OF_TOKENS = {
    "tokens": "shaping.tokens:given_tokens",
    "depth trace": "shaping.traces:depth_trace",
    "joint gradients": "calculi.attention.probes:joint_modes",
}

PLOTTING = {  # a class, or a class and a method other than plot
    "Activation": "plotting.cards:card",
    "CMap": "plotting:c_maps",
    "Comparison": "plotting:accuracies",
    "DepthProfile": "plotting.profiles:profile_figure",
    "Fluctuations": "plotting.moments:fluctuation_trace",
    "GeometricShaping": "plotting.scaling:weight_scalings",
    "Gradients": "plotting.kernels:gradient_trace",
    "HessianBlocks": "plotting.scaling:block_map",
    "HessianBlocks.histogram": "plotting.scaling:ratio_histogram",
    "JacobianSpectrum": "plotting.jacobian_spectrum:density_of_s",
    "Jacobians": "plotting.smoothness:singular_value_histograms",
    "KernelFunction": "plotting.kernels:kernel_curves",
    "MapComparison": "plotting:c_maps",
    "Moments": "plotting.moments:moment_trace",
    "Network": "plotting:network",
    "Network.html": "plotting.svg:network_html",
    "NetworkReport": "plotting.svg:network_page",
    "PhaseDiagram": "plotting.phases:phase_diagram",
    "QMap": "plotting:q_maps",
    "Regime": "plotting.kernels:layer_profile",
    "ResidualSpectrum": "plotting.smoothness:residual_spectrum",
    "Run": "plotting:accuracies",
    "Scaling": "plotting.scaling:weight_scalings",
    "Shaping": "plotting.shaping:shaping_figure",
    "Shaping.tokens": "plotting.tokens:token_figure",
    "Smoothness": "plotting.smoothness:jacobian_bounds",
    "Spectrum": "plotting.kernels:spectra",
    "Subnetworks": "plotting:network",
    "TokenPhases": "plotting.phases:token_phases",
    "TrainingCurve": "plotting.kernels:losses",
    "TrainingSpectra": "plotting.smoothness:singular_value_histograms",
    "TransformerShaping": "plotting.tokens:stream_figure",
    "VarianceSpectra": "plotting.smoothness:singular_value_histograms",
}
VERIFICATION = {"KernelCheck": "verification.plots:check_figure"}

JAX = {
    ("moment", "jax"): "activations.jax_maps:moment",
    ("taylor", "jax"): "activations.jax_maps:taylor",
    ("c_map", "jax"): "activations.jax_maps:cosine",
    ("kernel maps", "jax"): "calculi.learnable_tangent:kernel_in_jax",
}
BALLS = {
    ("midpoints", "mpmath"): "activations.precise:midpoints",
    ("moment", "balls"): "gaussian.certified:moment_ball",
    ("taylor", "balls"): "gaussian.certified:taylor_balls",
    ("softmax", "balls"): "gaussian.certified.softmax",
    ("activation bounds", "balls"): "calculi.smoothness.activation_suprema:activation_bounds",
}
MATRICES = {
    ("matrices", "rows"): "calculi.kernel_matrix:KernelOfRows",
    ("local table", "rows"): "calculi.local_tables:local_table",
}

BRIDGES = {
    "edits": "interchange.apply:edits_of",
    "scaled edits": "interchange.apply:scaled_edits_of",
    "patch": "interchange.apply:patch_of",
    "apply": "interchange.apply:apply_to",
    "export": "interchange.writers:export",
    "export of regions": "interchange.writers:export_regions",
}
READ_MODELS = {"interchange.Reading": "interchange.shaping_models.model_regions:shape_reading"}

FORMER_NAMES = {  # deprecated since 0.2, removed in 0.4
    "shaping": {
        "DepthLaws": ":DepthLaws",
        "DepthProfile": ":DepthProfile",
        "GeometricShaping": "finite_width:GeometricShaping",
        "TokenPhases": "shaping.token_phases:TokenPhases",
        "TransformerShaping": "shaping.transformer_edge:TransformerShaping",
        "depth_laws": ":depth_laws",
        "depth_profile": ":depth_profile",
        "geometric": "finite_width:geometric",
        "repeated_block": "network.combinators:repeated_block",
        "token_gain": ":token_gain",
        "token_phases": ":token_phases",
        "transformer_edge": "shaping.transformer_edge:edge",
    },
    "fields.tables": {
        "TokenTable": "calculi.attention.token_table:TokenTable",
        "tabulate_tokens": "calculi.attention.token_table:tabulate_tokens",
    },
    "verification": {"Table": "verification:TextTable"},
}
FORMER_MODULES = {  # deprecated and removed like the names above
    **{room: f"lab.{room}" for room in ["audit", "regression", "report"]},
    **{room: f"lab.{room}" for room in ["training", "transfer", "widgets"]},
    "calculi.attention.rows": "calculi.attention.softmax_rows",
    "calculi.attention.turning": "calculi.attention.rotary",
    "fields.deferred": "calculi.tape",
    "fields.tables.token_table": "calculi.attention.token_table",
    "gaussian.certified.ends": "gaussian.certified.derivatives_at_one",
    "gaussian.certified.profile": "gaussian.certified.activation",
    "gaussian.expectations.endzones": "gaussian.expectations.near_unit_correlation",
    "shaping.curve": "shaping.continuation",
    "shaping.fresh": "shaping.hypotheses",
    "shaping.measure": "shaping.thirty_digits",
    "shaping.scan": "shaping.starting_points",
    "shaping.search": "shaping.choose_branch",
}

for _room, _names in FORMER_NAMES.items():
    for _name, _place in _names.items():
        FORMER.register((_room, _name), _place)
for _registry, *_guests in (
    (DRAWINGS, PLOTTING, VERIFICATION),
    (KERNELS, JAX, BALLS, MATRICES),
    (SHAPED, READ_MODELS),
    (MODELS, BRIDGES),
    (METHODS, SHAPING_METHODS),
    (SHAPING, OF_TOKENS, OF_STREAMS),
):
    for _given in _guests:
        for _key, _place in _given.items():
            _registry.register(_key, _place)


def table() -> str:
    """Return a text that lists everything the guests provide."""
    return "\n\n".join(map(repr, REGISTRIES))
