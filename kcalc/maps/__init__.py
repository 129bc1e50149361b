"""Q and C maps as objects with habits: values, derivatives, fixed points, formulas, assumptions."""

from .maps import Approximable, Assumption, CMap, KernelMap, QMap

__all__ = ["Approximable", "Assumption", "CMap", "KernelMap", "QMap"]
