"""How far apart vectors are, and how alike.

    pairwise_distance  row by row      cdist  all pairs of rows      cosine_similarity  angles

Differences are taken before they are squared: nothing of one product of matrices, which is
inexact for vectors that are close to each other, and no table of differences in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import GraphError
from semel.ir.dims import equal
from semel.tensor.handle import TensorLike, lift, normalize_axis, promote
from semel.tensor.movement import broadcast
from semel.tensor.reduce import as_float, rounded_to
from semel.tensor.spelling import AXIS, KEEPDIMS, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


def cdist(x: TensorLike, y: TensorLike, p: float = 2.0) -> Tensor:
    """The p-norm of every difference: x [.., P, M] and y [.., R, M] give [.., P, R].

    p is 0 (how many elements differ), 1, 2, infinity or any other number above 0.
    """
    a, b = promote((lift(x), y), to_float=True)
    if a.ndim < 2 or b.ndim < 2 or equal(a.shape[-1], b.shape[-1]) == 0:
        raise GraphError(
            "cdist", f"needs x [.., P, M] and y [.., R, M] of one M, got {a.type} and {b.type}."
        )
    if isinstance(p, (str, bool)) or not p >= 0:
        raise GraphError("cdist", f"p must be a number >= 0, got {p!r}.")
    apart = as_float(a).unsqueeze(-2) - as_float(b).unsqueeze(-3)
    if apart.shape[-1] == 0:
        return rounded_to(apart.sum(-1), a.dtype)
    return rounded_to(apart.norm(p, -1), a.dtype)


@spelled(keepdim="keepdims")
def pairwise_distance(
    x: TensorLike,
    y: TensorLike,
    p: float = 2.0,
    eps: float = 1e-6,
    keepdims: bool = False,
    *,
    keepdim: bool = KEEPDIMS,
) -> Tensor:
    """The p-norm of x - y + eps along the last axis; both broadcast."""
    a, b = promote((lift(x), y), to_float=True)
    apart = as_float(a) - as_float(b) + eps
    return rounded_to(apart.norm(p, -1, keepdims), a.dtype)


@spelled(dim="axis")
def cosine_similarity(
    x: TensorLike, y: TensorLike, axis: int = 1, eps: float = 1e-8, *, dim: int = AXIS
) -> Tensor:
    """The cosine of the angle between vectors along an axis, whose lengths are at least eps."""
    a, b = promote((lift(x), y), to_float=True)
    dtype = a.dtype
    a, b = broadcast([as_float(a), as_float(b)], "cosine_similarity")
    i = normalize_axis(axis, a.ndim, "cosine_similarity")
    lengths = a.norm(2, i).maximum(eps) * b.norm(2, i).maximum(eps)
    return rounded_to((a * b).sum(i) / lengths, dtype)
