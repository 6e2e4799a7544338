"""What follows from singular values and from products: ranks, inverses of any shape, powers.

pinv lstsq matrix_rank cond      from `svd`
matrix_power multi_dot expm      from products
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.dims import maximum
from semel.ir.types import INT64
from semel.tensor.control import while_loop
from semel.tensor.handle import TensorLike, lift, scalar, whole_number
from semel.tensor.matrices.elimination import inv, solve
from semel.tensor.matrices.norms import matrix_norm
from semel.tensor.matrices.rotations import svd, svdvals
from semel.tensor.matrices.stack import Stack, identity
from semel.tensor.reduce import as_float, rounded_to

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

# ------------------------------------------------------------ from singular values


def pinv(x: TensorLike, rtol: TensorLike | None = None) -> Tensor:
    """The inverse of Moore and Penrose: of singular values up to rtol times the largest, nothing.

    `rtol` is max(m, n) times the precision of the dtype, if it is not said.
    """
    stack = Stack(x, "pinv")
    return stack.result(_pseudo_inverse(stack, rtol)[0])


def lstsq(
    a: TensorLike, b: TensorLike, rcond: TensorLike | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x that makes the length of a @ x - b least (and x the shortest such), as NumPy has it.

    The result is (x, residuals, rank, singular values). The residuals are the squared lengths of
    b - a @ x by column, always: NumPy leaves them out where a has not full rank.
    """
    left, right = lift(a), lift(b)
    stack = Stack(left, "lstsq")
    is_vector = right.ndim == left.ndim - 1
    sides = as_float(right.unsqueeze(-1) if is_vector else right)
    if sides.ndim != left.ndim:
        raise GraphError(
            "lstsq", f"needs b [.., m, k] or [.., m], got {left.type} and {right.type}."
        )
    inverse, values, is_large = _pseudo_inverse(stack, rcond)
    wide = as_float(left)
    found = inverse.reshape(*stack.lead, *inverse.shape[1:]) @ sides
    rest = (sides - wide @ found).square().sum(-2)
    found = found.squeeze(-1) if is_vector else found
    rest = rest.squeeze(-1) if is_vector else rest
    rank = stack.whole(is_large.sum(1))
    return (
        rounded_to(found, stack.dtype),
        rounded_to(rest, stack.dtype),
        rank,
        stack.result(values),
    )


def matrix_rank(x: TensorLike, rtol: TensorLike | None = None) -> Tensor:
    """How many singular values are above rtol times the largest (int64).

    `rtol` is max(m, n) times the precision of the dtype, if it is not said.
    """
    stack = Stack(x, "matrix_rank")
    values = svdvals(stack.x)
    return stack.whole(_above(stack, values, rtol).sum(1))


def cond(x: TensorLike, p: float | str | None = None) -> Tensor:
    """norm(x) * norm(inv(x)) by the norm `p`: by singular values for None, 2 and -2."""
    stack = Stack(x, "cond", square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        values = svdvals(stack.x)
        largest, least = values.narrow(1, 0, 1), values.narrow(1, values.shape[1] - 1, 1)
        ratio = least / largest if p == -2 else largest / least
        return stack.result(ratio.squeeze(1))
    assert p is not None
    found = matrix_norm(stack.x, p) * matrix_norm(inv(stack.x), p)
    return stack.result(found)


def _pseudo_inverse(stack: Stack, rtol: TensorLike | None) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse [B, n, m], the singular values, and which of them count."""
    u, s, vh = svd(stack.x, False)
    is_large = _above(stack, s, rtol)
    factors = is_large.where(1.0 / is_large.where(s, 1.0), 0.0)
    return (vh.mT * factors.unsqueeze(1)) @ u.mT, s, is_large


def _above(stack: Stack, values: Tensor, rtol: TensorLike | None) -> Tensor:
    share: Any = rtol
    first: Tensor = values.narrow(1, 0, 1) if values.shape[1] != 0 else values
    if rtol is None:
        share = lift(maximum(stack.rows, stack.columns)).cast(values.dtype) * stack.eps
    elif lift(rtol).ndim:
        share = lift(rtol).broadcast_to(stack.lead).reshape(stack.batch, 1)
    found: Tensor = values > first * share
    return found


# ------------------------------------------------------------ from products


def matrix_power(x: TensorLike, n: int) -> Tensor:
    """x @ x @ ... @ x, n times, by squaring; the inverse of x as often for a negative n."""
    stack = Stack(x, "matrix_power", square=True)
    times = whole_number(n, "n", "matrix_power")
    given = lift(x)
    if times < 0:
        given, times = inv(given), -times
    if times == 0:
        return stack.result(identity(stack.x, stack.batch, stack.rows)).cast(given.dtype)
    result: Tensor | None = None
    while times:
        if times & 1:
            result = given if result is None else result @ given
        times >>= 1
        given = given @ given if times else given
    assert result is not None
    return result


def multi_dot(arrays: Sequence[TensorLike]) -> Tensor:
    """The product of several matrices, in the order that takes the fewest multiplications.

    The first and the last may be vectors. With symbolic sizes products are taken from the left.
    """
    items = [lift(each) for each in arrays]
    if len(items) < 2:
        raise GraphError("multi_dot", f"needs at least 2 tensors, got {len(items)}.")
    inner = [x.ndim == 2 for x in items[1:-1]]
    if not all(inner) or not all(x.ndim in (1, 2) for x in (items[0], items[-1])):
        types = ", ".join(str(x.type) for x in items)
        raise GraphError("multi_dot", f"needs matrices, and vectors at the ends only, got {types}.")
    first, last = items[0].ndim == 1, items[-1].ndim == 1
    items[0] = items[0].unsqueeze(0) if first else items[0]
    items[-1] = items[-1].unsqueeze(1) if last else items[-1]
    sizes = [x.shape[0] for x in items] + [items[-1].shape[1]]
    if all(isinstance(size, int) for size in sizes):
        found = _in_order(items, _cuts(tuple(sizes)), 0, len(items))  # type: ignore[arg-type]
    else:
        found = items[0]
        for each in items[1:]:
            found = found @ each
    found = found.squeeze(0) if first else found
    return found.squeeze(-1) if last else found


def _in_order(items: list[Tensor], cuts: dict[tuple[int, int], int], low: int, high: int) -> Tensor:
    if high - low == 1:
        return items[low]
    cut = cuts[low, high]
    return _in_order(items, cuts, low, cut) @ _in_order(items, cuts, cut, high)


def _cuts(sizes: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """Where each range of a chain of matrices is cut last."""
    cuts: dict[tuple[int, int], int] = {}

    @cache
    def cost(low: int, high: int) -> int:
        if high - low == 1:
            return 0
        ways = [
            (cost(low, k) + cost(k, high) + sizes[low] * sizes[k] * sizes[high], k)
            for k in range(low + 1, high)
        ]
        best, cuts[low, high] = min(ways)
        return best

    cost(0, len(sizes) - 1)
    return cuts


#: The coefficients of Pade's approximation of degree 13, and the norm up to which it is exact.
_PADE = (
    64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000,
    10559470521600, 670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
)  # fmt: skip
_PADE_NORM = 5.371920351148152


def expm(x: TensorLike) -> Tensor:
    """The exponential of square matrices, by scaling and squaring."""
    stack = Stack(x, "expm", square=True)
    norm = matrix_norm(stack.x, 1) if _has_elements(stack) else scalar(0.0, stack.x.dtype)
    squarings = (norm.reshape(-1, 1, 1) / _PADE_NORM).log2().ceil().clip(0.0, 1023.0)
    squarings = squarings.isnan().where(0.0, squarings)
    a = stack.x * (-squarings).exp2()
    unit = identity(a, stack.batch, stack.rows)
    b = [float(c) / _PADE[0] for c in _PADE]
    a2 = a @ a
    a4, a6 = a2 @ a2, a2 @ (a2 @ a2)
    odd = a6 @ (a6 * b[13] + a4 * b[11] + a2 * b[9]) + a6 * b[7] + a4 * b[5] + a2 * b[3]
    odd = a @ (odd + unit * b[1])
    even = a6 @ (a6 * b[12] + a4 * b[10] + a2 * b[8]) + a6 * b[6] + a4 * b[4] + a2 * b[2]
    even = even + unit * b[0]
    start = solve(even - odd, even + odd)
    most = squarings.max() if _has_elements(stack) else scalar(0.0, a.dtype)

    def square(states: Any) -> Any:
        found, number = states
        again = number.cast(found.dtype) < squarings
        return again.where(found @ found, found), number + 1

    found, _ = while_loop(
        lambda states: states[1].cast(a.dtype) < most, square, (start, scalar(0, INT64))
    )
    return stack.result(found)


def _has_elements(stack: Stack) -> bool:
    return not any(isinstance(d, int) and d == 0 for d in stack.x.shape)
