"""Shape the parts of a model that kcalc understands, each with its own slopes."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ..foundation.guests import MODELS
from ..foundation.printing import Tabled, html_table, marked, plain, text_table
from ..foundation.process_state import cached_property
from ..maps.maps import Approximable, Assumption
from ..network.network import Network
from .base import Shaping
from .constants import Constants, ConstantsTable
from .of_models import OfModel

Node = Hashable
SCHEMA = "kcalc.regional_shaping/1"
TAKEN_AS_ONE = (
    "q is assumed to be 1 at this input of a region, which comes from operations that were left "
    "unchanged"
)
MEASURED = "; on the example inputs, the model as it was read has q = {:.4g} there"


@dataclass(frozen=True)
class RegionalShaping(Approximable, Tabled, OfModel):
    """Shaped regions of a model, and the parts left unchanged.

    Operations that were not read divide the network into connected parts, the regions. Each region
    is shaped with its own maximal slope function, as if its inputs had q = 1. ``apply_to`` shapes
    the regions in a copy of the model and leaves the rest unchanged.

    Attributes
    ----------
    regions
        {first node of a region: its :class:`Shaping`}.
    left_alone
        {unchanged node: reason}.
    entries
        {input of a region that the model computes: q measured there, or None}.
    original
        The network that was read.

    """

    method: str
    original: Network
    regions: Mapping[Node, Shaping]
    left_alone: Mapping[Node, str]
    entries: Mapping[Node, float | None]
    prepared: tuple[str, ...] = field(default=(), repr=False)
    reading: Any = field(default=None, repr=False, compare=False)

    def __getattr__(self, name: str) -> Any:
        if name in Shaping.__dataclass_fields__ or (name[:1] != "_" and hasattr(Shaping, name)):
            raise AttributeError(
                f"a model that was shaped in regions has no .{name} as a whole; use "
                f"s.regions[node].{name}, where node is one of {list(self.regions)}"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def networks(self) -> tuple[Network, ...]:
        """The shaped networks, one per region."""
        return tuple(shaping.network for shaping in self.regions.values())

    @property
    def options(self) -> dict[str, Any]:
        """The targets of the method."""
        found = [shaping.options for shaping in self.regions.values()]
        return {name: value for each in reversed(found) for name, value in each.items()}

    @cached_property
    def constants(self) -> ConstantsTable:
        """The constants of all regions, by node, or by activation name if nodes share one set."""
        return ConstantsTable(
            {
                n: k
                for shaping in self.regions.values()
                for n, k in shaping.constants.by_node.items()
            }
        )

    @property
    def changes(self) -> tuple[str, ...]:
        """A description of every edit."""
        made = (change for shaping in self.regions.values() for change in shaping.changes)
        return tuple(dict.fromkeys((*self.prepared, *made)))

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of every region, and one for every input that the model computes."""
        own = (a for shaping in self.regions.values() for a in shaping.assumptions)
        entered = (
            Assumption(node, TAKEN_AS_ONE + ("" if q is None else MEASURED.format(q)), "heuristic")
            for node, q in self.entries.items()
        )
        return (*dict.fromkeys(own), *entered)

    @property
    def residuals(self) -> dict[Node, dict[str, float]]:
        """Return {region: {condition: |value - target|}}, measured independently of the solver."""
        return {name: shaping.residuals for name, shaping in self.regions.items()}

    def export(self, target: str, path: str | os.PathLike[str] | None = None) -> str:
        """Export the shaping as a JSON document, and write it to ``path`` if given.

        Code for other frameworks covers one region at a time: ``regions[name].export(target)``.

        Parameters
        ----------
        target
            The format; only "json".
        path
            The file to write; None writes no file.

        Returns
        -------
        str
            The JSON text.

        Raises
        ------
        KcalcError
            If the target is not "json" (the message names an unchanged operation), or the folder is
            missing.

        """
        return MODELS["export of regions"](self, target, path)

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain data with a versioned schema.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        return {
            "schema": SCHEMA,
            "method": self.method,
            "options": plain(self.options),
            "regions": {str(name): shaping.to_dict() for name, shaping in self.regions.items()},
            "left_alone": {str(node): reason for node, reason in self.left_alone.items()},
            "entries": {str(node): plain(q) for node, q in self.entries.items()},
            "assumptions": [assumption.to_dict() for assumption in self.assumptions],
            "changes": list(self.changes),
        }

    def _frame(self) -> list[dict[str, Any]]:
        rows = []
        for name, shaping in self.regions.items():
            for node, k in shaping.constants.by_node.items():
                rows.append({"region": str(name), "node": str(node), **_columns(k), "left": ""})
        return rows + [
            {"region": "", "node": str(node), "left": reason}
            for node, reason in self.left_alone.items()
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("region", "nodes", "activations", "C'(1)", "largest residual")
        rows: list[tuple[str, ...]] = [head]
        for name, shaping in self.regions.items():
            slope = shaping.targets.get("C'(1)")
            worst = max(shaping.residuals.values(), default=None)
            rows.append(
                (
                    str(name),
                    str(len(shaping.network)),
                    ", ".join(dict.fromkeys(k.describe() for k in _constants(shaping))),
                    "-" if slope is None else f"{slope:.6g}",
                    "-" if worst is None else f"{worst:.1e}",
                )
            )
        return rows

    def _below(self) -> list[str]:
        notes: dict[str, list[str]] = {}
        for name, shaping in self.regions.items():
            for warning in shaping.warnings:
                if warning.kind != "heuristic":
                    notes.setdefault(warning.text, []).append(str(name))
        return [
            *(f"note: {', '.join(names)}: {text}" for text, names in notes.items()),
            *self._heuristic_lines(),
            *(f"left alone: {', '.join(nodes)}: {why}" for why, nodes in self.by_reason().items()),
        ]

    def by_reason(self) -> dict[str, list[str]]:
        """Group the unchanged nodes by reason: {reason: nodes}.

        Returns
        -------
        dict[str, list[str]]
            One entry per reason; empty if every node was shaped.

        """
        found: dict[str, list[str]] = {}
        for node, reason in self.left_alone.items():
            found.setdefault(reason, []).append(str(node))
        return found

    def __str__(self) -> str:
        return "\n".join([repr(self), "", text_table(self._rows()), "", *self._below()])

    def _repr_html_(self) -> str:
        told = "".join(f"<p>{escape(line)}</p>" for line in self._below())
        return f"<p>{escape(repr(self))}</p>{html_table(self._rows())}{told}"

    def __repr__(self) -> str:
        count, rest = len(self.regions), len(self.left_alone)
        parts = f"{count} region{'s' * (count != 1)}, {rest} node{'s' * (rest != 1)} left alone"
        text = f"{self.method}, {parts}"
        return f"RegionalShaping({marked(text, self)})"


def _columns(k: Constants) -> dict[str, Any]:
    return {"activation": k.activation.name, "constants": k.describe()}


def _constants(shaping: Shaping) -> Iterable[Constants]:
    return (shaping.constants[name] for name in shaping.constants)
