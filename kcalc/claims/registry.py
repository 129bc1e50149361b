"""All claims, by paper."""

from __future__ import annotations

import copyreg
import difflib
import importlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.plain_arguments import is_key, items, text
from .claim import Claim, Paper

PAPERS: dict[str, str] = {
    "dks": "kcalc.claims.dks",
    "tat": "kcalc.claims.tat",
    "scaling": "kcalc.claims.scaling_calculus",
    "gradient": "kcalc.claims.per_layer_gradient",
    "skips": "kcalc.claims.skip_normalisation",
    "attention": "kcalc.claims.attention",
    "spectra": "kcalc.claims.jacobian_spectra",
    "streams": "kcalc.claims.streams",
    "laws": "kcalc.claims.laws",
}
"""{short name of a paper: module of its claims}; each of these modules has a ``PAPER``."""


@lru_cache(maxsize=1)
def papers() -> tuple[Paper, ...]:
    """Return the papers of kcalc with all their claims.

    Returns
    -------
    tuple[Paper, ...]
        The papers, in the order of the documentation.

    """
    found = tuple(importlib.import_module(place).PAPER for place in PAPERS.values())
    ids = [claim for paper in found for claim in paper.claims]
    twice = next((claim for claim in ids if ids.count(claim) > 1), None)
    if twice is not None:
        raise KcalcError(f"two papers have a claim {twice!r}; rename one of them")
    return found


def paper(name: str, title: str) -> Paper:
    """Create your own paper, with a method ``claim`` that registers checks.

    :func:`verify` and ``kcalc verify module:papers`` accept it like the papers of kcalc.

    Parameters
    ----------
    name : str
        Short name for reports.
    title : str
        Title for the headings of reports.

    Returns
    -------
    Paper
        A paper without claims.

    Raises
    ------
    KcalcError
        If kcalc already has a paper with this name.

    Examples
    --------
    >>> mine = kc.claims.paper("mine", "My paper")
    >>> @mine.claim("MY-1", "Sec. 2", "He's variance keeps the mean square of ReLU layers")
    ... def _(bench):
    ...     net = kc.architectures.vanilla(1, "relu", sigma_w=2**0.5)
    ...     yield bench.equal(float(kc.q_map(net)(1.0)), 2.0, "q after the readout")
    >>> kc.claims.verify(paper=mine)["MY-1"].verdict
    <Verdict.HOLDS: 'holds'>

    """
    made = Paper(text(name, "name"), text(title, "title"))
    _not_ours(made)
    return made


def _not_ours(own: Paper) -> None:
    if is_key(own.name, PAPERS):
        raise KcalcError(
            f"kcalc already has a paper {own.name!r}; choose another name, as in "
            f"kc.claims.paper('my-{own.name}', title)"
        )


def all(paper: str | Paper | Iterable[str | Paper] | None = None) -> tuple[Claim, ...]:
    """Return the claims of the given papers, or all claims of kcalc's papers.

    Parameters
    ----------
    paper
        "dks", "tat", "scaling", "gradient", "skips", "attention", "spectra", "streams", "laws",
        your own paper (:func:`paper`), or several of these.

    Returns
    -------
    tuple[Claim, ...]
        The claims, in the order of their papers.

    Raises
    ------
    KcalcError
        If a paper is unknown or the list is empty.

    """
    return _claims(sources(paper))


def _claims(asked: Iterable[Paper]) -> tuple[Claim, ...]:
    return tuple(claim for source in asked for claim in source.claims.values())


def sources(paper: str | Paper | Iterable[str | Paper] | None) -> tuple[Paper, ...]:
    """Return the requested papers with their claims: first those of kcalc, then the user's.

    Raises: KcalcError for an unknown paper or an empty list, and for a user's paper that has no
    claims, or shares its name or the id of a claim with another paper.
    """
    wanted = wanted_papers(paper)
    ours = tuple(source for source in papers() if any(_is(source, one) for one in wanted))
    own = own_papers(one for one in wanted if isinstance(one, Paper))
    taken = dict.fromkeys(claim.id for claim in _claims(papers()))
    for number, source in enumerate(own):
        _not_ours(source)
        if any(source.name == other.name for other in own[:number]):
            raise KcalcError(f"there are two papers named {source.name!r}; rename one of them")
        if not source.claims:
            raise KcalcError(
                f"the paper {source.name!r} has no claims; add some with its `claim` method"
            )
        twice = next((id for id in source.claims if id in taken), None)
        if twice is not None:
            raise KcalcError(
                f"another paper also has a claim {twice!r}; rename the claim of {source.name!r}"
            )
        taken |= dict.fromkeys(source.claims)
    return (*ours, *own)


def own_papers(asked: Iterable[Paper]) -> tuple[Paper, ...]:
    """Return the user's papers without duplicates."""
    found: list[Paper] = []
    for source in asked:
        if not any(source is other for other in (*papers(), *found)):
            found.append(source)
    return tuple(found)


def _is(source: Paper, asked: str | Paper) -> bool:
    return source is asked or source.name == asked


def wanted_papers(
    paper: str | Paper | Iterable[str | Paper] | None,
) -> tuple[str | Paper, ...]:
    """Return the requested papers; papers of kcalc are named by their short names.

    None means all papers of kcalc. Raises: KcalcError for an unknown paper or an empty list.
    """
    wanted = (
        tuple(PAPERS)
        if paper is None
        else (paper,)
        if isinstance(paper, str | Paper)
        else items(paper, "paper")
    )
    if not wanted:
        raise KcalcError("paper is empty; omit it to get all papers")
    for name in wanted:
        if not isinstance(name, Paper) and not is_key(name, PAPERS):
            raise unknown("paper", name, PAPERS)
    return wanted


def get(id: str) -> Claim:
    """Return the claim of kcalc with a given id.

    Parameters
    ----------
    id
        The identifier of the claim.

    Returns
    -------
    Claim
        The claim with its statement, hypotheses and check.

    Raises
    ------
    KcalcError
        If the id is unknown. The message suggests the nearest ids.

    """
    return _named(id, all())


def _named(id: str, among: Iterable[Claim]) -> Claim:
    known = {claim.id: claim for claim in among}
    if not is_key(id, known):
        asked = id if isinstance(id, str) else glimpse(id)
        raise KcalcError(
            f"unknown claim {asked[:80]!r}; the nearest known: "
            f"{', '.join(_nearest(asked[:80], known))} ({len(known)} in all)"
        )
    return known[id]


def _reduced(claim: Claim) -> Any:
    """Pickle a registered claim by its id, because its check cannot be pickled."""
    known = any(one is claim for one in all())
    return (get, (claim.id,)) if known else claim.__reduce_ex__(2)


copyreg.pickle(Claim, _reduced)


def _nearest(id: str, known: Iterable[str]) -> list[str]:
    """Return the three most similar ids, ignoring case; ids of the same paper come first."""
    prefix, names = id.lower().partition("-")[0], {name.lower(): name for name in known}
    own = [name for name in names if name.partition("-")[0] == prefix]
    near = difflib.get_close_matches(id.lower(), own, n=3, cutoff=0.4) + difflib.get_close_matches(
        id.lower(), names, n=3, cutoff=0.0
    )
    return [names[name] for name in dict.fromkeys(near)][:3]


def chosen(ids: Iterable[str] | str | None, asked: tuple[Paper, ...]) -> tuple[Claim, ...]:
    """Return the requested claims of the papers ``asked``, in order and without duplicates."""
    claims = _claims(asked)
    if ids is None:
        return claims
    known = (*all(), *_claims(own_papers(asked)))
    given = [ids] if isinstance(ids, str) else items(ids, "ids")
    wanted = {(claim := _named(id, known)).id: claim for id in given}
    if not wanted:
        raise KcalcError("ids is empty; omit it to verify all claims")
    found = tuple(claim for claim in claims if claim.id in wanted)
    if len(found) < len(wanted):
        other = next(claim for claim in wanted.values() if claim not in found)
        raise KcalcError(
            f"claim {other.id!r} belongs to the paper {other.paper!r}, not to the paper "
            f"{' or '.join(repr(paper.name) for paper in asked)}; pass only one of paper= and "
            "ids="
        )
    return found
