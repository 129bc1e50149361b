"""The NNGP and the neural tangent kernel of a network, as functions of c and of q values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike

from ..fields import NUMPY
from ..fields.arguments import (
    Number,
    Numbers,
    finished,
    gap_balls,
    gaps_at,
    gaps_at_angle,
    one_q,
    q_balls,
    q_of_inputs,
    q_pair,
    read_pair,
    series_length,
    single_precision,
)
from ..fields.jets import Jet
from ..foundation.errors import FreshnessError, KcalcError
from ..foundation.guests import DRAWINGS, KERNELS, READINGS
from ..foundation.keyed import Keyed
from ..foundation.plain_arguments import choice, truth, whole
from ..foundation.printing import marked, plain
from ..foundation.process_state import cached_property
from ..maps.composition import Composition, Formula
from ..maps.maps import Assumption, sole
from ..network.compose import require_network
from ..network.layers import Affine, Input
from ..network.network import Network
from .checks import in_enough_digits
from .field_maps import FieldMaps
from .homogeneity import is_odd
from .kernel import KernelReading
from .readings import OfReading
from .regime import Regime, regime
from .tangent import (
    PARAMETERIZATIONS,
    Tangent,
    parameter_nodes,
    refuse_tied,
    unseen_nodes,
    with_separate_parameters,
)
from .tangent_symbolic import symbolic_kernels
from .widths import filled

if TYPE_CHECKING:
    from jax import Array as JaxArray
    from matplotlib.axes import Axes

    from ..fields.balls import Enclosure
    from ..fields.gaps import Gap
    from ..maps.sphere import SphereEigenvalues
    from ..matrices.gram.tables import AngleTable
    from .attention.kernels import TokenKernels
    from .attention.sampling import Sampling
    from .channels import Channels
    from .kernel_matrix import KernelOfRows, Matrices
    from .spatial import SpatialTangentKernel

Node = Hashable
Array = np.ndarray
Kind = Literal["ntk", "nngp"] | None
WIDTH = Assumption(
    "network",
    "infinite width; independent weights with mean 0; the kernel is taken at initialisation",
)
NUMBERS_HELD = 1 << 25  # largest number of values in memory for one pass over many layers


@overload
def ntk(
    network: Network,
    parameterization: str = "ntk",
    features: int | None = None,
    assume_independent: bool = False,
    spatial: Literal["delta"] = "delta",
    *,
    tokens: int | None = None,
    token_cosine: float | None = None,
) -> TangentKernel: ...


@overload
def ntk(
    network: Network,
    parameterization: str = "ntk",
    features: int | None = None,
    assume_independent: bool = False,
    *,
    tokens: Any,
    sampling: Sampling | None = None,
) -> TokenKernels: ...


@overload
def ntk(
    network: Network,
    parameterization: str = "ntk",
    features: int | None = None,
    assume_independent: bool = False,
    *,
    spatial: Literal["exact"],
    image_shape: Any = None,
    weights: str = "dense",
) -> SpatialTangentKernel: ...


def ntk(
    network: Network,
    parameterization: str = "ntk",
    features: int | None = None,
    assume_independent: bool = False,
    spatial: str = "delta",
    image_shape: Any = None,
    weights: str = "dense",
    *,
    tokens: Any = None,
    token_cosine: float | None = None,
    sampling: Sampling | None = None,
) -> TangentKernel | SpatialTangentKernel | TokenKernels:
    """Compute the neural tangent kernel of a network at infinite width.

    The result is a function K: call ``K(c)``, ``K.nngp(c)`` or ``K.layers[node](c)``.

    ``K(c)`` and ``K.nngp(c)`` are kernels of one output channel. They are not divided by q values,
    so ``K.nngp`` at c = 1 is the mean square of the channel. Inputs have cosine c, and q = 1 unless
    ``q1`` and ``q2`` are given. The last Affine is included. Embeddings and learned positions count
    as Affine layers without bias that read one-hot vectors. Trained gains, such as those of norms
    and residual branches, are treated as constants. [DKS sec. 24; Jacot et al. 2018]

    With tokens, the result is the kernel between one token of each input. With an array of tokens,
    the kernels are arrays between all tokens of all sequences, and causal masks are supported.
    Softmax attention is then sampled as specified by ``sampling``.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    parameterization
        "ntk", where ``f = sigma_w W x / sqrt(fan_in) + sigma_b b`` is differentiated with respect
        to W and b; or "standard", which differentiates with respect to the weights themselves, so
        that the kernel grows with width.
    features
        The width of layers that do not specify one, for "standard".
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.
    spatial
        "delta" for the kernel at one location, as for Delta-initialised convolutions; or "exact"
        for dense convolutions and mean pooling over the locations of actual images.
        ``K.matrix(X, Y=None)`` and ``K.nngp.matrix(X, Y=None)`` then read arrays of images.
    image_shape
        (height, width), for "exact".
    weights
        The weights of convolutions, "dense" or "delta", for "exact".
    tokens
        The number of tokens of an input, for networks with attention, as in :func:`kcalc.c_map`; or
        an array, as in :func:`kcalc.node_values`: a covariance (T, T), token ids (N, T), or inputs
        (N, T, features).
    token_cosine
        The cosine between any two tokens of an input, 0 by default.
    sampling
        How attention is sampled, a :class:`kcalc.Sampling`; None samples only if no exact rule
        exists.

    Returns
    -------
    TangentKernel | SpatialTangentKernel | TokenKernels
        A :class:`TangentKernel`; a :class:`kcalc.calculi.spatial.SpatialTangentKernel` for "exact";
        a :class:`kcalc.calculi.attention.kernels.TokenKernels` for an array of tokens.

    Raises
    ------
    KcalcError
        For a network without Affine layers or trained weights, a readout tied to an embedding,
        activations that jump, unknown gradients, an unknown parameterisation or missing widths.
    FreshnessError
        If the kernel calculus does not apply; the message names the node.
    NoRule
        If a layer has no rule; the message names the node.

    Examples
    --------
    >>> import kcalc as kc
    >>> K = kc.ntk(kc.architectures.vanilla(3, "relu"))
    >>> print(K(1.0), K.nngp(1.0))
    0.5 0.125

    """
    require_network(network)
    network = with_separate_parameters(network)
    choice(parameterization, "parameterization", PARAMETERIZATIONS)
    if not parameter_nodes(network):
        raise KcalcError(
            "the network has no Affine layer, so it has no weights and no tangent kernel"
        )
    if not any(getattr(network.layer(n), "trained", True) for n in parameter_nodes(network)):
        raise KcalcError(
            "no weights of the network are trained (all have requires_grad=False), so its tangent "
            "kernel is 0. Set trained=True for layers that you train, or use kc.c_map and "
            "kc.gradients, which do not need trained weights"
        )
    if not truth(assume_independent, "assume_independent"):
        refuse_tied(network)
    features = (
        None
        if features is None
        else whole(features, "features, the number of channels of hidden layers,", 1)
    )
    options = {"spatial": spatial, "image_shape": image_shape, "weights": weights}
    options |= {"tokens": tokens, "token_cosine": token_cosine, "sampling": sampling}
    guest = READINGS.answering("ntk", **options)
    if guest is not None:
        return guest(network, parameterization, features, assume_independent)
    fan_in = None if parameterization == "ntk" else fan_ins(network, features)
    return TangentKernel(TangentReading(network, fan_in, assume_independent))


def fan_ins(network: Network, features: int | None = None) -> dict[Node, int]:
    """Return {Affine: number of channels that one of its outputs sums over; Input: its channels}.

    Nodes with a table of vectors, such as embeddings, have fan-in 1.

    ``features``: the width of layers that do not specify one. The taps of a convolution do not
    count, because only the centre tap of a Delta initialisation is non-zero. Raises: KcalcError
    naming a node of unknown width.
    """
    known = filled(network, features, Affine, Input).features
    out: dict[Node, int] = {
        node: width for node in network.inputs if (width := known[node]) is not None
    }
    for node in network.nodes_of(Affine):
        (parent,) = network.parents(node)
        width = known[parent]
        if width is None:
            kind = (
                "L.Input(features=...)"
                if parent in network.inputs
                else "features in its layer, or pass features="
            )
            raise KcalcError(
                f"the standard parameterisation needs the width of {parent!r}, which node "
                f"{node!r} reads; set {kind}"
            )
        out[node] = width // network.layer(node).groups
    tables = (node for node in parameter_nodes(network) if node not in out)
    return out | dict.fromkeys(tables, 1)


class TangentReading(KernelReading):
    """A network and the options of the tangent calculus, shared by all parts of a TangentKernel.

    ``fan_in`` is the result of :func:`fan_ins` for the standard parameterisation, otherwise None.
    ``assume`` is ``assume_independent``.
    """

    def __init__(self, network: Network, fan_in: Mapping[Node, int] | None, assume: bool) -> None:
        super().__init__(network, assume)
        self.fan_in = fan_in

    def kernel(
        self,
        field: Any,
        uniform: bool,
        seeds: Mapping[Node, Any] | None = None,
        local: FieldMaps | None = None,
    ) -> Tangent:
        """Return a new calculus over a number system; :meth:`plain_kernel` describes ``local``."""
        kernel = self.plain_kernel(field, uniform, True, local)
        return Tangent(kernel, seeds, self.fan_in, self.unseen)

    @cached_property
    def unseen(self) -> frozenset[Node]:
        """The nodes of the lowered network that no gradient of an output reaches."""
        return unseen_nodes(self.network)

    def run(
        self,
        field: Any,
        gap: dict[Node, Any],
        q1: dict[Node, Any],
        q2: dict[Node, Any] | None,
        seeds: Mapping[Node, Any] | None = None,
    ) -> tuple[Tangent, dict[Node, Channels]]:
        """Return the calculus and the state of every node; ``q2=None`` means ``q1``."""
        jets = {node: Jet((value, value * 0)) for node, value in gap.items()}
        second = q1 if q2 is None else q2
        kernel = self.kernel(field, q2 is None, seeds)
        inputs = {
            node: kernel.start(node, q1[node], second[node], jet) for node, jet in jets.items()
        }
        return kernel, self.interpreted(kernel, inputs)

    def values(
        self,
        gap: dict[Node, Any],
        q1: dict[Node, Any],
        q2: dict[Node, Any] | None,
        seeds: Mapping[Node, Any] | None = None,
    ) -> dict[Node, tuple[Array, Array]]:
        """Return {output: (NNGP, NTK)} in float64; values beyond its range are infinite."""
        kernel, states = self.run(NUMPY, gap, q1, q2, seeds)
        with np.errstate(all="ignore"):
            found = {node: kernel.kernels(states[node]) for node in self.network.outputs}
        # avoid -0
        return {node: (nngp + 0.0, tangent + 0.0) for node, (nngp, tangent) in found.items()}

    def silent(self, part: int, node: Node | None = None) -> bool:
        """Whether the NNGP or the NTK is exactly 0 at c = 0.

        ``part`` is 0 for the NNGP and 1 for the NTK. ``node`` selects the NTK of a single node.

        The kernel is 0 for an odd network without biases, because all pre-activations of orthogonal
        inputs are independent. In the standard parameterisation, biases contribute even if they
        start at 0.
        """
        if part == 1 and self.fan_in is not None:
            nodes = parameter_nodes(self.network) if node is None else (node,)
            if any(getattr(self.network.layer(n), "bias", False) for n in nodes):
                return False
        return self._odd

    @cached_property
    def _odd(self) -> bool:
        return is_odd(self.network)

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the kernels, in the order of nodes.

        Raises: the same errors as the kernels.
        """
        if self.network.free_symbols:
            return self.network.assumptions
        kernel, _ = in_enough_digits(self._run_at_one)
        return self.noting(WIDTH, kernel.notes.values())

    def _run_at_one(self, field: Any) -> tuple[Tangent, dict[Node, Channels]]:
        gap, q = (
            dict.fromkeys(self.network.inputs, np.asarray(x) if field is NUMPY else field.number(x))
            for x in (0.5, 1.0)
        )
        return self.run(field, gap, q, None)


def _orthogonal(gap: Mapping[Node, Any]) -> Array:
    """Return the mask of the points at which all inputs have c = 0."""
    return np.all(np.broadcast_arrays(*(np.asarray(value) == 1 for value in gap.values())), axis=0)


class MatrixOptions(TypedDict, total=False):
    """Options of :meth:`KernelFunction.matrix`."""

    method: Literal["auto", "angle", "pairs"]
    q: float | None
    dtype: Any
    out: Any
    block_rows: int | None
    memory: int | None
    progress: bool | None
    backend: Literal["numpy", "jax"] | None
    mesh: Any


class KernelFunction(OfReading, Formula):
    """A kernel of two inputs as a function of their c and q values.

    Its values are covariances, not cosines. Call ``K(c, q=1)`` with numbers, arrays (broadcast) or
    {input: value}, or ``K(c, q1, q2)`` if the two inputs differ in q (``q2=None`` means ``q1``).
    All methods accept q values in these two ways.
    """

    def __init__(
        self, reading: TangentReading, name: str, part: int, seeds: Mapping[Node, Any] | None = None
    ) -> None:
        self.reading, self.name = reading, name
        self._part, self._seeds = part, seeds

    @overload
    def __call__(
        self,
        c: Number,
        q1: Number | None = None,
        q2: Number | None = None,
        *,
        q: Number | None = None,
    ) -> float: ...
    @overload
    def __call__(
        self, c: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> Array: ...
    def __call__(self, c: Any, q1: Any = None, q2: Any = None, *, q: Any = None) -> float | Array:
        """Evaluate the kernel at c values in [-1, 1] and q values > 0.

        For several outputs, the result is {output: kernel}. Raises: KcalcError for c or q out of
        range.
        """
        return self._evaluate(
            gaps_at(self.network.inputs, c), *q_pair(q1, q2, q), single_precision(c, q1, q2, q)
        )

    @overload
    def at_angle(
        self,
        theta: Number,
        q1: Number | None = None,
        q2: Number | None = None,
        *,
        q: Number | None = None,
    ) -> float: ...
    @overload
    def at_angle(
        self, theta: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> Array: ...
    def at_angle(
        self, theta: Any, q1: Any = None, q2: Any = None, *, q: Any = None
    ) -> float | Array:
        """Evaluate the kernel at angles theta = arccos c in [0, pi], accurately at small angles.

        Parameters
        ----------
        theta
            The angle between the two inputs, in [0, pi].
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        float | Array
            The kernel, with the shape of ``theta``.

        """
        return self._evaluate(
            gaps_at_angle(self.network.inputs, theta),
            *q_pair(q1, q2, q),
            single_precision(theta, q1, q2, q),
        )

    def _evaluate(self, gap: dict[Node, Any], q1: Any, q2: Any, single: bool) -> Any:
        first, second, shape = q_of_inputs(self.network.inputs, q1, q2, gap)
        values = {
            node: pair[self._part]
            for node, pair in self.reading.values(gap, first, second, self._seeds).items()
        }
        for node, value in values.items():
            if not np.isfinite(value).all():
                raise KcalcError(
                    f"the {self.name} of node {node!r} exceeds double precision; lower sigma_w "
                    "or the depth"
                )
        (only, *others) = self._seeds or (None,)
        if not others and self.reading.silent(self._part, only):
            values = {
                node: np.where(_orthogonal(gap), 0.0, value) for node, value in values.items()
            }
        return sole({node: finished(value, shape, single) for node, value in values.items()})

    @cached_property
    def _on_rows(self) -> KernelOfRows:
        return KERNELS["matrices", "rows"](self.reading, self._part, self._seeds)

    @overload
    def matrix(
        self, X: Any, Y: Any = None, *, kind: Literal["both"], **options: Unpack[MatrixOptions]
    ) -> Matrices: ...
    @overload
    def matrix(
        self, X: JaxArray, Y: Any = None, *, kind: Kind = None, **options: Unpack[MatrixOptions]
    ) -> JaxArray: ...
    @overload
    def matrix(
        self, X: ArrayLike, Y: Any = None, *, kind: Kind = None, **options: Unpack[MatrixOptions]
    ) -> Array: ...
    def matrix(
        self,
        X: Any,
        Y: Any = None,
        *,
        kind: str | None = None,
        method: str = "auto",
        q: float | None = None,
        dtype: Any = None,
        out: Any = None,
        block_rows: int | None = None,
        memory: int | None = None,
        progress: bool | None = None,
        backend: str | None = None,
        mesh: Any = None,
    ) -> JaxArray | Array | Matrices:
        """Compute the kernel of all pairs of rows of ``X`` (N, d) and ``Y`` (M, d; None means X).

        The result is an (N, M) array, exact for identical rows.

        The kernel depends on the angles between rows and their q values |x|^2/d. If all q values
        agree, or the network is positively homogeneous, the kernel is a function of the angle,
        which is tabulated once (see :meth:`table`). For |c| > 0.992 the angle is computed from the
        difference (or sum) of the rows. If norms differ, pairs are followed through the layers with
        tables of the activations in the angle and both q values. For many pairs and activations
        without kinks, one such table covers the whole network. Both kinds of tables have errors of
        about 1e-12, which ``matrix_method`` reports. Activations with kinks away from 0, such as
        hard tanh, have no table. The exact recursion then runs for every pair of rows and takes
        about a millisecond per pair and layer. The result has the type of X: NumPy, JAX
        (differentiable in X) or dask. For float32 data, the result is float32, computed in double
        precision.

        A zero row has no angle; its kernels depend on the other row's norm. These kernels are 0 if
        the network has no biases and every activation has phi(0) = 0. A normalisation layer maps a
        zero feature map to 0, as deep learning frameworks do.

        Parameters
        ----------
        X
            The rows of data, (n, features).
        Y
            The second set of inputs; None means ``X``.
        kind
            "ntk", "nngp", or "both" as for :meth:`matrices`; by default the kind of this kernel.
        method
            "auto"; "angle" to require the function of the angle; or "pairs" for the general
            recursion in (c, q1, q2), which is exact but slow.
        q
            The q value assumed for all rows, so that only angles matter. None computes q from the
            rows.
        dtype
            The dtype of the result.
        out
            A path (``.npy``; a record next to it lets an interrupted run continue) or an array to
            fill. For both kernels, pass two paths or arrays.
        block_rows
            The number of rows computed at once; it replaces ``memory``.
        memory
            The bytes of work space in addition to X and the result, 512 MiB by default.
        progress
            True shows a progress bar, False shows none. By default, a bar appears after 2 seconds
            on a terminal and in a notebook.
        backend
            "numpy" or "jax", for NumPy data.
        mesh
            A :class:`jax.sharding.Mesh` over whose devices rows are distributed.

        Returns
        -------
        JaxArray | Array | Matrices
            The matrix (N, M); a JAX array for JAX data.

        Raises
        ------
        KcalcError
            For zero rows if ``q`` is passed, nan, wrong shapes, several inputs or outputs, files of
            another run, or unknown options.

        """
        work = (dtype, out, block_rows, memory, progress, backend, mesh)
        return self._on_rows.matrix(X, Y, kind, method, q, work)

    def matrix_method(
        self, X: Any, Y: Any = None, *, method: str = "auto", q: float | None = None, **_: Any
    ) -> str:
        """Describe how :meth:`matrix` computes the entries for NumPy data.

        If it interpolates in tables, the text includes their error. The arguments are the same as
        for :meth:`matrix`.

        Parameters
        ----------
        X
            The rows of data, (n, features).
        Y
            The second set of inputs, (m, features); None means ``X``.
        method
            See :meth:`matrix`.
        q
            The mean square of the inputs, > 0.
        **_
            Ignored.

        Returns
        -------
        str
            One sentence.

        Raises
        ------
        KcalcError
            In the same cases as :meth:`matrix`.

        """
        return self._on_rows.matrix_method(X, Y, method, q)

    def matrices(self, X: Any, Y: Any = None, **options: Unpack[MatrixOptions]) -> Matrices:
        """Compute the NNGP and the NTK of the same data in one pass, as ``.nngp`` and ``.ntk``.

        The arguments are the same as for :meth:`matrix`.

        Parameters
        ----------
        X
            The rows of data, (n, features).
        Y
            The second set of inputs, (m, features); None means ``X``.
        **options
            The options of :meth:`matrix`.

        Returns
        -------
        Matrices
            Both matrices, each (N, M).

        """
        return self.matrix(X, Y, kind="both", **options)

    def table(self, q: float = 1.0) -> AngleTable:
        """Return the table that :meth:`matrix` uses for inputs with the same q value.

        It has an ``error_bound``; evaluate it with ``at_gap(1 - c)``.

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        AngleTable
            The table as a function of c.

        """
        return self._on_rows.table(q)

    def condition_number(self, X: Any, **options: Any) -> float:
        """Compute lambda_max / lambda_min of the kernel matrix of the rows of X.

        It is infinite if lambda_min is below the rounding error. The options are the same as for
        :meth:`matrix`.

        Parameters
        ----------
        X
            The rows of data, (n, features).
        **options
            The options of :meth:`matrix`.

        Returns
        -------
        float
            A number >= 1, or infinity.

        """
        if options.get("kind") == "both":
            raise KcalcError(
                "kind='both' returns two matrices with separate condition numbers; call "
                "condition_number once for each of kind='ntk' and kind='nngp'"
            )
        return self._on_rows.condition_number(self.matrix(X, **options))

    def sphere_eigenvalues(
        self, dimension: int, max_degree: int, q: float = 1.0
    ) -> SphereEigenvalues:
        """Return the eigenvalues of the kernel on the unit sphere S^(d-1) with uniform probability.

        The kernel is ``K(c) = sum_k lambda_k N(d, k) P_k(c)``. P_k is the Gegenbauer polynomial
        with ``P_k(1) = 1``, and N(d, k) is the number of spherical harmonics of degree k. Hence
        ``sum_k N(d, k) lambda_k = K(1)``.

        Parameters
        ----------
        dimension
            d >= 2, the number of features of the inputs. d = 2 is the circle.
        max_degree
            The highest degree k.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        SphereEigenvalues
            The eigenvalues for the degrees 0 to ``max_degree``.

        Raises
        ------
        KcalcError
            For networks with several inputs or outputs, and for an invalid dimension or degree.

        Examples
        --------
        >>> import kcalc as kc
        >>> found = kc.ntk(kc.architectures.vanilla(1, "relu")).sphere_eigenvalues(3, 2)
        >>> print(f"{found.eigenvalues[0]:.6f} {found.multiplicities}")
        0.458333 (1, 3, 5)

        """
        from ..maps.sphere import sole_input, sphere_eigenvalues

        node, output = sole_input(self.network.inputs, self.network.outputs)
        level = {node: np.asarray(one_q(q))}

        def kernel(gap: Gap) -> Array:
            values = self.reading.values({node: gap}, level, None, self._seeds)[output]
            return values[self._part] + 0 * np.asarray(gap)

        return sphere_eigenvalues(kernel, self.name, dimension, max_degree, self.assumptions)

    def symbolic(
        self, q1: Any = None, q2: Any = None, *, q: Any = None
    ) -> Composition | dict[Node, Composition]:
        """Return the kernel as a named composition at numeric or symbolic q values.

        In the composition, ``c_k`` are cosines and ``t_k`` are tangent kernels divided by sqrt(q1
        q2).

        Parameters
        ----------
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Composition | dict[Node, Composition]
            The composition, or {output: composition} for several outputs.

        Raises
        ------
        KcalcError
            In the same cases as for ``symbolic`` of a C map.

        """
        reading = self.reading
        reading.require_closed()
        found = symbolic_kernels(
            reading.network, *q_pair(q1, q2, q), self._seeds, reading.fan_in, reading.assume
        )
        return sole({node: pair[self._part] for node, pair in found.items()})

    def ball(
        self, c: Any, q1: Any = None, q2: Any = None, digits: int = 30, *, q: Any = None
    ) -> Enclosure:
        """Compute a certified enclosure of the kernel for scalar arguments (or {input: scalar}).

        The enclosure is proven, not estimated.

        Parameters
        ----------
        c
            The cosine between the two inputs, in [-1, 1].
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        digits
            The number of decimal digits.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Enclosure
            A :class:`kcalc.fields.balls.Enclosure`, or {output: enclosure} for several outputs.

        Raises
        ------
        KcalcError
            In the same cases as for ``ball`` of a C map.

        """
        from ..fields.balls import Enclosure, ball_field

        q1, q2 = q_pair(q1, q2, q)
        field = ball_field(digits)
        gap = gap_balls(self.network.inputs, c, field)
        first, second = read_pair(
            lambda given, what: q_balls(self.network.inputs, given, what, field), q1, q2
        )
        with field.working():
            try:
                kernel, states = self.reading.run(field, gap, first, second, self._seeds)
            except FreshnessError as error:  # the rule exists only in double precision
                why = str(error).split(";")[0]
                raise KcalcError(
                    f"{why}; the kernel has no certified enclosure. Use {self.name}(c) to "
                    "compute it in double precision"
                ) from None
            found = {
                node: kernel.kernels(states[node])[self._part] for node in self.network.outputs
            }
            out = {
                node: Enclosure.of(value).checked(self._at(node, q1, q2))
                for node, value in found.items()
            }
        return sole(out)

    def _at(self, node: Node, q1: Any, q2: Any) -> str:
        names = sorted({phi.name for phi in self.network.activations})
        return (
            f"{self.name} of node {node!r} with {', '.join(names) or 'no activation'} at q1 = "
            f"{q1}, q2 = {q1 if q2 is None else q2}"
        )

    def plot(
        self, ax: Axes | None = None, q1: Any = None, q2: Any = None, *, q: Any = None, **line: Any
    ) -> Axes:
        """Draw the kernel over c in [-1, 1].

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        q
            The mean square of the inputs, > 0.
        **line
            Further options of the line, passed to matplotlib.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        label = f"{self.name}, {self.network.name}" if self.network.name else self.name
        return DRAWINGS["KernelFunction"]({label: self}, ax=ax, q1=q1, q2=q2, q=q, **line)

    def to_dict(self, points: int = 41) -> dict[str, Any]:
        """Return the name, sampled values at q = 1 and the assumptions as plain data.

        Parameters
        ----------
        points
            The number of sampled points.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        theta = np.linspace(np.pi, 0, series_length(points))
        values = self.at_angle(theta)
        sampled = (
            {str(k): v.tolist() for k, v in values.items()}
            if isinstance(values, dict)
            else values.tolist()
        )
        return {
            "kernel": self.name,
            "c": np.cos(theta).tolist(),
            "values": sampled,
            "assumptions": plain(self.assumptions),
        }

    def __repr__(self) -> str:
        about = self.network.name or f"{len(self.network)} nodes"
        return f"KernelFunction({marked(f'{self.name}, {about}', self)})"


class TangentKernel(KernelFunction):
    """The neural tangent kernel: ``K(c)`` is the sum of ``K.layers[node](c)``.

    The nodes with parameters are Affine layers, embeddings and learned positions; the tables of
    embeddings and positions are trained like the weights of an Affine on one-hot vectors.
    ``K.nngp`` is the kernel of the network as a Gaussian process.
    """

    def __init__(self, reading: TangentReading) -> None:
        super().__init__(reading, "NTK", 1)
        _ = reading.assumptions  # raises here for networks outside the calculus
        self.nngp = KernelFunction(reading, "NNGP", 0, {})
        self.layers = LayerKernels(reading)

    @property
    def parameterization(self) -> str:
        """The parameterisation, "ntk" or "standard"."""
        return "ntk" if self.reading.fan_in is None else "standard"

    def regime(self, c: float = 0.0, q: float = 1.0) -> Regime:
        """Classify the regime at this depth: "collapsing", "exploding", "edge" or "data-dependent".

        See :func:`kcalc.calculi.regime.regime`.

        Parameters
        ----------
        c
            The cosine between the two inputs, in [-1, 1].
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Regime
            The regime, with the slopes that determine it.

        """
        return regime(self, c, q)

    @overload
    def by_layer(
        self,
        c: Number,
        q1: Number | None = None,
        q2: Number | None = None,
        *,
        q: Number | None = None,
    ) -> dict[Node, float]: ...
    @overload
    def by_layer(
        self, c: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> dict[Node, Array]: ...
    def by_layer(
        self, c: Any, q1: Any = None, q2: Any = None, *, q: Any = None
    ) -> dict[Node, float] | dict[Node, Array]:
        """Return {node with parameters: its part of the kernel} for a network with one output.

        Many parts are computed in one pass.

        Parameters
        ----------
        c
            The cosine between the two inputs, in [-1, 1].
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        dict[Node, float] | dict[Node, Array]
            The parts, which sum to the kernel.

        """
        q1, q2 = q_pair(q1, q2, q)
        if len(self.network.outputs) != 1:
            raise KcalcError("by_layer needs one output; use K.layers[node](c)")
        nodes = parameter_nodes(self.network)
        gap = gaps_at(self.network.inputs, c)
        first, second, shape = q_of_inputs(self.network.inputs, q1, q2, gap)
        room = max(1, NUMBERS_HELD // (len(self.network) * max(1, prod(shape))))
        parts = []
        for start in range(0, len(nodes), room):
            few = nodes[start : start + room]
            rows = np.eye(len(few)).reshape(len(few), len(few), *(1,) * len(shape))
            ((_, values),) = self.reading.values(
                gap, first, second, dict(zip(few, rows, strict=True))
            ).values()
            parts.extend(np.broadcast_to(values, (len(few), *shape)))
        zero = np.broadcast_to(_orthogonal(gap), shape)
        cleared = (
            np.where(zero, 0.0, part) if self.reading.silent(1, node) else part
            for node, part in zip(nodes, parts, strict=True)
        )
        return {node: part.copy()[()] for node, part in zip(nodes, cleared, strict=True)}

    def __repr__(self) -> str:
        about = self.network.name or f"{len(self.network)} nodes"
        return (
            f"TangentKernel({marked(f'{about}, {self.parameterization} parameterisation', self)})"
        )


class LayerKernels(Keyed[KernelFunction]):
    """A mapping from each node with parameters to the part of the tangent kernel that it adds."""

    _named = "node with parameters"

    def __init__(self, reading: TangentReading) -> None:
        self._reading, self._nodes = reading, parameter_nodes(reading.network)

    @property
    def _entries(self) -> dict[Node, KernelFunction]:
        return {
            node: KernelFunction(self._reading, f"NTK of {node}", 1, {node: 1})
            for node in self._nodes
        }

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"LayerKernels({len(self._nodes)} nodes with parameters)"
