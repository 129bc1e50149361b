"""A network as pure functions on pytrees of JAX arrays: ``kc.to_jax(network, features)``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, overload

from ..calculi.arrays import Shape
from ..calculi.checks import refuse_displaced
from ..calculi.widths import given_widths
from ..fields.arguments import raw_array
from ..fields.jax_field import is_jax
from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import is_key, truth
from ..foundation.printing import Shown, plain, shown
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network.compose import fold, require_network
from ..network.layers import Affine, Dropout, Embedding
from ..network.network import Network, require_numbers
from .checks import doubles_off, refuse_rounded, refuse_traced, same_batch
from .initialisers import Initialiser, Mirrored, describes_theory, random_bits
from .network_plan import ArrayPlan, Params, make_plan
from .options import dtype_name, images, laws, runnable
from .parameterization import Parameterization
from .parameterization import parameterization as named_parameterization

if TYPE_CHECKING:
    from jax import Array

Node = Hashable


@dataclass(frozen=True, eq=False)
class Model(Shown):
    """A network with widths and distributions of initial weights.

    ``init`` and ``apply`` are pure functions, for use with jit, grad, vmap and shard_map.

    Parameters are {entry: {"weight": ..., "bias": ...}}. Every node with weights has an entry.
    Corresponding nodes of a repeated block share an entry ``"first..last"`` with a leading axis.
    Dense weights have shape (in, out); convolutions on NHWC images have shape (rows, columns,
    in / groups, out).

    Attributes
    ----------
    network
        The network.
    parameterization
        "standard", "ntk", "mup" or a ``kcalc.backend.ABC``.
    dtype
        The dtype of the parameters.

    """

    network: Network
    features: Mapping[Node, int]
    default_features: int | None
    image_shapes: Mapping[Node, tuple[int, int]]
    laws: Mapping[Node, Initialiser]
    parameterization: Parameterization
    dtype: str = "float32"
    remat: bool = False
    rolled: bool = True
    trainable_norms: bool = False
    _plans: dict[Any, ArrayPlan] = field(default_factory=dict, repr=False)
    _compiled: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without compiled functions, which cannot be pickled."""
        return {**self.__dict__, "_compiled": {}}

    # -- the functions -----------------------------------------------------------------------------

    def init(self, key: Any, x: Any = None) -> Params:
        """Return initial parameters.

        Parameters
        ----------
        key
            ``jax.random.key(seed)`` or an integer. If you also draw data from this key, split it
            first; otherwise the first weights would equal the data.
        x
            An example input or {input: array}. It sets the number of channels of inputs that do not
            specify it.

        Returns
        -------
        Params
            Random initial parameters, stacked for repeated blocks.

        Raises
        ------
        KcalcError
            If extents do not fit; the message names the node.

        """
        import jax

        plan = self.plan(x)
        drawing = self._function("init", plan, lambda: jax.jit(lambda k: plan.draw(k, self._dtype)))
        with self.precision():
            drawn = drawing(random_bits(key))
        if doubles_off(self.dtype):
            refuse_traced("initial weights", drawn)
        return drawn

    def init_state(self, x: Any = None) -> Params:
        """Return the state that is kept between steps: BatchNorm's running mean and variance.

        Parameters
        ----------
        x
            An example input, (..., channels) or {input: array}.

        Returns
        -------
        Params
            The initial state; an empty dictionary if the network has no BatchNorm.

        """
        with self.precision():
            return self.plan(x).fresh_state(self._dtype)

    @overload
    def apply(
        self, params: Params, x: Any, state: None = None, train: bool = False, key: Any = None
    ) -> Array: ...
    @overload
    def apply(
        self, params: Params, x: Any, state: Params, train: bool = False, key: Any = None
    ) -> tuple[Array, Params]: ...
    def apply(
        self,
        params: Params,
        x: Any,
        state: Params | None = None,
        train: bool = False,
        key: Any = None,
    ) -> Array | dict[Node, Array] | tuple[Array | dict[Node, Array], Params]:
        """Return the output, with shape (..., channels), or {output: array} for several outputs.

        Parameters
        ----------
        params
            The parameters of the model, as ``model.init`` returns them.
        x
            An array (..., channels), images (..., height, width, channels), or {input: array}.
        state
            The state of BatchNorm layers. If it is given, the result is (output, new state).
        train
            Whether to use batch statistics and dropout, with random numbers from ``key``.
        key
            The random key for dropout.

        Returns
        -------
        Array | dict[Node, Array] | tuple[Array | dict[Node, Array], Params]
            The output; with ``state``, a pair of the output and the new state.

        Raises
        ------
        KcalcError
            For inputs or parameters that do not fit the model.

        """
        states, new = self._run(params, x, state, train, key, keep=False)
        out = (
            states[self.network.outputs[0]]
            if len(self.network.outputs) == 1
            else {node: states[node] for node in self.network.outputs}
        )
        return out if state is None else (out, new)

    def trace(
        self,
        params: Params,
        x: Any,
        state: Params | None = None,
        train: bool = False,
        key: Any = None,
    ) -> dict[Node, Array]:
        """Return the feature maps of all nodes, including inputs, as :meth:`apply` computes them.

        Parameters
        ----------
        params
            The parameters of the model, as ``model.init`` returns them.
        x
            The input, as for :meth:`apply`.
        state
            The state of BatchNorm layers, as ``model.init_state`` returns it.
        train
            Whether dropout and batch statistics are on.
        key
            The random key for dropout.

        Returns
        -------
        dict[Node, Array]
            {node: its feature map}, each of shape (..., channels).

        """
        return self._run(params, x, state, train, key, keep=True)[0]

    def _run(
        self, params: Any, x: Any, state: Any, train: bool, key: Any, keep: bool
    ) -> tuple[dict[Node, Array], Params]:
        import jax

        if doubles_off(self.dtype):
            inputs = x if isinstance(x, Mapping) else {self.network.inputs[0]: x}
            named = ((f"the input {node!r}", array) for node, array in inputs.items())
            refuse_rounded(
                (*named, *(("an array of params", leaf) for leaf in jax.tree.leaves(params)))
            )
        with self.precision():
            inputs = self.inputs_of(x)
            shapes = {node: self._shape(node, array) for node, array in inputs.items()}
            same_batch(inputs, {node: len(shape.axes) for node, shape in shapes.items()})
            plan = self._plan_of(shapes)
            self._check_params(plan, params)
            if plan.states and state is None:
                raise KcalcError(
                    f"node {plan.states[0].nodes[0]!r} (BatchNorm) keeps running statistics; "
                    "pass state=model.init_state()"
                )
            if state is not None:
                plan.check(state, "state")
            bits, train = None if key is None else random_bits(key), truth(train, "train")

            def run(
                params: Params, inputs: Any, state: Params | None, key: Any
            ) -> tuple[Any, Params]:
                calculus = plan.arrays(
                    params, state, train=train, key=key, remat=self.remat, keep=keep
                )
                states = fold(plan.folded, calculus, inputs)
                wanted = (
                    {**states, **calculus.kept}
                    if keep
                    else {node: states[node] for node in self.network.outputs}
                )
                return [wanted[node] for node in wanted_nodes], plan.by_name(calculus.new_state)

            wanted_nodes = list(self.network) if keep else list(self.network.outputs)
            named = self._function(
                ("apply", train, keep), plan, lambda: jax.jit(_by_position(run, list(inputs)))
            )
            found, new = named(params, list(inputs.values()), state, bits)
        if doubles_off(self.dtype) and train and self.network.nodes_of(Dropout):
            refuse_traced("dropout", found)
        return dict(zip(wanted_nodes, found, strict=True)), new

    def _check_params(self, plan: ArrayPlan, params: Any) -> None:
        """Raise KcalcError unless the parameters fit the plan.

        If the parameters were made for inputs with different channels or tokens, the message says
        so.
        """
        try:
            plan.check(params)
        except KcalcError:
            for other in reversed(self._plans.values()):
                if other is not plan and other.holds(params):
                    wrong = next(
                        node
                        for node in self.network.inputs
                        if other.shapes[node] != plan.shapes[node]
                    )
                    one, two = plan.shapes[wrong], other.shapes[wrong]
                    what = "channels" if one.channels != two.channels else "tokens"
                    given, made = (
                        shape.channels if what == "channels" else math.prod(shape.locations or (1,))
                        for shape in (one, two)
                    )
                    raise KcalcError(
                        f"the input {wrong!r} has {given} {what}, but these params are for "
                        f"{made}; pass inputs like those passed to model.init(key, x)"
                    ) from None
            raise

    def _function(self, purpose: Any, plan: ArrayPlan | None, make: Any) -> Any:
        """Return a compiled function, which is built once for each purpose and plan.

        Other objects that are built on the model cache their functions here too.
        """
        known = self._compiled
        if (purpose, id(plan)) not in known:
            known[purpose, id(plan)] = make()
        return known[purpose, id(plan)]

    @property
    def _dtype(self) -> Any:
        import jax.numpy as jnp

        return jnp.dtype(self.dtype)

    def precision(self) -> AbstractContextManager[object]:
        """Return a context in which JAX supports the model's dtype.

        Returns
        -------
        AbstractContextManager[object]
            A context manager, to be used in a ``with`` statement.

        """
        import jax

        return jax.enable_x64(True) if self.dtype == "float64" else nullcontext()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Return a context like :meth:`precision` that also makes matrix products accurate.

        By default, GPUs may round the operands of float32 matrix products to 10 mantissa bits.
        """
        import jax

        with self.precision(), jax.default_matmul_precision("highest"):
            yield

    # -- inputs ------------------------------------------------------------------------------------

    def inputs_of(self, x: Any) -> dict[Node, Array]:
        """Return {input: array of the model's dtype}."""
        import jax.numpy as jnp

        given = x if isinstance(x, Mapping) else {self.network.inputs[0]: x}
        if not isinstance(x, Mapping) and len(self.network.inputs) > 1:
            raise KcalcError(
                f"the network has {len(self.network.inputs)} inputs; pass "
                f"x={{{self.network.inputs[0]!r}: ..., ...}}"
            )
        for node in (*self.network.inputs, *given):
            if not is_key(node, given) or not is_key(node, self.network.inputs):
                raise KcalcError(
                    f"x must contain an array for each of the inputs {list(self.network.inputs)}, "
                    f"got {glimpse(list(given))}"
                )
        arrays: dict[Node, Array] = {}
        for node in self.network.inputs:
            # NumPy converts other objects; it rejects a list that contains itself
            value = given[node]
            arrays[node] = (
                value if is_jax(value) else jnp.asarray(raw_array(value, f"the input {node!r}"))
            )
            if jnp.issubdtype(arrays[node].dtype, jnp.complexfloating):
                raise KcalcError(f"the input {node!r} must be real, got {arrays[node].dtype}")
            if node in self.id_inputs:
                arrays[node] = self._read_ids(node, arrays[node])
            else:
                arrays[node] = arrays[node].astype(self._dtype)
        return arrays

    @cached_property
    def id_inputs(self) -> frozenset[Node]:
        """Return the inputs that only embeddings read: integer token ids of shape (..., tokens)."""
        tables = self.network.nodes_of(Embedding)
        others = {p for n, _, parents in self.network.steps() if n not in tables for p in parents}
        read = {p for table in tables for p in self.network.parents(table)}
        return frozenset(read.difference(others).intersection(self.network.inputs))

    @staticmethod
    def _read_ids(node: Node, ids: Array) -> Array:
        """Return token ids with two added axes of length 1, for image columns and channels."""
        import jax.numpy as jnp

        if not jnp.issubdtype(ids.dtype, jnp.integer) or ids.ndim == 0:
            raise KcalcError(
                f"the input {node!r} is read by an Embedding and must contain integer token ids "
                f"of shape (..., tokens), got {ids.dtype}"
            )
        return ids[..., None, None]

    def _shape(self, node: Node, array: Array) -> Shape:
        """Return the shape of one example in a batch."""
        if node in self.id_inputs:
            return Shape(1, (int(array.shape[-3]), 1))
        locations = self.image_shapes.get(node)
        axes = 1 if locations is None else 3
        expected = (
            "(..., channels)"
            if locations is None
            else f"(..., {locations[0]}, {locations[1]}, channels)"
        )
        if array.ndim < axes or (locations is not None and tuple(array.shape[-3:-1]) != locations):
            raise KcalcError(
                f"the input {node!r} must have shape {expected}, got {tuple(array.shape)}; use "
                "image_shape= to set the locations"
            )
        layer: Any = self.network.layer(node)
        stated = layer.features or self.features.get(node)
        if stated is not None and array.shape[-1] != stated:
            hint = "" if locations is not None else "; for images, set image_shape=(height, width)"
            raise KcalcError(
                f"the input {node!r} must have {stated} channels, got {array.shape[-1]} (shape "
                f"{tuple(array.shape)}){hint}"
            )
        return Shape(int(array.shape[-1]), locations)

    def plan(self, x: Any = None) -> ArrayPlan:
        """Return the plan for running the network on inputs like ``x``.

        Without ``x``, inputs have the channels that their layers specify, or the common width.
        """
        if x is not None:
            with self.precision():
                return self._plan_of(
                    {node: self._shape(node, array) for node, array in self.inputs_of(x).items()}
                )
        ids = next((node for node in self.network.inputs if node in self.id_inputs), None)
        if ids is not None:
            raise KcalcError(
                f"the number of tokens of the input {ids!r} is unknown; pass example ids, as in "
                "model.init(key, ids)"
            )
        return self._plan_of({node: self._stated(node) for node in self.network.inputs})

    def _stated(self, node: Node) -> Shape:
        """Return the shape of one example, as specified by the layer or the model options."""
        layer: Any = self.network.layer(node)
        channels = layer.features or self.features.get(node, self.default_features)
        if channels is None:
            raise KcalcError(
                f"the number of channels of the input {node!r} is unknown; pass an example, as in "
                f"model.init(key, x), or make the model with features={{{node!r}: ..., None: "
                "others}"
            )
        return Shape(int(channels), self.image_shapes.get(node))

    def _plan_of(self, shapes: Mapping[Node, Shape]) -> ArrayPlan:
        """Return the plan for running the network on inputs of the given shapes."""
        key = tuple(shapes.items())
        if key not in self._plans:
            default = self.default_features
            others = (
                {} if default is None else dict.fromkeys(self.network.nodes_of(Affine), default)
            )
            known = others | dict(self.features)
            self._plans[key] = make_plan(
                self.network,
                shapes,
                known,
                self.laws,
                self.parameterization,
                self.rolled,
                self.trainable_norms,
            )
        return self._plans[key]

    # -- parameters by node ------------------------------------------------------------------------

    def unstack(self, params: Params, x: Any = None) -> dict[Node, dict[str, Array]]:
        """Return {node: {"weight": ..., "bias": ...}}, with repeated blocks unstacked.

        Parameters
        ----------
        params
            The parameters of the model, as ``model.init`` returns them.
        x
            The example input that :meth:`init` received, if any.

        Returns
        -------
        dict[Node, dict[str, Array]]
            One entry per node with parameters.

        """
        plan = self._plan_for(params, x)
        self._check_params(plan, params)
        return plan.unstacked(params)

    def stack(self, own: Mapping[Node, Mapping[str, Array]], x: Any = None) -> Params:
        """Return the parameters of the model, given {node: {"weight": ..., "bias": ...}}.

        This method is the inverse of :meth:`unstack`.

        Parameters
        ----------
        own
            {node: {"weight": ..., "bias": ...}}.
        x
            The example input that :meth:`init` received, if any.

        Returns
        -------
        Params
            Parameters in the form that :meth:`apply` expects.

        """
        with self.precision():
            plan = (
                self.plan(x)
                if x is not None or len(self._plans) != 1
                else next(iter(self._plans.values()))
            )
            return plan.stacked(own)

    def node_params(self, params: Params, node: Node, x: Any = None) -> dict[str, Array]:
        """Return the weights of one node.

        Parameters
        ----------
        params
            The parameters of the model, as ``model.init`` returns them.
        node
            The label of a node.
        x
            The example input that :meth:`init` received, if any.

        Returns
        -------
        dict[str, Array]
            {"weight": array, "bias": array}, with only the arrays that the node has.

        Raises
        ------
        KcalcError
            If the node has no weights.

        """
        own = self.unstack(params, x)
        if not is_key(node, own):
            self.network.layer(node)
            raise KcalcError(
                f"node {node!r} has no weights; the nodes with weights are "
                f"{', '.join(map(str, list(own)[:8]))}"
            )
        return own[node]

    def _plan_for(self, params: Any, x: Any) -> ArrayPlan:
        """Return the plan for inputs like ``x``, or without ``x`` a plan that fits ``params``."""
        if x is not None:
            return self.plan(x)
        return (
            next((plan for plan in reversed(self._plans.values()) if plan.holds(params)), None)
            or self.plan()
        )

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Return the assumptions, node by node, under which kernel maps describe this model.

        The list includes nodes that kernel maps do not describe, and any differences between
        the network and a model that it was read from.

        If inputs do not specify their channels, call ``init`` or ``apply`` first.
        """
        plan = next(reversed(self._plans.values())) if self._plans else self.plan()
        found = [
            Assumption(
                node,
                f"{plan.laws[node].name} weights of shape {fan.shape} are not distributed as "
                "kernel maps assume",
                "heuristic",
            )
            for node, fan in plan.fans.items()
            if not describes_theory(plan.laws[node], fan)
        ]
        return (*self.network.assumptions, *found)

    def to_dict(self) -> dict[str, Any]:
        """Return the widths, weight distributions and settings as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        laws = {str(node): law.name for node, law in self.laws.items()}
        own = {
            "parameterization": self.parameterization.name,
            "dtype": self.dtype,
            "nodes": len(self.network),
        }
        widths = {"features": plain(self.features), "default_features": self.default_features}
        return own | widths | {"laws": laws, "assumptions": plain(self.assumptions)}

    def _rows(self) -> list[tuple[str, ...]]:
        widths = self.network.features
        cells = (
            (str(n), shown(self.features.get(n, widths.get(n) or self.default_features)), law.name)
            for n, law in self.laws.items()
        )
        return [("node", "features", "law of the weights"), *cells]

    def __repr__(self) -> str:
        laws = sorted({law.name for law in self.laws.values()})
        return (
            f"Model({self.network!r}, {self.parameterization.name} parameterization, "
            f"{', '.join(laws)} weights, {self.dtype})"
        )


def _by_position(run: Any, nodes: list[Node]) -> Any:
    """Return ``run`` as a function of a list of inputs.

    A list replaces {node: input}, because node labels may not be valid pytree keys.
    """
    return lambda params, arrays, state, key: run(
        params, dict(zip(nodes, arrays, strict=True)), state, key
    )


class Trainable(Protocol):
    """A shaping that :func:`to_jax` can turn into a model."""

    @property
    def to_train(self) -> tuple[Network, tuple[Node, ...]]:
        """Return the network to train, and the nodes whose initial weights are mirrored."""
        ...


def to_jax(
    network: Network | Trainable,
    features: int | Mapping[Node, int] | None = None,
    image_shape: tuple[int, int] | Mapping[Node, tuple[int, int]] | None = None,
    parameterization: Any = "standard",
    weights: Any = "delta_orthogonal",
    dtype: Any = "float32",
    remat: bool = False,
    rolled: bool = True,
    trainable_norms: bool = False,
) -> Model:
    """Turn a network or shaping into functions ``init`` and ``apply`` on JAX arrays.

    Isomorphic consecutive blocks run as one scan with stacked parameters, so deeper networks do not
    take longer to compile. Initial weights and outputs are the same as for the unrolled network.

    Parameters
    ----------
    network
        A :class:`kcalc.Network` or a shaping.
    features
        The width of layers that do not specify one, or {node: width}, in which the key None sets
        all other nodes.
    image_shape
        The (height, width) of inputs that do not specify it.
    parameterization
        "standard", "ntk", "mup" or ``kcalc.backend.ABC(...)``.
    weights
        The distribution of initial weights, or {node: distribution}, in which the key None
        sets all other nodes. The names are "delta_orthogonal" (which is "orthogonal" in dense
        layers), "delta_gaussian", "orthogonal", "gaussian", "geometric" and the others in
        ``kcalc.backend.LAWS``.
    dtype
        "float32" or "float64".
    remat
        Whether to keep only the inputs of each repeated block and to recompute the rest for
        gradients.
    rolled
        Whether repeated blocks run as one scan.
    trainable_norms
        Whether normalisation layers have a trainable gain and offset.

    Returns
    -------
    Model
        A model with ``init``, ``apply`` and ``trace``.

    Raises
    ------
    KcalcError
        For symbolic constants, unknown names, nodes or distributions, extents that do not fit,
        layers that cannot be run on arrays, and networks whose locations are in a different order
        than in the model that they were read from.

    Examples
    --------
    >>> import jax
    >>> import kcalc as kc
    >>> model = kc.to_jax(kc.architectures.vanilla(2, "tanh", features=16))
    >>> params = model.init(0)
    >>> model.apply(params, jax.numpy.ones((4, 16))).shape
    (4, 16)

    """
    source, own_laws = _source(network)
    refuse_displaced(source, "outputs for images")
    require_numbers(source)
    runnable(source)
    given = {"remat": remat, "rolled": rolled, "trainable_norms": trainable_norms}
    flags: dict[str, Any] = {name: truth(value, name) for name, value in given.items()}
    if remat and not rolled:
        raise KcalcError(
            "remat=True recomputes the inside of repeated blocks, but rolled=False leaves no "
            "such blocks; use rolled=True"
        )
    widths, default = given_widths(source, features)
    model = Model(
        source,
        widths,
        default,
        images(source, image_shape),
        laws(source, weights) | own_laws,
        named_parameterization(parameterization),
        dtype_name(dtype),
        **flags,
    )
    if all(
        getattr(source.layer(node), "features", None) or node in widths for node in source.inputs
    ):
        model.plan()  # raises an error immediately if options do not fit
    return model


def as_model(model: Any) -> Model:
    """Return ``model``.

    Raises KcalcError unless it is a Model.
    """
    if not isinstance(model, Model):
        raise KcalcError(
            f"expected a model, got {type(model).__name__}; make one with kc.to_jax(network, "
            f"features)"
        )
    return model


def _source(network: Any) -> tuple[Network, dict[Node, Initialiser]]:
    """Return the network to run, and the initialisers that its shaping requires."""
    shaping: Any = None if isinstance(network, Network) else getattr(network, "to_train", None)
    if shaping is not None:
        source, mirrored = shaping
        return source, dict.fromkeys(mirrored, Mirrored())
    require_network(network)
    return network.written_out(), {}
