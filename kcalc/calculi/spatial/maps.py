"""Kernels of convolutional networks on images, by exact recursion over pairs of locations.

Delta-initialised networks without mean pooling act on each location separately; dense convolutions
and mean pooling do not. This module follows the q value of every location and the covariances of
pairs of locations, for the NNGP, the tangent kernel and kernel maps. [DKS sec. 20; Novak et al.
2019; Arora et al. 2019]

With P locations, the cost per pair of images and per layer is O(P taps) operations, or O(P^2 taps)
in layers before a mean pooling.

Kernels are accurate up to rounding errors. For near-duplicates, 1 - c keeps its digits through
convolutions, homogeneous activations and Flatten. Mean pooling forms 1 - c from covariances, with
an absolute error of about 1e-16; after it, C' of a kinked activation has an error of about 1e-8.
The kernel of two identical images is the kernel of one image with itself. Activations without a
closed form are evaluated by Hermite series. If a series is too long, they are integrated
numerically, and more than :data:`kcalc.calculi.location_maps.MOST` pairs of q values are rejected.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np

from ...fields.arguments import positive_number, raw_array, single_precision
from ...foundation.errors import KcalcError, unknown
from ...foundation.plain_arguments import choice, truth
from ...foundation.printing import Shown, marked, plain
from ...foundation.process_state import cached_property
from ...maps.maps import Assumption, sole
from ...network.compose import interpret, require_network
from ...network.layers import Affine, Nonlinear
from ...network.network import Network, require_numbers
from ..channel_statistics import CENTRED
from ..channels import Channels
from ..checks import refuse_displaced, refuse_other_sizes
from ..location_maps import refuse_many
from ..readings import OfReading
from .convolutions import ConvolutionWeights, defect
from .forms import Forms
from .images import Images, Shapes, distinct, input_shapes, read_images
from .kernel import LocationKernel, location_kernel
from .plan import plan

Node = Hashable
Array = np.ndarray
Values = dict[Node, tuple[Array, ...]]  # {output: (NNGP, NTK) or (NNGP,)}, each (..., P)
WEIGHTS = ("dense", "delta")
CACHED = 2**18  # entries per array in a block, so that arrays stay in the cache
NUMBERS = (4, 20)  # float64 arrays per node: stored, and temporary in one rule
COEFFICIENTS = 4000  # float64 values per location for the Hermite series of an activation


@dataclass(frozen=True)
class Own:
    """Every image paired with itself: kernels at the outputs, q values and pooled q values.

    ``q``: {node: (N, P)}; ``pooled``: {Pool node: [(N, P) per channel group]}.
    """

    values: Values
    q: dict[Node, Array]
    pooled: dict[Node, list[Array]]


@dataclass(eq=False)
class LocationReading:
    """A network with image shapes, evaluated by :class:`LocationKernel`.

    ``delta``: whether convolutions are Delta-initialised; ``assume``: ``assume_independent`` of the
    kernel calculus; ``fan_in``: {Affine: channels read by one tap} for the standard
    parameterisation; ``trial``: whether the tangent kernel is also needed; ``all_pairs``: whether
    all pairs of locations are followed at every node.
    """

    network: Network
    shapes: Shapes
    delta: bool
    assume: bool
    fan_in: Mapping[Node, int] | None
    trial: bool
    all_pairs: bool = False

    def __post_init__(self) -> None:
        self.places = plan(self.network, self.shapes, self.delta, self.all_pairs)
        self._parents = {node: reads for node, _, reads in self.network.operations}

    def run(
        self,
        first: Images,
        second: Images,
        tangent: bool,
        pooled: Any = None,
        seeds: Mapping[Node, float] | None = None,
    ) -> tuple[LocationKernel, dict[Node, Channels]]:
        """The calculus and the state of every node.

        ``pooled``: pooled q values as in :class:`Pools`, or None if ``first`` and ``second`` are
        the same images.
        """
        weights = ConvolutionWeights(self.delta, tangent, self.fan_in, seeds)
        kernel = location_kernel(Forms(self.places, self._parents), weights, self.assume, pooled)
        inputs = {}
        for node in self.network.inputs:
            gap = defect(
                first.units[node],
                second.units[node],
                np.ones(first.units[node].shape[-1]),
                self.places[node].full,
            )
            inputs[node] = kernel.entered(
                node,
                (first.q[node], second.q[node]),
                (first.mean[node], second.mean[node]),
                np.clip(gap, 0, 2),
            )
        with np.errstate(all="ignore"):  # the rules raise a KcalcError that names the node
            return kernel, interpret(self.network, kernel, inputs)

    def values(self, kernel: LocationKernel, states: Mapping[Node, Channels]) -> Values:
        """Return the kernels at the outputs, averaged over locations after a Flatten."""
        out: Values = {}
        for node in self.network.outputs:
            q1, q2, gap = kernel.whole(states[node])
            norm, place = np.sqrt(q1) * np.sqrt(q2), self.places[node]
            parts = [norm * (1 - gap.value), *(-norm * part for part in gap.coefficients[1:])]
            parts = [
                np.diagonal(part, axis1=-2, axis2=-1) if place.full else part for part in parts
            ]
            out[node] = tuple(
                part.mean(axis=-1, keepdims=True) if place.flat else part for part in parts
            )
        return out

    def bytes_per_pair(self) -> int:
        """Estimate the memory for one pair of images, in bytes."""
        entries = [place.entries for place in self.places.values()]
        return 8 * (NUMBERS[0] * sum(entries) + NUMBERS[1] * max(entries))

    def images_within(self, memory: float) -> int:
        """The largest side of a block whose Hermite coefficients fit in ``memory`` MiB."""
        kinds = [
            (self.network.layer(node), self.places[node])
            for node in self.network.nodes_of(Nonlinear)
        ]
        counts = [place.count for layer, place in kinds if not layer.activation.closed_in_numpy]
        return max(int(memory * 2**20 / (8 * COEFFICIENTS * max(counts, default=0) + 1)), 1)

    def pairs_within(self, memory: float) -> int:
        """The number of pairs of images that fit into ``memory`` MiB.

        Raises: KcalcError if not even one pair fits.
        """
        pairs = int(
            positive_number(memory, "memory, a number of MiB,") * 2**20 / self.bytes_per_pair()
        )
        if pairs < 1:
            need = self.bytes_per_pair() / 2**20
            raise KcalcError(
                f"one pair of images needs about {need:.3g} MiB, because all pairs of their "
                f"locations are tracked before a mean pooling; increase memory= (now {memory:g} "
                "MiB), use smaller images or larger strides, or spatial='delta'"
            )
        return min(pairs, max(CACHED // max(place.entries for place in self.places.values()), 1))

    def alone(
        self, images: Images, tangent: bool, pairs: int, seeds: Mapping[Node, float] | None = None
    ) -> Own:
        """Pair every image with itself, ``pairs`` images at a time."""
        found: list[tuple[Values, dict[Node, Array], dict[Node, list[Array]]]] = []
        for part in _blocks(len(images), pairs):
            some = images.taken(part)
            kernel, states = self.run(some, some, tangent, None, seeds)
            q = {
                node: kernel.forms.first(kernel.whole(state)[0], node)
                for node, state in states.items()
            }
            found.append((self.values(kernel, states), q, kernel.pools.recorded))
        values = {
            node: tuple(map(np.concatenate, zip(*(v[node] for v, _, _ in found), strict=True)))
            for node in self.network.outputs
        }
        q = {node: np.concatenate([q[node] for _, q, _ in found]) for node in self.network}
        pooled = {
            node: list(map(np.concatenate, zip(*(r[node] for _, _, r in found), strict=True)))
            for node in found[0][2]
        }
        return Own(values, q, pooled)

    def refuse_slow(self, own: Own) -> None:
        """Reject activations that need too many numerical integrals for these images.

        Raises: KcalcError naming the node.
        """
        for node in self.network.nodes_of(Nonlinear):
            q = own.q[self._parents[node][0]]
            refuse_many(self.network.layer(node).activation, np.unique(q[q > 0]), node)

    def table(
        self,
        images: Images,
        rows: Array,
        columns: Array,
        own: Own,
        tangent: bool,
        seeds: Mapping[Node, float] | None,
    ) -> Values:
        """Compute the kernels of a block of pairs of images, (rows, columns, P)."""
        first, second = images.taken(rows, 1), images.taken(columns, 0)
        pooled = {
            node: [(q[rows][:, None], q[columns][None]) for q in groups]
            for node, groups in own.pooled.items()
        }
        return self.values(*self.run(first, second, tangent, pooled, seeds))

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions for two random images, in the order of nodes."""
        arrays = {}
        for node, shape in self.shapes.items():
            channels = getattr(self.network.layer(node), "features", None) or 3
            colours = np.random.default_rng(0).normal(size=(2, 1, channels))
            arrays[node] = np.broadcast_to(colours, (2, int(np.prod(shape)), channels))
        images = Images.of(arrays)
        kernel, _ = self.run(images, images, self.trial)
        width = Assumption("network", "infinite width; independent Gaussian weights with mean 0")
        own = (a for a in kernel.notes.values() if a.text != CENTRED)
        return (width, *self.network.assumptions, *own)


def _blocks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


class SpatialKernelMap(OfReading, Shown):
    """Kernel maps of a network on images.

    ``C(X, Y=None)`` returns the cosines of the network's outputs, and ``C.matrix(X, Y=None)``
    returns their covariances.

    Images are arrays (N, height, width, channels), or {input: array}; ``memory`` bounds the work
    space in MiB. Results are arrays (N, M), or {output: array} for several outputs. For an output
    that is an image, they have shape (N, M, height, width), with one entry per location, at which
    the two images are compared. Identical images are computed only once.
    """

    def __init__(self, reading: LocationReading) -> None:
        self.reading = reading

    def __call__(
        self, X: Any, Y: Any = None, memory: float = 1024, progress: bool = False
    ) -> Array:
        """The cosines of the outputs for all pairs of images.

        A cosine is nan if either output is 0 for all weights.
        """
        table, own = self._table(X, Y, False, memory, progress)
        first, second = own

        def cosine(node: Node) -> Array:
            norm = np.sqrt(first[node][:, None]) * np.sqrt(second[node][None])
            return np.where(
                norm > 0, np.clip(table[node][0] / np.where(norm > 0, norm, 1.0), -1.0, 1.0), np.nan
            )

        return self._finished({node: cosine(node) for node in table}, single_precision(X, Y))

    def matrix(self, X: Any, Y: Any = None, memory: float = 1024, progress: bool = False) -> Array:
        """Compute the covariance of the outputs as a Gaussian process, for all pairs of images.

        Parameters
        ----------
        X
            Images, (N, height, width, channels), or {input: array}.
        Y
            The second set of images; None means ``X``.
        memory
            The bound on working memory, in MiB.
        progress
            Whether to show a progress bar.

        Returns
        -------
        Array
            The matrix (N, M).

        Raises
        ------
        KcalcError
            For arrays with another shape, for nan, and if one pair needs more than ``memory`` MiB.

        """
        table, _ = self._table(X, Y, False, memory, progress)
        return self._finished(
            {node: parts[0] for node, parts in table.items()}, single_precision(X, Y)
        )

    def q_values(self, X: Any, memory: float = 1024) -> dict[Node, Array]:
        """Compute {node: q value at every location}, each of shape (N, *locations).

        Parameters
        ----------
        X
            Images, (N, height, width, channels), or {input: array}.
        memory
            The bound on working memory, in MiB.

        Returns
        -------
        dict[Node, Array]
            One array per node.

        """
        images = Images.of(read_images(self.network, self.reading.shapes, X, "X"))
        own = self.reading.alone(images, False, self._block(memory)[0])
        shapes = {node: place.shape for node, place in self.reading.places.items()}
        return {
            node: np.broadcast_to(q, (len(images), q.shape[-1])).reshape(-1, *shapes[node])
            for node, q in own.q.items()
        }

    def c_values(self, x: Any, y: Any, pairs: bool = False) -> dict[Node, Array]:
        """Compute {node: c value at every location} for two images.

        Entries are nan if a q value is 0, because there is no cosine.

        Parameters
        ----------
        x, y
            The images, (height, width, channels).
        pairs
            Whether to return the values of all pairs of locations, (*locations of x, *locations of
            y).

        Returns
        -------
        dict[Node, Array]
            One array per node, with the axes of locations.

        """
        followed = truth(pairs, "pairs")
        reading = replace(self.reading, all_pairs=True) if followed else self.reading
        both = [
            read_images(self.network, reading.shapes, _one(image), what)
            for image, what in ((x, "x"), (y, "y"))
        ]
        images = Images.of(
            {node: np.concatenate([side[node] for side in both]) for node in both[0]}
        )
        own = reading.alone(images, False, 2)
        pooled = {node: [(q[:1], q[1:]) for q in groups] for node, groups in own.pooled.items()}
        same = all(np.array_equal(both[0][node], both[1][node]) for node in both[0])
        kernel, states = reading.run(
            images.taken(slice(0, 1)), images.taken(slice(1, 2)), False, None if same else pooled
        )
        out = {}
        for node, state in states.items():
            q1, q2, gap = kernel.whole(state)
            place = reading.places[node]
            cosine = np.where(np.sqrt(q1) * np.sqrt(q2) > 0, 1 - gap.value, np.nan)[0]
            if place.full and not pairs:
                cosine = np.diagonal(cosine)
            out[node] = cosine.reshape(place.shape * 2 if pairs else place.shape)
        return out

    def _table(
        self,
        X: Any,
        Y: Any,
        tangent: bool,
        memory: float,
        progress: bool,
        seeds: Mapping[Node, float] | None = None,
    ) -> tuple[Values, tuple[dict[Node, Array], dict[Node, Array]]]:
        """Compute the kernels (N, M, P) of all pairs, and the NNGP of each image with itself."""
        reading = self.reading
        given = [read_images(self.network, reading.shapes, X, "X")]
        given += [] if Y is None else [read_images(self.network, reading.shapes, Y, "Y")]
        for node, array in given[-1].items():
            if array.shape[-1] != given[0][node].shape[-1]:
                raise KcalcError(
                    f"X has {given[0][node].shape[-1]} channels at the input {node!r}, but Y has "
                    f"{array.shape[-1]}"
                )
        arrays, ones, twos = distinct(given[0], given[1] if Y is not None else None)
        images, block = Images.of(arrays), self._block(memory)
        own = reading.alone(images, tangent, block[0], seeds)
        reading.refuse_slow(own)
        left, right = np.unique(ones), np.unique(twos)
        table = self._filled(images, left, right, own, tangent, block, progress, seeds)
        rows, columns = np.searchsorted(left, ones), np.searchsorted(right, twos)
        out = {
            node: tuple(part[rows][:, columns] for part in parts) for node, parts in table.items()
        }
        return out, (
            {n: v[0][ones] for n, v in own.values.items()},
            {n: v[0][twos] for n, v in own.values.items()},
        )

    def _block(self, memory: float) -> tuple[int, int]:
        """Return two block sizes that fit into ``memory`` MiB.

        They are the number of images that are paired with themselves in one pass, and the number of
        images along a side of a block of pairs.
        """
        pairs, images = self.reading.pairs_within(memory), self.reading.images_within(memory)
        return min(pairs, images), min(isqrt(pairs), images)

    def _filled(
        self,
        images: Images,
        left: Array,
        right: Array,
        own: Own,
        tangent: bool,
        block: tuple[int, int],
        progress: bool,
        seeds: Any,
    ) -> Values:
        """Compute the kernels between the distinct images ``left`` and ``right``.

        If both contain the same images, only half of the entries are computed.
        """
        symmetric = np.array_equal(left, right)
        side = block[1]
        blocks = [
            (a, b)
            for a in _blocks(len(left), side)
            for b in _blocks(len(right), side)
            if not symmetric or a.start <= b.start
        ]
        out = {
            n: tuple(np.empty((len(left), len(right), v.shape[-1])) for v in parts)
            for n, parts in own.values.items()
        }
        for a, b in _shown(blocks, progress):
            values = self.reading.table(images, left[a], right[b], own, tangent, seeds)
            for node, parts in values.items():
                for target, part in zip(out[node], parts, strict=True):
                    target[a, b] = part
                    if symmetric and a.start < b.start:
                        target[b, a] = np.swapaxes(part, 0, 1)
        upper = np.triu_indices(len(left), 1)
        same = np.nonzero(left[:, None] == right[None, :])
        for node, parts in own.values.items():
            for target, alone in zip(out[node], parts, strict=True):
                if symmetric:
                    target[upper[1], upper[0]] = target[upper]
                target[same] = alone[left[same[0]]]
        return out

    def _finished(self, table: Mapping[Node, Array], single: bool) -> Any:
        out = {}
        for node, values in table.items():
            place = self.reading.places[node]
            shape = () if place.flat or place.count == 1 else place.shape
            out[node] = values.reshape(*values.shape[:2], *shape).astype(
                np.float32 if single else np.float64
            )
        return sole(out)

    def to_dict(self) -> dict[str, Any]:
        """Return the number of nodes, image shapes, kind of weights and assumptions as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        shapes = {str(node): list(shape) for node, shape in self.reading.shapes.items()}
        own = {
            "nodes": len(self.network),
            "image_shapes": shapes,
            "weights": WEIGHTS[self.reading.delta],
        }
        return own | {"assumptions": plain(self.assumptions)}

    def _rows(self) -> list[tuple[str, str]]:
        shapes = [
            (f"image at {node}", " x ".join(map(str, shape)))
            for node, shape in self.reading.shapes.items()
        ]
        return [
            (type(self).__name__, "value"),
            ("nodes", str(len(self.network))),
            ("weights", WEIGHTS[self.reading.delta]),
            *shapes,
        ]

    def __repr__(self) -> str:
        about = (
            f"{len(self.network)} nodes, {_listed(self.reading.shapes)}, "
            f"{WEIGHTS[self.reading.delta]} weights"
        )
        return f"{type(self).__name__}({marked(about, self)})"


class SpatialTangentKernel(SpatialKernelMap):
    """The tangent kernel of a network on images, ``K.matrix(X, Y=None)``.

    ``K.nngp.matrix(X, Y=None)`` returns its NNGP kernel, and ``K.nngp(X, Y=None)`` returns the
    cosines.
    """

    @property
    def nngp(self) -> SpatialKernelMap:
        """The kernel of the network as a Gaussian process, and its kernel maps."""
        return SpatialKernelMap(self.reading)

    @property
    def parameterization(self) -> str:
        """The parameterisation, "ntk" or "standard"."""
        return "ntk" if self.reading.fan_in is None else "standard"

    def matrix(self, X: Any, Y: Any = None, memory: float = 1024, progress: bool = False) -> Array:
        """Compute the tangent kernel of all pairs of images.

        Parameters
        ----------
        X
            Images, (N, height, width, channels), or {input: array}.
        Y
            The second set of images; None means ``X``.
        memory
            The bound on working memory, in MiB.
        progress
            Whether to show a progress bar.

        Returns
        -------
        Array
            The matrix (N, M).

        Raises
        ------
        KcalcError
            In the same cases as for ``nngp``, and for activations that jump.

        """
        return self._parts(X, Y, memory, progress, None)[1]

    def both(
        self, X: Any, Y: Any = None, memory: float = 1024, progress: bool = False
    ) -> tuple[Array, Array]:
        """Compute (NNGP, tangent kernel) in one pass.

        Parameters
        ----------
        X
            Images, (N, height, width, channels), or {input: array}.
        Y
            The second set of images; None means ``X``.
        memory
            The bound on working memory, in MiB.
        progress
            Whether to show a progress bar.

        Returns
        -------
        tuple[Array, Array]
            Two matrices, each (N, M).

        """
        return self._parts(X, Y, memory, progress, None)

    def layer_kernel(
        self, node: Node, X: Any, Y: Any = None, memory: float = 1024, progress: bool = False
    ) -> Array:
        """Compute the part of the tangent kernel that comes from the parameters of one Affine.

        Parameters
        ----------
        node
            The label of a node. The parts of all Affine nodes sum to the tangent kernel.
        X
            Images, (N, height, width, channels), or {input: array}.
        Y
            The second set of images; None means ``X``.
        memory
            The bound on working memory, in MiB.
        progress
            Whether to show a progress bar.

        Returns
        -------
        Array
            The matrix (N, M).

        Raises
        ------
        KcalcError
            In the same cases as for :meth:`matrix`, and for a node that is not an Affine.

        """
        if node not in self.network.nodes_of(Affine):
            raise unknown("Affine layer", node, map(str, self.network.nodes_of(Affine)))
        return self._parts(X, Y, memory, progress, {node: 1.0})[1]

    def _parts(
        self, X: Any, Y: Any, memory: float, progress: bool, seeds: Mapping[Node, float] | None
    ) -> tuple[Any, Any]:
        table, _ = self._table(X, Y, True, memory, progress, seeds)
        single = single_precision(X, Y)
        first, second = ({node: parts[k] for node, parts in table.items()} for k in (0, 1))
        return self._finished(first, single), self._finished(second, single)


def _one(image: Any) -> Any:
    return (
        {n: _one(v) for n, v in image.items()}
        if isinstance(image, Mapping)
        else raw_array(image, "an image")[None]
    )


def _shown(blocks: list[Any], progress: bool) -> Any:
    if not truth(progress, "progress"):
        return blocks
    from tqdm import tqdm

    return tqdm(blocks, unit="block")


def _listed(shapes: Shapes) -> str:
    return ", ".join(" x ".join(map(str, shape)) for shape in shapes.values())


def spatial_reading(
    network: Network,
    image_shape: Any,
    weights: str,
    assume_independent: bool,
    fan_in: Mapping[Node, int] | None = None,
    tangent: bool = False,
) -> LocationReading:
    """The :class:`LocationReading` of a network.

    Raises: KcalcError for unknown weights, networks with symbols, and missing or unsuitable image
    shapes.
    """
    require_network(network)
    choice(weights, "weights", WEIGHTS)
    require_numbers(network)
    shapes = input_shapes(network, image_shape)
    refuse_displaced(network, "kernels of images")
    refuse_other_sizes(network, shapes)
    return LocationReading(network, shapes, weights == "delta", assume_independent, fan_in, tangent)
