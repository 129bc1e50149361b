"""The router primitive of the calculi."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..foundation.guests import LAYERS
from ..network.layers import Layer
from ..network.primitives import Primitive


@dataclass(frozen=True, kw_only=True)
class Route(Primitive):
    """``scale sum_i w_i e_i`` over the k experts (out of ``experts``) with the largest logits.

    Its inputs are the logits and one expert, which represents all the identically distributed
    experts. The other fields are as in :class:`kcalc.experts.layers.Route`.
    """

    k: int
    experts: int
    score: str
    normalise: bool
    scale: Any
    varies: ClassVar[bool] = True

    @property
    def selects(self) -> bool:
        """Whether some experts are not selected."""
        return self.k < self.experts

    def as_layer(self) -> Layer:
        return LAYERS["Route"](self.k, self.score, self.normalise, self.scale)
