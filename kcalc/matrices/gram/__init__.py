"""Matrices of a kernel that depends on pairs of rows through their angle: tabulated, blocked, streamed; nothing here knows of networks."""
