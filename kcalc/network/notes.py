"""Notes that model readers attach to the nodes of a network.

A note states how exactly a node represents the part of the model that it was read from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from ..fields.arguments import Node
from ..maps.maps import Assumption

LEVELS = {
    "exact": "computes the model's function",
    "locations": "exact for kernel maps without positions; strides, windows or sizes differ from "
    "the model's",
    "pooling": "computes the model's function, but kernel maps treat pooling as the identity, "
    "which is a heuristic",
    "approximate": "differs from the model as noted",
    "not read": "not understood; every calculus raises an error for it",
}
TIED = "its weights are tied to the embedding"  # in the note on a readout
CARRIED = {"exact": "", "locations": "convention", "approximate": "heuristic"}
"""{level of a note on a network: the kind of assumption that the note becomes}.

"exact" notes record the image size for which an input was read, or the number of tokens of a mask.
Pooling and unread operations need no note, because their layers already show them.
"""


@dataclass(frozen=True)
class Note:
    """A reader's note on a node.

    Attributes
    ----------
    node
        The node that the note is about.
    level
        One of LEVELS.
    text
        The text of the note.
    source
        The corresponding place in the model.
    of_weights
        Whether the note concerns the current weights and does not apply to newly drawn weights.

    """

    node: Node
    level: str
    text: str
    source: str = ""
    of_weights: bool = False

    def __str__(self) -> str:
        place = f" ({self.source})" if self.source and self.source != str(self.node) else ""
        return f"{self.node}{place}: {self.text} [{self.level}]"

    @property
    def assumption(self) -> Assumption:
        """Convert the note to an assumption for results.

        The assumption is a convention if the note is about positions, and a heuristic if the model
        differs from the network.
        """
        return Assumption(self.node, self.text, CARRIED[self.level])


MASK = "its mask was read for sequences of {} tokens"
DISTANCES = "its biases by distance were read for sequences of {} tokens"
BEYOND = {
    MASK: "{}; for {} tokens it is assumed to continue in the same way",
    DISTANCES: "{}; for {} tokens they are assumed to continue in the same way",
}


def masked_at(node: Node, tokens: int, of: str = MASK) -> Note:
    """Return a note that states for how many tokens an attention mask or biases were read.

    Longer sequences may reach a window or distances that shorter sequences do not.
    """
    return Note(node, "exact", of.format(tokens))


def beyond_masks(notes: Iterable[Note], tokens: int) -> tuple[Assumption, ...]:
    """Return an assumption for each mask or bias that was read for fewer than ``tokens`` tokens."""
    found = []
    for note, (read, beyond) in product(notes, BEYOND.items()):
        count = re.fullmatch(read.format(r"(\d+)"), note.text) if note.level == "exact" else None
        if count is not None and int(count[1]) < tokens:
            found.append(Assumption(note.node, beyond.format(note.text, tokens), "heuristic"))
    return tuple(found)


def read_at(node: Node, shape: tuple[int, ...]) -> Note:
    """Return a note that states for which image shape an input was read.

    For images of this shape, the network's windows match the model's.
    """
    return Note(node, "exact", f"read for images of {' x '.join(map(str, shape))}")
