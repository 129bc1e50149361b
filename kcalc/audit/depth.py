"""INIT-DEPTH-PLACE: the factor for depth stands at weights that read the stream."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .findings import Finding, criterion, named
from .laws import EXACT, Law
from .subject import Stack, Subject

SHALLOWEST = 4
RULE = (
    "L >= 4 blocks; the sigma of a family over the common one of readers is (2L)^-1/2, L^-1/2 or, "
    "in block l, (2(l+1))^-1/2 within max(1 %, 4 standard errors); no law by fans gives that "
    "ratio, no norm stands behind the writers, and the family is not of queries or keys alone. "
    "Error if a family that reads is scaled and one that writes is not, warning if both are scaled"
)


@criterion("INIT-DEPTH-PLACE", "error or warning", RULE)
def depth_place(subject: Subject) -> Iterator[Finding]:
    """Readers of a residual stream that are scaled as its writers should be."""
    for stack in subject.stacks:
        if stack.depth < SHALLOWEST or any(stack.written.values()):
            continue
        common = common_family(stack)
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
            f"{named(readers)} {_verb(readers, 'is', 'are')} scaled by {factor} for depth, but "
            f"{_verb(readers, 'reads', 'read')} the residual stream, and {named(plain)}, which "
            f"{_verb(plain, 'writes', 'write')} to it, {_verb(plain, 'is', 'are')} not scaled"
        )
        fix = f"scale {named(plain)} by {factor} and leave {named(readers)} at the common sigma"
    else:
        message = (
            f"{named(readers)} {_verb(readers, 'is', 'are')} scaled by {factor} for depth as the "
            f"writers of the residual stream are, but {_verb(readers, 'reads', 'read')} the stream"
        )
        fix = f"leave {named(readers)} at the common sigma: the factor for depth is the writers'"
    severity = "error" if plain else "warning"
    return Finding("INIT-DEPTH-PLACE", severity, names, message, fix, subject.place(names))


def _verb(families: list[str], one: str, several: str) -> str:
    return one if len(families) == 1 else several


def _scores_only(stack: Stack, family: str) -> bool:
    """Whether a family makes queries or keys and nothing else: T5 scales those by head size."""
    roles = set(stack.subject.roles.get(stack.families[family][0], ())) - {"reads"}
    return bool(roles) and roles <= {"query", "key"}


def laws_of(stack: Stack, family: str) -> list[Law]:
    """The laws of a family, block by block."""
    return [stack.subject.laws[name] for name in stack.families[family]]


def alike(one: float, other: float, error: float = 0.0) -> bool:
    """Whether two standard deviations agree within 1 % or four standard errors."""
    return abs(one - other) <= max(EXACT * other, 4 * error)


def common_family(stack: Stack) -> str | None:
    """The family whose sigma most of the readers have, the largest sigma of two as frequent."""
    readers = [f for f in stack.families if not stack.writes(f)] or list(stack.families)
    counts: dict[str, tuple[int, float]] = {}
    for family in readers:
        sigma = laws_of(stack, family)[0].sigma
        if not math.isfinite(sigma) or sigma == 0:
            continue
        agreeing = sum(
            alike(law.sigma, sigma, law.error) for other in readers for law in laws_of(stack, other)
        )
        counts[family] = (agreeing, sigma)
    return max(counts, key=lambda f: counts[f], default=None)


def _is_common(stack: Stack, family: str, common: str) -> bool:
    sigma = laws_of(stack, common)[0].sigma
    return all(alike(law.sigma, sigma, law.error) for law in laws_of(stack, family))


def _depth_factor(stack: Stack, family: str, common: str) -> str | None:
    """The factor for depth of a family, in words, None where there is none."""
    laws, sigma, depth = laws_of(stack, family), laws_of(stack, common)[0].sigma, stack.depth
    if len(laws) < SHALLOWEST or _by_fans(stack, family, common):
        return None
    constant = {f"(2*{depth})^-1/2": (2 * depth) ** -0.5, f"{depth}^-1/2": depth**-0.5}
    for text, factor in constant.items():
        if all(alike(law.sigma, factor * sigma, law.error) for law in laws):
            return text
    grown = [(2 * (block + 1)) ** -0.5 * sigma for block in range(len(laws))]
    if all(alike(law.sigma, s, law.error) for law, s in zip(laws, grown, strict=True)):
        return "(2(l+1))^-1/2 in block l"
    return None


def _by_fans(stack: Stack, family: str, common: str) -> bool:
    """Whether one law by fans gives the sigmas of all blocks of a family, and the common one."""
    subject = stack.subject
    names = (stack.families[common][0], *stack.families[family])
    if subject.laws[names[1]].fan is not None:
        return True
    sizes = []
    for name in names:
        contraction, sigma = subject.contracted[name], subject.laws[name].sigma
        fans = (contraction.fan_in, contraction.fan_out)
        sizes.append([sigma * math.sqrt(fan) for fan in (*fans, sum(fans))])
    return any(all(alike(size, by[0]) for size in by) for by in zip(*sizes, strict=True))
