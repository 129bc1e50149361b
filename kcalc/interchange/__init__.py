"""Readers and writers of networks."""

from .apply import apply_edits
from .edits import Edit, Edits, load_edits
from .json_format import load_json, network_from_dict, network_to_dict, save_json
from .model_reading import Fidelity, Note, Reading
from .read import read

__all__ = [
    "Edit",
    "Edits",
    "Fidelity",
    "Note",
    "Reading",
    "apply_edits",
    "load_edits",
    "load_json",
    "network_from_dict",
    "network_to_dict",
    "read",
    "save_json",
]
