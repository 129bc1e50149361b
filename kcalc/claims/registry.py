"""All claims, by paper."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import lru_cache

from ..errors import KcalcError, unknown
from .claim import Claim, Paper

PAPERS: dict[str, str] = {
    "dks": "kcalc.claims.dks",
    "tat": "kcalc.claims.tat",
    "scaling": "kcalc.claims.scaling_calculus",
    "gradient": "kcalc.claims.per_layer_gradient",
    "skips": "kcalc.claims.skip_normalisation",
}
"""{short name: where the paper's claims are}; each of these modules has a ``PAPER``."""


@lru_cache(maxsize=1)
def papers() -> tuple[Paper, ...]:
    """The papers with all their claims."""
    found = tuple(importlib.import_module(place).PAPER for place in PAPERS.values())
    ids = [claim for paper in found for claim in paper.claims]
    twice = next((claim for claim in ids if ids.count(claim) > 1), None)
    if twice is not None:
        raise KcalcError(f"two papers have a claim {twice!r}")
    return found


def all(paper: str | None = None) -> tuple[Claim, ...]:
    """All claims, or those of one paper ("dks", "tat", "scaling", "gradient", "skips"). Raises: KcalcError for an unknown paper."""
    if paper is not None and paper not in PAPERS:
        raise unknown("paper", paper, PAPERS)
    return tuple(claim for source in papers() if paper in (None, source.name) for claim in source.claims.values())


def get(id: str) -> Claim:
    """The claim of that name. Raises: KcalcError with the nearest ones."""
    known = {claim.id: claim for claim in all()}
    if id not in known:
        raise unknown("claim", id, known)
    return known[id]


def chosen(ids: Iterable[str] | str | None, paper: str | None) -> tuple[Claim, ...]:
    """The claims that are asked for, each once, in the order of the papers."""
    if ids is None:
        return all(paper)
    wanted = {get(id).id for id in ([ids] if isinstance(ids, str) else ids)}
    if not wanted:
        raise KcalcError("ids is empty; leave it out to verify all claims")
    found = tuple(claim for claim in all(paper) if claim.id in wanted)
    if len(found) < len(wanted):
        other = next(iter(wanted - {claim.id for claim in found}))
        raise KcalcError(f"claim {other!r} is of the paper {get(other).paper!r}, not of the paper {paper!r}; leave one of the two out")
    return found
