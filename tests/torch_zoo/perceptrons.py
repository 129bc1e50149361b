"""Multilayer perceptrons, written in several ways."""

from __future__ import annotations
