"""Modules that all other packages of kcalc build on.

They contain errors, argument checks, files, printing, and the symbols of formulas.
"""
