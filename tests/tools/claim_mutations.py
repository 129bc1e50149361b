"""Mutations: formulas changed on purpose, to show that the checks of claims detect errors."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from typing import Any

from kcalc.claims.claim import STATEMENT, Claim, Evidence, Verdict, verdict
from kcalc.claims.finding import Finding
from kcalc.claims.registry import PAPERS, get
from kcalc.claims.verify import bench_of
from kcalc.foundation.errors import unknown
from kcalc.foundation.process_state import cached_property

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutation:
    """A change of one formula.

    ``target``: "module:function" or "module:Class.method" below kcalc; ``change``: applied to its
    result.  ``claims``: the ids of claims
    whose checks detect the change.
    """

    name: str
    target: str
    change: Change
    claims: tuple[str, ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """kcalc with the changed formula; use a new process, as caches keep earlier results."""
        module, _, path = self.target.partition(":")
        owner: Any = importlib.import_module(f"kcalc.{module}")
        *outer, last = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        original = owner.__dict__[last]
        spoilt = self._spoilt(original)
        places = [(owner, last)] if outer else list(_bound(original))
        for place, attribute in places:
            setattr(place, attribute, spoilt)
            if isinstance(spoilt, cached_property):
                spoilt.__set_name__(place, attribute)
        try:
            yield
        finally:
            for place, attribute in places:
                setattr(place, attribute, original)

    def _spoilt(self, original: Any) -> Any:
        if isinstance(original, property):
            inner: Any = original.fget
            return property(lambda thing: self.change(inner(thing)))
        if isinstance(original, cached_property):
            return cached_property(lambda thing: self.change(original.func(thing)))
        function = original.__func__ if isinstance(original, staticmethod) else original

        @wraps(function)
        def spoilt(*arguments: Any, **options: Any) -> Any:
            return self.change(function(*arguments, **options))

        return staticmethod(spoilt) if isinstance(original, staticmethod) else spoilt


def _bound(function: Any) -> Iterator[tuple[Any, str]]:
    """Every module of kcalc that has the function under some name."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "kcalc":
            for attribute, value in list(vars(module).items()):
                if value is function:
                    yield module, attribute


# -- changes ---------------------------------------------------------------------------------------


def times(factor: float) -> Change:
    """The change by a wrong factor."""
    return lambda value: value * factor


def part(index: int, change: Change) -> Change:
    """The change of one element of a result that is a tuple or list."""
    return lambda values: type(values)(
        (*values[:index], change(values[index]), *values[index + 1 :])
    )


def negative(value: Any) -> Any:
    """The change of sign."""
    return -value


def _shifted(ends: tuple[float, float]) -> tuple[float, float]:
    return ends[0] * 1.01, ends[1]


def caught(
    mutation: Mutation, claims: Iterable[str] | None = None, budget: str = "quick", seed: int = 0
) -> Iterator[str]:
    """The ids of the claims (by default the mutation's) that detect it, one by one.

    Use a new process, as caches keep earlier results.
    """
    found = [get(id) for id in (mutation.claims if claims is None else claims)]
    with mutation.applied():
        yield from (claim.id for claim in found if noticed(claim, budget, seed))


def noticed(claim: Claim, budget: str = "quick", seed: int = 0) -> bool:
    """Whether ``kcalc verify`` would report a contradiction or an error for a claim.

    The check stops at the first piece of evidence that decides this.
    """
    evidence: list[Evidence] = []
    try:
        for item in claim.check(bench_of(claim, budget, seed)) if claim.check else ():
            evidence.append(item)
            if (
                item.about == STATEMENT
                and item.holds is False
                and claim.expected is not Verdict.REFUTED
            ):
                return True
    except Exception:  # a changed formula may raise anything
        return True
    return not Finding(claim, verdict(claim, evidence), tuple(evidence), 0.0).expected


def run(names: Iterable[str] | None = None, processes: int | None = None) -> dict[str, list[str]]:
    """{mutation: [first of its claims that detects it], or []}, by default for all mutations.

    Each mutation runs in a new process. Raises: KcalcError for unknown names.
    """
    import multiprocessing
    import os
    from concurrent.futures import ProcessPoolExecutor

    chosen = [
        mutation(name).name
        for name in ([item.name for item in MUTATIONS] if names is None else names)
    ]
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:  # one process imports everything, and is forked for each mutation
        context.set_forkserver_preload([__name__, *PAPERS.values()])
    with ProcessPoolExecutor(
        processes or os.cpu_count() or 1, mp_context=context, max_tasks_per_child=1
    ) as pool:
        return dict(zip(chosen, pool.map(_caught_by_name, chosen), strict=True))


def _caught_by_name(name: str) -> list[str]:
    return list(islice(caught(mutation(name)), 1))


def mutation(name: str) -> Mutation:
    """The mutation of the given name. Raises: KcalcError for an unknown name."""
    known = {item.name: item for item in MUTATIONS}
    if name not in known:
        raise unknown("mutation", name, known)
    return known[name]


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "relu-corner", "activations.rectifiers:Leaky._corner", times(1.05), ("TAT-eq9", "DKS-eq15")
    ),
    Mutation(
        "relu-square",
        "activations.rectifiers:Leaky._closed_second_moment",
        times(2.0),
        ("TAT-eq9",),
    ),
    Mutation("erf-top", "activations.sigmoids:Erf._top", times(1.01), ("DKS-erf",)),
    Mutation(
        "square-mean",
        "gaussian.expectations.single:second_moment",
        times(1.01),
        ("DKS-eq5", "TAT-eq4"),
    ),
    Mutation("mean", "gaussian.expectations.single:mean", times(1.01), ("DKS-eq24",)),
    Mutation(
        "q-slope",
        "activations.base:Activation.q_series",
        part(1, times(0.5)),
        ("DKS-Qp", "TAT-eq16"),
    ),
    Mutation(
        "pair", "gaussian.expectations.single:pair_moment", times(1.01), ("DKS-eq7", "TAT-eq5")
    ),
    Mutation(
        "c-derivative",
        "gaussian.expectations.pairs:PairMap._matrix",
        lambda m: m * [1.0, 1.02, 1.0],
        ("TAT-eq17", "DKS-eq10"),
    ),
    Mutation(
        "sum-weights",
        "network.layers:Sum.lowered",
        lambda op: replace(op, weights=tuple(abs(v) ** 0.5 for v in op.weights)),
        ("DKS-eq12", "TAT-eq7"),
    ),
    Mutation(
        "mean-of-sum", "calculi.channel_statistics:_mean1", times(1.1), ("DKS-ln2", "DKS-194")
    ),
    Mutation("slope-mix", "calculi.factored:as_floats", lambda v: v**0.5, ("DKS-eq20", "TAT-mu1")),
    Mutation(
        "maximal-slope",
        "calculi.subnetworks.slope_maxima:MaximalSlope.__call__",
        times(1.01),
        ("TAT-mu1", "DKS-eq20"),
    ),
    Mutation(
        "maximal-curvature",
        "calculi.subnetworks.slope_maxima:MaximalCurvature.multiplier",
        times(1.01),
        ("TAT-mu2", "TAT-b5a"),
    ),
    Mutation(
        "tangent-geometric", "calculi.tangent:Tangent._parameters", times(1.01), ("DKS-eq23",)
    ),
    Mutation(
        "offset",
        "shaping.solver:_polished",
        lambda k: replace(k, delta=-k.delta),
        ("DKS-184a", "DKS-tab-tanh"),
    ),
    Mutation("flow", "shaping.limits:flow", times(1.01), ("TAT-prop3",)),
    Mutation("flow-time", "shaping.limits:flow_time", times(1.01), ("TAT-prop3",)),
    Mutation(
        "entry-variance",
        "calculi.moments.reading:entry_variance",
        times(1.01),
        ("PLG-eq76", "PLG-eq72"),
    ),
    Mutation(
        "rectified-slopes",
        "calculi.moments.monomials:Monomials.slope_mean",
        times(1.01),
        ("PLG-eq76", "PLG-thm1-mean"),
    ),
    Mutation(
        "excess",
        "calculi.moments.monomials:Monomials.amount",
        times(1.05),
        ("PLG-lem2", "PLG-eq76"),
    ),
    Mutation(
        "scaling-rectifier",
        "calculi.scaling.activation_moments:half",
        times(1.1),
        ("SC-eq4", "SC-eq6"),
    ),
    Mutation(
        "scaling-smooth",
        "calculi.scaling.activation_moments:slope_square",
        times(1.1),
        ("SC-T1-smooth",),
    ),
    Mutation(
        "scaling-maximum",
        "calculi.scaling.activation_moments:maximum",
        times(1.05),
        ("SC-T1-maxpool",),
    ),
    Mutation(
        "scaling-total",
        "calculi.scaling.levels:Level.total",
        lambda level: level.scaled(1.2),
        ("SC-T1-conv", "SC-eq4"),
    ),
    Mutation(
        "entry-normaliser",
        "calculi.smoothness.normalisers:EntryNormalisation.second_derivative",
        times(1.01),
        ("SKIP-eq33",),
    ),
    Mutation(
        "weight-normaliser",
        "calculi.smoothness.normalisers:WeightNormalisation.derivative",
        times(1.01),
        ("SKIP-lemB3",),
    ),
    Mutation(
        "spectrum",
        "calculi.smoothness.singular_values:ResidualSpectrum.support",
        _shifted,
        ("SKIP-fig1",),
    ),
    Mutation(
        "relu-slope",
        "activations.rectifiers:Leaky._closed_derivatives",
        part(0, times(1.02)),
        ("DKS-relu1",),
    ),
    Mutation("tailored-slope", "shaping.tat:negative_slope", times(1.01), ("TAT-alg1",)),
    Mutation(
        "slope-inverse",
        "calculi.subnetworks.slope_maxima:MaximalSlope.inverse",
        times(1.001),
        ("DKS-tab-tanh", "DKS-173"),
    ),
    Mutation("shares", "calculi.channels:_ratio", times(1.1), ("DKS-eq4", "DKS-eq8")),
    Mutation(
        "loss-residual", "calculi.smoothness.losses:Loss.residual", times(0.5), ("SKIP-cor4.4",)
    ),
    Mutation(
        "activation-size",
        "calculi.smoothness.activation_suprema:_largest",
        times(0.7),
        ("SKIP-cor4.4",),
    ),
    Mutation(
        "weight-correction",
        "calculi.scaling.result:WeightScaling.correction",
        times(1.1),
        ("SC-eq3",),
    ),
    Mutation("flow-slope", "shaping.limits:flow_slope", times(0.98), ("TAT-prop3",)),
    Mutation(
        "depth-factor",
        "calculi.moments.depth:DepthMoments.relative_factor",
        times(1.1),
        ("PLG-eq76",),
    ),
    Mutation(
        "global-slope",
        "calculi.subnetworks.slope_maxima:MaximalSlope.slope_to",
        times(1.01),
        ("DKS-thm27",),
    ),
    Mutation("mean-slope", "gaussian.expectations.single:mean_slope", times(1.02), ("DKS-eq24",)),
    Mutation(
        "softmax-self", "gaussian.softmax:self_overlap", times(1.01), ("ATT-Sself", "ATT-alike")
    ),
    Mutation("softmax-overlap", "gaussian.softmax:Overlap.value", times(1.01), ("ATT-S",)),
    Mutation(
        "softmax-slope",
        "gaussian.softmax:Overlap.by_covariance",
        times(1.01),
        ("ATT-slope", "ATT-integral"),
    ),
    Mutation(
        "softmax-gap", "gaussian.softmax:overlap_gap", times(1.01), ("ATT-gap", "ATT-collapse")
    ),
    Mutation(
        "score-scale",
        "calculi.attention.softmax_rows:factor",
        times(1.1),
        ("ATT-alike", "ATT-norms"),
    ),
    Mutation(
        "sampled-rows",
        "calculi.attention.sampled:weights_of",
        times(1.02),
        ("ATT-sampled", "ATT-width"),
    ),
    Mutation(
        "single-scores",
        "calculi.attention.softmax_rows:elementwise",
        lambda phi: phi.transformed(output_scale=1.1),
        ("ATT-single",),
    ),
    Mutation(
        "sink-rows",
        "calculi.attention.softmax_rows:sink_overlaps",
        part(0, times(1.2)),
        ("ATT-sink",),
    ),
    Mutation(
        "narrow-rows",
        "calculi.attention.softmax_rows:bartlett",
        part(3, times(1.1)),
        ("ATT-wishart",),
    ),
    Mutation(
        "orthogonal-scale",
        "backend.initialisers:Orthogonal.matrix",
        times(1.01),
        ("DKS-suo", "TAT-suo"),
    ),
)
