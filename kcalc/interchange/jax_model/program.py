"""The equations of a JAX model that was read, and the data flow between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...foundation.process_state import cached_property
from ..editing_plan import Flow, Made
from ..edits import Place, Slot
from ..trace import Op, Pass, Repeat, Reshape, Stopped, Transpose
from .jaxpr_values import Ref, Value
from .markers import DROP, NORMALISE
from .pointwise import PASSING, SHAPED
from .reader import EquationCall
from .sites import MODULE, differentiates, place_of

CARRYING = {*PASSING, *SHAPED, "transpose", "convert_element_type"}
MOVED = (Reshape, Transpose, Pass, Repeat, Stopped)


@dataclass(frozen=True, eq=False)
class JaxProgram:
    """The equations of a model's jaxpr, in the order in which they were read.

    ``args``: the values of its inputs; ``joined``: {sum of a layer and its bias: layer}; ``held``:
    {id() of a known value: its operation}.
    """

    closed: Any
    args: Sequence[Value]
    tape: Sequence[EquationCall]
    joined: Mapping[str, str]
    held: Mapping[int, str]

    def name(self, value: Value | None) -> str | None:
        """Return the name of the operation of the trace that outputs a value.

        Returns None for constants, and for a layer's output before its bias is added.
        """
        if not isinstance(value, Ref) or value.name in self._bare:
            return None
        return self.joined.get(value.name, value.name)

    @cached_property
    def _bare(self) -> set[str]:
        return set(self.joined.values())

    def names(self) -> frozenset[str]:
        """Return the names of all operations whose outputs the program computes."""
        made = (value for call in self.tape for value in call.makes)
        found = map(self.name, (*self.args, *made))
        return frozenset(name for name in found if name is not None)

    def flow(self, ops: Sequence[Op]) -> Flow:
        """Return the data flow between equations.

        Equations that only rearrange entries are skipped; each result is identified with its input.
        ``ops``: the operations of the trace.
        """
        source: dict[int, Made] = {}
        refs = [value for value in self.args if isinstance(value, Ref)]
        values: dict[str, Made] = {}
        for place, ref in enumerate(refs):
            source[id(ref)] = values[ref.name] = (-1, place)
        for place, (value, name) in enumerate(self.held.items()):
            source[value] = values[name] = (-2, place)
        stopped = {op.name: op.reads[0] for op in ops if isinstance(op, Stopped)}
        reads: list[dict[Slot, Made]] = []
        for number, call in enumerate(self.tape):
            own: dict[Slot, Made] = {
                (slot,): source[id(value)]
                for slot, value in enumerate(call.reads)
                if id(value) in source
            }
            carried = self._carried(call, own, stopped)
            reads.append({} if carried else own)
            hidden = differentiates(call.eqn)
            for place, value in enumerate(call.makes):
                if not isinstance(value, Ref) or id(value) in source:
                    continue
                made = source[id(value)] = carried or (number, place)
                name = self.name(value)
                if name is not None and not hidden:
                    values.setdefault(name, made)
        for op in ops:
            if isinstance(op, MOVED) and op.reads[0] in values:
                values.setdefault(op.name, values[op.reads[0]])
        return Flow(reads, values, lambda call: False, self._single)

    def _single(self, call: int) -> bool:
        found = self.tape[call]
        return found.whole and len(found.makes) == 1

    def _carried(
        self, call: EquationCall, own: Mapping[Slot, Made], stopped: Mapping[str, str]
    ) -> Made | None:
        """Return the source of an equation's values if the equation only rearranges or casts them.

        ``stopped``: {operation that only changes gradients: its input}.
        """
        refs = [slot for slot, value in enumerate(call.reads) if isinstance(value, Ref)]
        if not call.whole or len(refs) != 1 or len(call.makes) != 1:
            return None
        value, read = call.makes[0], call.reads[refs[0]]
        assert isinstance(read, Ref)
        same = isinstance(value, Ref) and stopped.get(value.name, value.name) == read.name
        if same or (call.eqn.primitive.name in CARRYING and _real(call.eqn)):
            return own.get((refs[0],))
        return None

    def place(self, call: int) -> Place:
        """Return the place of an equation in the model's code, or the name of a module."""
        key = self.key(call)
        return (key,) if key[0] == MODULE else place_of(self.closed.jaxpr, self.tape[call].path)

    def key(self, call: int) -> tuple[Any, ...]:
        """Return a key for the equation or module that runs in a call."""
        found = self.tape[call]
        if found.eqn.primitive.name in (NORMALISE, DROP):
            return MODULE, found.eqn.params["label"]
        return found.path if found.whole else (*found.path, -1)

    @cached_property
    def runs(self) -> dict[tuple[Any, ...], list[int]]:
        """Return {equation or module: the calls in which it runs}, with several calls in a loop."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for call in range(len(self.tape)):
            found.setdefault(self.key(call), []).append(call)
        return found


def _real(eqn: Any) -> bool:
    import jax.numpy as jnp

    variables = (eqn.invars[0], eqn.outvars[0])
    return all(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in variables)
