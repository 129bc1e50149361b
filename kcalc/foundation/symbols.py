"""The SymPy symbols used in results.

``psi`` is the common slope ``C'(1)`` of all nonlinear layers [DKS sec. 17.1], and ``kappa`` is
their common curvature ``C''(1)`` [TAT App. B.2]. Both are positive, so ``expr.subs(kc.symbols.psi,
2)`` and ``expr.as_poly(kc.symbols.psi)`` work on any result.
"""

from __future__ import annotations

import sympy as sp

from .plain_arguments import text

__all__ = ["c", "kappa", "psi", "q", "slope_of"]

psi = sp.Symbol("psi", positive=True)
kappa = sp.Symbol("kappa", positive=True)


def slope_of(name: str) -> sp.Symbol:
    """Return ``psi_<name>``, the slope symbol of one activation."""
    return sp.Symbol(f"psi_{text(name, 'the name of an activation')}", positive=True)


c: sp.Symbol = sp.Symbol("c", real=True)
"""The cosine of two inputs."""

q: sp.Symbol = sp.Symbol("q", positive=True)
"""The mean square of an input."""


def __dir__() -> list[str]:
    return __all__
