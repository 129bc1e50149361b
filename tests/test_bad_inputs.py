"""Every argument of every public function and method replaced by what nobody should give.

a KcalcError, or a result that makes sense.
"""

from __future__ import annotations

import inspect
import warnings
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from bad_inputs import KINDS, senseless, slots, within
from good_calls import EXAMPLES, FUNCTIONS, MORE, Good, good_method, methods, x
from result_examples import RESULTS

import kcalc as kc

ROOMS = ("activations", "architectures", "claims", "layers", "symbols", "token_mixing", "training")
# results, which functions make; and what enters the catalogue of the process
MADE = {
    "Activation",
    "Audit",
    "Constants",
    "DepthLaws",
    "DepthProfile",
    "Edits",
    "Fluctuations",
    "TiedReadout",
    "Gradients",
    "MapComparison",
    "Model",
    "Moments",
    "Reading",
    "RegionalShaping",
    "ResidualSpectrum",
    "Scaling",
    "Shaping",
    "Smoothness",
    "ParameterRule",
    "TrainedCoordinates",
    "Transfer",
    "TransferCheck",
    "activations.register",
    "activations.Erf",
    "activations.Exponential",
    "activations.Leaky",
    "activations.Polynomial",
    "activations.RectifiedPower",
    "activations.Transformation",
    "claims.Claim",
    "claims.Erratum",
    "claims.Evidence",
    "claims.Method",
    "claims.Paper",
    "claims.Report",
    "claims.Verdict",
    "training.Comparison",
    "training.Diverged",
    "training.Run",
    "training.Unfinished",
    "training.Recipe",
    "training.connect",
}
# what compiles, measures or reads a framework: one kind of the default suite, all behind slow
DEAR = (
    "coordinate_check",
    "trained_coordinates",
    "transfer_check",
    "empirical_ntk",
    "hessian_blocks",
    "verify_kernels",
    "lsuv",
    "wli",
    "scale_output",
    "to_jax",
    "report",
    "read",
    "c_map.spatial",
    "ntk.spatial",
    "claims",
    "verification",
    "shape.",
    "learnable_kernel",
    "gaussian_process",
    "Network.draw",
    "sklearn_kernel",
    "smoothness",
    "activation.plot",
    "ntk",
    "phase_diagram",
    "architectures.preactivation",
    "architectures.layernorm",
    "training.Comparison",
    "training.Run",
    "training.compare",
    "training.fit",
)
TRUE_OR_FALSE = {
    "assume_independent",
    "backward",
    "batch_norm",
    "bias",
    "biases",
    "by_layer",
    "causal",
    "centre",
    "centred",
    "collapse",
    "downsample",
    "equivalent",
    "inplace",
    "expand",
    "flat",
    "free_slope",
    "gated",
    "gradients",
    "heuristic",
    "input_symmetric",
    "jacobian",
    "jacobians",
    "labels",
    "legend",
    "nonnegative",
    "pairs",
    "permissive",
    "progress",
    "readout",
    "remat",
    "resume",
    "rolled",
    "shared",
    "sigmas",
    "standard",
    "standardised",
    "symbols_by_activation",
    "tangent",
    "train",
    "trainable_norms",
    "uniform",
    "zero_readout",
}
# Parameters that take arrays of any shape, empty ones too.
ARRAYS = {
    "c",
    "gap",
    "q",
    "q1",
    "q2",
    "rho",
    "theta",
    "x",
    "t",
    "kappa",
    "psi",
    "negative_slope",
    "target",
}
SYMBOLIC = (
    "activation.c_map",
    "activation.q_map",
    "activation.c_map.derivative",
    "c_map",
    "c_map.derivative",
    "q_map",
    "ntk",
    "token_map",
)
EXACT = {"huge", "tower"}  # numbers of exact or certified arithmetic
# {call.parameter, or .parameter of any call: kinds that never make sense elsewhere and do here}
TAKEN: dict[str, set[str]] = {
    **{f".{name}": {"True"} for name in TRUE_OR_FALSE},
    **{f".{name}": {"empty array"} for name in ARRAYS},
    "activation.c_expr.c": EXACT,
    "activation.c_expr.q1": EXACT,
    "activation.c_expr.q2": EXACT,
    "activation.q_expr.q": EXACT,
    **{f"{name}.symbolic.{q}": EXACT for name in SYMBOLIC for q in ("q", "q1", "q2")},
    "activation.q_map.ball.q": {"huge"},
    "q_map.ball.q": {"huge"},
    "activation.c_map.ball.contains.x": {"huge"},
    "activation_bounds.reach": {"inf"},
    "token_mixing.exponential.start": {"inf"},
    **{f"{name}.dtype": {"empty array"} for name in ("to_jax", "training.RunConfiguration")},
    "read.shapes": {"unknown keys"},
    ".looks": {"unknown keys"},  # of lines that are not drawn
    "report.example_inputs": {
        "ragged",
        "objects",
        "generator",
        "recursive",
        "empty array",
        "texts",
    },  # a network needs none
    **{f"sklearn_kernel.sigma_{name}_bounds": set(KINDS) for name in "wb"},  # scikit-learn's own
    "to_jax.inputs_of.x": {"nan", "inf", "-inf", "True"},
    "shape.constants.get.default": set(KINDS),
    "Network.without.dropped": {"empty array"},
}
# functions of the caller's own, whose failures are theirs
OWN = {
    "Network.map_layers.change": {"function", "class"},
    "Network.relabelled.names": {"class"},
    "maximal.r": {"class"},
    "trained_coordinates.loss": {"function", "class"},
    "transfer_check.loss": {"function", "class"},
    "training.compare.report": {"class"},
    "training.fit.begun": {"function", "class"},
    "training.Trainer.fit.begun": {"function", "class"},
}


def taken(label: str, parameter: str) -> set[str]:
    """The kinds that a parameter may take though others may not."""
    return TAKEN.get(f"{label}.{parameter}", set()) | TAKEN.get(f".{parameter}", set())


def called(name: str) -> Callable[..., Any]:
    """A public function by its name below ``kc``."""
    found: Any = kc
    for part in name.split("."):
        found = getattr(found, part)
    if name != "sklearn_kernel":
        return found

    def checked(
        *args: Any, **named: Any
    ) -> Any:  # scikit-learn checks its parameters as they are used
        return found(*args, **named)(x())

    checked.__signature__ = inspect.signature(found)  # pyright: ignore
    return checked


@cache
def example(name: str) -> Any:
    return (MORE.get(name) or RESULTS[name])()


def call_of(label: str) -> tuple[Callable[..., Any], Callable[[], Good]]:
    if label in FUNCTIONS:
        return called(label), FUNCTIONS[label]
    one, _, name = label.rpartition(".")
    return getattr(example(one), name), lambda: good_method(type(example(one)), name)


def complaint(label: str, parameter: str, kind: str) -> str | None:
    """What is wrong with how a call took a bad argument."""
    function, good = call_of(label)
    value, never = KINDS[kind][0](), KINDS[kind][1]
    call = dict(slots(function, good()))[parameter](value)
    if kind in OWN.get(f"{label}.{parameter}", ()):
        return None
    try:
        with within(20), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(*call.args, **call.named)
    except kc.KcalcError as error:
        return None if 0 < len(str(error)) < 1000 else f"a message of {len(str(error))} characters"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    finally:
        plt.close("all")
    if never and kind not in taken(label, parameter):
        return "taken as if it were fine"
    return "a result with nan or infinity" if senseless(result) else None


def check(label: str, kinds: list[str]) -> None:
    function, good = call_of(label)
    names = [name for name, _ in slots(function, good())]
    found = [
        f"{label}({name} = {kind}): {bad}"
        for name in names
        for kind in kinds
        if (bad := complaint(label, name, kind))
    ]
    assert not found, "\n".join(found)


def third(label: str) -> list[str]:
    """A third of the kinds, another one for each call."""
    return list(KINDS)[zlib.crc32(label.encode()) % 3 :: 3]


def thrifty(labels: Iterable[str]) -> list[Any]:
    return [
        pytest.param(label, marks=pytest.mark.slow) if label.startswith(DEAR) else label
        for label in labels
    ]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # text may be taken as the name of a file


@pytest.mark.parametrize("name", thrifty(FUNCTIONS))
def test_functions_refuse_what_makes_no_sense(name: str) -> None:
    check(name, third(name))


@pytest.mark.parametrize("one", thrifty(EXAMPLES))
def test_methods_refuse_what_makes_no_sense(one: str) -> None:
    for label, _ in methods(one, example(one)):
        check(label, third(label))


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_refuse_all_that_makes_no_sense(name: str, every: int) -> None:
    check(name, list(KINDS)[::every])


@pytest.mark.slow
@pytest.mark.parametrize("one", EXAMPLES)
def test_methods_refuse_all_that_makes_no_sense(one: str, every: int) -> None:
    for label, _ in methods(one, example(one)):
        check(label, list(KINDS)[::every])


def test_every_public_function_has_a_good_call() -> None:
    given = {name: getattr(kc, name) for name in kc.__all__}
    public = {
        name
        for name, one in given.items()
        if callable(one) and not (inspect.isclass(one) and issubclass(one, Exception))
    }
    for room in ROOMS:
        module = getattr(kc, room)
        listed = kc.layers.KINDS if room == "layers" else module.__all__
        public |= {f"{room}.{name}" for name in listed if takes_something(getattr(module, name))}
    again = {name for name in public if "." in name and name.partition(".")[2] in kc.__all__}
    missing = public - again - set(FUNCTIONS) - MADE
    assert not missing, f"give {sorted(missing)} a good call in tests/good_calls.py"


def takes_something(one: Any) -> bool:
    return (inspect.isfunction(one) or inspect.isclass(one)) and bool(
        inspect.signature(one).parameters
    )


@pytest.mark.slow
def test_every_public_method_has_a_good_call() -> None:
    covered = {
        inspect.getattr_static(type(example(one)), name)
        for one in EXAMPLES
        for _, name in methods(one, example(one))
    }
    for one in RESULTS:
        for label, name in methods(one, example(one)):
            good_method(type(example(one)), name)
            assert inspect.getattr_static(type(example(one)), name) in covered, (
                f"enter {label} into EXAMPLES of tests/good_calls.py"
            )
