"""Every argument of every public function and method replaced by what nobody should give.

a KcalcError, or a result that makes sense.
"""

from __future__ import annotations

import inspect
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from bad_inputs import KINDS, senseless, slots, within
from command_words import words
from good_calls import EXAMPLES, FUNCTIONS, example, function_of, good_call, methods
from good_values import pool
from result_examples import RESULTS

import kcalc as kc

# what compiles, measures or reads a framework: one kind of the default suite, all behind slow
DEAR = tuple(
    words(
        """
    coordinate_check trained_coordinates transfer_check empirical_ntk hessian_blocks
    verify_kernels lsuv wli scale_output to_jax report read c_map.spatial ntk.spatial claims
    verification shape. learnable_kernel gaussian_process Network.draw sklearn_kernel
    smoothness activation.plot ntk phase_diagram architectures.preactivation
    architectures.layernorm training.Comparison training.Run training.compare training.fit
        """
    )
)
TRUE_OR_FALSE = words(
    """
    assume_independent backward batch_norm bias biases by_layer causal centre centred collapse
    downsample inplace expand free_slope gated gradients heuristic images input_symmetric
    jacobian jacobians labels legend nonnegative normalise pairs permissive progress readout
    remat resume rolled shared sigmas standard standardised symbols_by_activation tangent
    train trainable_norms trained uniform zero_readout
    """
)
# Parameters that take arrays of any shape, empty ones too.
ARRAYS = words(
    """
    c gap q q1 q2 rho theta x t kappa psi negative_slope target
    """
)
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
    **{f"activation.{name}": EXACT for name in words("c_expr.c c_expr.q1 c_expr.q2 q_expr.q")},
    **{f"{name}.symbolic.{q}": EXACT for name in SYMBOLIC for q in ("q", "q1", "q2")},
    **{f"activation.{name}": {"huge"} for name in ("q_map.ball.q", "c_map.ball.contains.x")},
    "q_map.ball.q": {"huge"},
    "activation_bounds.reach": {"inf"},
    "token_mixing.exponential.start": {"inf"},
    "to_jax.dtype": {"empty array"},
    "read.shapes": {"unknown keys"},
    ".looks": {"unknown keys"},  # of lines that are not drawn
    # a network needs none
    "report.example_inputs": {"empty array", *words("ragged objects generator recursive texts")},
    **{f"sklearn_kernel.sigma_{name}_bounds": set(KINDS) for name in "wb"},  # scikit-learn's own
    "to_jax.inputs_of.x": {"nan", "inf", "-inf", "True"},
    "shape.constants.get.default": set(KINDS),
    "Network.without.dropped": {"empty array"},
    "read.cut.nodes": {"empty array"},
}
# functions of the caller's own, whose failures are theirs
OWN = {
    "Network.map_layers.change": {"function", "class"},
    "Network.relabelled.names": {"class"},
    "maximal.r": {"class"},
    "trained_coordinates.loss": {"function", "class"},
    "transfer_check.loss": {"function", "class"},
    "training.compare.report": {"class"},
}


MOST = 3  # values of a type that are tried


def taken(label: str, parameter: str) -> set[str]:
    """The kinds that a parameter may take though others may not."""
    return TAKEN.get(f"{label}.{parameter}", set()) | TAKEN.get(f".{parameter}", set())


def complaint(label: str, parameter: str, kind: str) -> str | None:
    """What is wrong with how a call took a bad argument."""
    make, never = KINDS[kind]
    if kind in OWN.get(f"{label}.{parameter}", ()):
        return None
    wrong = refused_or_sound(label, parameter, make())
    if wrong is None and never and kind not in taken(label, parameter):
        return "taken as if it were fine"
    return wrong or None


def refused_or_sound(label: str, parameter: str, value: Any) -> str | None:
    """What is wrong with a call with one other argument.

    "" where it is refused by a KcalcError, None where it gives a result that makes sense.
    """
    function = function_of(label)
    call = dict(slots(function, good_call(label)()))[parameter](value)
    try:
        with within(20), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(*call.args, **call.named)
    except kc.KcalcError as error:
        return "" if 0 < len(str(error)) < 1000 else f"a message of {len(str(error))} characters"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    finally:
        plt.close("all")
    return "a result with nan or infinity" if senseless(result) else None


def typed(label: str) -> None:
    """Give a function's parameters with a default, one by one, the values of their types."""
    found = [
        f"{label}({name} = value {number} of its type): {wrong}"
        for name, parameter in inspect.signature(function_of(label)).parameters.items()
        if parameter.default is not parameter.empty
        for number, make in enumerate(pool(parameter)[:MOST])
        if (wrong := refused_or_sound(label, name, make()))
    ]
    assert not found, "\n".join(found)


def check(label: str, kinds: list[str]) -> None:
    names = [name for name, _ in slots(function_of(label), good_call(label)())]
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
def test_functions_take_the_types_that_they_declare(name: str) -> None:
    """Each optional argument by itself: an answer, or a KcalcError where the others forbid it."""
    typed(name)


@pytest.mark.parametrize("name", thrifty(FUNCTIONS))
def test_functions_refuse_what_makes_no_sense(name: str) -> None:
    check(name, third(name))


@pytest.mark.parametrize("one", thrifty(EXAMPLES))
def test_methods_refuse_what_makes_no_sense(one: str) -> None:
    for label, _ in methods(one, example(one)):
        check(label, third(label))


@pytest.mark.slow
def test_every_public_method_has_an_example() -> None:
    covered = {
        inspect.getattr_static(type(example(one)), name)
        for one in EXAMPLES
        for _, name in methods(one, example(one))
    }
    for one in RESULTS:
        for label, name in methods(one, example(one)):
            assert inspect.getattr_static(type(example(one)), name) in covered, (
                f"enter {label} into EXAMPLES of tests/good_calls.py"
            )
