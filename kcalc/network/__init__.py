"""Networks: layers and their primitives, graphs, builders, architectures, and folds.

Layers are made of primitives; folds read networks.
"""
