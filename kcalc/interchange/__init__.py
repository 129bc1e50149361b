"""Read networks from models and files, write them, and edit the models.

Reading: ``read``, the file ``FORMATS`` that it accepts, and ``Reading`` with ``Fidelity`` and
    ``Note``. A trace is a list of operations with base class ``Op``, including ``Linear`` (weights
    on one axis), ``Lookup`` (rows of a table), ``Normalise``, ``Pointwise`` (an elementwise
    function), ``Held`` (a constant array) and ``Prefixed`` (learned entries placed before an
    array).
Example inputs: ``listed`` makes a tuple of them, and ``by_name`` matches them to argument names.
    If the model then fails because of a dictionary, ``as_one`` explains why. ``is_shape``
    recognises shapes, ``example_shape`` checks them, and ``example_ids`` makes token ids.
    ``first_line`` describes an error that the model raised, and ``place`` gives the line that
    raised it.
Editing: ``Edits`` (a sequence of ``Edit``), ``load_edits``, ``apply_edits``, ``load_edited``.
Files: ``save_json``, ``load_json``, ``network_to_dict``, ``network_from_dict``, ``json_text``.
"""

from typing import TYPE_CHECKING, Any

from .apply import apply_edits, load_edited
from .edits import Edit, Edits, load_edits
from .example_shapes import example_ids, example_shape, is_shape, listed
from .json_format import json_text, load_json, network_from_dict, network_to_dict, save_json
from .model_reading import Fidelity, Note, Reading
from .named_inputs import as_one, by_name
from .read import FORMATS, read
from .trace import Held, Linear, Lookup, Normalise, Op, Pointwise, Prefixed

if TYPE_CHECKING:
    from .torch_model.examples import first_line, place

__all__ = [
    "FORMATS",
    "Edit",
    "Edits",
    "Fidelity",
    "Held",
    "Linear",
    "Lookup",
    "Normalise",
    "Note",
    "Op",
    "Pointwise",
    "Prefixed",
    "Reading",
    "apply_edits",
    "as_one",
    "by_name",
    "example_ids",
    "example_shape",
    "first_line",
    "is_shape",
    "json_text",
    "listed",
    "load_edited",
    "load_edits",
    "load_json",
    "network_from_dict",
    "network_to_dict",
    "place",
    "read",
    "save_json",
]


def __getattr__(name: str) -> Any:
    if name not in ("first_line", "place"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .torch_model import examples  # needs PyTorch, unlike the readers of other frameworks

    return getattr(examples, name)
