"""Deep Kernel Shaping: Q(1) = 1, Q'(1) = 1, C(0) = 0, C'(1) = mu^{-1}(zeta) at every activation. [DKS sec. 18, 21]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..activations import Activation
from ..calculi.slopes import slope_polynomial
from ..errors import KcalcError, UnreachableTarget
from ..layers import Nonlinear, as_number
from ..maps import Assumption
from ..network import Network
from ..subnetworks import maximal_slope
from ..symbols import psi
from .base import Constants, ConstantsTable, Shaping, check_fresh, prepared, replace_activations
from .measure import local_values

STARTS = tuple((a, b) for a in (0.1, 0.3, 1.0, 2.0) for b in (0.0, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0))
TOLERANCE = 1e-11
FARTHEST = 50.0  # of |beta|
LARGEST = 3.0  # of log alpha: steeper inputs make any kink or bend a step
REACH = 10.0


def dks(network: Network, activation: Any = None, zeta: float = 1.5) -> Shaping:
    """Shape a network so that the slopes of its subnetworks' C maps at 1 are at most ``zeta``.

    Positively homogeneous activations (relu, leaky_relu) have one constant fewer, so that Q'(1) = 1 is dropped for
    them [DKS sec. 18.6]. ``activation=None`` keeps each layer's own. Domain: zeta > 1.

    Returns: a Shaping. Raises: KcalcError for bad input, UnreachableTarget where an activation cannot meet the
    conditions, FreshnessError where the kernel calculus does not hold on the network.
    """
    zeta = as_number(zeta, "zeta")
    if getattr(zeta, "free_symbols", None) or not zeta > 1:
        raise KcalcError(f"zeta bounds the slope of the C map and must be > 1, got {zeta}")
    plain, changes = prepared(network, activation)
    mu = maximal_slope(plain)
    slope = float(mu.inverse(float(zeta)))
    by_node: dict[Any, Constants] = {}
    solved: dict[Activation, tuple[Constants, ...]] = {}
    for node, layer, _ in plain.steps():
        if isinstance(layer, Nonlinear):
            phi = layer.activation
            if phi not in solved:
                solved[phi] = solve(phi, slope)
            by_node[node] = solved[phi][0]
    shaped = replace_activations(plain, {node: k.transformed for node, k in by_node.items()})
    check_fresh(shaped)
    kept = all(k.activation.degree is None for k in by_node.values())
    targets = {"Q(1)": 1.0, **({"Q'(1)": 1.0} if kept else {}), "C(0)": 0.0, "C'(1)": slope}
    whole = {"Q_f(1)": 1.0} | ({"C_f'(1)": _global_slope(plain, slope)} if len(plain.outputs) == 1 else {})
    warnings = [Assumption("network", text) for text in (*_dropped(solved), *_missed(solved, targets))]
    if mu.warning is not None:
        warnings.append(Assumption("network", mu.warning, "heuristic"))
    edits = [f"{node}: {k.activation.name} -> {describe(k)}" for node, k in by_node.items()]
    return Shaping(
        "dks", {"zeta": float(zeta)}, network, shaped, ConstantsTable(by_node), targets, whole, (*changes, *edits),
        {phi.name: found for phi, found in solved.items()}, tuple(warnings),
    )  # fmt: skip


def _dropped(solved: Mapping[Activation, tuple[Constants, ...]]) -> Iterator[str]:
    """Which activations go without Q'(1) = 1."""
    names = [phi.name for phi in solved if phi.degree is not None]
    if names:
        yield f"the condition Q'(1) = 1 is dropped for {', '.join(names)} (positively homogeneous: one constant fewer)"


def _missed(solved: Mapping[Activation, tuple[Constants, ...]], targets: Mapping[str, float]) -> Iterator[str]:
    """Conditions that double precision does not quite meet. Raises: UnreachableTarget where one is plainly missed."""
    for phi, (found, *_) in solved.items():
        values = local_values(found.transformed)
        condition, miss = max(((c, abs(float(values[c] - t))) for c, t in targets.items()), key=lambda pair: pair[1])
        if not miss <= 1e-6 * max(1.0, abs(targets[condition])):
            raise UnreachableTarget(f"the constants found for {phi.name} miss {condition} by {miss:.1e}; choose a smaller zeta")
        if miss > 1e-9:
            yield f"{phi.name} meets {condition} to {miss:.1e} only: the target is at the edge of double precision"


def describe(k: Constants) -> str:
    """The transformed activation in one line."""
    return f"{k.gamma:.6g}*({k.activation.name}({k.alpha:.6g}*x {k.beta:+.6g}) {k.delta:+.6g})"


def _global_slope(network: Network, slope: float) -> float:
    return float(slope_polynomial(network).subs(psi, slope))


def solve(phi: Activation, slope: float) -> tuple[Constants, ...]:
    """All sets of constants found for one activation, the default first: smallest |beta|, positive before negative."""
    if phi.degree is not None:
        return (_homogeneous(phi, slope),)
    conditions = Conditions(phi, slope)
    found = _distinct(_followed(phi, slope)) or _distinct(conditions.root(start) for start in STARTS)
    if not found:
        raise UnreachableTarget(
            f"no input scale and shift give {phi.name} Q'(1) = 1 and C'(1) = {slope:.6g}; choose another activation or another zeta"
        )
    found.sort(key=lambda p: (round(abs(p[1]), 9), -p[1]))
    return tuple(conditions.constants(*point) for point in found)


def _homogeneous(phi: Activation, slope: float) -> Constants:
    """beta = 1 (or -1 for large slopes), alpha from C'(1) alone; the scale of (alpha, beta) goes into gamma."""
    from scipy.optimize import brentq

    conditions = Conditions(phi, slope)
    for beta in (1.0, -1.0):
        grid = np.geomspace(1e-4, 1e4, 161)
        values = [conditions.slope_excess(a, beta) for a in grid]
        for low, high, left, right in zip(grid, grid[1:], values, values[1:], strict=False):
            if np.isfinite(left) and np.isfinite(right) and left * right <= 0:
                ends = float(np.log(low)), float(np.log(high))
                log_alpha: Any = brentq(lambda s, b=beta: conditions.slope_excess(np.exp(s), b), *ends, xtol=1e-15, rtol=np.float64(1e-15))
                return conditions.constants(float(np.exp(log_alpha)), beta)
    raise UnreachableTarget(f"no input scale gives {phi.name} the slope C'(1) = {slope:.6g}; choose another activation or another zeta")


@dataclass(frozen=True)
class Conditions:
    """The two conditions left for (alpha, beta) once gamma and delta are eliminated.

    With ``f = phi(alpha x + beta)`` and ``g = f'``: ``E[(f - E f) g x] = Var f`` and ``E[g^2] = slope Var f``.
    """

    phi: Activation
    slope: float

    def moments(self, alpha: float, beta: float) -> tuple[float, float, float, float]:
        """(E f, Var f, E[(f - E f) g x], E g^2)."""
        x, w = quadrature(tuple((k - beta) / alpha for k in self.phi.kink_points), alpha)
        u = alpha * x + beta
        f, g = self.phi.numeric(0)(u), alpha * self.phi.numeric(1)(u)
        mean = float(w @ f)
        centred = f - mean
        return mean, float(w @ centred**2), float(w @ (centred * g * x)), float(w @ g**2)

    def slope_excess(self, alpha: float, beta: float) -> float:
        """C'(1) - slope."""
        _, variance, _, gradient = self.moments(alpha, beta)
        return gradient / variance - self.slope if variance > 0 else np.nan

    def residual(self, point: np.ndarray) -> np.ndarray:
        """(Q'(1) - 1, C'(1) - slope) at (log alpha, beta), relative to slope - 1."""
        alpha = float(np.exp(np.clip(point[0], -30, LARGEST)))
        if not abs(point[1]) < FARTHEST:
            return np.array([1e3, 1e3])
        _, variance, mixed, gradient = self.moments(alpha, float(point[1]))
        if not variance > 0 or not np.isfinite(variance):
            return np.array([1e3, 1e3])
        return np.array([mixed / variance - 1, gradient / variance - self.slope]) / (self.slope - 1)

    def root(self, start: tuple[float, float]) -> np.ndarray | None:
        """(alpha, beta) by Powell's hybrid method, or None if it does not converge to a solution."""
        from scipy.optimize import root

        with np.errstate(all="ignore"):
            options = {"xtol": 1e-14, "eps": 1e-7, "maxfev": 80}
            result = root(self.residual, np.array([np.log(start[0]), start[1]]), method="hybr", options=options)
            left = np.abs(self.residual(result.x)).max() * (self.slope - 1)
        if not left < TOLERANCE or not -25 < result.x[0] < LARGEST or not abs(result.x[1]) < FARTHEST:
            return None
        return np.array([np.exp(result.x[0]), result.x[1]])

    def constants(self, alpha: float, beta: float) -> Constants:
        """gamma = Var^{-1/2} f, delta = -E f."""
        mean, variance, _, _ = self.moments(alpha, beta)
        return Constants(self.phi, float(alpha), float(beta), variance**-0.5, -mean)


def _distinct(points: Iterable[np.ndarray | None]) -> list[np.ndarray]:
    """The points that were found, each once."""
    found: list[np.ndarray] = []
    for point in points:
        if point is not None and not any(np.allclose(point, old, rtol=1e-6, atol=1e-9) for old in found):
            found.append(point)
    return found


def _followed(phi: Activation, slope: float) -> Iterator[np.ndarray | None]:
    """The branches of a smooth activation, each followed from its limit as alpha -> 0 up to the slope asked for.

    With p_n the n-th derivative of phi at beta, the limit has ``p_2^2 + 2 p_1 p_3 = 0`` and, for a slope t near 1,
    ``alpha = sqrt(2 (t - 1)) |p_1 / p_2|``.
    """
    if phi.kinks:
        return
    grid = np.linspace(-6, 6, 1201) + 1e-4
    one, two, three = (phi.numeric(n)(grid) for n in (1, 2, 3))
    value = two**2 + 2 * one * three
    for i in np.nonzero(value[:-1] * value[1:] < 0)[0]:
        if abs(two[i]) < 1e-9 * abs(one[i]):
            continue
        ratio = abs(one[i] / two[i])
        first = min(slope - 1, (0.2 / ratio) ** 2 / 2)
        count = int(np.ceil(np.log2((slope - 1) / first))) + 1
        point: np.ndarray | None = np.array([np.sqrt(2 * first) * ratio, grid[i]])
        for excess in np.geomspace(first, slope - 1, count):
            point = Conditions(phi, 1 + float(excess)).root((float(point[0]), float(point[1])))
            if point is None:
                break
        yield point


def quadrature(kinks: tuple[float, ...], alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for E over a standard normal: Gauss-Legendre panels split at ``kinks``, finer for steep inputs."""
    width = 1.0 / max(1.0, min(alpha, 32.0))
    edges = np.linspace(-REACH, REACH, int(2 * REACH / width) + 1)
    inside = [k for k in kinks if -REACH < k < REACH]
    if inside:
        edges = np.unique(np.concatenate([edges, inside]))
    t, v = LEGENDRE
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    x = (middle[:, None] + half[:, None] * t).ravel()
    return x, (half[:, None] * v).ravel() * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


LEGENDRE = np.polynomial.legendre.leggauss(20)
