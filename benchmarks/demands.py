"""What kcalc is to reach, each with its limit and the reason where it is known to fall short."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """``what`` is to be at most (``"<="``) or at least (``">="``) ``limit``.

    ``unit`` is only for the text.
    """

    key: str
    what: str
    sense: str
    limit: float
    unit: str = ""
    why: str = ""
    peer: bool = False

    @property
    def text(self) -> str:
        return f"{self.sense} {self.limit:g}{' ' if self.unit else ''}{self.unit}"

    def met(self, value: float) -> bool:
        return value <= self.limit if self.sense == "<=" else value >= self.limit


_NEAR_FLOOR = (
    "the peer itself is only 6 to 10 floors away here, so that the ratio asked for lies below the "
    "floor of one BLAS product and one "
    "arccos pass"
)

DEMANDS = (
    Demand(
        "import",
        "`import kcalc` beyond numpy, sympy and networkx",
        "<=",
        0.6,
        "s",
        "0.1 s goes to the garbage collector, 0.1 s to parts of SymPy that the first sum of "
        "expressions loads, the rest to the catalogue's "
        "formulas and to classes",
    ),
    Demand("cli", "`kcalc shape resnet-101 --activation tanh`, whole process", "<=", 3, "s"),
    Demand(
        "new_point",
        "C of tanh at a new point, new q <= 100",
        "<=",
        1,
        "ms",
        "expansions at a new q are checked against a second rule, which costs 15 to 20 times one "
        "evaluation of the first",
    ),
    Demand("table", "10^6 table values, times `jnp.arccos` of the same array", "<=", 2, "x"),
    Demand(
        "overlap", "S and dS/dk of softmax rows, scores of standard deviation 3, CPU", "<=", 3, "ms"
    ),
    Demand("overlap_wide", "the same at standard deviation 5", "<=", 10, "ms"),
    Demand(
        "overlap_ratio",
        "the same over one exponential and one product on its grid, median",
        "<=",
        20,
        "x",
    ),
    Demand(
        "transformer",
        "gradients of a GPT-2 of 48 blocks at 1024 tokens, every node, CPU",
        "<=",
        1,
        "s",
    ),
    Demand(
        "subnetworks_resnet", "resnet-152: subnetworks and symbolic maximal slope", "<=", 10, "ms"
    ),
    Demand("subnetworks_chain", "chain of 10^5 combined layers: subnetworks", "<=", 2, "s"),
    Demand("subnetworks_mu", "the same: one value of mu", "<=", 0.1, "s"),
    Demand("subnetworks_inverse", "the same: one inverse", "<=", 1, "s"),
    Demand("subnetworks_dense", "1000 layers that all read each other: subnetworks", "<=", 2, "s"),
    Demand("subnetworks_memory", "peak memory of all that", "<=", 1.5, "GB"),
    Demand(
        "subnetworks_exponent",
        "largest exponent in the number of layers, 10^3 to 10^5",
        "<=",
        1.15,
        "",
        "10^3 layers fit in the processor's cache and 10^5 do not; from 10^4 to 10^5 alone the "
        "steepest steps of this table are 1.27 "
        "(chain, forward), 1.21 (chain, any r) and 1.15 (residual, forward inverse and analysis), "
        "mu of the residual network 1.07",
    ),
    Demand(
        "dks_median",
        "constants of a smooth activation, median, CPU",
        "<=",
        0.5,
        "ms",
        "within what the same activations differ by from run to run on this machine (see the "
        "columns beside the peer)",
    ),
    Demand(
        "shape_resnet",
        '`kc.shape(resnet-152, "tanh")`, CPU',
        "<=",
        10,
        "ms",
        "reading and checking 365 nodes takes nearly all of it; the constants take 0.5 ms",
    ),
    Demand(
        "dks_ratio",
        "CPU of deepmind/dks over kcalc's, median of the 14 activations of 15 that it solves",
        ">=",
        300,
        "x",
        peer=True,
    ),
    Demand(
        "ntk_100",
        "neural-tangents over kcalc, depth 100, relu and erf, N = 1000 ... 3000: smallest ratio",
        ">=",
        50,
        "x",
        "kcalc takes 1.1 to 1.6 times one BLAS product and one arccos pass here: no more is left "
        "to gain",
        peer=True,
    ),
    Demand("ntk_10", "the same at depth 10: smallest ratio", ">=", 15, "x", _NEAR_FLOOR, peer=True),
    Demand("ntk_tanh", "the same for tanh at depth 3, N = 500", ">=", 300, "x", peer=True),
    Demand(
        "ntk_memory",
        "peak memory over the peer's, largest ratio",
        "<=",
        1 / 3,
        "x",
        "the two results alone take 16 N^2 bytes, more than a third of what the peer takes in all "
        "at the larger N",
        peer=True,
    ),
    Demand("ntk_floor", "NNGP and NTK over X X^T and one arccos pass, largest ratio", "<=", 2, "x"),
    Demand("ntk_compile", "compilation for 1000 layers over that for 10, relu", "<=", 1.3, "x"),
    Demand("ntk_large", "N = 20000: memory beyond the result", "<=", 4, "GiB"),
    Demand(
        "ntk_same",
        "the same through 8 JAX devices and dask: largest relative difference",
        "<=",
        1e-12,
    ),
    Demand("rolled", "compiling a gradient step, 1000 layers over 50", "<=", 1.5, "x"),
    Demand("unrolled", "unrolled over rolled at 1000 layers", ">=", 5, "x"),
    Demand("step", "gradient step over a hand-written scan, largest median ratio", "<=", 1.1, "x"),
    Demand(
        "step_memory", "memory of the step over that of the scan, largest ratio", "<=", 1.05, "x"
    ),
    Demand(
        "moments",
        "exact moments of 10^4 layers",
        "<=",
        1,
        "s",
        "linear in the layers, some 0.19 ms for the ten exact numbers of each",
    ),
    Demand("report", "report page of resnet-152", "<=", 3, "s"),
    Demand("report_size", "its size", "<=", 3, "MB"),
)
