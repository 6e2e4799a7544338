"""Eigenvalues and singular values by Jacobi's method: pairs of columns are turned until none is
at a slant to another.

    round r --_partner-->  who is turned with whom: all pairs meet once in a sweep of n - 1 rounds
    eigh  [B, n, n] symmetric: both sides are turned, until nothing is left beside the diagonal
    svd   [B, m, n]: columns are turned, until all are orthogonal; their lengths are the values

All pairs of a round are disjoint, so that a round is a few passes over the stack; `while_loop` ends
when a sweep changes nothing any more, after six to ten of them in most cases. Slower than
LAPACK's methods for large matrices, and as exact or more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from semel.errors import GraphError
from semel.ir.dims import mod
from semel.ir.expr import Dim, maximum, minimum
from semel.ir.types import INT64
from semel.tensor.control import while_loop
from semel.tensor.handle import TensorLike, dim_value, lift, scalar
from semel.tensor.matrices.reflections import orthonormal, triangle
from semel.tensor.matrices.stack import (
    Stack,
    column_numbers,
    diagonals,
    identity,
    ordered,
    poisoned,
)
from semel.tensor.movement import stretch

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: Sweeps after which what is left is noise that cannot be turned away.
_MOST_SWEEPS = 30


class _Rounds:
    """A tournament of n players: in each of its rounds everybody meets somebody else."""

    def __init__(self, size: Dim) -> None:
        self.size = size
        #: An odd number of seats in a circle; one player stands outside, if n is even.
        self.seats = maximum(size + mod(size, 2) - 1, 1)
        self.half = (self.seats + 1) // 2

    def partners(self, number: Tensor) -> Tensor:
        """[n]: who each player meets; itself, if nobody is left."""
        place, seats = column_numbers(self.size), dim_value(self.seats)
        met = (number - place) % seats
        met = met.eq(place).where(seats, met)
        alone = (number * dim_value(self.half)) % seats
        met = place.eq(seats).where(alone, met)
        return (met < dim_value(self.size)).where(met, place)


def _turn(slant: Tensor, apart: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
    """Sine of the angle that makes a pair upright, and tangent of its half, for each of its two.

    `slant` is what the pair has in common, `apart` the other's size less the own.
    """
    ratio = apart / (slant.eq(0).where(1.0, slant) * 2.0)
    sign = ratio.eq(0).where(is_first.where(1.0, scalar(-1.0, slant.dtype)), ratio.sign())
    size = ratio.abs()
    # Without the square where it would overflow.
    root = (size > 1e15).where(size, (size.minimum(1e15).square() + 1.0).sqrt())
    tangent = slant.eq(0).where(0.0, sign / (size + root))
    cosine = (tangent.square() + 1.0).rsqrt()
    sine = tangent * cosine
    return sine, sine / (cosine + 1.0)


# ------------------------------------------------------------ symmetric matrices


class EighResult(NamedTuple):
    """Ascending eigenvalues, and unit eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def eigh(x: TensorLike, UPLO: str = "L") -> EighResult:  # noqa: N803  (NumPy's name)
    """The eigenvalues of symmetric matrices, ascending, and unit eigenvectors as columns.

    One triangle is read: the lower, or with `UPLO="U"` the upper. Of matrices that hold what is not
    finite all is NaN.
    """
    stack = Stack(x, "eigh", square=True)
    values, vectors = _symmetric(stack, UPLO, "eigh", True)
    assert vectors is not None
    return EighResult(stack.result(values), stack.result(vectors))


def eigvalsh(x: TensorLike, UPLO: str = "L") -> Tensor:  # noqa: N803  (NumPy's name)
    """The eigenvalues of symmetric matrices, ascending: `eigh` without the vectors."""
    stack = Stack(x, "eigvalsh", square=True)
    return stack.result(_symmetric(stack, UPLO, "eigvalsh", False)[0])


def _symmetric(
    stack: Stack, triangle: str, where: str, wants_vectors: bool
) -> tuple[Tensor, Tensor | None]:
    if triangle not in ("L", "U"):
        raise GraphError(where, f"UPLO must be 'L' or 'U', got {triangle!r}.")
    size, batch = stack.rows, stack.batch
    half = stack.x.tril() if triangle == "L" else stack.x.triu()
    given = half + (half.tril(-1) if triangle == "L" else half.triu(1)).mT
    rounds, place = _Rounds(size), column_numbers(size)
    scale = given.abs().max((1, 2), True) if _is_some(size) else stretch(lift(1.0), (batch, 1, 1))
    start = given / scale.eq(0).where(1.0, scale)
    # Off the diagonal, this much moves no eigenvalue by more than rounding does.
    limit = start.square().sum((1, 2)) * (stack.eps**2 / 16)
    unit = identity(start, batch, size) if wants_vectors else stretch(scalar(0.0, start.dtype), ())
    off_diagonal = place.unsqueeze(1).ne(place)

    def goes_on(states: Any) -> Any:
        matrix, _, number = states
        off = off_diagonal.where(matrix, 0.0).square().sum((1, 2))
        return (off > limit).any() & (number < dim_value(rounds.seats * _MOST_SWEEPS))

    def turn(states: Any) -> Any:
        matrix, vectors, number = states
        partner = rounds.partners(number % dim_value(rounds.seats))
        met = stretch(partner, (batch, size))
        own = diagonals(matrix)
        slant = ordered(matrix, met, 2).diagonal(0, 1, 2)
        # Both of a pair turn by one angle, though rounding leaves the matrix a little uneven.
        slant = (slant + slant.take_along_axis(met, 1)) * 0.5
        slant = partner.eq(place).where(0.0, slant)
        apart = own.take_along_axis(met, 1) - own
        sine, half = _turn(slant, apart, place < partner)
        turned = _turned(_turned(matrix.mT, met, sine, half).mT, met, sine, half)
        # What a turn makes upright is upright, whatever rounding says.
        is_pair = partner.unsqueeze(1).eq(place) & off_diagonal
        turned = is_pair.where(0.0, turned)
        if wants_vectors:
            vectors = _turned(vectors, met, sine, half)
        return turned, vectors, number + 1

    begin = (start, unit, scalar(0, INT64))
    found, vectors, _ = while_loop(goes_on, turn, begin) if _is_some(size) else begin
    values = diagonals(found) * scale.reshape(batch, 1)
    order = values.argsort(1)
    values = poisoned(values.take_along_axis(order, 1), given)
    return values, poisoned(ordered(vectors, order, 2), given) if wants_vectors else None


def _turned(x: Tensor, met: Tensor, sine: Tensor, half: Tensor) -> Tensor:
    """Each column of a stack turned with the one that it meets: cos * x - sin * other.

    Written as a step from x. The cosine of a small angle is 1 after rounding: as a factor, a
    thousand turns would make columns longer.
    """
    return x - sine.unsqueeze(1) * (ordered(x, met, 2) + half.unsqueeze(1) * x)


def _is_some(size: Dim) -> bool:
    return not isinstance(size, int) or size > 0


# ------------------------------------------------------------ singular values


class SVDResult(NamedTuple):
    """Descending singular values, between orthonormal vectors."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def svd(x: TensorLike, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """U, S and Vh with x = (U * S) @ Vh: singular values descending, beside orthonormal vectors.

    `full_matrices` fills U and Vh up to squares; `compute_uv=False` gives S alone. Of matrices that
    hold what is not finite all is NaN.
    """
    stack = Stack(x, "svd")
    if not compute_uv:
        return svdvals(x)
    m, n = stack.rows, stack.columns
    is_wide = isinstance(m, int) and isinstance(n, int) and m < n
    if not full_matrices:
        u, s, v = _values(stack.x.mT if is_wide else stack.x, stack.eps)
        count = minimum(m, n)
        u, v = u.narrow(2, 0, count), v.narrow(2, 0, count)
        s = s.narrow(1, 0, count)
    else:
        u, s, v = _values(stack.x.mT if is_wide else stack.x, stack.eps, full=True)
        s = s.narrow(1, 0, minimum(m, n))
    if is_wide:
        u, v = v, u
    found = [poisoned(t, stack.x) for t in (u, s, v.mT)]
    return SVDResult(*(stack.result(t) for t in found))


def svdvals(x: TensorLike) -> Tensor:
    """The singular values, descending."""
    stack = Stack(x, "svdvals")
    m, n = stack.rows, stack.columns
    is_wide = isinstance(m, int) and isinstance(n, int) and m < n
    given = stack.x.mT if is_wide else stack.x
    columns, _, scale = _orthogonal(given, stack.eps, False)
    values = columns.square().sum(1).sqrt().sort(1, True).narrow(1, 0, minimum(m, n))
    return stack.result(poisoned(values * scale.reshape(stack.batch, 1), stack.x))


def _values(x: Tensor, eps: float, full: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """U [B, m, m or min(m, n)], the values [B, min(m, n)] and V [B, n, n]."""
    batch, m, n = x.shape
    columns, vectors, scale = _orthogonal(x, eps, True)
    order = columns.square().sum(1).argsort(1, True)
    columns, vectors = ordered(columns, order, 2), ordered(vectors, order, 2)
    # Orthogonal columns have a triangle that is their lengths, and directions where they have none.
    upper, directions = triangle(columns)
    lengths = diagonals(upper)
    left = orthonormal(directions, m if full else minimum(m, n))
    sign = (lengths < 0).where(-1.0, scalar(1.0, x.dtype))
    if full:
        sign = sign.pad(((0, 0), (0, m - minimum(m, n))), 1.0)
    return left * sign.unsqueeze(1), lengths.abs() * scale.reshape(batch, 1), vectors


def _orthogonal(x: Tensor, eps: float, wants_vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    """x @ V with orthogonal columns, V, and what the columns were divided by."""
    batch, m, n = x.shape
    rounds, place = _Rounds(n), column_numbers(n)
    if _is_some(m) and _is_some(n):
        scale = x.abs().max((1, 2), True)
        scale = scale.eq(0).where(1.0, scale)
    else:
        scale = stretch(scalar(1.0, x.dtype), (batch, 1, 1))
    tolerance = eps * 4
    unit = identity(x, batch, n) if wants_vectors else stretch(scalar(0.0, x.dtype), ())
    seats = dim_value(rounds.seats)

    def goes_on(states: Any) -> Any:
        _, _, number, worst = states
        is_over = (number % seats).eq(0) & (worst <= tolerance) & (number > 0)
        return ~is_over & (number < seats * _MOST_SWEEPS)

    def turn(states: Any) -> Any:
        columns, vectors, number, worst = states
        partner = rounds.partners(number % seats)
        met = stretch(partner, (batch, n))
        others = ordered(columns, met, 2)
        sizes = columns.square().sum(1)
        slant = partner.eq(place).where(0.0, (columns * others).sum(1))
        theirs = sizes.take_along_axis(met, 1)
        both = sizes.sqrt() * theirs.sqrt()
        share = both.eq(0).where(0.0, slant.abs() / both.eq(0).where(1.0, both))
        slant = (share > tolerance / 4).where(slant, 0.0)
        sine, half = _turn(slant, theirs - sizes, place < partner)
        columns = _turned(columns, met, sine, half)
        if wants_vectors:
            vectors = _turned(vectors, met, sine, half)
        before = (number % seats).eq(0).where(0.0, worst)
        return columns, vectors, number + 1, before.maximum(share.max(initial=0.0))

    begin = (x / scale, unit, scalar(0, INT64), scalar(0.0, x.dtype))
    if not (_is_some(m) and _is_some(n)):
        return begin[0], begin[1], scale
    columns, vectors, _, _ = while_loop(goes_on, turn, begin)
    return columns, vectors, scale
