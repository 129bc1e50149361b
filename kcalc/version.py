"""The version, which built files carry."""

__version__ = "0.3.0"
