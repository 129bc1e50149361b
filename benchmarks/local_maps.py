"""How long local maps take: tables against jnp.arccos, new points of tanh, building a table, one shaping.

Run ``python benchmarks/local_maps.py``.  What is compared runs in turn, A B A B ..., and medians are printed; nothing is asserted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kcalc as kc
from kcalc.tables import Table, tabulate

ROUNDS = 25
POINTS = 10**6


def milliseconds(action: Callable[[], Any]) -> float:
    """The time of one call."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def alternated(actions: Mapping[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median milliseconds of each action, run in turn after one unmeasured round."""
    times: dict[str, list[float]] = {label: [] for label in actions}
    for measured in range(rounds + 1):
        for label, action in actions.items():
            spent = milliseconds(action)
            if measured:
                times[label].append(spent)
    return {label: float(np.median(spent)) for label, spent in times.items()}


def show(title: str, medians: Mapping[str, float], reference: str | None = None) -> None:
    """Print medians, and ratios to the ``reference`` entry."""
    print(title)
    for label, spent in medians.items():
        ratio = f"   {spent / medians[reference]:6.2f} x" if reference else ""
        print(f"  {label:<44}{spent:10.3f} ms{ratio}")


def tanh_table(q: float = 1.0) -> Table:
    """The table of tanh's C map at q."""
    phi = kc.activation("tanh")
    return tabulate(lambda gap: phi.taylor(gap, q)[0], name="tanh")


def tables() -> None:
    """10^6 evaluations of a table beside jnp.arccos of the same array, NumPy and JAX, float64."""
    table = tanh_table()
    c = np.random.default_rng(0).uniform(-1, 1, POINTS)
    with jax.enable_x64(True):
        on_device = jnp.asarray(c)
        compiled, inside = jax.jit(jnp.arccos), jax.jit(table)
        actions: dict[str, Callable[[], Any]] = {
            "jnp.arccos": lambda: jnp.arccos(on_device).block_until_ready(),
            "table, NumPy array": lambda: table(c),
            "table, JAX array": lambda: table(on_device).block_until_ready(),
            "jnp.arccos under jit": lambda: compiled(on_device).block_until_ready(),
            "table under jit": lambda: inside(on_device).block_until_ready(),
            "table.gap, NumPy array": lambda: table.gap(1 - c),
            "table.at_angle, NumPy array": lambda: table.at_angle(np.arccos(c)),
            "table.slope, NumPy array": lambda: table.slope(c),
        }
        show(f"{POINTS} values of {table}", alternated(actions), "jnp.arccos")
    small = {f"table of {n} values": lambda part=c[:n]: table(part) for n in (1, 100, 10_000)}
    show("few values, NumPy", alternated(small, 200))


def new_points() -> None:
    """C of tanh at a c and a q never asked for before; the activation is built."""
    phi, random = kc.activation("tanh"), np.random.default_rng(0)
    for q in (1.0, 10.0, 100.0):
        actions = {
            f"C at a new c and a new q near {q:g}": lambda q=q: phi.taylor(1 - random.uniform(-1, 1), q * random.uniform(0.9, 1)),
            f"C at a new c, the same q = {q:g}": lambda q=q: phi.taylor(1 - random.uniform(-1, 1), q),
        }
        show(f"tanh, one point, q = {q:g}", alternated(actions, 60))


def building() -> None:
    """Tables at a new q each time, so that what the integrals cost is included."""
    random = np.random.default_rng(1)
    for name in ("relu", "tanh", "hard_tanh"):
        phi = kc.activation(name)

        def build(phi: Any = phi) -> Table:
            q = float(random.uniform(1, 2))
            return tabulate(lambda gap: phi.taylor(gap, q)[0], name=phi.name)

        show(f"building a table of {name}", alternated({"a new q": build}, 7))


def shaping() -> None:
    """One deep kernel shaping, end to end."""
    network = kc.architectures.vanilla(50, activation="tanh")
    show("shaping vanilla(50) with tanh", alternated({"dks": lambda: kc.shape(network, method="dks", zeta=1.5)}, 7))


if __name__ == "__main__":
    tables()
    new_points()
    building()
    shaping()
