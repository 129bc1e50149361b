"""Matrices of kernels that depend on pairs of rows through their angle.

The kernels are tabulated, and the matrices are computed in blocks, independently of networks.
"""
