"""Determine which parts of a model are shaped, and why other parts are left alone."""
