"""Trace a value back to its source, through views, sums, gains and norms."""

from __future__ import annotations

from dataclasses import dataclass, field

from .operations import BIASED, CONTRACTIONS, NORMS, REDUCTIONS, ROOT_FUNCTIONS, SUMS, VIEWS
from .program import Program, Value


@dataclass
class Roots:
    """Find the roots of the values of a program, computing the roots of each value only once.

    The roots of a value are the sources from which it is computed through views, sums, gains and
    norms alone. ``stops`` contains indices of values that count as roots although they are sums or
    views, such as merges of a stream.
    """

    program: Program
    stops: set[int] = field(default_factory=set)
    known: dict[int, dict[int, bool]] = field(default_factory=dict)

    def __call__(self, value: Value) -> dict[int, bool]:
        """Return {index of a root: whether there is a norm between it and the value}."""
        stack = [value]
        while stack:
            top = stack[-1]
            if top.index in self.known:
                stack.pop()
                continue
            below, normed = self._passed(top)
            missing = [v for v in below if v.index not in self.known]
            if missing:
                stack.extend(missing)
                continue
            self.known[top.index] = self._joined(top, below, normed)
            stack.pop()
        return self.known[value.index]

    def _joined(self, value: Value, below: tuple[Value, ...], normed: bool) -> dict[int, bool]:
        if not below:
            return {value.index: False}
        found: dict[int, bool] = {}
        for source in below:
            for root, before in self.known[source.index].items():
                found[root] = found.get(root, False) or before or normed
        return found

    def _passed(self, value: Value) -> tuple[tuple[Value, ...], bool]:
        """Return (values of which this value is a linear copy, whether there is a norm in between).

        For a root, there are no such values.
        """
        data = value.data
        if value.index in self.stops or not data or value.flavour != "data":
            return (), False
        if value.op in NORMS:
            return data[:1], True
        if value.op in VIEWS:
            return data, False
        if value.op in SUMS:
            return data, False
        if value.op in ("mul", "div", "true_divide"):
            return self._product(value, data)
        return (), False

    def _product(self, value: Value, data: tuple[Value, ...]) -> tuple[tuple[Value, ...], bool]:
        """Return the data factor of a product, and whether the product is a step of a norm.

        If several factors are data, the largest one counts. If they have the same size, there is
        none.
        """
        if len(data) == 1:
            return data, False
        large, small = sorted(data, key=lambda v: -v.tensor.numel())[:2]
        if small.tensor.numel() >= large.tensor.numel():
            return (), False
        return (large,), self._is_statistic(small)

    def _is_statistic(self, value: Value) -> bool:
        """Return whether a factor is the square root of a reduction, as in a norm.

        No contraction may lie between these operations and the factor.
        """
        seen_root = seen_reduction = False
        while True:
            seen_root |= value.op in ROOT_FUNCTIONS
            seen_reduction |= value.op in REDUCTIONS
            if seen_root and seen_reduction:
                return True
            if value.op in CONTRACTIONS or not value.data:
                return False
            value = value.data[0]


def is_product(value: Value) -> bool:
    """Return whether a value is a contraction of two data values, such as scores or a mean."""
    return value.op in CONTRACTIONS and len(value.data) > 1


def contraction_weight(value: Value) -> Value | None:
    """Return the weight of a contraction of data with a weight, or None for other values."""
    if value.op not in CONTRACTIONS or value.flavour != "data":
        return None
    operands = value.inputs[1:3] if value.op in BIASED else value.inputs[:2]
    if not any(v.flavour == "data" for v in operands):
        return None
    return next((v for v in operands if v.flavour == "weight"), None)
