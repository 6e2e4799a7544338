"""Tensor, layer 8: along an axis, in order.

    cumsum cumprod cummax cummin sort argsort topk

Running results come from `scan`, orders from `argsort`, which is stable: equal elements keep
their order, ascending or descending, and NaN stands last in both.
"""

from __future__ import annotations

from typing import Self

from semel.errors import GraphError
from semel.ops.attrs import ArgsortAttrs, GatherAttrs, ScanAttrs
from semel.tensor.assign import Assign
from semel.tensor.handle import normalize_axis, whole_number
from semel.tensor.reduce import accumulator


class Order(Assign):
    """Scans and sorting."""

    __slots__ = ()

    def _scan(self, combine: str, axis: int | None, where: str, *, exclusive: bool = False) -> Self:
        if axis is None:
            return self.flatten()._scan(combine, 0, where, exclusive=exclusive)
        if self.ndim == 0:
            return self.flatten()._scan(combine, axis, where, exclusive=exclusive).reshape(())
        i = normalize_axis(axis, self.ndim, where)
        return self._apply("scan", self, attrs=ScanAttrs(i, combine, exclusive))

    def cumsum(self, axis: int | None = None, *, exclusive: bool = False) -> Self:
        """Running sums; exclusive ones leave the element itself out. Integers widen to int64."""
        return self._cast(accumulator(self.dtype))._scan("sum", axis, "cumsum", exclusive=exclusive)

    def cumprod(self, axis: int | None = None) -> Self:
        """Running products; integers widen to int64."""
        return self._cast(accumulator(self.dtype))._scan("prod", axis, "cumprod")

    def cummax(self, axis: int | None = None) -> Self:
        """Running maxima; NaN from the first NaN on."""
        return self._scan("max", axis, "cummax")

    def cummin(self, axis: int | None = None) -> Self:
        """Running minima; NaN from the first NaN on."""
        return self._scan("min", axis, "cummin")

    def argsort(self, axis: int | None = -1, descending: bool = False) -> Self:
        """The indices (int64) that sort the axis; of the flat tensor if None."""
        if axis is None or self.ndim == 0:
            return self.flatten()._argsort(0, descending)
        return self._argsort(normalize_axis(axis, self.ndim, "argsort"), descending)

    def _argsort(self, axis: int, descending: bool) -> Self:
        return self._apply("argsort", self, attrs=ArgsortAttrs(axis, descending))

    def sort(self, axis: int | None = -1, descending: bool = False) -> Self:
        """The elements in order along the axis; of the flat tensor if None."""
        if axis is None or self.ndim == 0:
            return self.flatten().sort(0, descending).reshape(self.shape if self.ndim == 0 else -1)
        i = normalize_axis(axis, self.ndim, "sort")
        return self._along(self._argsort(i, descending), i)

    def _along(self, order: Self, axis: int) -> Self:
        # The indices come from argsort, so they need no check.
        return self._apply("take_along", self, order, attrs=GatherAttrs(axis))

    def topk(self, k: int, axis: int = -1, largest: bool = True) -> tuple[Self, Self]:
        """The k largest (or smallest) elements in order, and their indices."""
        i = normalize_axis(axis, self.ndim, "topk")
        length = self.shape[i]
        if whole_number(k, "k", "topk") < 0 or (isinstance(length, int) and k > length):
            raise GraphError("topk", f"k must lie in [0, {length}] for {self.type}, got {k}.")
        indices = self._argsort(i, largest).narrow(i, 0, k)
        return self._along(indices, i), indices
