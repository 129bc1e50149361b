"""Both passes over a program: forward for sizes, backward for gradients."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from ...foundation.errors import KcalcError
from . import program_rules, program_weights  # noqa: F401  # they fill the table
from .powers import ONE, ZERO, Power
from .program import Program, Ref, Step
from .program_counts import check_counts
from .program_sizes import Fold, Found, Rule, Value, whole
from .program_table import rule_of
from .sizes import Setting, Size, Sizes

Node = Hashable


def run(program: Program, setting: Setting, unknown: str | None) -> tuple[Fold, Sizes]:
    """Run both passes.

    Raises: KcalcError for operations without a rule, and for outputs that grow.
    """
    fold = Fold(program, setting, unknown)
    for key, name in program.parameters.items():
        fold.values[key] = Value(ONE, program.axes[key], parameter=name, fixed=True)
    for key in program.inputs:
        fold.values[key] = Value(ONE, program.axes[key], key not in program.whole)
    for key, power in program.constants.items():
        fold.values[key] = Value(
            power, program.axes[key], key not in program.whole, fixed=True, numbers=True
        )
    for step in program.steps:
        check_counts(fold, step)
        fold.values[step.name] = _noted(fold, step, _found(fold, step, rule_of(step)))
    _check_outputs(fold)
    gradients = _backward(fold)
    states: dict[Node, Size] = {
        key: Size(value.of, ONE) for key, value in fold.values.items() if isinstance(value, Value)
    }
    return fold, Sizes(fold.uses, states, gradients)


def _found(fold: Fold, step: Step, rule: Rule) -> Found:
    """Apply a rule, or guess the result if the rule cannot handle the arguments of the operator.

    One unusual call must not prevent the rest of the program from being read.
    """
    try:
        return rule(fold, step)
    except KcalcError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
        fold.edges.pop(step.name, None)
        return fold.guess(step, "its arguments have an unknown form")


def _noted(fold: Fold, step: Step, found: Found) -> Found:
    """Mark a result as computed only from parameters or numbers, if all its inputs are."""
    reads = [fold.values[ref.name] for ref in step.refs]
    flat = [one for read in reads for one in (read if isinstance(read, list) else [read])]
    known = bool(flat) and step.name not in fold.uses
    fixed = known and all(one.fixed for one in flat)
    numbers = known and all(one.numbers for one in flat)
    if isinstance(found, list):
        return [replace(one, fixed=fixed, numbers=numbers) for one in found]
    return replace(found, fixed=fixed, numbers=numbers)


def _check_outputs(fold: Fold) -> None:
    for key in fold.program.outputs:
        x = fold.value(Ref(key))
        if any(map(fold.setting.order.grows, x.axes)):
            raise KcalcError(
                f"the output {key!r} grows with the width, so losses at different widths are not "
                f"comparable; use a readout with a fixed number of channels"
            )
        if x.real and not fold.setting.order.alike(x.of, ONE):
            fold.sized[key] = ONE / x.of


def _backward(fold: Fold) -> dict[Node, Power]:
    """Return {array, or additional weights of a step: size of its gradient}."""
    order = fold.setting.order
    messages: dict[Node, Power] = dict.fromkeys(fold.values, ZERO)
    for key in fold.program.outputs:
        if fold.value(Ref(key)).real:
            messages[key] = fold.sized.get(key, ONE)
    for step in reversed(fold.program.steps):
        message = messages[step.name]
        for read, factor in fold.edges.get(step.name, ()):
            messages[read] = order.larger(messages[read], message * factor)
    weights = {key: messages[whole(key)] * fold.shares.get(key, ONE) for key in fold.uses}
    return messages | weights


def reaching(program: Program) -> set[str]:
    """Return the arrays on which an output depends."""
    found = set(program.outputs)
    for step in reversed(program.steps):
        if step.name in found:
            found.update(ref.name for ref in step.refs)
    return found


def guessed_of(fold: Fold) -> dict[str, str]:
    """Return {parameter: an operation without a rule on a path through it}."""
    reads = {step.name: [ref.name for ref in step.refs] for step in fold.program.steps}
    found: dict[str, str] = {}
    for guess in reversed(fold.guessed):
        before, behind = {guess}, {guess}
        for step in reversed(fold.program.steps):
            if step.name in before:
                before.update(reads[step.name])
        for step in fold.program.steps:
            if behind.intersection(reads[step.name]):
                behind.add(step.name)
        for key, name in fold.program.parameters.items():
            if key in before:
                found[name] = guess
        for one in fold.kept:
            if whole(one.node) in before | behind:
                found[one.name] = guess
        for step in fold.program.steps:
            if step.name in behind:
                found |= {
                    fold.program.parameters[r]: guess
                    for r in reads[step.name]
                    if r in fold.program.parameters
                }
    return found


def before_zeros(fold: Fold, zeros: set[str]) -> frozenset[Node]:
    """Return the weights whose output is read only by weights that start at 0.

    Operations with a single input may come in between.
    """
    silent = {one.node for one in fold.kept if one.kind == "weight" and one.name in zeros}
    readers: dict[Node, list[Step]] = {}
    for step in fold.program.steps:
        for ref in step.refs:
            readers.setdefault(ref.name, []).append(step)

    def ends(name: Node) -> bool:
        behind = readers.get(name, [])
        return bool(behind) and all(
            step.name in silent or (len(step.refs) == 1 and ends(step.name)) for step in behind
        )

    return frozenset(node for node in fold.uses if node not in silent and ends(node))
