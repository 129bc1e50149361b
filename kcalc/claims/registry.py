"""All claims, by paper."""

from __future__ import annotations

import copyreg
import difflib
import importlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.plain_arguments import is_key, items
from .claim import Claim, Paper

PAPERS: dict[str, str] = {
    "dks": "kcalc.claims.dks",
    "tat": "kcalc.claims.tat",
    "scaling": "kcalc.claims.scaling_calculus",
    "gradient": "kcalc.claims.per_layer_gradient",
    "skips": "kcalc.claims.skip_normalisation",
    "attention": "kcalc.claims.attention",
}
"""{short name of a paper: module of its claims}; each of these modules has a ``PAPER``."""


@lru_cache(maxsize=1)
def papers() -> tuple[Paper, ...]:
    """The papers with all their claims."""
    found = tuple(importlib.import_module(place).PAPER for place in PAPERS.values())
    ids = [claim for paper in found for claim in paper.claims]
    twice = next((claim for claim in ids if ids.count(claim) > 1), None)
    if twice is not None:
        raise KcalcError(f"two papers have a claim {twice!r}")
    return found


def all(paper: str | Iterable[str] | None = None) -> tuple[Claim, ...]:
    """All claims, or those of some papers.

    ``paper``: "dks", "tat", "scaling", "gradient", "skips", "attention", or several of these.

    Raises: KcalcError for an unknown paper, or an empty list.
    """
    wanted = wanted_papers(paper)
    return tuple(
        claim for source in papers() if source.name in wanted for claim in source.claims.values()
    )


def wanted_papers(paper: str | Iterable[str] | None) -> tuple[str, ...]:
    """The requested short names of papers; None means all.

    Raises: KcalcError for an unknown paper, or an empty list.
    """
    wanted = (
        tuple(PAPERS)
        if paper is None
        else (paper,)
        if isinstance(paper, str)
        else items(paper, "paper")
    )
    if not wanted:
        raise KcalcError("paper is empty; leave it out for all papers")
    for name in wanted:
        if not is_key(name, PAPERS):
            raise unknown("paper", name, PAPERS)
    return wanted


def get(id: str) -> Claim:
    """The claim with an id. Raises: KcalcError for an unknown id, suggesting similar ones."""
    known = {claim.id: claim for claim in all()}
    if not is_key(id, known):
        asked = id if isinstance(id, str) else glimpse(id)
        raise KcalcError(
            f"unknown claim {asked[:80]!r}; the nearest known: "
            f"{', '.join(_nearest(asked[:80], known))} ({len(known)} in all)"
        )
    return known[id]


def _reduced(claim: Claim) -> Any:
    """A registered claim for pickle: its id, because its check cannot be pickled."""
    known = any(one is claim for one in all())
    return (get, (claim.id,)) if known else claim.__reduce_ex__(2)


copyreg.pickle(Claim, _reduced)


def _nearest(id: str, known: Iterable[str]) -> list[str]:
    """The three most similar ids, regardless of case, ids of the same paper first."""
    prefix, names = id.lower().partition("-")[0], {name.lower(): name for name in known}
    own = [name for name in names if name.partition("-")[0] == prefix]
    near = difflib.get_close_matches(id.lower(), own, n=3, cutoff=0.4) + difflib.get_close_matches(
        id.lower(), names, n=3, cutoff=0.0
    )
    return [names[name] for name in dict.fromkeys(near)][:3]


def chosen(ids: Iterable[str] | str | None, paper: str | Iterable[str] | None) -> tuple[Claim, ...]:
    """The requested claims without repeats, in the order of the papers."""
    paper = items(paper, "paper") if paper is not None and not isinstance(paper, str) else paper
    if ids is None:
        return all(paper)
    wanted = {get(id).id for id in ([ids] if isinstance(ids, str) else items(ids, "ids"))}
    if not wanted:
        raise KcalcError("ids is empty; leave it out to verify all claims")
    found = tuple(claim for claim in all(paper) if claim.id in wanted)
    if len(found) < len(wanted):
        other = next(iter(wanted - {claim.id for claim in found}))
        named = paper if isinstance(paper, str) else " or ".join(map(repr, paper or ()))
        told = repr(named) if isinstance(paper, str) else named
        raise KcalcError(
            f"claim {other!r} belongs to the paper {get(other).paper!r}, not to the paper {told}; leave one "
            "of the two out"
        )
    return found
