"""Readers and writers of networks."""

from .apply import apply_edits, load_edited
from .edits import Edit, Edits, load_edits
from .example_shapes import example_ids, example_shape, is_shape, listed
from .json_format import json_text, load_json, network_from_dict, network_to_dict, save_json
from .model_reading import Fidelity, Note, Reading
from .named_inputs import as_one, by_name
from .read import FORMATS, read
from .trace import Held, Linear, Lookup, Normalise, Op, Pointwise, Prefixed

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
    "is_shape",
    "json_text",
    "listed",
    "load_edited",
    "load_edits",
    "load_json",
    "network_from_dict",
    "network_to_dict",
    "read",
    "save_json",
]
