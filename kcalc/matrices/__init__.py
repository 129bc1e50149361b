"""Kernel matrices of data: tables of functions of one angle, matrix engines, and spectra.

The engines fill the matrices.
"""
