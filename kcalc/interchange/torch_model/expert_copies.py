"""Repeat the edits of one expert for all experts of its mixture.

A mixture is read as one expert. Experts in a list have separate modules and parameters, so the
edits of the first expert are repeated for the others. Experts whose weights are stacked in one
parameter share their code, and their weights are the blocks of this parameter along its first axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..edits import CallEdit, Edit, WeightEdit
from ..trace import Linear, Op
from .mixture_modules import Mixture, read_as_one

NOT_CALLED = "{1} does not call {0} when it runs its experts, so an edit would have no effect"
Layouts = dict[str, tuple[tuple[int, ...], bool]]


@dataclass(frozen=True, eq=False)
class ExpertCopies:
    """The experts of a model that was read.

    ``mixtures``: the paths of the mixtures; ``homes``: {path of a mixture's experts: mixture};
    ``lists``: {path of a first expert: paths of the other experts}; ``stacked``: {parameter:
    (number of experts, whether blocks are stored as (inputs, outputs))}; ``modules`` and
    ``tensors``: {name: module or tensor of the model}, with all names.
    """

    mixtures: tuple[str, ...]
    homes: Mapping[str, Mixture]
    lists: Mapping[str, tuple[str, ...]]
    stacked: Mapping[str, tuple[int, bool]]
    modules: Mapping[str, nn.Module]
    tensors: Mapping[str, Any]

    @classmethod
    def of(cls, model: nn.Module) -> ExpertCopies:
        """Return the experts of a model that was made readable."""
        homes: dict[str, Mixture] = {}
        lists: dict[str, tuple[str, ...]] = {}
        stacked: dict[str, tuple[int, bool]] = {}
        mixtures = read_as_one(model)
        for path, mixture in mixtures.items():
            home = _path_of_experts(model, path, mixture)
            homes[home] = mixture
            if not mixture.stacked:
                first, *others = (f"{home}.{i}" for i in range(mixture.count))
                lists[first] = tuple(others)
                continue
            turned = bool(getattr(mixture.experts, "is_transposed", False))
            for name, _ in mixture.experts.named_parameters(recurse=False):
                stacked[f"{home}.{name}"] = mixture.count, turned
        modules = dict(model.named_modules(remove_duplicate=False))
        tensors = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }
        return cls(tuple(mixtures), homes, lists, stacked, modules, tensors)

    @property
    def known(self) -> tuple[str, ...]:
        """Return the paths of modules that were read but do not run: mixtures and most experts."""
        alike = (path for others in self.lists.values() for path in others)
        return (*self.mixtures, *self.homes, *alike)

    def stacks(self, ops: tuple[Op, ...]) -> tuple[Layouts, dict[str, tuple[str, int]]]:
        """Return ({key of a Linear: layout of a block}, {key: (parameter, number of blocks)})."""
        layouts: Layouts = {}
        found: dict[str, tuple[str, int]] = {}
        for op in ops:
            name = op.parameter.rpartition(" #")[0] if isinstance(op, Linear) else ""
            if name in self.stacked:
                assert isinstance(op, Linear)
                count, turned = self.stacked[name]
                layouts[op.parameter] = tuple(self.tensors[name].shape[1:]), turned
                found[op.parameter] = name, count
        return layouts, found

    def unused(self, edit: Edit) -> str:
        """Return why an edit would have no effect on experts, or "" for other edits."""
        for call in edit.calls:
            path, steps = call.place
            for home, mixture in self.homes.items():
                if path == home or path.startswith(f"{home}."):
                    inner = path[len(home) + 1 :]
                    if not mixture.stacked:
                        inner = inner.partition(".")[2]
                    elif not inner and steps:
                        inner = steps[0][1].rpartition(".")[2]
                    if inner not in mixture.ran:
                        return NOT_CALLED.format(path, home.rpartition(".")[0] or "the model")
        return ""

    def repeated(self, edit: Edit) -> Edit:
        """Return an edit with the calls and weights of all experts."""
        calls = [copy for call in edit.calls for copy in self._calls(call)]
        weights = [copy for weight in edit.weights for copy in self._weights(weight)]
        stacked = any(weight.copies for weight in weights)
        if stacked or len(calls) > len(edit.calls) or len(weights) > len(edit.weights):
            edit = replace(edit, where=f"{edit.where}, in all experts")
        return replace(edit, calls=tuple(calls), weights=tuple(weights))

    def _calls(self, call: CallEdit) -> Iterator[CallEdit]:
        for path in self._alike(call.place[0], self.modules):
            yield replace(call, place=(path, *call.place[1:]))

    def _weights(self, weight: WeightEdit) -> Iterator[WeightEdit]:
        if weight.added:  # the parameter's tensor does not exist yet
            home, _, leaf = weight.parameter.rpartition(".")
            names = [f"{path}.{leaf}" for path in self._alike(home, self.modules)]
        else:
            names = self._alike(weight.parameter, self.tensors)
        for name in names:
            yield replace(weight, parameter=name)

    def _alike(self, name: str, objects: Mapping[str, Any]) -> list[str]:
        """Return a name and its counterparts in other experts, but only one name per object."""
        found = {id(objects.get(name)): name}
        waiting = [name]
        while waiting:
            known = waiting.pop(0)
            for first, others in self.lists.items():
                if known == first or known.startswith(f"{first}."):
                    for other in others:
                        new = other + known[len(first) :]
                        if id(objects.get(new)) not in found:
                            found[id(objects.get(new))] = new
                            waiting.append(new)
        return [*found.values()]


def _path_of_experts(model: nn.Module, path: str, mixture: Mixture) -> str:
    module = model.get_submodule(path)
    name = next(name for name, part in module.named_children() if part is mixture.experts)
    return f"{path}.{name}" if path else name
