"""Readers and writers of networks."""

from .json_format import load_json, network_from_dict, network_to_dict, save_json
from .model_reading import Fidelity, Note, Reading
from .read import read

__all__ = [
    "Fidelity",
    "Note",
    "Reading",
    "load_json",
    "network_from_dict",
    "network_to_dict",
    "read",
    "save_json",
]
