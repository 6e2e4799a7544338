"""Results whose size a run finds out.

    nonzero argwhere masked_select unique        (and x[mask], in indexing)
    item_dim                                     a number that a run computes, as a dim

How many elements of a mask are true is a late variable: a dim like any other in what is made
of the result, with its value known during the run. Two tensors selected by one mask have one
size; of others it is checked that they agree, when it is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from semel.errors import GraphError
from semel.ir.expr import Dim, is_positive, maximum, minimum
from semel.ir.graph import late_variable
from semel.ir.types import BOOL, INT64
from semel.ops.attrs import ScatterAttrs
from semel.tensor.elementwise import choose
from semel.tensor.handle import (
    TensorLike,
    apply,
    convert,
    dim_value,
    known_value,
    lift,
    scalar,
    weak_kind,
)
from semel.tensor.indexing import (
    certain_rows,
    check_index,
    iota,
    selected,
    true_indices,
    true_positions,
)
from semel.tensor.movement import broadcast, concat, stack
from semel.tensor.select import order_of

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor


@overload
def nonzero(x: TensorLike) -> tuple[Tensor, ...]: ...
@overload
def nonzero(x: TensorLike, *, as_tuple: bool) -> Any: ...
def nonzero(x: TensorLike, *, as_tuple: bool = True) -> Any:
    """np.nonzero: the indices (int64) of the elements that are not 0, one tensor per axis.

    With `as_tuple=False` they are the rows of one tensor, as `argwhere` has them.

    >>> [i.tolist() for i in Tensor([[0, 5], [7, 0]]).nonzero()]
    [[0, 1], [1, 0]]
    """
    found = true_indices(_truth(lift(x), "nonzero"))
    return found if as_tuple else stack(found, 1)


@overload
def where(condition: TensorLike) -> tuple[Tensor, ...]: ...
@overload
def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor: ...
def where(condition: TensorLike, a: Any = None, b: Any = None) -> Any:
    """`a` where the condition is true, else `b`; without both, `nonzero(condition)`.

    >>> x = Tensor([-1.0, 2.0])
    >>> semel.where(x > 0, x, 0.0).tolist()
    [0.0, 2.0]

    `x.where(a, b)` takes x as the condition.
    """
    if a is None and b is None:
        return nonzero(condition)
    if a is None or b is None:
        raise GraphError("where", "needs both what to take where it is true and where it is not.")
    condition = lift(condition)
    if condition.dtype != BOOL and _is_mask(a) and not _is_mask(b):
        raise GraphError(
            "where",
            f"the condition comes first and must be the bool one, got {condition.type}, then "
            f"{lift(a).type}.",
            hint="To keep x where a mask holds, write semel.where(mask, x, other).",
        )
    return choose(condition, a, b)


def _is_mask(x: TensorLike) -> bool:
    """Whether an operand is an array of bool; True and False are numbers like others."""
    return not weak_kind(x) and lift(x).dtype == BOOL


def argwhere(x: TensorLike) -> Tensor:
    """np.argwhere: the same as one row of indices for each such element."""
    return stack(true_indices(_truth(lift(x), "argwhere")), 1)


def _truth(x: Tensor, where: str) -> Tensor:
    if x.ndim == 0:
        raise GraphError(where, f"needs at least 1 axis, got {x.type}.")
    return x if x.dtype == BOOL else x.ne(0)


def masked_select(x: TensorLike, mask: TensorLike) -> Tensor:
    """The elements where `mask` is true, in order, as one axis; both broadcast.

    >>> x = Tensor([1, -2, 3])
    >>> x.masked_select(x > 0).tolist()
    [1, 3]
    """
    given = lift(x)
    lifted = lift(mask)
    if lifted.dtype != BOOL:
        raise GraphError("masked_select", f"the mask must be bool, got {lifted.type}.")
    x, m = broadcast([given, lifted], "masked_select")
    return selected(x, m, 0) if x.ndim else selected(x.flatten(), m.flatten(), 0)


def item_dim(
    x: TensorLike, limit: Dim, *, least: Dim = 0, clamp: bool = False, where: str = "item_dim"
) -> Dim:
    """One integer that a run computes, as a dim: a size, or a bound of a slice.

    It must lie in [least, limit], which is checked in every run; with `clamp`, as bounds of slices
    are, it is brought there. `least` may be negative, where the number is no size. Memory of what
    has such a size is for the limit. Use the dim soon: of numbers that no tensor has as a dim only
    the latest few are kept until a plan is made.
    """
    number = lift(x)
    if number.size != 1 or not number.dtype.is_integer:
        raise GraphError(where, f"a size must be one integer, got {number.type}.")
    known = known_value(number)
    if known is not None:
        return _known_dim(int(known.array.reshape(())), limit, least, clamp, where)
    number = convert(number.reshape(()), INT64)
    if clamp:
        number = number.clip(least, limit)
    room = limit - least
    # The check makes it a number of its own: the same with another limit is another variable.
    checked = check_index(number if least == 0 else number - least, room + 1, where, "size")
    return late_variable(checked.node, room) + least


def _known_dim(value: int, limit: Dim, least: Dim, clamp: bool, where: str) -> Dim:
    if clamp:
        return minimum(maximum(value, least), limit)
    if is_positive(least - value) or is_positive(value - limit):
        raise GraphError(where, f"a size must lie in [{least}, {limit}], got {value}.")
    return value


@overload
def unique(x: TensorLike) -> Tensor: ...


@overload
def unique(
    x: TensorLike,
    return_index: bool = ...,
    return_inverse: bool = ...,
    return_counts: bool = ...,
    *,
    equal_nan: bool = ...,
) -> Any: ...


def unique(
    x: TensorLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    equal_nan: bool = True,
) -> Any:
    """np.unique: the distinct elements in ascending order, NaN last and, if `equal_nan`, once.

    Also, if asked for: the position of each one's first occurrence in the flat tensor;
    for each element of this tensor, which of them it is; how often each one occurs.

    >>> values, counts = Tensor([3, 1, 3]).unique(return_counts=True)
    >>> values.tolist(), counts.tolist()
    ([1, 3], [1, 2])
    """
    x = lift(x)
    flat = x.flatten()
    count = flat.shape[0]
    order = order_of(flat, 0, False)
    ordered = certain_rows(flat, order, 0)
    is_first = _is_first(ordered, equal_nan)
    first = true_positions(is_first)
    results = [certain_rows(ordered, first, 0)]
    if return_index:
        results.append(certain_rows(order, first, 0))
    if return_inverse:
        rank = convert(is_first, INT64).cumsum(0) - 1
        empty = scalar(0, INT64).broadcast_to((count, 1))
        placed = apply("scatter", empty, order, rank.reshape(count, 1), attrs=ScatterAttrs("set"))
        results.append(placed.reshape(x.shape))
    if return_counts:
        ends = concat([first, dim_value(count).reshape(1)])
        results.append(ends.narrow(0, 1, first.shape[0]) - first)
    return tuple(results) if len(results) > 1 else results[0]


def _is_first(x: Tensor, equal_nan: bool) -> Tensor:
    """Which elements of this ordered tensor differ from the one before them."""
    count = x.shape[0]
    before = x.pad(((1, 0),)).narrow(0, 0, count)
    differs = x.ne(before)
    if equal_nan and x.dtype.is_float:
        differs = differs & (x.eq(x) | before.eq(before))
    return differs | iota((count,), 0).eq(0)
