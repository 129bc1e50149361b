"""Verify claims in parallel; a seed makes runs reproducible, and a journal makes them resumable."""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import choice, file_path, truth, whole
from .bench import BUDGETS, Bench, pooled
from .claim import Claim, Evidence, Paper, Verdict, form, verdict
from .finding import Finding
from .journal import Journal
from .registry import chosen, get, own_papers, sources
from .report import Report


def verify(
    ids: Iterable[str] | str | None = None,
    paper: str | Paper | Iterable[str | Paper] | None = None,
    budget: str = "quick",
    seed: int = 0,
    processes: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Report:
    """Check claims and report verdicts with their evidence.

    The findings depend only on ``seed`` and ``budget``.

    Parameters
    ----------
    ids : str or sequence of str, optional
        Ids of claims. Defaults to all claims of the papers.
    paper : str, Paper or sequence of these, optional
        Short names of kcalc's papers, and your own papers (:func:`paper`). Defaults to all papers
        of kcalc.
    budget : str
        "quick" or "full".
    seed : int
        Seed of the random numbers.
    processes : int, optional
        Number of processes, by default one per processor. With 1, claims are checked in this
        process. Claims of your own papers are always checked in this process.
    journal : str or path, optional
        A .jsonl file of findings, from which an interrupted run continues. It cannot be used for
        your own papers.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Report
        The findings by the ids of claims.

    Raises
    ------
    KcalcError
        If an id, paper or budget is unknown, or the journal belongs to another run.

    """
    choice(budget, "budget", BUDGETS)
    seed, progress = whole(seed, "seed"), truth(progress, "progress")
    processes = None if processes is None else whole(processes, "processes", 1)
    asked = sources(paper)
    claims, own = chosen(ids, asked), own_papers(asked)
    if own and journal is not None:
        raise KcalcError(
            "a journal cannot detect changes in your own checks; omit journal, or verify only "
            "the papers of kcalc"
        )
    book = Journal(None if journal is None else file_path(journal, "journal"), budget, seed)
    here = {id for source in own for id in source.claims}
    waiting = [claim for claim in claims if claim.id not in book.known]
    ours = [claim for claim in waiting if claim.id not in here]
    count = min(processes or os.cpu_count() or 1, len(ours))
    started = time.perf_counter()
    mine = (_plain_check(claim, budget, seed) for claim in waiting if claim.id in here)
    found = chain(_found(ours, budget, seed, count), mine)
    for finding in _shown(found, len(waiting), progress):
        book.add(finding)
    seconds = time.perf_counter() - started
    return Report(tuple(book.known[claim.id] for claim in claims), budget, seed, seconds, own)


def bench_of(claim: Claim, budget: str = "quick", seed: int = 0) -> Bench:
    """Create the :class:`Bench` of a claim. Its random numbers depend on the seed and the claim."""
    return Bench(np.random.default_rng([seed, zlib.crc32(claim.id.encode())]), budget)


def check(claim: Claim, budget: str = "quick", seed: int = 0) -> Finding:
    """Check one claim in this process.

    Parameters
    ----------
    claim
        The :class:`Claim`.
    budget
        "quick" or "full".
    seed
        The seed of the random numbers.

    Returns
    -------
    Finding
        The verdict, with its evidence.

    """
    if not isinstance(claim, Claim):
        raise KcalcError(f"expected a claim such as kc.claims.get(id), got {glimpse(claim)}")
    bench = bench_of(claim, choice(budget, "budget", BUDGETS), whole(seed, "seed"))
    started = time.perf_counter()
    evidence: list[Evidence] = []
    error = None
    try:
        for item in _evidence(claim, bench):
            evidence.append(item)
    except Exception as failure:  # an error is not a verdict, and must not stop other checks
        error = f"{type(failure).__name__}: {failure}"[:500]
    evidence = pooled(evidence)
    said = Verdict.UNDECIDED if error else verdict(claim, evidence)
    return Finding(claim, said, tuple(evidence), time.perf_counter() - started, error)


def _evidence(claim: Claim, bench: Bench) -> Iterator[Evidence]:
    """Yield the evidence of a check, with the form of the claim that it is about."""
    given = claim.check(bench) if claim.check else ()
    for item in given if isinstance(given, Iterable) else (given,):
        if not isinstance(item, Evidence):
            raise KcalcError(
                f"the check of {claim.id} yielded {glimpse(item)}, which is not evidence; yield "
                f"results of the bench, as in yield bench.equal(found, truth, what)"
            )
        yield replace(item, about=form(claim, item))


def _plain_check(claim: Claim, budget: str, seed: int) -> Finding:
    """Check one claim in this process; convert its data to plain values, as other processes do."""
    found = check(claim, budget, seed)
    items = tuple(
        replace(item, data=json.loads(json.dumps(dict(item.data), default=_plain)))
        for item in found.evidence
    )
    return replace(found, evidence=items)


def _check_by_id(job: tuple[str, str, int]) -> dict[str, Any]:
    id, budget, seed = job
    return json.loads(json.dumps(check(get(id), budget, seed).to_dict(), default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)


def _found(claims: list[Claim], budget: str, seed: int, processes: int) -> Iterator[Finding]:
    jobs = [(claim.id, budget, seed) for claim in claims]
    if processes <= 1:
        yield from (Finding.of(_check_by_id(job)) for job in jobs)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=_alone
    ) as pool:
        futures = [pool.submit(_check_by_id, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield Finding.of(future.result())
        except BrokenProcessPool:
            raise KcalcError(
                "a process that checks claims ended early; in a script, call verify under if "
                "__name__ == '__main__':, or pass processes=1"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise


def _alone() -> None:
    """Set up a process of the pool, with one thread.

    It ignores interruptions, which the main process handles.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def _shown(findings: Iterator[Finding], count: int, progress: bool) -> Iterator[Finding]:
    if not progress:
        yield from findings
        return
    from tqdm import tqdm

    with tqdm(total=count, unit="claim", desc="claims") as bar:
        for finding in findings:
            bar.set_postfix_str(finding.claim.id, refresh=False)
            bar.update()
            yield finding
