"""Tailored Activation Transformation."""

from .paper import PAPER

__all__ = ["PAPER"]
