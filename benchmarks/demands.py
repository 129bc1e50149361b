"""Performance targets of kcalc. Each has a limit and, if it is known to be missed, the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """A target: ``what`` must be at most (``"<="``) or at least (``">="``) ``limit``.

    ``unit`` is only printed.
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
    "the peer itself takes only 6 to 10 times as long as one BLAS product and one arccos pass, so "
    "the target ratio is below this floor"
)

DEMANDS = (
    Demand(
        "import",
        "`import kcalc` beyond numpy, sympy and networkx",
        "<=",
        0.6,
        "s",
        "the garbage collector takes 0.1 s, parts of SymPy that the first sum of expressions "
        "loads take 0.1 s, and the rest is spent on the catalogue's formulas and on classes",
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
        "overlap",
        "S and dS/dk of softmax rows, scores with standard deviation 3, CPU",
        "<=",
        3,
        "ms",
    ),
    Demand("overlap_wide", "the same at standard deviation 5", "<=", 10, "ms"),
    Demand(
        "overlap_ratio",
        "the same divided by one exponential and one product on its grid, median",
        "<=",
        20,
        "x",
    ),
    Demand(
        "transformer",
        "gradients at every node of a GPT-2 with 48 blocks and 1024 tokens, CPU",
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
    Demand(
        "subnetworks_dense",
        "1000 layers, each of which reads all earlier layers: subnetworks",
        "<=",
        2,
        "s",
    ),
    Demand("subnetworks_memory", "peak memory of these subnetwork computations", "<=", 1.5, "GB"),
    Demand(
        "subnetworks_exponent",
        "largest exponent in the number of layers, 10^3 to 10^5",
        "<=",
        1.15,
        "",
        "10^3 layers fit into the processor's cache and 10^5 do not; between 10^4 and 10^5 layers "
        "the largest exponents are 1.27 (chain, forward), 1.21 (chain, any r) and 1.15 (residual, "
        "forward inverse and analysis), and that of mu for the residual network is 1.07",
    ),
    Demand(
        "dks_median",
        "constants of a smooth activation, median, CPU",
        "<=",
        0.5,
        "ms",
        "this is within the variation between runs of the same activations on this machine (see "
        "the comparison with the peer)",
    ),
    Demand(
        "shape_resnet",
        '`kc.shape(resnet-152, "tanh")`, CPU',
        "<=",
        10,
        "ms",
        "nearly all of the time is spent on reading and checking 365 nodes; the constants take "
        "0.5 ms",
    ),
    Demand(
        "dks_ratio",
        "CPU time of deepmind/dks divided by kcalc's, median over the 14 of 15 activations that "
        "it solves",
        ">=",
        300,
        "x",
        peer=True,
    ),
    Demand(
        "ntk_100",
        "neural-tangents divided by kcalc, depth 100, relu and erf, N = 1000 ... 3000: smallest "
        "ratio",
        ">=",
        50,
        "x",
        "kcalc takes only 1.1 to 1.6 times as long as one BLAS product and one arccos pass, so "
        "little can be gained",
        peer=True,
    ),
    Demand("ntk_10", "the same at depth 10: smallest ratio", ">=", 15, "x", _NEAR_FLOOR, peer=True),
    Demand("ntk_tanh", "the same for tanh at depth 3, N = 500", ">=", 300, "x", peer=True),
    Demand(
        "ntk_memory",
        "peak memory divided by the peer's, largest ratio",
        "<=",
        1 / 3,
        "x",
        "the two results alone take 16 N^2 bytes, which at the larger N is more than a third of "
        "the peer's total memory",
        peer=True,
    ),
    Demand(
        "ntk_floor",
        "NNGP and NTK divided by X X^T and one arccos pass, largest ratio",
        "<=",
        2,
        "x",
    ),
    Demand(
        "ntk_compile",
        "compilation time for 1000 layers divided by the time for 10, relu",
        "<=",
        1.3,
        "x",
    ),
    Demand("ntk_large", "N = 20000: memory in addition to the result", "<=", 4, "GiB"),
    Demand(
        "ntk_same",
        "the same with 8 JAX devices and with dask: largest relative difference",
        "<=",
        1e-12,
    ),
    Demand(
        "rolled", "compilation time of a gradient step, 1000 layers divided by 50", "<=", 1.5, "x"
    ),
    Demand("unrolled", "compilation time at 1000 layers, unrolled divided by rolled", ">=", 5, "x"),
    Demand(
        "step", "gradient step divided by a hand-written scan, largest median ratio", "<=", 1.1, "x"
    ),
    Demand(
        "step_memory",
        "memory of the step divided by the memory of the scan, largest ratio",
        "<=",
        1.05,
        "x",
    ),
    Demand(
        "moments",
        "exact moments of 10^4 layers",
        "<=",
        1,
        "s",
        "the time is linear in the number of layers, with 0.19 ms for the ten exact numbers of "
        "each layer",
    ),
    Demand("report", "report page of resnet-152", "<=", 3, "s"),
    Demand("report_size", "its size", "<=", 3, "MB"),
)
