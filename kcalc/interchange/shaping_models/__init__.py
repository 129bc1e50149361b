"""Determine which parts of a model are shaped, and why others are left alone."""
