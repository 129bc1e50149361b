"""The version number, also stored in files that kcalc writes."""

__version__ = "0.3.0"
