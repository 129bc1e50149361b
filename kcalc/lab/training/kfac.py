"""K-FAC from kfac-jax, checked before use.

K-FAC is used only if it can take a step with the installed version of jax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.extras import imported
from ...foundation.process_state import cached_property
from .steps import Progress, Steps, Tree, correct, cross_entropy

Array = Any
NAME = "kfac"
DAMPING = 0.1
INVERSE_PERIOD = 5  # number of steps between inversions of the factors


@lru_cache(maxsize=1)
def failure() -> str | None:
    """Return the reason why K-FAC cannot be used, or None if it can.

    The check takes one step on a network with two layers.

    Raises: KcalcError if kfac-jax is not installed.
    """
    imported("kfac_jax")
    import jax
    import jax.numpy as jnp

    def run(params: Any, x: Any) -> Array:
        first, second = params["a"], params["b"]
        hidden = jnp.tanh(x @ first["weight"] + first["bias"])
        return hidden @ second["weight"] + second["bias"]

    params = {name: {"weight": jnp.eye(2), "bias": jnp.zeros(2)} for name in "ab"}
    batch = jnp.ones((4, 2)), jnp.array([0, 1, 1, 1])
    try:
        optimizer = _optimizer(run)
        state = optimizer.init(params, jax.random.key(0), batch)
        new, _, found = _step(optimizer, params, state, batch, 0, 1e-2, 0.9)
        moved = bool(jnp.any(new["a"]["weight"] != jnp.eye(2)))
        if not np.isfinite(float(found["loss"])) or not moved:
            return "a step changed nothing"
    except Exception as error:  # an incompatible library may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return None


def _optimizer(run: Callable[[Any, Any], Array]) -> Any:
    """Return K-FAC for the cross-entropy of the logits ``run(params, x)``."""
    import jax

    kfac = imported("kfac_jax")

    def loss(params: Any, batch: Any) -> Array:
        x, y = batch
        out = run(params, x)
        kfac.register_softmax_cross_entropy_loss(out, jax.nn.one_hot(y, out.shape[-1]))
        return cross_entropy(out, y).mean()

    return kfac.Optimizer(
        jax.value_and_grad(loss),
        l2_reg=0.0,
        num_burnin_steps=0,
        inverse_update_period=INVERSE_PERIOD,
        use_adaptive_learning_rate=False,
        use_adaptive_momentum=False,
        use_adaptive_damping=False,
        multi_device=False,
    )


def _step(
    optimizer: Any, params: Any, state: Any, batch: Any, number: int, rate: float, momentum: float
) -> Any:
    import jax

    return optimizer.step(
        params,
        state,
        jax.random.key(0),
        batch=batch,
        global_step_int=number,
        learning_rate=rate,
        momentum=momentum,
        damping=DAMPING,
    )


@dataclass(frozen=True, eq=False)
class KfacSteps(Steps):
    """Training steps with K-FAC, each in its own dispatch."""

    def __post_init__(self) -> None:
        found = failure()
        if found is not None:
            raise KcalcError(
                f"kfac-jax is installed but does not work with this version of jax ({found}); use "
                "another optimizer or jax<=0.9.1"
            )
        if (
            self.settings.weight_decay
            or self.settings.label_smoothing
            or self.model.dtype != "float32"
        ):
            raise KcalcError(
                "kfac supports only float32 and does not support weight decay or label smoothing; "
                "omit these settings"
            )

    def start(self, params: Any, x: Array) -> Tree:
        import jax
        import jax.numpy as jnp

        if self.model.init_state(x[:1]):
            raise KcalcError("kfac does not support BatchNorm's statistics; use another optimizer")
        batch = (
            jnp.asarray(x[: self.settings.batch_size]),
            jnp.zeros(min(self.settings.batch_size, len(x)), jnp.int32),
        )
        return {
            "params": params,
            "state": {},
            "optimizer": self._kfac.init(params, jax.random.key(0), batch),
        }

    @cached_property
    def _kfac(self) -> Any:
        return _optimizer(lambda params, x: self.run(params, {}, x, False)[0])

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
        import jax
        import jax.numpy as jnp

        # a step donates its buffers, and the tree may still be needed
        new = jax.tree.map(jnp.copy, tree)
        total, hits, loss = 0.0, 0, 0.0
        for i, row in enumerate(rows):
            batch = x[row], y[row]
            hits += int(correct(self.run(new["params"], {}, batch[0], False)[0], batch[1]).sum())
            params, state, found = _step(
                self._kfac,
                new["params"],
                new["optimizer"],
                batch,
                start + i,
                float(rates[i]),
                self.settings.momentum,
            )
            new = {"params": params, "state": {}, "optimizer": state}
            loss = float(found["loss"])
            if not np.isfinite(loss):
                return new, Progress(i, total, hits, loss)
            total += loss
        return new, Progress(len(rows), total, hits, loss)
