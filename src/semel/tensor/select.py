"""The order of an axis, and the first of it without ordering everything else.

    x, axis, direction     --order_of-->      the place of every element, in order
    x, axis, direction, k  --first_places-->  the places of the first k

A long axis is cut into blocks, and each block is known by its best element. The first k elements
lie in the k blocks whose bests come first: whatever stands in another has k elements before it,
the bests of those. So the blocks are put in order, and then the elements of the first k of them.
Equal elements keep their order, as in `argsort`: of blocks with equal bests the earlier one comes
first, and what was chosen stays as it stood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.ir.expr import Dim, as_number, upper_bound
from semel.ir.types import BOOL, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8
from semel.ops.attrs import ArgsortAttrs, GatherAttrs
from semel.tensor.elementwise import choose
from semel.tensor.handle import apply, bitcast, convert, scalar
from semel.tensor.movement import concat

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: Shorter axes are put in order as a whole, and those of which a larger share would be.
LEAST_LENGTH, MOST_SHARE = 128, 2
LEAST_BLOCK = 8


def order_of(x: Tensor, axis: int, descending: bool) -> Tensor:
    """`argsort` along one axis, which is not negative."""
    return apply("argsort", x, attrs=ArgsortAttrs(axis, descending))


def along_order(x: Tensor, order: Tensor, axis: int) -> Tensor:
    """The elements at places that an order gave: they are in range, and need no check."""
    return apply("take_along", x, order, attrs=GatherAttrs(axis))


def first_places(x: Tensor, axis: int, descending: bool, count: Dim) -> Tensor:
    """The first `count` of the places that `order_of` gives."""
    block = _block(x.shape[axis], count)
    if block is None:
        return order_of(x, axis, descending).narrow(axis, 0, count)
    blocks = as_number(x.shape[axis]) // block
    whole = x.narrow(axis, 0, blocks * block).unflatten(axis, (blocks, block))
    keys = _keys(whole, descending)
    bests = keys.max(axis + 1) if descending else keys.min(axis + 1)
    first = first_places(bests, axis, descending, count)
    chosen = along_order(first, order_of(convert(first, INT32), axis, False), axis)
    each = chosen.unsqueeze(axis + 1).broadcast_to(
        (*chosen.shape[: axis + 1], block, *chosen.shape[axis + 1 :])
    )
    candidates = along_order(whole, each, axis).flatten(axis, axis + 1)
    begins = chosen * block
    if rest := as_number(x.shape[axis]) - blocks * block:  # too few for a block: one more
        candidates = concat([candidates, x.narrow(axis, blocks * block, rest)], axis)
        last = scalar(blocks * block, INT64)
        one = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        begins = concat([begins, last.broadcast_to(one)], axis)
    found = order_of(candidates, axis, descending).narrow(axis, 0, count)
    return along_order(begins, found // block, axis) + found % block


def _block(length: Dim, count: Dim) -> int | None:
    """The size of blocks that leaves the least to put in order; None if it would be too much."""
    most = upper_bound(count)
    if not isinstance(length, int) or length < LEAST_LENGTH or most is None:
        return None
    sizes = (1 << power for power in range(LEAST_BLOCK.bit_length() - 1, length.bit_length()))
    block = min(sizes, key=lambda size: length // size + most * size)
    ordered = length // block + most * block
    return block if most and ordered * MOST_SHARE <= length else None


def _keys(x: Tensor, descending: bool) -> Tensor:
    """Integers in the order of the elements, NaN last: so that a NaN is no block's best."""
    dtype = x.dtype
    if not dtype.is_float:
        small = UINT8 if dtype.kind in "bu" else INT8
        return convert(x, small) if dtype == BOOL or dtype.is_narrow else x
    wide = convert(x, FLOAT64 if dtype == FLOAT64 else FLOAT32)
    kind = INT64 if dtype == FLOAT64 else INT32
    bits = bitcast(wide, kind)
    lowest = scalar(kind.lowest, kind)
    keys = choose(bits < 0, lowest - bits, bits)  # -0 as 0
    return choose(wide.ne(wide), lowest if descending else scalar(kind.highest, kind), keys)
