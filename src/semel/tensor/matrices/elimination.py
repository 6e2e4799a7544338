"""Elimination: what Gauss did, one column after the other.

    lu lu_factor solve solve_triangular inv det slogdet cholesky

Each step is one pass over the stack, in a loop of the runner: it costs no compile for a size, which
may be symbolic. Pivots are the largest elements of their columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from semel.errors import GraphError
from semel.ir.expr import Dim, minimum
from semel.tensor.handle import TensorLike, lift, promote
from semel.tensor.indexing import iota
from semel.tensor.matrices.stack import (
    Stack,
    column_numbers,
    diagonals,
    entry,
    identity,
    nth,
    ordered,
    repeat_steps,
    row_numbers,
)
from semel.tensor.movement import broadcast_shapes, concat, may_agree, stretch
from semel.tensor.reduce import as_float, rounded_to
from semel.tensor.spelling import same_as, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


# ------------------------------------------------------------ pivots


def _eliminated(x: Tensor, steps: Dim, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Upper triangles, the order of rows, and the sign of the order [batch, 1].

    Columns behind the first `steps` are carried along. `keep`: factors stay below the diagonal.
    """
    batch, rows, columns = x.shape
    row, column = row_numbers(rows), column_numbers(columns)
    place = iota((rows,), 0)

    def step(at: Any, states: tuple[Tensor, ...]) -> list[Tensor]:
        matrix, order, sign = states
        size = (place >= at).where(nth(matrix, 2, at).reshape(batch, rows).abs(), -1.0)
        best = size.argmax(1, True)
        swap = place.eq(at).where(best, place.eq(best).where(at, place))
        turned = ordered(matrix, swap, 1)
        pivot = entry(turned, at, at)
        factor = nth(turned, 2, at) / pivot.eq(0).where(1.0, pivot)
        factor = (row > at).where(factor, 0.0)
        after = turned - factor * (column > at).where(nth(turned, 1, at), 0.0)
        low = factor if keep else 0.0
        after = ((row > at) & column.eq(at)).where(low, after)
        order = order.take_along_axis(swap, 1)
        return [after, order, best.eq(at).where(sign, -sign)]

    start = stretch(place, (batch, rows))
    one = stretch(lift(1.0).cast(x.dtype), (batch, 1))
    (found, order, sign) = repeat_steps(steps, [x, start, one], step)
    return found, order, sign


def lu(x: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U with x = P @ L @ U: a permutation, a lower triangle of unit diagonal, an upper."""
    stack = Stack(x, "lu")
    count = minimum(stack.rows, stack.columns)
    packed, order, _ = _eliminated(stack.x, count, True)
    lower = packed.narrow(2, 0, count).tril(-1)
    unit = identity(packed, stack.batch, stack.rows, count)
    # Row i of L @ U is x's row order[i].
    places = order.unsqueeze(1).eq(row_numbers(stack.rows)).cast(packed.dtype)
    found = (places, lower + unit, packed.narrow(1, 0, count).triu())
    return tuple(stack.result(f) for f in found)  # type: ignore[return-value]


def lu_factor(x: TensorLike) -> tuple[Tensor, Tensor]:
    """L below the diagonal and U above it in one matrix, and the order of rows they have (int64).

    `x[order] = L @ U`, which `lu_factor` of SciPy says by swaps instead.
    """
    stack = Stack(x, "lu_factor")
    packed, order, _ = _eliminated(stack.x, minimum(stack.rows, stack.columns), True)
    return stack.result(packed), stack.whole(order)


def det(x: TensorLike) -> Tensor:
    """The determinant; 1 of an empty matrix."""
    stack = Stack(x, "det", square=True)
    packed, _, sign = _eliminated(stack.x, stack.rows, False)
    return stack.result(diagonals(packed).prod(1) * sign.reshape(stack.batch))


class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its size."""

    sign: Tensor
    logabsdet: Tensor


def slogdet(x: TensorLike) -> SlogdetResult:
    """The sign of the determinant and the logarithm of its size: 0 and -inf if it is 0."""
    stack = Stack(x, "slogdet", square=True)
    packed, _, sign = _eliminated(stack.x, stack.rows, False)
    pivots = diagonals(packed)
    signs = pivots.sign().prod(1) * sign.reshape(stack.batch)
    return SlogdetResult(stack.result(signs), stack.result(pivots.abs().log().sum(1)))


# ------------------------------------------------------------ systems


def solve(a: TensorLike, b: TensorLike) -> Tensor:
    """x with a @ x = b, for matrices a [.., n, n] and b [.., n, k], or one vector b [n].

    Leading axes broadcast. Of a singular matrix x holds inf or NaN.
    """
    left, right, is_vector = _system(a, b, "solve")
    stack = Stack(left, "solve", square=True)
    sides = right.reshape(stack.batch, *right.shape[-2:])
    whole = concat([stack.x, sides], 2)
    upper, _, _ = _eliminated(whole, stack.rows, False)
    width = sides.shape[2]
    found = _substituted(
        upper.narrow(2, 0, stack.rows), upper.narrow(2, stack.rows, width), False, False
    )
    return _solved(found, right, is_vector, stack)


@spelled(unitriangular="unit_diagonal")
def solve_triangular(
    a: TensorLike,
    b: TensorLike,
    *,
    lower: bool = False,
    upper: bool | None = None,
    unit_diagonal: bool = False,
    unitriangular: bool = same_as("unit_diagonal"),
) -> Tensor:
    """x with a @ x = b, for triangles a [.., n, n]; what is on their other side is not read.

    With `unit_diagonal` the diagonal is not read either, and is 1. `lower` is SciPy's word, `upper`
    PyTorch's for the same.
    """
    where = "solve_triangular"
    if upper is not None:
        if lower and upper:
            raise GraphError(where, "a triangle is lower or upper, got both.")
        lower = not upper
    left, right, is_vector = _system(a, b, where)
    stack = Stack(left, where, square=True)
    sides = right.reshape(stack.batch, *right.shape[-2:])
    found = _substituted(stack.x, sides, lower, unit_diagonal)
    return _solved(found, right, is_vector, stack)


def inv(x: TensorLike) -> Tensor:
    """The inverse; of a singular matrix inf or NaN."""
    stack = Stack(x, "inv", square=True)
    unit = identity(stack.x, stack.batch, stack.rows)
    upper, _, _ = _eliminated(concat([stack.x, unit], 2), stack.rows, False)
    n = stack.rows
    return stack.result(_substituted(upper.narrow(2, 0, n), upper.narrow(2, n, n), False, False))


def _substituted(a: Tensor, b: Tensor, lower: bool, unit: bool) -> Tensor:
    """Triangles solved, one row after the other."""
    size = a.shape[1]
    row = row_numbers(size)

    def step(at: Any, states: tuple[Tensor, ...]) -> list[Tensor]:
        found = states[0]
        k = at if lower else size - 1 - at
        own = nth(found, 1, k)
        own = own if unit else own / entry(a, k, k)
        is_open = row > k if lower else row < k
        # Nothing is read of what is done: inf * 0 would be NaN.
        rest = found - is_open.where(nth(a, 2, k), 0.0) * own
        return [row.eq(k).where(own, is_open.where(rest, found))]

    (found,) = repeat_steps(size, [b], step)
    return found


def _system(a: TensorLike, b: TensorLike, where: str) -> tuple[Tensor, Tensor, bool]:
    """Both sides with the same leading axes, in one dtype; whether the right one was a vector."""
    left, right = promote((lift(a), b), to_float=True)
    is_vector = right.ndim == 1
    right = right.unsqueeze(1) if is_vector else right
    fits = left.ndim >= 2 and right.ndim >= 2 and may_agree(left.shape[-1:], right.shape[-2:-1])
    if not fits:
        raise GraphError(
            where,
            f"needs a [.., n, n] and b [.., n, k] or [n], got {left.type} and {lift(b).type}.",
        )
    lead = broadcast_shapes([left.shape[:-2], right.shape[:-2]], where)
    left = stretch(left, (*lead, *left.shape[-2:]))
    right = stretch(as_float(right), (*lead, left.shape[-1], right.shape[-1]))
    return left, right, is_vector


def _solved(found: Tensor, right: Tensor, is_vector: bool, stack: Stack) -> Tensor:
    result = rounded_to(found.reshape(right.shape), stack.dtype)
    return result.squeeze(-1) if is_vector else result


# ------------------------------------------------------------ roots


def cholesky(x: TensorLike, *, upper: bool = False) -> Tensor:
    """The lower triangle L with x = L @ L.mT, or the upper one; x is read below its diagonal.

    Of a matrix that is not positive definite, NaN from the column on where that shows.
    """
    stack = Stack(x, "cholesky", square=True)
    size = stack.rows
    row, column = row_numbers(size), column_numbers(size)

    def step(at: Any, states: tuple[Tensor, ...]) -> list[Tensor]:
        matrix = states[0]
        root = entry(matrix, at, at).sqrt()
        own = (row >= at).where(nth(matrix, 2, at) / root, 0.0)
        own = row.eq(at).where(root, own)
        across = own.reshape(stack.batch, 1, size)
        after = matrix - own * across
        return [column.eq(at).where(own, (column > at).where(after, matrix))]

    (found,) = repeat_steps(size, [stack.x], step)
    found = found.tril()
    return stack.result(found.mT if upper else found)


def cholesky_solve(b: TensorLike, factor: TensorLike, *, upper: bool = False) -> Tensor:
    """x with a @ x = b, for the `cholesky` factor of a."""
    low = lift(factor).mT if upper else lift(factor)
    half = solve_triangular(low, b, lower=True)
    return solve_triangular(low.mT, half)
