"""MOE-LOAD and MOE-ONE: routers that send most tokens to few experts, or that cannot learn.

At initialisation, the load of the experts depends on the cosine between tokens, not on the size of
the router's weights; see :func:`kcalc.moe_statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import kcalc as kc

from .findings import Finding, criterion, named
from .routers import Router
from .subject import Subject, families

SHARE = 0.75  # as a fraction of the largest coefficient of variation
CLOSEST = 0.995  # the largest cosine that moe_statistics accepts
SMALL = 0.5  # a mixture below this fraction of an expert's rms gets a remark


def load(router: Router) -> tuple[float, float]:
    """Return the coefficient of variation of the experts' load, and its largest possible value.

    The first value follows from the cosine between the tokens that the router reads.
    """
    mixture = router.mixture
    most = math.sqrt(mixture.count / mixture.k - 1)
    cosine = max(min(router.cosine, CLOSEST), 0.0)
    if mixture.k == mixture.count or router.variance <= 0:
        return 0.0, most
    return kc.moe_statistics(mixture.count, mixture.k, 1.0, cosine).load_cv(), most


@criterion(
    "MOE-LOAD",
    "warning",
    "the coefficient of variation of the expert load is above 3/4 of its maximum sqrt(E/k - 1), "
    "which is reached if all tokens select the same experts. kcalc computes it from the cosine "
    "between the tokens that the router reads",
)
def unbalanced(subject: Subject) -> Iterator[Finding]:
    """Report routers whose load is unbalanced because their tokens have a large common part."""
    found = {router.path: (router, *load(router)) for router in subject.routers}
    bad = [router for router, cv, most in found.values() if cv > SHARE * most > 0]
    for names in families([name for router in bad for name in router.names]).values():
        router = max((r for r in bad if set(r.names) & set(names)), key=lambda r: r.cosine)
        _, cv, most = found[router.path]
        idle = sum(not count for count in router.loads)
        yield Finding(
            "MOE-LOAD",
            "warning",
            names,
            f"the tokens that {named(names)} reads have a mean cosine of {router.cosine:.3f}, so "
            f"the expert load starts with a coefficient of variation of {cv:.3g} (the maximum is "
            f"{most:.3g}), regardless of the size of the router's weights; {idle} of "
            f"{len(router.loads)} experts receive none of these {router.tokens} tokens",
            "remove the common part of the tokens before the router: subtract their mean, or move "
            "the mixture to a layer where the tokens differ more",
            subject.place(names),
        )


@criterion(
    "MOE-ONE",
    "warning",
    "a router selects one expert (k = 1) and divides its weight by itself, so the weight is 1 and "
    "the router has no gradient",
)
def one(subject: Subject) -> Iterator[Finding]:
    """Report routers that select a single expert with weight 1."""
    bad = [r for r in subject.routers if r.mixture.k == 1 and r.mixture.normalise]
    alone = [n for r in bad if r.mixture.count > 1 for n in r.names]
    for names in families(alone).values():
        yield Finding(
            "MOE-ONE",
            "warning",
            names,
            f"{named(names)} selects one expert and divides its weight by itself, so the weight is "
            "1 and no gradient reaches the router",
            "multiply the expert's output by its softmax probability without renormalising, or "
            "select two experts",
            subject.place(names),
        )


def remarks(subject: Subject) -> list[str]:
    """Describe the behaviour of routers at initialisation, one line per kind."""
    groups: dict[tuple[object, ...], list[Router]] = {}
    for router in subject.routers:
        m = router.mixture
        groups.setdefault((m.count, m.k, m.score, m.normalise, m.scale), []).append(router)
    return [*(_remark(routers) for routers in groups.values()), *_unread(subject)]


def _unread(subject: Subject) -> Iterator[str]:
    """Describe selections among the entries of a weight's result that are not in a read mixture."""
    structure = subject.measured.structure
    paths = tuple(router.path for router in subject.routers)
    found: dict[tuple[int, int], dict[str, None]] = {}  # {(selected, number): names}
    for value in structure.program.values:
        if value.op not in ("topk", "argmax") or not value.inputs:
            continue
        if any(value.module == path or value.module.startswith(path + ".") for path in paths):
            continue
        scores = value.inputs[0].tensor.shape
        for contraction in structure.contractions:
            logits = contraction.value.tensor.shape
            same = logits[-1:] == scores[-1:] and logits.numel() == scores.numel() > 0
            if same and value.depends_on(contraction.value):
                k = value.tensor.numel() * scores[-1] // scores.numel()
                found.setdefault((k, scores[-1]), {}).update(dict.fromkeys(contraction.parameters))
    for (k, count), names in found.items():
        yield (
            f"the model selects {k} of the {count} outputs of {named(tuple(names))}; if these are "
            "scores of experts, MOE-LOAD and MOE-ONE do not examine them, because kcalc could not "
            "read the mixture. It reads mixtures that are modules of their own"
        )


def _remark(routers: list[Router]) -> str:
    m = routers[0].mixture
    names = tuple(name for router in routers for name in router.names)
    loads = [load(router)[0] for router in routers]
    spread = f"{min(loads):.2f} to {max(loads):.2f}" if len(loads) > 1 else f"{loads[0]:.2f}"
    variance = sum(router.variance for router in routers) / len(routers)
    text = (
        f"{named(names)} selects {m.k} of {m.count} experts, whose load has a coefficient of "
        f"variation of {spread}"
    )
    if not variance > 0:
        return text
    second = kc.moe_statistics(m.count, m.k, variance, 1.0, m.score, m.normalise).second
    size = abs(m.scale) * math.sqrt(second)
    beside = ", and shared experts are added without this factor" if m.shared else ""
    if size < SMALL:
        text += (
            f"; the rms of the mixture's output starts at {size:.2g} times that of one "
            f"expert{beside}"
        )
    return text
