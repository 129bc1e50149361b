"""Q and C maps as objects with values, derivatives, fixed points, formulas and assumptions."""

from .maps import Approximable, Assumption, CMap, KernelMap, QMap

__all__ = ["Approximable", "Assumption", "CMap", "KernelMap", "QMap"]
