"""The table of operators, and functions shared by rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...foundation.errors import KcalcError
from .powers import ONE, Power
from .program import POWERS, Ref, Step
from .program_sizes import Fold, Found, Rule, Value

RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a rule for some operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


FACTORS = ("mul", "div", "true")  # multipliers, which may be powers of the width
NUMBERS = ("exponent", "alpha", "other", "num_layers", "value", "min", "max", "threshold", "weight")


def rule_of(step: Step) -> Rule:
    """Return the rule for a step.

    In-place operators, whose names end in _, have the same rules as the operators without _.

    Raises: KcalcError for a function whose numerical arguments differ from those in the base model.
    """
    kind = step.kind
    if not kind.startswith(FACTORS):
        _check_numbers(step)
    return RULES.get(kind) or RULES.get(kind.rstrip("_")) or RULES.get(kind.strip("_")) or _no_rule


def _check_numbers(step: Step) -> None:
    """Raise a KcalcError for a function whose numerical arguments differ from the base model's."""
    for name, own in step.args.items():
        base = step.base.get(name)
        number = isinstance(own, float) or (name in NUMBERS and isinstance(own, int))
        if number and name != "scale" and own != base:
            raise KcalcError(
                f"node {step.name!r} computes {step.kind} with {name} = {own}, but with {base} in "
                "the base model; use the same functions, norms and multipliers as the base. "
                "kc.transfer reports which multipliers to change"
            ).at(step.name)


def _no_rule(f: Fold, step: Step) -> Found:
    if not any(step.real):  # integers and comparisons pass no gradient
        return chosen(f, step)
    return f.guess(step) if step.refs else made(f, step)


def operand(step: Step) -> Ref:
    """Return the first array that a step reads."""
    for name in ("self", "input", "0"):
        if isinstance(step.args.get(name), Ref):
            return step.args[name]
    return step.refs[0]


def several(step: Step, values: list[Value]) -> Found:
    """Return the result of a step: a list, or a single value."""
    return values if step.several else values[0]


def largest(f: Fold, step: Step, values: Sequence[Value]) -> Value:
    """Combine values in a sum or a selection; the result has the largest size."""
    return Value(
        f.setting.order.larger(*(one.of for one in values)),
        step.axes[0],
        step.real[0],
        fixed=all(one.fixed for one in values),
        unlike=next((one.unlike for one in values if one.unlike is not None), None),
        scores=any(one.scores for one in values),
    )


# -- sources and choices ---------------------------------------------------------------------------

_MADE = """
    rand rand_like randn randn_like normal empty empty_like zeros zeros_like ones ones_like full
    full_like new_zeros new_ones new_full new_empty new_empty_strided bernoulli eye randint arange
    scalar_tensor linspace fill zero
"""


@rule(*_MADE.split())
def made(f: Fold, step: Step) -> Found:
    """Return values that the operation creates itself, such as noise or zeros."""
    found = [Value(ONE, axes, real) for axes, real in zip(step.axes, step.real, strict=True)]
    return several(step, found)


_CHOSEN = """
    round floor ceil trunc sign sgn heaviside one_hot histc wrap_with_set_grad_enabled multinomial
    argmax argmin
"""


@rule(*_CHOSEN.split())
def chosen(f: Fold, step: Step) -> Found:
    """Return a choice or a comparison: a new input that passes no gradient."""
    return several(step, [Value(ONE, axes, False) for axes in step.axes])


def ratio_of(f: Fold, step: Step, name: str) -> Power:
    """Return the ratio of a number to its value in the base model, as a power.

    Raises: KcalcError if the ratio is not a power.
    """
    own, base = step.args[name], step.base[name]
    if own == base or not own or not base or not isinstance(own, int | float):
        return ONE
    for symbol, ratio in f.program.ratios.items():
        for p in POWERS:
            if abs(own / base / ratio ** float(p) - 1) < 1e-4:
                return symbol**p
    raise KcalcError(
        f"node {step.name!r} multiplies by {own:.6g}, but by {base:.6g} in the base model; "
        "the ratio is not a power of the width ratio. Use the same functions, norms and "
        "multipliers as the base"
    )


def more(f: Fold, every: Power, own: Power) -> Power:
    ratio = every / own
    return ratio if f.setting.order.grows(ratio) else ONE
