"""A good call of every public function and method, from the types of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

from command_words import words
from good_values import (
    NEEDED,
    handed_on,
    pool,
    saved,
    small,
    torch_shaped,
    x,
    y,
)
from result_examples import RESULTS, ntk, torch_model

import kcalc as kc
from kcalc import training

A = kc.architectures
ROOMS = ("activations", "architectures", "claims", "layers", "symbols", "token_mixing", "training")
# results, which functions make; and what enters the catalogue of the process
MADE = words(
    """
    Activation Audit Constants DepthLaws DepthProfile Edits Equilibrium Fluctuations
    TiedReadout Gradients JacobianSpectrum MapComparison Model Moments Reading RegionalShaping
    ResidualSpectrum Scaling Shaping Smoothness ParameterRule TrainedCoordinates Transfer
    TransferCheck activations.register activations.Erf activations.Exponential
    activations.Leaky activations.Polynomial activations.RectifiedPower
    activations.Transformation claims.Bench claims.Claim claims.Erratum claims.Evidence
    claims.Method claims.Paper claims.Report claims.Verdict training.Comparison
    training.Diverged training.Run training.Result
    """
)

FIXED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Good:
    """Arguments of a call that works."""

    args: tuple[Any, ...]
    named: dict[str, Any]


# -- functions -------------------------------------------------------------------------------------


def called(name: str) -> Any:
    """What a public name stands for, such as ``layers.Sum``."""
    room, _, rest = name.partition(".")
    found: Any = training if room == "training" else getattr(kc, room)
    return getattr(found, rest) if rest else found


def public_functions() -> list[str]:
    """Every public name that takes something, each once; results and errors left out."""
    own = [name for name in kc.__all__ if takes_something(getattr(kc, name))]
    for room in ROOMS:
        listed = kc.layers.KINDS if room == "layers" else called(room).__all__
        own += [f"{room}.{n}" for n in listed if takes_something(called(f"{room}.{n}"))]
    once = {id(called(name)): name for name in reversed(own)}
    return [*[name for name in once.values() if name not in MADE][::-1], "Network.from_steps"]


def own_keywords(label: str) -> dict[str, Any]:
    """What a function or method takes by ``**``; of a method by its class."""
    if label in FUNCTIONS:
        return handed_on(label, inspect.signature(function_of(label)).parameters)
    one, _, name = label.rpartition(".")
    kinds = type(example(one)).__mro__
    found = (handed_on(f"{kind.__name__}.{name}", ()) for kind in kinds)
    return next((given for given in found if given), {})


def takes_something(one: Any) -> bool:
    if inspect.isclass(one) and issubclass(one, Exception):
        return False
    return (inspect.isfunction(one) or inspect.isclass(one)) and bool(
        inspect.signature(one).parameters
    )


# -- from types to calls ---------------------------------------------------------------------------


def required(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [p for p in parameters if p.default is p.empty and p.kind not in FIXED]


def calls(function: Callable[..., Any], label: str) -> Iterator[Callable[[], Good]]:
    """Calls with what a function requires, of all values of the types; then with more than that."""
    parameters = list(inspect.signature(function).parameters.values())
    needed = required(parameters)
    without = [p.name for p in needed if not pool(p)]
    assert not without, f"no good value of {without}: enter their types in tests/good_values.py"
    optional = {p.name: p for p in parameters if p not in needed and p.kind not in FIXED}
    (free,) = [p for p in parameters if p.kind is p.VAR_POSITIONAL] or [None]
    open_ = {} if all(p.kind is not p.VAR_KEYWORD for p in parameters) else own_keywords(label)
    first = {**small(optional), **{n: v for n, v in open_.items() if n not in optional}}
    more = {**first, **{n: v for n, v in NEEDED.items() if n in optional}}
    rest = [NEEDED[free.name]] if free is not None and free.name in NEEDED else []
    last = [pool(free)[:1]] * 2 if free is not None and not rest else []
    for named, places, open_ends in (
        (first, [], []),
        ({n: v for n, v in first.items() if n != "widths"}, [], []),
        (more, rest, last),
    ):
        for makers in product(*map(pool, needed), *open_ends):
            yield partial(_made, needed, makers, named, places)


def _made(needed: list[inspect.Parameter], makers: Any, named: Any, rest: list[Any]) -> Good:
    values = [make() for make in makers]
    by_name = {p.name: v for p, v in zip(needed, values, strict=False) if p.kind is p.KEYWORD_ONLY}
    places = [v for i, v in enumerate(values) if i >= len(needed) or needed[i].name not in by_name]
    more = {name: value() if inspect.isfunction(value) else value for name, value in named.items()}
    return Good((*places, *rest), {**more, **by_name})


def derived(function: Callable[..., Any], label: str) -> Callable[[], Good]:
    """The first of the calls that works."""
    refused: dict[str, None] = {}
    for make in calls(function, label):
        good = make()
        try:
            function(*good.args, **good.named)
        except kc.KcalcError as error:
            refused[str(error)] = None
        else:
            return make
    raise AssertionError(f"no call of {label} works: {' | '.join(refused)}")


# Where no value of a type works, and why.
SPECIAL: dict[str, Callable[[], Good]] = {
    # a network is read without example inputs, whatever they are
    "read": lambda: Good((torch_model(), (2, 8)), {}),
    # weights and edits of one model
    "load_edited": lambda: Good((torch_shaped(), saved("weights.pt"), saved("edits.json")), {}),
    "equilibrium": lambda: Good((0.01, 0.1), {}),
    # many activations have no half-stable point
    "critical_point": lambda: Good(("gelu",), {}),
    # the losses of so short a sweep cross no level at both widths
    "transfer_check.crossing_shift": lambda: Good((0.5,), {}),
}


@cache
def good_call(label: str) -> Callable[[], Good]:
    """The good call of a public function, or of a method of an example."""
    return SPECIAL.get(label) or derived(function_of(label), label)


# -- methods ---------------------------------------------------------------------------------------

# hooks between the parts of the library, which hand each other states, fields and jets; and
# Keyed.get, which takes any name, as of a dictionary
HOOKS = words(
    """
    edits_on beside strengths steepness refuse_rough Keyed.get ball_gaps ball_values gaps
    values cross_drop jax_values mean_slope_series q_product_series q_series
    refuse_numeric_only refuse_symbols taylor Enclosure.checked Enclosure.of Finding.of
    """
)


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
    "shape.read": lambda: kc.shape(kc.read(torch_shaped(), (2, 8)), zeta=1.2),
    "shape.edge": lambda: kc.shape(
        A.transformer_stack(1, 8, 2),
        method="edge",
        tokens=4,
        growth=1.5,
        token_slope=0.9,
        score_variance=0.5,
    ),
}

# the results in tests/result_examples.py that have methods of their own
EXAMPLES = words(
    """
    Network activation audit activation.c_map activation.q_map activation.c_map.derivative
    activation.c_map.table activation.q_map.table verification.training_spectra
    verification.variance_spectra activation.c_map.ball c_map c_map.derivative q_map c_map.expr
    c_map.spatial compare critical_point coordinate_check equivalent_parameters fluctuations
    gaussian_process gradients hessian_blocks kernel_regression learnable_kernel maximal
    maximal_c_value maximal_curvature maximal_slope moments.open moments_at_depth ntk read
    ntk.regime ntk.regime.limit ntk.spectrum ntk.spatial phase_diagram residual_spectrum scaling
    equilibrium trained_coordinates token_map token_map.table token_phases depth_profile
    jacobian_spectrum moe_statistics transfer transfer.parameters transfer_check shape.read
    shape.regions shape.edits shape.constants shape.geometric smoothness.level subnetworks
    to_jax training_curve.tested vanilla_maps verify_kernels.wide claims.verify
    training.Comparison training.Run verification.layer_jacobians
    """
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


FUNCTIONS = public_functions()


@cache
def example(name: str) -> Any:
    return (MORE.get(name) or RESULTS[name])()


def function_of(label: str) -> Callable[..., Any]:
    """The function or bound method of a label."""
    if label in FUNCTIONS:
        return checked(label)
    one, _, name = label.rpartition(".")
    return getattr(example(one), name)


def checked(name: str) -> Callable[..., Any]:
    """A public function; a kernel of scikit-learn is used, as it checks its parameters then."""
    found = called(name) if name != "Network.from_steps" else kc.Network.from_steps
    if name != "sklearn_kernel":
        return found

    def used(*args: Any, **named: Any) -> Any:
        return found(*args, **named)(x())

    used.__signature__ = inspect.signature(found)  # pyright: ignore
    return used
