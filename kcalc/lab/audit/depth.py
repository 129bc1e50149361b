"""INIT-DEPTH-PLACE: weights that read the residual stream have the depth factor of writers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from .findings import Finding, criterion, named
from .laws import Law, alike
from .subject import Stack, Subject

SHALLOWEST = 4
RULE = (
    "the model has L >= 4 blocks, and a family's sigma, divided by the usual sigma, is (2L)^-1/2, "
    "L^-1/2 or, in block l, (2(l+1))^-1/2, within max(1 %, 4 standard errors). The usual sigma is "
    "the most common one among the families, the readout and the tables, with or without such a "
    "factor. The criterion does not apply if different fans explain the ratio, if a norm follows "
    "the writers, or if the family contains only queries or keys. It is an error if a family that "
    "reads the stream is scaled and a family that writes to it is not, and a warning if both are "
    "scaled"
)


@criterion("INIT-DEPTH-PLACE", "error or warning", RULE)
def depth_place(subject: Subject) -> Iterator[Finding]:
    """Report weights that read a residual stream but have the scale intended for its writers."""
    for stack in subject.stacks:
        if stack.depth < SHALLOWEST or any(stack.written.values()):
            continue
        common = common_parameter(stack)
        if common is None:
            continue
        scaled = [f for f in stack.families if _depth_factor(stack, f, common) is not None]
        readers = [f for f in scaled if not stack.writes(f) and not _scores_only(stack, f)]
        writers = [f for f in stack.families if stack.writes(f)]
        plain = [f for f in writers if _is_common(stack, f, common)]
        if not readers or not writers:
            continue
        if not plain and not any(f in scaled for f in writers):
            continue
        yield _finding(subject, stack, readers, plain, common)


def _finding(
    subject: Subject, stack: Stack, readers: list[str], plain: list[str], common: str
) -> Finding:
    names = tuple(name for family in readers for name in stack.families[family])
    factor = _depth_factor(stack, readers[0], common)
    if plain:
        message = (
            f"{named(readers)} {_verb(readers, 'reads', 'read')} the residual stream but "
            f"{_verb(readers, 'is', 'are')} scaled by {factor} for depth, while {named(plain)}, "
            f"which {_verb(plain, 'writes', 'write')} to the stream, {_verb(plain, 'is', 'are')} "
            "not scaled"
        )
        fix = f"scale {named(plain)} by {factor} and leave {named(readers)} at the common sigma"
    else:
        message = (
            f"{named(readers)} {_verb(readers, 'is', 'are')} scaled by {factor} for depth, like "
            f"the weights that write to the residual stream, but {_verb(readers, 'reads', 'read')} "
            "from it"
        )
        fix = (
            f"leave {named(readers)} at the common sigma, because only weights that write to the "
            "stream need the depth factor"
        )
    severity = "error" if plain else "warning"
    return Finding("INIT-DEPTH-PLACE", severity, names, message, fix, subject.place(names))


def _verb(families: list[str], one: str, several: str) -> str:
    return one if len(families) == 1 else several


def _scores_only(stack: Stack, family: str) -> bool:
    """Return whether a family computes only queries or keys, which T5 scales by the head size."""
    roles = set(stack.subject.roles.get(stack.families[family][0], ())) - {"reads"}
    return bool(roles) and roles <= {"query", "key"}


def laws_of(stack: Stack, family: str) -> list[Law]:
    """Return the laws of a family, block by block."""
    return [stack.subject.laws[name] for name in stack.families[family]]


def common_parameter(stack: Stack) -> str | None:
    """Return a parameter whose sigma, up to a depth factor, is the usual one in the stack.

    A sigma is a candidate if several families or tables, all writers, or most readers have it. The
    usual sigma is the candidate shared by the most parameters or, in a tie, the largest.
    """
    counts: dict[str, tuple[int, float]] = {}
    laws, writers = stack.subject.laws, [f for f in stack.families if stack.writes(f)]
    for name in (*_firsts(stack), *stack.tables):
        equal = [f for f in stack.families if _is_common(stack, f, name)]
        tables = sum(_agree(laws[n], laws[name]) for n in stack.tables)
        several = len(equal) + tables > 1 or set(writers) <= set(equal)
        if laws[name].sigma > 0 and (several or name == _most_readers(stack)):
            scaled = [f for f in stack.families if _depth_factor(stack, f, name) is not None]
            agreeing = tables + sum(
                len(names) if f in scaled else sum(_agree(laws[n], laws[name]) for n in names)
                for f, names in stack.families.items()
            )
            counts[name] = (agreeing, laws[name].sigma)
    return max(counts, key=lambda n: counts[n], default=None)


def _firsts(stack: Stack) -> list[str]:
    return [names[0] for names in stack.families.values()]


def _agree(law: Law, other: Law) -> bool:
    return alike(law.sigma, other.sigma, math.hypot(law.error, other.error))


def _most_readers(stack: Stack) -> str | None:
    """Return a parameter with the sigma of most readers. In a tie, the larger sigma counts."""
    laws = stack.subject.laws
    readers = [names[0] for f, names in stack.families.items() if not stack.writes(f)]
    counts = {
        name: (sum(_agree(laws[n], laws[name]) for n in readers), laws[name].sigma)
        for name in readers or _firsts(stack)
        if laws[name].sigma > 0
    }
    return max(counts, key=lambda n: counts[n], default=None)


def _is_common(stack: Stack, family: str, common: str) -> bool:
    return _multiples(stack, family, common, [1.0] * len(stack.families[family]))


def _multiples(stack: Stack, family: str, common: str, factors: list[float]) -> bool:
    """Return whether the sigma of every block is its factor times the sigma of ``common``."""
    usual = stack.subject.laws[common]
    return all(
        _agree(law, replace(usual, sigma=factor * usual.sigma, error=factor * usual.error))
        for law, factor in zip(laws_of(stack, family), factors, strict=True)
    )


def _depth_factor(stack: Stack, family: str, common: str) -> str | None:
    """Describe the depth factor of a family, or return None if it has none."""
    count, depth = len(stack.families[family]), stack.depth
    if count < SHALLOWEST or _by_fans(stack, family, common):
        return None
    constant = {f"(2*{depth})^-1/2": (2 * depth) ** -0.5, f"{depth}^-1/2": depth**-0.5}
    for text, factor in constant.items():
        if _multiples(stack, family, common, [factor] * count):
            return text
    if _multiples(stack, family, common, [(2 * (block + 1)) ** -0.5 for block in range(count)]):
        return "(2(l+1))^-1/2 in block l"
    return None


def _by_fans(stack: Stack, family: str, common: str) -> bool:
    """Return whether one rule based on a fan explains ``common`` and all blocks of a family.

    If ``common`` is a table, which has no fan, its sigma divided by the root of a fan of the stack
    is compared with the sigmas of the family.
    """
    subject = stack.subject
    names = stack.families[family]
    if subject.laws[names[0]].fan is not None:
        return True
    if common in stack.tables:
        used = [subject.contracted[members[0]] for members in stack.families.values()]
        fans = {fan for one in used for fan in (one.fan_in, one.fan_out)}
        return any(_multiples(stack, family, common, [f**-0.5] * len(names)) for f in fans)
    sizes = []
    for name in (common, *names):
        contraction, sigma = subject.contracted[name], subject.laws[name].sigma
        fans = (contraction.fan_in, contraction.fan_out)
        error = subject.laws[name].error / sigma if sigma > 0 else 0.0
        roots = [math.sqrt(fan) for fan in (*fans, sum(fans))]
        sizes.append([(sigma * root, error * sigma * root) for root in roots])
    return any(
        all(alike(size, by[0][0], math.hypot(error, by[0][1])) for size, error in by)
        for by in zip(*sizes, strict=True)
    )
