"""Notes of a reader on a network.

How far nodes stand for the parts of the model that they were read from.
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
    "locations": "exact for kernel maps without positions; strides, windows or sizes are not the "
    "model's",
    "pooling": "computes the model's function; kernel maps take pooling as the identity, a "
    "heuristic",
    "approximate": "differs from the model as noted",
    "not read": "not understood; every calculus refuses it",
}
CARRIED = {"exact": "", "locations": "convention", "approximate": "heuristic"}
"""The levels of the notes that a network carries, and the kinds of assumption that they are.

"exact" ones tell at which size of images an input was read, or for how many tokens a mask. Layers
tell of pooling and of what was not read by themselves.
"""


@dataclass(frozen=True)
class Note:
    """A reader's note on a node: ``level`` one of LEVELS, ``source`` the place in the model.

    ``of_weights``: whether it is about the weights as they stand, and does not hold of weights
    drawn anew.
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
        """The note as results have it.

        It is a convention for positions, a heuristic where the model differs.
        """
        return Assumption(self.node, self.text, CARRIED[self.level])


MASK = "its mask was read for sequences of {} tokens"
DISTANCES = "its biases by distance were read for sequences of {} tokens"
BEYOND = {
    MASK: "{}; that of {} tokens is taken to go on alike",
    DISTANCES: "{}; those of {} tokens are taken to go on alike",
}


def masked_at(node: Node, tokens: int, of: str = MASK) -> Note:
    """The note that the mask (or the biases) of an attention was read for as many tokens.

    More of them may have a window, or distances, that these do not show.
    """
    return Note(node, "exact", of.format(tokens))


def beyond_masks(notes: Iterable[Note], tokens: int) -> tuple[Assumption, ...]:
    """What results over more tokens take for granted than masks and biases were read for."""
    found = []
    for note, (read, beyond) in product(notes, BEYOND.items()):
        count = re.fullmatch(read.format(r"(\d+)"), note.text) if note.level == "exact" else None
        if count is not None and int(count[1]) < tokens:
            found.append(Assumption(note.node, beyond.format(note.text, tokens), "heuristic"))
    return tuple(found)


def read_at(node: Node, shape: tuple[int, ...]) -> Note:
    """The note that a network was read for images of a given shape at an input.

    For images of this shape its windows are the model's.
    """
    return Note(node, "exact", f"read for images of {' x '.join(map(str, shape))}")
