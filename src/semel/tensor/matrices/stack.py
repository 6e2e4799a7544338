"""Matrices as one stack [batch, rows, columns] of floats, and back.

    Stack(x)  --stack.x [B, m, n]-->  a loop  --stack.result(y)-->  [.., p, q], in the dtype of x

Numbers that are no floats become float32, and floats of less than 32 bits are taken through it.
Nothing is raised for what only a run knows (a singular matrix, one that is not positive
definite): its results hold inf or NaN, of that matrix alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import Dim, is_nonnegative, is_positive, minimum, product
from semel.ir.types import FLOAT64, Shape
from semel.ops.attrs import GatherAttrs
from semel.tensor.control import loop
from semel.tensor.handle import TensorLike, apply, lift
from semel.tensor.indexing import certain_rows, iota
from semel.tensor.movement import agreeing, may_agree, stretch
from semel.tensor.reduce import as_float, rounded_to

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


class Stack:
    """The matrices of a tensor, whose leading axes are one."""

    def __init__(self, x: TensorLike, where: str, *, square: bool = False) -> None:
        given = lift(x)
        if given.ndim < 2:
            raise GraphError(where, f"needs matrices [.., m, n], got {given.type}.")
        rows, columns = given.shape[-2:]
        if square and rows != columns:
            if not may_agree((rows,), (columns,)):
                raise GraphError(where, f"needs square matrices, got {given.type}.")
            given = agreeing(given, (*given.shape[:-1], rows))
        self.dtype, self.lead = given.dtype, given.shape[:-2]
        self.rows, self.columns = given.shape[-2:]
        wide = as_float(given)
        self.batch = product(self.lead)
        self.x = wide.reshape(self.batch, self.rows, self.columns)

    @property
    def eps(self) -> float:
        """Half the distance from 1 to the next number, twice."""
        return 2.0**-52 if self.x.dtype == FLOAT64 else 2.0**-23

    def result(self, x: Tensor) -> Tensor:
        """A stack of anything with the leading axes of the matrices, in their dtype."""
        return rounded_to(x.reshape((*self.lead, *x.shape[1:])), self.dtype)

    def whole(self, x: Tensor) -> Tensor:
        """The same for integers and bool, which keep their dtype."""
        return x.reshape((*self.lead, *x.shape[1:]))


def repeat_steps(
    steps: Dim, states: list[Tensor], step: Callable[[Any, Any], list[Tensor]]
) -> tuple[Tensor, ...]:
    """The states after `step(number, states)` for each number; as they are if there is no step."""
    if isinstance(steps, int) and steps == 0:
        return tuple(states)
    return loop(steps, states, lambda at, now: (step(at, now), []))[0]


def row_numbers(size: Dim) -> Tensor:
    """[size, 1]: each row's own number."""
    return iota((size,), 0).unsqueeze(1)


def column_numbers(size: Dim) -> Tensor:
    """[size]: each column's own number."""
    return iota((size,), 0)


def identity(x: Tensor, batch: Dim, size: Dim, columns: Dim | None = None) -> Tensor:
    """A stack of identities, cut to some columns, in the dtype of x."""
    width = size if columns is None else columns
    ones = row_numbers(size).eq(column_numbers(width)).cast(x.dtype)
    return stretch(ones, (batch, size, width))


def ordered(x: Tensor, order: Tensor, axis: int) -> Tensor:
    """Rows (1) or columns (2) of a stack in the order [batch, count] of each matrix."""
    wide = order.unsqueeze(3 - axis)
    count = order.shape[1]
    shape: Shape = (x.shape[0], count, x.shape[2]) if axis == 1 else (*x.shape[:2], count)
    return apply("take_along", x, wide.broadcast_to(shape), attrs=GatherAttrs(axis))


def nth(x: Tensor, axis: int, at: Dim) -> Tensor:
    """Row (1) or column (2) `at` of each matrix, which it has; the axis stays with size 1."""
    if is_nonnegative(at) and is_positive(x.shape[axis] - at):
        return x.narrow(axis, at, 1)
    return certain_rows(x, lift(at).reshape(1), axis)  # of a shorter side, which nobody sees


def entry(x: Tensor, row: Dim, column: Dim) -> Tensor:
    """One element of each matrix, [batch, 1, 1]."""
    return nth(nth(x, 1, row), 2, column)


def diagonals(x: Tensor) -> Tensor:
    """[batch, min(m, n)]: what stands on the diagonals."""
    count = minimum(x.shape[1], x.shape[2])
    return x.narrow(1, 0, count).narrow(2, 0, count).diagonal(0, 1, 2)


def poisoned(x: Tensor, given: Tensor) -> Tensor:
    """x with NaN for the matrices that hold what is not finite: their iterations end early."""
    is_bad = ~given.isfinite().all((1, 2))
    wide = is_bad.reshape(-1, *(1,) * (x.ndim - 1))
    return wide.where(float("nan"), x)
