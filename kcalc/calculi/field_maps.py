"""Local maps of activations: q value, channel mean and gap ``1 - c`` after one activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..activations import Activation
from ..fields import NUMPY
from ..fields.jets import Jet
from ..foundation.errors import KcalcError
from ..network.network import Network
from .tape import recordable

Number = Any
KEPT = 1024
STEP = 0.02  # in ln q


@dataclass
class FieldMaps:
    """The local maps of activations over a number system.

    The last KEPT values for floating-point numbers are cached, because deep networks repeat them.
    """

    system: Any = NUMPY
    _maps: dict[Any, Any] = field(default_factory=dict)

    def q(self, phi: Activation, q: Number) -> tuple[Number, Number]:
        """Return ``(E phi(sqrt(q) z)^2, E phi(sqrt(q) z))``: q value and channel mean after phi."""
        if isinstance(q, Jet):
            return q.compose(phi.q_series(q.value, 2, q.order)), q.compose(
                phi.q_series(q.value, 1, q.order)
            )
        return self._kept(
            (phi, q), lambda: (phi.second_moment(q, self.system), phi.mean(q, self.system))
        )

    @recordable
    def gap(self, phi: Activation, gap: Number, q1: Number, q2: Number) -> Number:
        """The gap 1 - C after an activation, a jet of the same order as ``gap``.

        ``q1`` and ``q2`` may be the same jet of order one.
        """
        if isinstance(q1, Jet):
            if gap.order > 1:
                raise KcalcError(
                    "only first derivatives in q are available for the cosine of two tokens; use "
                    "order 1"
                )
            return self.gap(phi, gap, q1.value, q1.value) + Jet(
                (0 * gap.value, self._by_q(phi, gap.value, q1.value) * q1.coefficients[1])
            )
        series = self._kept(
            (phi, q1, q2, gap.value, gap.order),
            lambda: phi.taylor(gap.value, q1, q2, gap.order, self.system),
        )
        return (-gap).compose([series[0], *(-a for a in series[1:])])

    def _by_q(self, phi: Activation, gap: Number, q: Number) -> Number:
        """Return the derivative of 1 - C with respect to q = q1 = q2.

        The derivative is computed from sixth-order central differences in ln q, with a relative
        error of about 1e-12.
        """
        if phi.degree is not None:
            return gap * 0
        logs = STEP * np.arange(1, 4)
        rise = [
            phi.taylor(gap, q * np.exp(s), q * np.exp(s), 0, self.system)[0]
            for s in (*logs, *-logs)
        ]
        return sum(
            w * (up - down) for w, up, down in zip((45, -9, 1), rise[:3], rise[3:], strict=True)
        ) / (60 * STEP * q)

    def _kept(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return ``make()``, cached if ``key`` consists of an activation and floats.

        Values for arrays and for numbers of other fields are not cached.
        """
        phi, *numbers = key
        if self.system is not NUMPY or not all(
            isinstance(n, float | int) or (type(n) is np.ndarray and n.ndim == 0) for n in numbers
        ):
            return make()
        place = (phi, *map(float, numbers))
        found = self._maps.get(place)
        if found is None:
            found = make()
            if len(self._maps) >= KEPT:
                self._maps.clear()
            self._maps[place] = found
        return found


def field_maps_of(network: Network, field: Any) -> FieldMaps:
    """The local maps over a number system; in double precision, there is one object per network."""
    return (
        network.__dict__.setdefault("_field_maps", FieldMaps())
        if field is NUMPY
        else FieldMaps(field)
    )
