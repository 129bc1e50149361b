"""Cost as a function of edges, rows of a kernel matrix, and digits."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import kcalc as kc
from kcalc.fields import mpmath_field

from .. import graphs
from ..book import Options, Section, Table
from ..growth import Work, grown, table
from ..peer_jobs import data


def run(options: Options) -> Section:
    return Section(
        "Edges, rows, digits",
        "The tables show CPU times. Fitted exponents above 1.2 are flagged and explained.",
        [by_edges(options), by_rows(options), by_digits(options)],
    )


def by_edges(options: Options) -> Table:
    """Networks in which every layer reads all earlier layers."""
    layers = options.size((20, 60), (45, 141, 447, 1000))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.json"
        works = [
            Work("build", lambda net: kc.Network.from_steps(net.steps())),
            Work("save JSON", lambda net: kc.save_json(net, file), rounds=1),
            Work("subnetworks", kc.subnetworks),
            Work("maximal slope and one value", lambda net: kc.maximal_slope(net)(1.0001)),
            Work("C map and one value", lambda net: kc.c_map(net)(0.3), why=CONCAT),
            Work("slope polynomial", kc.slope_polynomial, why=POLYNOMIAL),
        ]
        found = grown(works, layers, graphs.dense, graphs.edges)
    return table(
        "Dense networks, by number of edges",
        "what",
        found,
        [float(graphs.edges(graphs.dense(n))) for n in layers],
    )


CONCAT = "the covariance of branches that share weights is followed along every pair of addends"
POLYNOMIAL = "an expression that shares nothing grows with the number of paths"


def by_rows(options: Options) -> Table:
    """Kernel matrices of N rows."""
    sizes = options.size((200, 400), (500, 1000, 2000, 4000, 8000))
    kernel = kc.ntk(graphs.plain(100))
    kernel.matrix(data(10))
    works = [
        Work("X X^T", lambda x: x @ x.T, why="the result has N^2 entries"),
        Work("NTK of 100 relu layers", kernel.matrix, why="the result has N^2 entries"),
        Work("NNGP and NTK", kernel.matrices, why="the results have N^2 entries"),
    ]
    return table("Kernel matrices, by N", "what", grown(works, sizes, data), sizes)


def by_digits(options: Options) -> Table:
    """Values with increasing numbers of digits, at new arguments."""
    sizes = options.size((20, 40), (25, 50, 100, 200, 400))
    tanh, relu, random = kc.activation("tanh"), kc.c_map(graphs.plain(20)), np.random.default_rng(0)

    def q() -> float:
        return float(random.uniform(1.2, 1.4))

    works = [
        Work("tanh: Q, ball", lambda n: tanh.q_map.ball(q(), digits=n), why=QUADRATURE),
        Work("tanh: C, ball", lambda n: tanh.c_map.ball(0.3, q=q(), digits=n), why=QUADRATURE),
        Work("tanh: Q, mpmath", lambda n: tanh.second_moment(q(), mpmath_field(n)), why=QUADRATURE),
        Work(
            "relu, 20 layers: C, ball",
            lambda n: relu.ball(float(random.uniform(0.2, 0.4)), digits=n),
            why="",
        ),
    ]
    return table("More digits D", "what", grown(works, sizes, lambda n: n), sizes)


QUADRATURE = (
    "the integral takes O(D) nodes or terms, doubled at a time, each of D digits, which cost "
    "between O(D) and O(D^2)"
)
