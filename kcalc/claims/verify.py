"""Verification of claims: in parallel, reproducible for a given seed, resumable by a journal."""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import choice, file_path, truth, whole
from .bench import BUDGETS, Bench, pooled
from .claim import Claim, Evidence, Verdict, form, verdict
from .finding import Finding
from .journal import Journal
from .registry import chosen, get
from .report import Report


def verify(
    ids: Iterable[str] | str | None = None,
    paper: str | Iterable[str] | None = None,
    budget: str = "quick",
    seed: int = 0,
    processes: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Report:
    """Check claims, and report verdicts and evidence.

    ``ids``: ids of claims (None: all); ``paper``: one paper or several (None: all); ``budget``:
    "quick" or "full"; ``processes``: number of processes (None: one per processor; 1: this
    process); ``journal``: a .jsonl file of findings, from which an interrupted run continues;
    ``progress``: show a progress bar. The findings depend only on ``seed`` and ``budget``. Returns:
    a :class:`Report`. Raises: KcalcError for unknown ids, papers, budgets, and journals of other
    runs.
    """
    choice(budget, "budget", BUDGETS)
    seed, progress = whole(seed, "seed"), truth(progress, "progress")
    processes = None if processes is None else whole(processes, "processes", 1)
    claims = chosen(ids, paper)
    book = Journal(None if journal is None else file_path(journal, "journal"), budget, seed)
    waiting = [claim for claim in claims if claim.id not in book.known]
    count = min(processes or os.cpu_count() or 1, len(waiting))
    started = time.perf_counter()
    for finding in _shown(_found(waiting, budget, seed, count), len(waiting), progress):
        book.add(finding)
    seconds = time.perf_counter() - started
    return Report(tuple(book.known[claim.id] for claim in claims), budget, seed, seconds)


def bench_of(claim: Claim, budget: str = "quick", seed: int = 0) -> Bench:
    """The :class:`Bench` of a claim's check; its random numbers depend on seed and claim."""
    return Bench(np.random.default_rng([seed, zlib.crc32(claim.id.encode())]), budget)


def check(claim: Claim, budget: str = "quick", seed: int = 0) -> Finding:
    """The finding for one claim, computed in this process."""
    if not isinstance(claim, Claim):
        raise KcalcError(f"expected a claim, as kc.claims.get(id) returns it, got {glimpse(claim)}")
    bench = bench_of(claim, choice(budget, "budget", BUDGETS), whole(seed, "seed"))
    started = time.perf_counter()
    evidence: list[Evidence] = []
    error = None
    try:
        for item in claim.check(bench) if claim.check else ():
            evidence.append(replace(item, about=form(claim, item)))
    except Exception as failure:  # an error decides nothing and must not stop other checks
        error = f"{type(failure).__name__}: {failure}"[:500]
    evidence = pooled(evidence)
    said = Verdict.UNDECIDED if error else verdict(claim, evidence)
    return Finding(claim, said, tuple(evidence), time.perf_counter() - started, error)


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
                "a process that checks claims ended early; in a script call verify under if "
                "__name__ == '__main__':, or give processes=1"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise


def _alone() -> None:
    """Set up a process of the pool: one thread, and no reaction to interruptions.

    The main process handles interruptions.
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
