"""Matrices of kernels that depend on a pair of rows through the angle between them.

The kernels are tabulated, and the matrices are computed in blocks, independently of networks.
"""
