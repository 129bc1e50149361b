"""The input of the criteria: a model, the distributions of its parameters, and a measured run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ...foundation.families import family
from ...foundation.process_state import cached_property
from .contractions import Contraction
from .gates import Gates, gates_of
from .idle import idle_gates
from .laws import Law, alike
from .measuring import Measured
from .routers import Router, routers_of
from .stream_states import bits, start_of
from .structure import Merge


@dataclass
class Subject:
    """A model under audit.

    ``model`` is a copy that may run, and ``original`` is the model as given or built. ``laws`` is
    {parameter: law}. ``again`` is a second draw of the model with another seed, or None if a module
    was given. ``recipe`` and ``optimizer`` are the arguments that the user passed. ``places`` is
    {path of a tensor in a plain attribute: the line that wrote it}.
    """

    model: Any
    laws: Mapping[str, Law]
    measured: Measured
    original: Any = None
    again: Callable[[], Any] | None = None
    recipe: Any = None
    optimizer: Any = None
    places: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Return {name: parameter}, with each parameter listed once."""
        return self.measured.listed

    @cached_property
    def routers(self) -> tuple[Router, ...]:
        """Return the routers of mixtures of experts, as measured in a run."""
        return routers_of(self.model, self.measured.call)

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """Return {parameter: its roles}."""
        return self.measured.structure.roles

    @cached_property
    def contracted(self) -> dict[str, Contraction]:
        """Return {parameter: the first contraction that reads it}."""
        found: dict[str, Contraction] = {}
        for contraction in self.measured.structure.contractions:
            for name in contraction.parameters:
                found.setdefault(name, contraction)
        return found

    @cached_property
    def matrices(self) -> list[str]:
        """Return contracted weights and tables; recipes apply to these parameters."""
        return [
            name
            for name, roles in self.roles.items()
            if self.parameters[name].ndim > 1
            and (name in self.contracted or set(roles) & {"embedding", "positions"})
        ]

    @cached_property
    def stacks(self) -> list[Stack]:
        """Return the residual streams with at least two merges."""
        streams = self.measured.structure.streams()
        return [Stack(self, merges) for merges in streams if len(merges) > 1]

    @cached_property
    def stream_weights(self) -> Gates | None:
        """Return the weights of several streams, or None if the model has a single stream."""
        return gates_of(self)

    @cached_property
    def gates(self) -> tuple[str, ...]:
        """Return the small parameters, in the sub-layers, that determine the stream weights."""
        structure, names, seen = self.measured.structure, dict[str, None](), 0
        levels = [level for group in structure.groups for level in group]
        steps = [(level.ancestors, level.mixed_from, len(level.sums)) for level in levels]
        if structure.several:
            origin = start_of(structure.program, structure.several[0])
            seen = 0 if origin is None else origin.ancestors
            steps = [(s.value.ancestors, s.skip.ancestors, s.count) for s in structure.several]
        for made_from, mixed_from, count in steps:
            for value in (structure.program.values[i] for i in bits(made_from & ~seen)):
                size = value.tensor.numel()
                small = size % count == 0 and size <= count * (count + 2)
                single = size == 1 and mixed_from >> value.index & 1
                if value.op == "parameter" and (small or single):
                    names.update(dict.fromkeys(value.weights))
            seen |= made_from
        return tuple(names)

    @cached_property
    def idle(self) -> tuple[str, ...]:
        """Return the stream weights whose gradient vanishes only because the streams are equal."""
        still = (*self.measured.dead, *self.measured.rounded)
        small = [name for name in still if name in self.gates]
        rest = [name for name in still if name not in self.gates]
        return (*small, *idle_gates(self, rest))

    def place(self, names: tuple[str, ...] | list[str]) -> str:
        """Return the source line at which the first of the parameters was last written."""
        return next((self.laws[n].place for n in names if self.laws[n].place), "")


@dataclass(eq=False)
class Stack:
    """The blocks along one residual stream.

    ``families`` is {name with * for the block number: parameters} for contracted weights in
    branches.
    """

    subject: Subject
    merges: list[Merge]

    @cached_property
    def families(self) -> dict[str, tuple[str, ...]]:
        """Return the families of contracted weights in the branches."""
        names = dict.fromkeys(
            name
            for merge in self.merges
            for contraction in merge.inside
            for name in contraction.parameters
            if self.subject.parameters[name].ndim > 1
        )
        return families(names)

    @cached_property
    def written(self) -> dict[str, bool]:
        """Return {writer: whether a norm follows it}."""
        found: dict[str, bool] = {}
        for merge in self.merges:
            for contraction in merge.writers:
                for name in contraction.parameters:
                    found[name] = found.get(name, False) or merge.normed
        return found

    @cached_property
    def tables(self) -> list[str]:
        """Return tables and readouts, if the sigmas of the blocks do not depend on fans.

        Sigmas do not depend on fans if weights with equal sigma have different fans. Otherwise the
        list is empty, because a sigma from a fan cannot be told apart from a table's sigma with a
        depth factor.
        """
        subject = self.subject
        first = [names[0] for names in self.families.values()]
        drawn = [(subject.laws[name].sigma, subject.contracted[name]) for name in first]
        if not any(
            alike(sigma, other) and used.fan_in != its.fan_in and used.fan_out != its.fan_out
            for sigma, used in drawn
            for other, its in drawn
        ):
            return []
        members = {name for names in self.families.values() for name in names}
        return [
            name
            for name, roles in subject.roles.items()
            if name not in members
            and subject.parameters[name].ndim > 1
            and set(roles) & {"embedding", "positions", "readout"}
        ]

    def writes(self, family: str) -> bool:
        """Return whether the parameters of a family come last in their branches."""
        return any(name in self.written for name in self.families[family])

    @cached_property
    def reads_another(self) -> bool:
        """Whether the branches read another stream, as a decoder reads its encoder."""
        structure = self.subject.measured.structure
        others = {
            value.index
            for merge in structure.merges
            if merge.stream != self.merges[0].stream
            for value in merge.values
        }
        return any(
            others & structure.stream_roots(contraction.data)
            for merge in self.merges
            for contraction in merge.inside
        )

    @cached_property
    def depth(self) -> int:
        """Return the number of blocks, which is the size of the largest family of writers."""
        return max((len(n) for f, n in self.families.items() if self.writes(f)), default=0)


def families(names: Any) -> dict[str, tuple[str, ...]]:
    """Group names by pattern. The first number in a name, the block number, becomes *."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(family(name), []).append(name)
    return {form: tuple(members) for form, members in found.items()}


def parts(names: Any, every: Any) -> dict[str, tuple[str, ...]]:
    """Group names by the largest modules that contain no other parameters, merging similar modules.

    ``every`` contains the names of all parameters. A part is a module ("backbone"), a group of
    similar modules ("blocks.*.norm"), or a pattern of parameters if their modules contain others.
    """
    chosen, kept = set(names), set()
    for name in every:
        if name not in chosen:
            kept |= set(_paths(name))
    found: dict[str, dict[str, list[str]]] = {}
    for name in names:
        whole = next((path for path in _paths(name) if path not in kept), name)
        found.setdefault(family(whole), {}).setdefault(whole, []).append(name)
    return {
        form if len(members) > 1 else next(iter(members)): tuple(chain(*members.values()))
        for form, members in found.items()
    }


def _paths(name: str) -> list[str]:
    """Return the paths of the modules around a parameter, outermost first, and its own path."""
    pieces = name.split(".")
    return [".".join(pieces[: count + 1]) for count in range(len(pieces))]
