"""Diagonals of stacks of matrices.

The functions of these names outside of `semel.linalg` take the first two axes, as NumPy's do; of a
stack [.., m, n], the matrices are the last two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.tensor.handle import DTypeLike, TensorLike, lift
from semel.tensor.spelling import same_as, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


@spelled(dim1="axis1", dim2="axis2")
def diagonal(
    x: TensorLike,
    *,
    offset: int = 0,
    axis1: int = -2,
    axis2: int = -1,
    dim1: int = same_as("axis1"),
    dim2: int = same_as("axis2"),
) -> Tensor:
    """The diagonals of matrices [.., m, n], as a last axis; `offset` ones are above the main one.

    >>> semel.linalg.diagonal([[[1, 2], [3, 4]]]).tolist()
    [[1, 4]]
    """
    return lift(x).diagonal(offset, axis1, axis2)


def trace(
    x: TensorLike,
    *,
    offset: int = 0,
    axis1: int = -2,
    axis2: int = -1,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """The sum of each diagonal of matrices [.., m, n]; in `dtype`, if it is given.

    >>> semel.linalg.trace([[[1, 2], [3, 4]]]).tolist()
    [5]
    """
    return diagonal(x, offset=offset, axis1=axis1, axis2=axis2).sum(-1, dtype=dtype)
