"""Readers and writers of networks."""

from .json_format import load_json, network_from_dict, network_to_dict, save_json

__all__ = ["load_json", "network_from_dict", "network_to_dict", "save_json"]
