"""Measure Hessian blocks on random networks [Scaling sec. 5.1, Fig. 1, 2].

The measured blocks are compared with the scaling calculus.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backend import to_jax
from ..calculi.scaling import scaling
from ..calculi.widths import with_widths
from ..foundation.errors import KcalcError
from ..foundation.extras import imported
from ..foundation.guests import DRAWINGS
from ..foundation.plain_arguments import whole
from ..foundation.printing import Shown
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network.layers import Affine
from ..network.network import Network, require_network
from ..shaping import Shaping
from .probes import measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
MOST = 10**6  # numbers of networks and of inputs
Node = Hashable


@dataclass(frozen=True, eq=False)
class HessianBlocks(Shown):
    """Blocks of the Hessian of ``y^T R y`` with respect to pairs of weights.

    R is a matrix of independent standard normals.

    Attributes
    ----------
    draws
        An array (draws, L, L) with ``|H_kl|_F^2 / sqrt(rows columns)`` of each network, estimated
        on random inputs. Diagonal entries are the mean squared singular values of the blocks.
    predicted
        An array (L,) with the gamma of every weight, for the cotangents of this loss.

    """

    nodes: tuple[Node, ...]
    draws: Array
    predicted: Array
    assumptions: tuple[Assumption, ...]

    @property
    def squares(self) -> Array:
        """The mean of ``draws`` over networks, (L, L)."""
        return self.draws.mean(axis=0)

    @property
    def error(self) -> Array:
        """The standard error of ``squares``, (L, L)."""
        return self.draws.std(axis=0, ddof=1) / np.sqrt(len(self.draws))

    @cached_property
    def ratios(self) -> dict[str, Array]:
        """The ratio of predicted to measured gamma, as {weight: one value per network}."""
        return {
            str(node): self.predicted[i] / self.draws[:, i, i] for i, node in enumerate(self.nodes)
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the blocks as a heat map.

        Parameters
        ----------
        ax
            The Matplotlib Axes to draw on. By default, a new figure is made.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["HessianBlocks"](self.squares, [str(node) for node in self.nodes], ax=ax)

    def histogram(self, ax: Axes | None = None) -> Axes:
        """Plot a histogram over networks of the ratio of predicted to measured gamma.

        Parameters
        ----------
        ax
            The Matplotlib Axes to draw on. By default, a new figure is made.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["HessianBlocks.histogram"](self.ratios, ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data, with the blocks averaged over networks.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "nodes": [str(node) for node in self.nodes],
            "squares": self.squares.tolist(),
            "error": self.error.tolist(),
            "predicted": self.predicted.tolist(),
            "draws": len(self.draws),
        }

    def _frame(self) -> dict[str, Any]:
        return {
            "weight": [str(node) for node in self.nodes],
            "predicted": self.predicted,
            "measured": np.diag(self.squares),
            "error": np.diag(self.error),
        }

    def _rows(self) -> list[tuple[str, ...]]:
        rows = zip(*self._frame().values(), strict=True)
        return [
            ("weight", "predicted", "measured", "error", "ratio"),
            *((n, f"{p:.5g}", f"{m:.5g}", f"{e:.2g}", f"{p / m:.4f}") for n, p, m, e in rows),
        ]

    def __repr__(self) -> str:
        return f"HessianBlocks({len(self.nodes)} weights, {len(self.draws)} networks)"


def hessian_blocks(
    network: Network | Shaping,
    features: Any = None,
    image_shape: Any = None,
    draws: int = 30,
    batch: int = 16,
    seed: int = 0,
) -> HessianBlocks:
    """Measure the blocks of the Hessian of a random loss on random networks.

    The diagonal blocks are also predicted by the scaling calculus.

    Each of the ``draws`` networks has independent weights in all taps and a separate R. It is
    evaluated on ``batch`` standard normal inputs with one random direction each. As widths grow,
    E[(G_l r)^2] = gamma_l for cotangents of mean square 2 (n_L + 1) E y^2. At width n it is larger
    by a factor of about 1 + 5/n.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    features
        The width of layers that do not specify one, or {node: width}.
    image_shape
        (height, width) of the images.
    draws
        The number of random networks.
    batch
        The number of inputs per network.
    seed
        The seed of the random numbers.

    Returns
    -------
    HessianBlocks
        Measured and predicted mean squares of every block.

    Raises
    ------
    KcalcError
        If a count is too small, the network has several inputs or outputs, or
        :func:`kcalc.scaling` fails.

    """
    draws, batch = whole(draws, "draws", 2, MOST), whole(batch, "batch", 1, MOST)
    seed = whole(seed, "seed", 0, 2**32)
    given = network.network if isinstance(network, Shaping) else network
    require_network(given)
    net = with_widths(given, features)
    if len(net.inputs) != 1 or len(net.outputs) != 1:
        raise KcalcError(
            f"Hessian blocks need one input and one output, but the network has {len(net.inputs)} "
            f"inputs and {len(net.outputs)} outputs"
        )
    output = net.outputs[0]
    found = scaling(net, image_shape=image_shape)
    tensor = found.tensors[output]
    moment = 2 * (float(tensor.channels) + 1) * tensor.forward
    predicted = scaling(net, image_shape=image_shape, cotangent_moment=moment)
    if tensor.locations is not None:
        raise KcalcError(
            f"the output {output!r} has locations; end the network with Flatten or Pool, followed "
            "by an Affine"
        )
    nodes = net.nodes_of(Affine)
    samples = _measured(net, image_shape, int(tensor.channels), draws, batch, seed)
    gammas = np.array([predicted.weights[node].gamma for node in nodes])
    return HessianBlocks(nodes, samples, gammas, predicted.assumptions)


def _measured(
    net: Network, image_shape: Any, width: int, draws: int, batch: int, seed: int
) -> Array:
    jax = imported("jax")
    jnp = jax.numpy

    model = to_jax(net, image_shape=image_shape, weights="gaussian", rolled=False)
    plan, nodes = model.plan(), net.nodes_of(Affine)
    entries = [entry.name for node in nodes for entry in plan.tensors if node in entry.nodes]
    extent = plan.shapes[net.inputs[0]].axes

    def one(params: Any, matrix: Any, key: Any) -> Any:
        """Compute |H_kl r_l|^2 / rows, shape (L, L), for one input and one direction per weight."""
        keys = jax.random.split(key, len(entries) + 1)
        x = jax.random.normal(keys[0], extent)
        weights = [params[name]["weight"] for name in entries]

        def loss(values: Any) -> Any:
            replaced = dict(params)
            for name, value in zip(entries, values, strict=True):
                replaced[name] = params[name] | {"weight": value}
            y = model.apply(replaced, x)
            return y @ matrix @ y

        def column(chosen: Any) -> Any:
            place, own = chosen
            # draw once for all weights, because XLA takes a second to compile each draw
            normals = jax.random.normal(own, (max(w.size for w in weights),))
            direction = [
                jnp.where(place == k, normals[: w.size].reshape(w.shape), 0.0)
                for k, w in enumerate(weights)
            ]
            image = jax.jvp(jax.grad(loss), (weights,), (direction,))[1]
            return jnp.stack([jnp.mean(part**2) for part in image])

        # a loop, so that XLA compiles it once instead of once per weight
        return jax.lax.map(column, (jnp.arange(len(weights)), keys[1:])).T

    def network(key: Any) -> Any:
        own, other, rest = jax.random.split(key, 3)
        params, matrix = model.init(own), jax.random.normal(other, (width, width))
        keys = jax.random.split(rest, batch)
        return jax.lax.map(lambda key: one(params, matrix, key), keys).mean(axis=0)

    sizes = np.array([np.prod(plan.nodes[node].tensors["weight"]) for node in nodes], float)
    bits = jnp.stack([jax.random.key(seed * 100_003 + number) for number in range(draws)])
    squares = measure(model, plan, "hessian", network, bits)
    return squares * np.sqrt(sizes[:, None] / sizes)
