"""Matrices of a kernel that depends on pairs of rows through their angle.

Tabulated, blocked, streamed; nothing here knows of networks.
"""
