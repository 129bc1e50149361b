"""Matrices of a kernel that depends on pairs of rows through their angle.

They are tabulated, blocked and streamed, independently of networks.
"""
