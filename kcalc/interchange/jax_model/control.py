"""Read control flow: unroll loops of known length and follow branches with known conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..trace import NotRead
from .jaxpr_values import KnownArray, Ref, Value
from .known import constants_of
from .moving import dropped
from .reader import JaxReader, rule
from .stops import trained

LONGEST = 4096  # maximum number of iterations of an unrolled loop
DATA = "it depends on the data, so the model has no fixed graph; trace it with the condition fixed"


@rule("scan")
def _scan(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    params = eqn.params
    consts, carried = _parts(params)
    length, inner = int(params["length"]), params["jaxpr"]
    if length > LONGEST:
        return reader.not_read(
            "long loop", f"it has {length} iterations, but kcalc unrolls at most {LONGEST}"
        )
    fixed = values[:consts]
    carry = list(values[consts : consts + carried])
    rows = values[consts + carried :]
    made: list[list[Value]] = []
    literals = constants_of(inner)
    turns = range(length - 1, -1, -1) if params["reverse"] else range(length)
    for turn in turns:
        parts = [_row(reader, row, turn) for row in rows]
        if any(part is None for part in parts):
            return reader.not_read(
                "loop over locations",
                "every iteration reads a different location or example, as in recurrent layers",
            )
        out = reader.run(
            inner.jaxpr, literals, [*fixed, *carry, *(p for p in parts if p is not None)]
        )
        carry = out[:carried]
        made.append(out[carried:])
    if params["reverse"]:
        made.reverse()
    return [
        *carry,
        *(
            _stacked(reader, eqn, k, [row[k] for row in made])
            for k in range(len(eqn.outvars) - carried)
        ),
    ]


def _parts(params: Any) -> tuple[int, int]:
    """Return the number of constants of a loop, and of values passed between its iterations."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carried, _ = params["ft_in"].unpack()  # jax >= 0.11
    return len(consts), len(carried)


def _row(reader: JaxReader, value: Value, index: int) -> Value | None:
    """Return the entry at ``index`` along the first axis."""
    if isinstance(value, KnownArray):
        view = None if value.view is None else value.view.then(lambda array: array[index])
        return KnownArray(
            value.array[index],
            frozenset(f"{o}[{index}]" for o in value.origins),
            value.random,
            view,
            value.trained,
        )
    if value.shape[0] != 1:
        return None
    return dropped(reader, value, [0])


def _stacked(reader: JaxReader, eqn: Any, index: int, rows: Sequence[Value]) -> Value:
    """Stack the outputs of a loop's iterations.

    The stacked array can be read only if its values are known.
    """
    variable = eqn.outvars[_parts(eqn.params)[1] + index]
    if rows and all(isinstance(row, KnownArray) for row in rows):
        known = [row for row in rows if isinstance(row, KnownArray)]
        origins = frozenset[str]().union(*(row.origins for row in known))
        array, random = np.stack([row.array for row in known]), any(row.random for row in known)
        return KnownArray(array, origins, random, trained=trained("concatenate", known))
    reads = list(dict.fromkeys(row.name for row in rows if isinstance(row, Ref)))
    reason = "it stacks the outputs of all loop iterations, and kcalc has no rule for this"
    return reader.fresh(
        reader.add(
            NotRead,
            "stack",
            variable.aval.shape,
            reads,
            what="stacked outputs of a loop",
            reason=reason,
        )
    )


@rule("while")
def _while(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    params = eqn.params
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    test_consts = values[:tests]
    body_consts = values[tests : tests + bodies]
    carry = list(values[tests + bodies :])
    test, body = params["cond_jaxpr"], params["body_jaxpr"]
    before = set(reader.ops)
    for _ in range(LONGEST):
        found = reader.run(test.jaxpr, constants_of(test), [*test_consts, *carry])[0]
        if not isinstance(found, KnownArray):
            break
        if not bool(np.asarray(found.array)):
            return carry
        carry = reader.run(body.jaxpr, constants_of(body), [*body_consts, *carry], part=1)
    reader.forget(set(reader.ops) - before)
    return reader.not_read("data-dependent loop", f"its number of iterations is unknown; {DATA}")


@rule("cond")
def _cond(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    which, rest = values[0], values[1:]
    if not isinstance(which, KnownArray):
        return reader.not_read("data-dependent branch", f"the branch that runs is unknown; {DATA}")
    branches = eqn.params["branches"]
    place = min(max(int(np.asarray(which.array)), 0), len(branches) - 1)
    branch = branches[place]
    return reader.run(branch.jaxpr, constants_of(branch), rest, part=place)
