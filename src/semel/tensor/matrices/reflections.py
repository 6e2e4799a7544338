"""Orthogonal triangles: reflections that turn columns upright, one after the other.

x [B, m, n]  --loop-->  R, and a direction for each column  --loop backwards-->  Q
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from semel.errors import GraphError
from semel.ir.expr import Dim, minimum
from semel.tensor.handle import TensorLike, scalar
from semel.tensor.matrices.stack import (
    Stack,
    column_numbers,
    entry,
    identity,
    nth,
    repeat_steps,
    row_numbers,
)
from semel.tensor.movement import stretch

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


class QRResult(NamedTuple):
    """Orthonormal columns, and an upper triangle."""

    Q: Tensor
    R: Tensor


def qr(x: TensorLike, mode: str = "reduced") -> Any:
    """Q and R with x = Q @ R: columns that are orthonormal, and an upper triangle.

    `mode` is "reduced" (min(m, n) columns of Q), "complete" (m of them), or "r" (R alone). Signs
    are those of LAPACK, and of NumPy: R's diagonal may be negative.
    """
    if mode not in ("reduced", "complete", "r"):
        raise GraphError("qr", f"mode must be reduced, complete or r, got {mode!r}.")
    stack = Stack(x, "qr")
    upper, directions = triangle(stack.x)
    count = minimum(stack.rows, stack.columns)
    width = stack.rows if mode == "complete" else count
    right = stack.result(upper.narrow(1, 0, width))
    if mode == "r":
        return right
    return QRResult(stack.result(orthonormal(directions, width)), right)


def triangle(x: Tensor) -> tuple[Tensor, Tensor]:
    """R [B, m, n], and the directions of the reflections [B, m, min(m, n)], of length sqrt(2)."""
    batch, rows, columns = x.shape
    count = minimum(rows, columns)
    row, column = row_numbers(rows), column_numbers(count)

    def step(at: Any, states: tuple[Tensor, ...]) -> list[Tensor]:
        upper, directions = states
        own = (row >= at).where(nth(upper, 2, at), 0.0)
        below = (row > at).where(own, 0.0).abs().max(1, True)
        scale = own.abs().max(1, True)
        small = own / scale.eq(0).where(1.0, scale)
        length = small.square().sum(1, True).sqrt()
        head = entry(small, at, 0)
        sign = (head < 0).where(-1.0, scalar(1.0, x.dtype))
        v = small + row.eq(at).where(sign * length, 0.0)
        size = v.square().sum(1, True).sqrt()
        v = v * (2.0**0.5 / size.eq(0).where(1.0, size))
        v = below.eq(0).where(0.0, v)  # what stands upright already is not reflected
        upper = upper - v * (v * upper).sum(1, True)
        # Exact zeros, also where rounding leaves something.
        reached = (row > at) & column_numbers(columns).eq(at)
        return [reached.where(0.0, upper), column.eq(at).where(v, directions)]

    empty = stretch(scalar(0.0, x.dtype), (batch, rows, count))
    (upper, directions) = repeat_steps(count, [x, empty], step)
    return upper, directions


def orthonormal(directions: Tensor, width: Dim) -> Tensor:
    """The first columns of the product of all reflections."""
    batch, rows, count = directions.shape

    def step(at: Any, states: tuple[Tensor, ...]) -> list[Tensor]:
        found = states[0]
        v = nth(directions, 2, count - 1 - at)
        return [found - v * (v * found).sum(1, True)]

    (found,) = repeat_steps(count, [identity(directions, batch, rows, width)], step)
    return found
