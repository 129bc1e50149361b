"""The loss, and compiled loops for training and evaluation with many steps per dispatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ... import Model
from ...foundation.errors import KcalcError
from ...foundation.process_state import cached_property
from .data import Split
from .optimisers import optimiser
from .settings import Settings

Array = Any
Tree = dict[str, Any]
EXAMPLES = 512  # examples evaluated at once
STEPS = 50  # training steps per dispatch


def cross_entropy(logits: Array, labels: Array, smoothing: float = 0.0) -> Array:
    """Return ``-sum_k p_k log softmax(z)_k`` for each example.

    Here p_k is smoothing / classes, plus 1 - smoothing if k is the label.

    The shapes are ``logits`` (examples, classes) and ``labels`` (examples,). Computations use at
    least single precision.
    """
    import jax
    import jax.numpy as jnp

    wide = logits.astype(jnp.float32) if jnp.finfo(logits.dtype).bits < 32 else logits
    log_p = jax.nn.log_softmax(wide)
    own = jnp.take_along_axis(log_p, labels[:, None], axis=-1)[:, 0]
    return -((1 - smoothing) * own + smoothing * log_p.mean(axis=-1))


def correct(logits: Array, labels: Array) -> Array:
    """Return whether each example's largest logit is at its label; False if a logit is nan."""
    import jax.numpy as jnp

    return (jnp.argmax(logits, axis=-1) == labels) & jnp.isfinite(logits).all(axis=-1)


class Progress(NamedTuple):
    """The result of a dispatch: steps taken, total loss, number of correct answers, and last loss.

    Only the steps before the first infinite or nan loss count.
    """

    done: int
    loss: float
    correct: int
    last: float


@dataclass(frozen=True, eq=False)
class Steps:
    """The training steps of an optax optimiser.

    The training state is a tree with the entries "params", "state" (BatchNorm's statistics) and
    "optimizer". Learning rates and batches are arguments, so one compilation covers all seeds,
    folds and rates. The optimiser uses at least single precision, even if the model's precision is
    lower, because Adam's 1e-8 is 0 in float16.
    """

    model: Model
    settings: Settings
    _transformation: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_transformation", optimiser(self.settings.optimizer).make(self.settings)
        )

    def check(self, split: Split) -> None:
        """Check that the model can classify the inputs of a split.

        Raises: KcalcError unless the model maps an input to a vector with at least one number per
        class.
        """
        plan, (output, *others) = self.model.plan(split.x[:1]), self.model.network.outputs
        for node, below in plan.shapes.items():
            if split.x.ndim != 1 + len(below.axes):
                raise KcalcError(
                    f"the input {node!r} expects vectors, but {split.name} has examples of shape "
                    f"{split.x.shape[1:]}; flatten them to vectors, or build the model with "
                    "image_shape=(height, width)"
                )
        shape = plan.nodes[output].shape if output in plan.nodes else plan.shapes[output]
        if others or shape.locations is not None:
            found = (
                "several outputs"
                if others
                else f"feature maps {shape.locations} x {shape.channels}"
            )
            raise KcalcError(
                f"a classifier's output must have shape (examples, classes), got {found}; end the "
                "network with pooling over all locations, Flatten and one Affine with features = "
                "classes"
            )
        if shape.channels < split.classes:
            raise KcalcError(
                f"node {output!r} has {shape.channels} channels, but {split.name} has "
                f"{split.classes} classes; set features={split.classes} in the last Affine"
            )

    def checked(self, params: Any, split: Split, what: str = "params") -> Any:
        """Check the parameters and return them in the model's precision.

        Raises: KcalcError if they belong to another network, or if one is not finite.
        """
        import jax

        self.model.plan(split.x[:1]).check(params)
        own = jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, self.model.dtype), params)
        if not self.finite(own):
            raise KcalcError(
                f"the {what} contain infinite or nan values; use the parameters from model.init or "
                "from a run"
            )
        return own

    def start(self, params: Any, x: Array) -> Tree:
        """Return the initial training state."""
        return {
            "params": params,
            "state": self.model.init_state(x[:1]),
            "optimizer": self._initial(params),
        }

    @cached_property
    def _initial(self) -> Any:
        import jax

        return jax.jit(lambda params: self._transformation.init(_wide(params)))

    def advance(
        self,
        tree: Tree,
        x: Array,
        y: Array,
        rows: np.ndarray,
        rates: np.ndarray,
        start: int,
        seed: int,
    ) -> tuple[Tree, Progress]:
        """Take training steps ``start``, ``start + 1``, ... on given batches.

        ``rows`` (steps, examples) contains the batches, at most ``STEPS`` of them.

        ``seed`` determines dropout's random numbers.
        """
        count = len(rows)
        short = STEPS - count
        padded = np.pad(rows, ((0, short), (0, 0))), np.pad(rates, (0, short))
        new, *found = self._advance(tree, x, y, *padded, start, count, seed)
        done, loss, hits, last = (np.asarray(value).item() for value in found)
        return new, Progress(int(done), float(loss), int(hits), float(last))

    @cached_property
    def _advance(self) -> Any:
        import jax
        import jax.numpy as jnp

        smoothing = self.settings.label_smoothing

        def objective(
            params: Any, state: Any, x: Array, y: Array, key: Array
        ) -> tuple[Array, tuple[Any, Array]]:
            out, new = self.run(params, state, x, True, key)
            return cross_entropy(out, y, smoothing).mean(), (new, correct(out, y).sum())

        def advance(
            tree: Tree,
            x: Array,
            y: Array,
            rows: Array,
            rates: Array,
            start: Array,
            count: Array,
            seed: Array,
        ) -> Any:
            base = jax.random.key(seed)

            def going(carry: Any) -> Array:
                return (carry[1] < count) & jnp.isfinite(carry[4])

            def step(carry: Any) -> Any:
                tree, i, loss_sum, hits, _ = carry
                batch, labels = x[rows[i]], y[rows[i]]
                gradient = jax.value_and_grad(objective, has_aux=True)
                (loss, (state, right)), slopes = gradient(
                    tree["params"],
                    tree["state"],
                    batch,
                    labels,
                    jax.random.fold_in(base, start + i),
                )
                updates, own = self._transformation.update(
                    _wide(slopes), tree["optimizer"], _wide(tree["params"])
                )
                params = jax.tree.map(
                    lambda p, u: (p + rates[i].astype(u.dtype) * u).astype(p.dtype),
                    tree["params"],
                    updates,
                )
                done = jnp.isfinite(loss)
                kept = jnp.where(done, loss, 0).astype(jnp.float32)
                new = {"params": params, "state": state, "optimizer": own}
                return (
                    new,
                    i + done.astype(i.dtype),
                    loss_sum + kept,
                    hits + (right * done).astype(hits.dtype),
                    loss.astype(jnp.float32),
                )

            zero = jnp.float32(0)
            return jax.lax.while_loop(going, step, (tree, jnp.int32(0), zero, jnp.int32(0), zero))

        return jax.jit(advance)

    def run(
        self, params: Any, state: Any, x: Array, train: bool, key: Array | None = None
    ) -> tuple[Array, Any]:
        """Return (output, new state), for models with or without statistics."""
        found: Any = self.model.apply(params, x, state or None, train=train, key=key)
        return found if state else (found, state)

    def evaluate(self, tree: Tree, x: Array, y: Array, rows: np.ndarray) -> tuple[float, float]:
        """Return mean cross-entropy and accuracy on the examples in the given rows.

        The cross-entropy does not use label smoothing.
        """
        short = -len(rows) % EXAMPLES
        padded = np.pad(rows, (0, short)).reshape(-1, EXAMPLES).astype(np.int32)
        counted = (np.arange(padded.size) < len(rows)).reshape(-1, EXAMPLES)
        loss, hits = self._evaluate(tree["params"], tree["state"], x, y, padded, counted)
        return np.asarray(loss).item() / len(rows), np.asarray(hits).item() / len(rows)

    @cached_property
    def _evaluate(self) -> Any:
        import jax
        import jax.numpy as jnp

        def evaluate(
            params: Any, state: Any, x: Array, y: Array, rows: Array, counted: Array
        ) -> Any:
            def batch(row: Any) -> Any:
                picked, there = row
                labels = y[picked]
                out, _ = self.run(params, state, x[picked], False)
                return jnp.where(there, cross_entropy(out, labels), 0).sum(), (
                    correct(out, labels) & there
                ).sum()

            losses, hits = jax.lax.map(batch, (rows, counted))
            return losses.sum(), hits.sum()

        return jax.jit(evaluate)

    @cached_property
    def finite(self) -> Any:
        """Return a compiled function that tells whether all numbers in a tree are finite."""
        import jax
        import jax.numpy as jnp

        def finite(tree: Any) -> Array:
            leaves = [
                leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)
            ]
            return jnp.asarray(
                [jnp.isfinite(leaf).all() for leaf in leaves], bool
            ).all()  # also True for an empty tree

        return jax.jit(finite)


def _wide(tree: Any) -> Any:
    """Return a tree with its arrays in at least single precision."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), tree)
