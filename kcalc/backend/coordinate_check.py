"""Does the size of a network's coordinates depend on its width?  A measurement at initialisation, over several widths."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import KcalcError
from ..layers import Affine
from ..network import Network
from .lowering import roles, width_grows_with
from .model import to_jax
from .parameterization import parameterization as named_parameterization

Node = Hashable


@dataclass(frozen=True)
class CoordinateCheck:
    """Root mean squares of every Affine's output by width, and the fitted powers of the width.

    ``rms[node]`` has shape (widths, draws); ``slopes[node]`` is (power, standard error); ``expected[node]`` the power the parameterization
    gives, None where a layer before it has one other than 0.  It speaks of initialisation alone, not of how learning rates transfer.
    """

    widths: tuple[int, ...]
    rms: dict[Node, np.ndarray]
    slopes: dict[Node, tuple[float, float]]
    expected: dict[Node, float | None]

    def deviates(self, node: Node, errors: float = 4.0, slack: float = 0.02) -> bool:
        """Whether the measured power is away from the expected one by more than ``errors`` standard errors and ``slack``."""
        wanted, (slope, error) = self.expected[node], self.slopes[node]
        return wanted is not None and abs(slope - wanted) > errors * error + slack

    @property
    def passed(self) -> bool:
        """Whether no node deviates."""
        return not any(self.deviates(node) for node in self.slopes)

    def __str__(self) -> str:
        span = max([4, *(len(str(node)) for node in self.slopes)])
        lines = [f"{'node':{span}}  {'power of the width':>18}  expected   root mean square at widths {', '.join(map(str, self.widths))}"]
        for node, (slope, error) in self.slopes.items():
            wanted = self.expected[node]
            sizes = "  ".join(f"{value:.4g}" for value in np.sqrt((self.rms[node] ** 2).mean(axis=1)))
            lines.append(f"{node!s:{span}}  {slope:+8.3f} +- {error:.3f}  {'    -' if wanted is None else f'{wanted:+5.2f}'}      {sizes}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"CoordinateCheck({len(self.slopes)} nodes, widths {self.widths}, {'passed' if self.passed else 'deviates'})"


def coordinate_check(
    network: Network,
    x: Any,
    outputs: int,
    parameterization: Any = "mup",
    widths: Sequence[int] = (64, 128, 256, 512),
    draws: int = 8,
    key: Any = 0,
    **options: Any,
) -> CoordinateCheck:
    """Measure how coordinates grow with width at initialisation.

    Parameters: ``network`` leaves the widths of hidden layers open; its inputs have the channels of the example ``x``, its output nodes
    ``outputs`` channels at every width.  ``options`` go to :func:`kcalc.to_jax`.
    Raises: KcalcError for fewer than two widths or draws, and for networks in which no width is open.
    """
    import jax

    if len(set(widths)) < 2 or draws < 2:
        raise KcalcError(f"a power of the width needs two widths and two draws at least, got {tuple(widths)} and {draws}")
    chosen = named_parameterization(parameterization)
    open_nodes = [node for node in network.nodes_of(Affine) if getattr(network.layer(node), "features", None) is None]
    if not set(open_nodes) - set(network.outputs):
        raise KcalcError("no hidden layer leaves its width open; build the network with features=None")
    ends = {node: outputs for node in network.outputs if node in open_nodes}
    found: dict[Node, list[np.ndarray]] = {node: [] for node in network.nodes_of(Affine)}
    keys = jax.random.split(jax.random.key(key) if isinstance(key, int) else key, draws)
    for width in widths:
        model = to_jax(network, {None: width} | ends, parameterization=chosen, **options)

        def sizes(one: Any, model: Any = model) -> dict[int, Any]:
            trace = model.trace(model.init(one, x), x)
            return {i: (trace[node] ** 2).mean() ** 0.5 for i, node in enumerate(found)}

        rows = jax.jit(jax.vmap(sizes))(keys)
        for i, node in enumerate(found):
            found[node].append(np.asarray(rows[i], float))
    rms = {node: np.array(values) for node, values in found.items()}
    slopes = {node: _power(np.array(widths, float), values) for node, values in rms.items()}
    return CoordinateCheck(tuple(int(w) for w in widths), rms, slopes, _expected(network, chosen))


def _power(widths: np.ndarray, rms: np.ndarray) -> tuple[float, float]:
    """The least-squares power of the width in root mean squares of shape (widths, draws), and its standard error over draws."""
    logs = np.log(widths) - np.log(widths).mean()
    with np.errstate(divide="ignore"):
        each = logs @ np.log(rms) / (logs @ logs)
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(each.size))


def _expected(network: Network, chosen: Any) -> dict[Node, float | None]:
    """The power each Affine's output should have."""
    places = roles(network)
    flat: dict[Node, bool] = {}
    expected: dict[Node, float | None] = {}
    for node, _, parents in network.steps():
        flat[node] = all(flat[p] for p in parents)
        if node in places:
            growth = width_grows_with(chosen, places[node])
            expected[node] = growth if flat[node] else None
            flat[node] = flat[node] and growth == 0
    return expected
