"""Local maps: tables compared with jnp.arccos, new points, building a table, derivatives, certified
balls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kcalc as kc
from kcalc.fields.tables import Table as MapTable
from kcalc.fields.tables import tabulate
from kcalc.gaussian.expectations.quadrature import rule

from ..book import Figure, Options, Section, Table, digits, seconds, times
from ..timing import Spent, alternated


def run(options: Options) -> Section:
    table, ratio = tables(options)
    points, worst = new_points(options)
    return Section(
        "Local maps",
        "The tables show times for the C maps of individual activations. The floor for a table is "
        "one pass of `jnp.arccos`. The floor for a new point is the cost of its integrals: two "
        "evaluations of the activation on the nodes of one quadrature rule (for tanh, one "
        "expansion at q1 and one at q2).",
        [table, points, building(options), exact(options)],
        {
            "table": Figure(ratio, times(ratio)),
            "new_point": Figure(
                1e3 * worst, f"{seconds(worst)} (the slowest of q near 1, 10, 100)"
            ),
        },
    )


def tanh_table() -> MapTable:
    """The table of tanh's C map at q = 1."""
    phi = kc.activation("tanh")
    return tabulate(lambda gap: phi.taylor(gap, 1.0)[0], name="tanh")


def tables(options: Options) -> tuple[Table, float]:
    """Many evaluations of a table compared with jnp.arccos of the same array, in float64."""
    table, points = tanh_table(), options.size(10**5, 10**6)
    c = np.random.default_rng(0).uniform(-1, 1, points)
    with jax.enable_x64(True):
        given = jnp.asarray(c)
        compiled, inside = jax.jit(jnp.arccos), jax.jit(table)
        actions: dict[str, Callable[[], Any]] = {
            "jnp.arccos": lambda: jnp.arccos(given).block_until_ready(),
            "np.arccos": lambda: np.arccos(c),
            "table, NumPy array": lambda: table(c),
            "table, JAX array": lambda: table(given).block_until_ready(),
            "table under jit": lambda: inside(given).block_until_ready(),
            "jnp.arccos under jit": lambda: compiled(given).block_until_ready(),
            "1 - C by the table, NumPy": lambda: table.gap(1 - c),
            "table at angles, NumPy": lambda: table.at_angle(np.arccos(c)),
            "slope of the table, NumPy": lambda: table.slope(c),
        }
        found = alternated(actions, options.size(3, 25))
    floor = found["jnp.arccos"].wall
    rows = [
        (name, seconds(t.wall), seconds(t.cpu), times(t.wall / floor)) for name, t in found.items()
    ]
    caption = f"{points} values, tanh at q = 1 (stated error of the table {table.error_bound:.0e})"
    return Table(caption, ("what", "time", "CPU", "of jnp.arccos"), rows), found[
        "table, NumPy array"
    ].wall / floor


def new_points(options: Options) -> tuple[Table, float]:
    """C of tanh at points that have not been evaluated before."""
    phi, random = kc.activation("tanh"), np.random.default_rng(0)
    rows, worst = [], 0.0
    for q in (1.0, 10.0, 100.0):
        nodes = rule(phi, q)
        actions: dict[str, Callable[[], Any]] = {
            "new": lambda q=q: phi.taylor(1 - random.uniform(-1, 1), q * random.uniform(0.9, 1)),
            "two": lambda q=q: phi.taylor(
                1 - random.uniform(-1, 1), q * random.uniform(0.9, 1), q * random.uniform(0.9, 1)
            ),
            "again": lambda q=q: phi.taylor(1 - random.uniform(-1, 1), q),
            "slopes": lambda q=q: phi.taylor(
                1 - random.uniform(-1, 1), q * random.uniform(0.9, 1), order=2
            ),
            "floor": lambda q=q, z=nodes.z, w=nodes.w: (
                w @ np.tanh(np.sqrt(q) * z),
                w @ np.tanh(np.sqrt(q) * z),
            ),
        }
        found: dict[str, Spent] = alternated(actions, options.size(5, 60))
        worst = max(worst, found["new"].wall)
        rows.append(
            (
                f"{q:g}",
                *(seconds(t.wall) for t in found.values()),
                times(found["new"].wall / found["floor"].wall),
            )
        )
    columns = (
        "q near",
        "new c, new q",
        "new q1 and q2",
        "new c, same q",
        "with C', C''",
        "floor",
        "over it",
    )
    return Table("tanh at one new point", columns, rows), worst


def building(options: Options) -> Table:
    """Tables at a new q each time, so that the cost of the integrals is included."""
    random = np.random.default_rng(1)
    actions: dict[str, Callable[[], Any]] = {}
    for phi in map(kc.activation, ("relu", "tanh", "gelu", "hard_tanh")[: options.size(2, 4)]):

        def build(phi: Any = phi) -> MapTable:
            q = float(random.uniform(1, 2))
            return tabulate(lambda gap: phi.taylor(gap, q)[0], name=phi.name)

        actions[phi.name] = build
    found = alternated(actions, options.size(1, 7))
    return Table(
        "Building a table at a new q",
        ("activation", "time", "CPU"),
        [(n, seconds(t.wall), seconds(t.cpu)) for n, t in found.items()],
    )


def exact(options: Options) -> Table:
    """Certified values, with a new c each time."""
    random = np.random.default_rng(2)
    rows = []
    for name in ("relu", "tanh", "gelu", "elu")[: options.size(1, 4)]:
        phi = kc.activation(name)
        actions: dict[str, Callable[[], Any]] = {
            "Q": lambda phi=phi: phi.q_map.ball(float(random.uniform(0.5, 2)), digits=30),
            "inner": lambda phi=phi: phi.c_map.ball(float(random.uniform(-0.9, 0.9)), digits=30),
            "edge": lambda phi=phi: phi.c_map.ball(float(random.uniform(0.99, 1)), digits=30),
            "new q": lambda phi=phi: phi.c_map.ball(
                float(random.uniform(-0.9, 0.9)), q=float(random.uniform(0.5, 2)), digits=30
            ),
        }
        found = alternated(actions, options.size(1, 3))
        rows.append((name, *(seconds(t.wall) for t in found.values())))
    columns = (
        "activation",
        "Q at a new q",
        "C, abs c < .9, q = 1",
        "C, c > .99, q = 1",
        "C, a new q",
    )
    return Table(f"Certified to {digits(30)} digits, with a new argument each time", columns, rows)
