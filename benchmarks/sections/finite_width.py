"""Finite width: exact moments, fluctuations, scaling, smoothness bounds, Hessian blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kcalc as kc

from .. import graphs
from ..book import Figure, Options, Section, Table, seconds
from ..growth import Work, grown, table
from ..timing import Spent, spent

WORKS = (
    Work("moments", lambda net: kc.moments(net, features=64), budget=20, rounds=1),
    Work(
        "fluctuations, Gaussian", lambda net: kc.fluctuations(net, features=64), budget=20, rounds=1
    ),
    Work("scaling", lambda net: kc.scaling(net, features=64), budget=20, rounds=1),
    Work("gradients", kc.gradients, budget=20, rounds=1),
)


def run(options: Options) -> Section:
    sizes = options.size((10, 100), (10, 100, 1000, 10_000))
    tables, figures = [], {}
    cases = {
        "relu": (graphs.plain, WORKS),
        "tanh": (graphs.smooth, WORKS[1:]),
        "ResNet of relu": (resnet, WORKS[:1]),
    }
    for name, (build, works) in cases.items():
        found = grown(works, sizes, build)
        tables.append(table(f"{name}, by number of layers", "calculus", found, sizes))
        if name == "relu" and sizes[-1] in found[0].found:
            figures["moments"] = Figure(
                found[0].found[float(sizes[-1])], seconds(found[0].found[float(sizes[-1])])
            )
    return Section(
        "Finite width",
        "The tables show CPU times for exact moments of |y|^2 and of every weight's gradient, for "
        "leading-order fluctuations of q and c, and for weight scalings. The floor is one pass "
        "over the layers with a few exact numbers per layer. Building the network with its widths "
        "takes about a quarter of the time of the moments.",
        [*tables, others(options)],
        figures,
    )


def resnet(depth: int) -> kc.Network:
    """Residual blocks with two layers each."""
    L = kc.layers
    branch = kc.chain(L.Affine(sigma_w=2**0.5), L.Nonlinear("relu"), L.Affine())
    return kc.chain(L.Input(), L.Affine(), kc.repeat(kc.residual(branch, 0.8), max(depth // 2, 1)))


def others(options: Options) -> Table:
    """Single results for one network: a first call, and another call on an equal network."""
    lenet = kc.architectures.lenet
    jobs: dict[str, Callable[[], Any]] = {
        "smoothness bounds, 10 layers of tanh": lambda: kc.smoothness(
            kc.architectures.vanilla(10, "tanh", features=8), radius=0.5
        ),
        "scaling, LeNet": lambda: kc.scaling(lenet()),
        "geometric initialisation, LeNet": lambda: kc.shape(lenet(), method="geometric"),
        "scaling, resnet-50 of the paper": lambda: kc.scaling(kc.architectures.resnet_v2(50)),
        "Hessian blocks, LeNet": lambda: kc.hessian_blocks(lenet()),
    }
    rows = []
    for name, job in list(jobs.items())[: options.size(2, 5)]:
        first, again = _twice(job)
        rows.append((name, seconds(first.wall), seconds(first.cpu), seconds(again.wall)))
    return Table("Single questions", ("what", "first", "CPU", "again"), rows)


def _twice(job: Callable[[], Any]) -> tuple[Spent, Spent]:
    return spent(job), spent(job)
