"""Gaussian expectations in one and two dimensions, in double precision."""
