"""Tensor, behind layer 8: results whose size a run finds out.

    nonzero argwhere masked_select unique        (and x[mask], in indexing)

How many elements of a mask are true is a late variable: a dim like any other in what is made
of the result, with its value known during the run. Two tensors selected by one mask have one
size; of others it is checked that they agree, when it is known.
"""

from __future__ import annotations

from typing import Any, Self, overload

from semel.errors import GraphError
from semel.ir.types import BOOL, INT64
from semel.ops.attrs import GatherAttrs, ScatterAttrs
from semel.tensor.handle import TensorLike
from semel.tensor.order import Order


class Late(Order):
    """Selection by value."""

    __slots__ = ()

    def nonzero(self) -> tuple[Self, ...]:
        """np.nonzero: the indices (int64) of the elements that are not 0, one tensor per axis."""
        return self._truth("nonzero")._where()

    def argwhere(self) -> Self:
        """np.argwhere: the same as one row of indices for each such element."""
        return self.stack(self._truth("argwhere")._where(), 1)

    def _truth(self, where: str) -> Self:
        if self.ndim == 0:
            raise GraphError(where, f"needs at least 1 axis, got {self.type}.")
        return self if self.dtype == BOOL else self.ne(0)

    def masked_select(self, mask: TensorLike) -> Self:
        """The elements where `mask` is true, in order, as one axis; both broadcast."""
        lifted = self._lift(mask)
        if lifted.dtype != BOOL:
            raise GraphError("masked_select", f"the mask must be bool, got {lifted.type}.")
        x, m = self._broadcast([self, lifted], "masked_select")
        return x.flatten()._at_rows(m.flatten()._positions())

    def _at_rows(self, index: Self) -> Self:
        # The indices come from positions and orders, so they need no check.
        return self._apply("gather", self, index, attrs=GatherAttrs(0))

    @overload
    def unique(self) -> Self: ...

    @overload
    def unique(
        self, return_index: bool = ..., return_inverse: bool = ..., return_counts: bool = ...
    ) -> Any: ...

    def unique(
        self,
        return_index: bool = False,
        return_inverse: bool = False,
        return_counts: bool = False,
    ) -> Any:
        """np.unique: the distinct elements in ascending order, NaN once and last.

        Also, if asked for: the position of each one's first occurrence in the flat tensor;
        for each element of this tensor, which of them it is; how often each one occurs.
        """
        flat = self.flatten()
        count = flat.shape[0]
        order = flat._argsort(0, False)
        ordered = flat._at_rows(order)
        is_first = ordered._is_first()
        first = is_first._positions()
        results = [ordered._at_rows(first)]
        if return_index:
            results.append(order._at_rows(first))
        if return_inverse:
            rank = is_first._cast(INT64).cumsum(0) - 1
            empty = self._scalar(0, INT64).broadcast_to((count, 1))
            placed = self._apply(
                "scatter", empty, order, rank.reshape(count, 1), attrs=ScatterAttrs("set")
            )
            results.append(placed.reshape(self.shape))
        if return_counts:
            ends = self.concat([first, self._dim(count).reshape(1)])
            results.append(ends.narrow(0, 1, first.shape[0]) - first)
        return tuple(results) if len(results) > 1 else results[0]

    def _is_first(self) -> Self:
        """Which elements of this ordered tensor differ from the one before them."""
        count = self.shape[0]
        before = self.pad(((1, 0),)).narrow(0, 0, count)
        differs = self.ne(before)
        if self.dtype.is_float:
            differs = differs & (self.eq(self) | before.eq(before))
        return differs | self._iota((count,), 0).eq(0)
