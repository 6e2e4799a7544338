"""Sizes that are computed from data during a run."""

from __future__ import annotations

from semel.ir.expr import Dim
from semel.tensor.late import item_dim
from semel.tensor.tensor import Tensor

#: What such a size is at most, where nothing else bounds it: memory is laid out for it.
MOST = 1 << 16


def size_of(number: Tensor, limit: Dim = MOST) -> Dim:
    """The size that this int64 number is, which must lie in [0, limit]."""
    return item_dim(number, limit)
