"""Many steps in one dispatch: the compiled loops of training and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..backend.model import Model
from ..errors import KcalcError
from .objectives import correct, cross_entropy
from .optimisers import optimiser
from .settings import Settings
from .sharding import Placement

Array = Any
Tree = dict[str, Any]
EXAMPLES = 512  # evaluated at once


class Progress(NamedTuple):
    """What came of a dispatch: steps done before a loss that is not finite, sums of losses and of correct answers, the last loss."""

    done: int
    loss: float
    correct: int
    last: float


@dataclass(frozen=True, eq=False)
class Engine:
    """The steps of an optax optimiser.

    The tree it works on has the entries "params", "state" (BatchNorm's statistics) and "optimizer".  Learning rates and batches are
    arguments, so that one compilation serves all seeds, folds and rates.
    """

    model: Model
    settings: Settings
    placement: Placement
    steps_per_dispatch: int
    _transformation: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_transformation", optimiser(self.settings.optimizer).make(self.settings))

    def start(self, params: Any, x: Array) -> Tree:
        """The tree before any step."""
        tree = {"params": params, "state": self.model.init_state(x[:1]), "optimizer": self._initial(params)}
        return self.placement.everywhere(tree)

    @cached_property
    def _initial(self) -> Any:
        import jax

        return jax.jit(self._transformation.init)

    def advance(self, tree: Tree, x: Array, y: Array, rows: np.ndarray, rates: np.ndarray, start: int, seed: int) -> tuple[Tree, Progress]:
        """Take steps ``start``, ``start + 1``, ... on the batches ``rows`` (steps, examples), at most ``steps_per_dispatch`` of them.

        ``seed`` gives dropout's random numbers.
        """
        count = len(rows)
        short = self.steps_per_dispatch - count
        padded = np.pad(rows, ((0, short), (0, 0))), np.pad(rates, (0, short))
        new, *found = self._advance(tree, x, y, *padded, start, count, seed)
        done, loss, hits, last = (np.asarray(value).item() for value in found)
        return new, Progress(int(done), float(loss), int(hits), float(last))

    @cached_property
    def _advance(self) -> Any:
        import jax
        import jax.numpy as jnp

        smoothing, share = self.settings.label_smoothing, self.placement.shared_out

        def objective(params: Any, state: Any, x: Array, y: Array, key: Array) -> tuple[Array, tuple[Any, Array]]:
            out, new = self.run(params, state, x, True, key)
            return cross_entropy(out, y, smoothing).mean(), (new, correct(out, y).sum())

        def advance(tree: Tree, x: Array, y: Array, rows: Array, rates: Array, start: Array, count: Array, seed: Array) -> Any:
            base = jax.random.key(seed)

            def going(carry: Any) -> Array:
                return (carry[1] < count) & jnp.isfinite(carry[4])

            def step(carry: Any) -> Any:
                tree, i, loss_sum, hits, _ = carry
                batch, labels = share(x[rows[i]]), share(y[rows[i]])
                gradient = jax.value_and_grad(objective, has_aux=True)
                (loss, (state, right)), slopes = gradient(tree["params"], tree["state"], batch, labels, jax.random.fold_in(base, start + i))
                updates, own = self._transformation.update(slopes, tree["optimizer"], tree["params"])
                params = jax.tree.map(lambda p, u: (p + rates[i].astype(u.dtype) * u).astype(p.dtype), tree["params"], updates)
                done = jnp.isfinite(loss)
                kept = jnp.where(done, loss, 0).astype(jnp.float32)
                new = {"params": params, "state": state, "optimizer": own}
                return new, i + done.astype(i.dtype), loss_sum + kept, hits + right * done, loss.astype(jnp.float32)

            zero = jnp.float32(0)
            return jax.lax.while_loop(going, step, (tree, jnp.int32(0), zero, jnp.int32(0), zero))

        return jax.jit(advance)

    def run(self, params: Any, state: Any, x: Array, train: bool, key: Array | None = None) -> tuple[Array, Any]:
        """(output, new state), whether or not the model keeps statistics.  Raises: KcalcError unless outputs are (examples, classes)."""
        found = self.model.apply(params, x, state or None, train=train, key=key)
        out, new = found if state else (found, state)
        if getattr(out, "ndim", 0) != 2:
            raise KcalcError(
                f"a classifier's output is (examples, classes), got {getattr(out, 'shape', 'several outputs')}; "
                "end the network with a pooling of all locations, Flatten and one Affine with features = classes"
            )
        return out, new

    def evaluate(self, tree: Tree, x: Array, y: Array, rows: np.ndarray) -> tuple[float, float]:
        """(mean cross-entropy without smoothing, share of correct answers) on the examples of the given rows."""
        size = -(-EXAMPLES // self.placement.count) * self.placement.count
        short = -len(rows) % size
        padded = np.pad(rows, (0, short)).reshape(-1, size).astype(np.int32)
        counted = (np.arange(padded.size) < len(rows)).reshape(-1, size)
        loss, hits = self._evaluate(tree["params"], tree["state"], x, y, padded, counted)
        return np.asarray(loss).item() / len(rows), np.asarray(hits).item() / len(rows)

    @cached_property
    def _evaluate(self) -> Any:
        import jax
        import jax.numpy as jnp

        def evaluate(params: Any, state: Any, x: Array, y: Array, rows: Array, counted: Array) -> Any:
            def batch(row: Any) -> Any:
                picked, there = row
                inputs, labels = self.placement.shared_out(x[picked]), self.placement.shared_out(y[picked])
                out, _ = self.run(params, state, inputs, False)
                return jnp.where(there, cross_entropy(out, labels), 0).sum(), (correct(out, labels) & there).sum()

            losses, hits = jax.lax.map(batch, (rows, counted))
            return losses.sum(), hits.sum()

        return jax.jit(evaluate)

    @cached_property
    def finite(self) -> Any:
        """Whether every number of a tree of arrays is finite, compiled."""
        import jax
        import jax.numpy as jnp

        def finite(tree: Any) -> Array:
            leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
            return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()

        return jax.jit(finite)
