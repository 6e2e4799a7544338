"""Weights of few bits, held as words: eight numbers of 4 bits, or sixteen of 2, of one column.

    u4 [K, N]  -->  ((words[k / 8, n] >> 4 * (k % 8)) & 15) : i32 [K, N]

In arrays such a number is a byte (`docs/decisions/0110-narrow-dtypes.md`); as a weight it is its
bits. The words are stored in panels, like every weight, and the graph takes them apart by ordinary
ops, so that it means what it meant, and a contraction that widens its weights as it reads them
reads words. Signed numbers are stored with their sign turned, as what they are above the lowest.
"""

from __future__ import annotations

from semel.ir.graph import Node, make_node
from semel.ir.types import INT2, INT4, INT8, INT32, UINT2, UINT4, DType
from semel.ops.attrs import (
    CastAttrs,
    IotaAttrs,
    PadAttrs,
    PermuteAttrs,
    ReshapeAttrs,
    ScalarAttrs,
    SliceAttrs,
)
from semel.ops.filled import filled
from semel.ops.narrow_weights import WORD_BITS
from semel.ops.stored import stored
from semel.passes.patterns import expand_to, reshape_to

#: What is packed: integers, since a number is its bits.
PACKED: frozenset[DType] = frozenset((INT4, UINT4, INT2, UINT2))


def are_packed(matrix: Node) -> bool:
    """Whether a matrix of weights is one of few bits, in whole words along k."""
    depth = matrix.type.shape[-2]
    if matrix.type.dtype not in PACKED or not isinstance(depth, int):
        return False
    return depth > 0 and depth % (WORD_BITS // matrix.type.dtype.bits) == 0


def packed_bits(matrix: Node, lanes: int) -> Node:
    """The numbers of matrices (*lead, K, N) of weights as int32, out of words in panels."""
    dtype = matrix.type.dtype
    count = WORD_BITS // dtype.bits
    *lead, depth, columns = shape = tuple(int(d) for d in matrix.type.shape)  # type: ignore[arg-type]
    lanes = min(lanes, columns)
    words, panels, rank = depth // count, -(-columns // lanes), len(lead)
    node = stored(_word_panels(matrix, words, panels, lanes))
    node = make_node("permute", (node,), PermuteAttrs(_panels_last(rank)))
    node = make_node("reshape", (node,), ReshapeAttrs((*lead, words, panels * lanes)))
    if panels * lanes != columns:
        none, ones = (0,) * len(shape), (1,) * len(shape)
        node = make_node("slice", (node,), SliceAttrs(none, (*lead, words, columns), ones))
    split = (*lead, words, count, columns)
    node = reshape_to(expand_to(reshape_to(node, (*lead, words, 1, columns)), split), shape)
    one_word = (*(1,) * (rank + 1), count, 1)
    places = make_node("iota", (), IotaAttrs(one_word, rank + 1, INT32))
    shifts = reshape_to(expand_to(places, split), shape)
    shifts = make_node("mul", (shifts, filled(dtype.bits, INT32, shape)))
    node = make_node("shr", (node, shifts))
    node = make_node("and", (node, filled((1 << dtype.bits) - 1, INT32, shape)))
    if dtype.kind == "u":
        return node
    return make_node("sub", (node, filled(1 << dtype.bits - 1, INT32, shape)))


def _panels_last(rank: int) -> tuple[int, ...]:
    """(.., panels, words, lanes) as (.., words, panels, lanes), and back."""
    return (*range(rank), rank + 1, rank, rank + 2)


def _word_panels(matrix: Node, words: int, panels: int, lanes: int) -> Node:
    """The words of matrices as (*lead, panels, words, lanes), padded with zeros."""
    dtype = matrix.type.dtype
    bits, count = dtype.bits, WORD_BITS // dtype.bits
    *lead, _, columns = matrix.type.shape
    assert isinstance(columns, int)
    none = (0,) * len(lead)
    # As bytes before anything else: a number's other bits are 0 from here on.
    wide = make_node("cast", (matrix,), CastAttrs(INT8))
    if panels * lanes != columns:
        zero = make_node("scalar", (), ScalarAttrs(0, INT8))
        after = (*none, 0, panels * lanes - columns)
        wide = make_node("pad", (wide, zero), PadAttrs((*none, 0, 0), after))
    shape, steps = (*lead, words, panels * lanes), (*(1,) * len(lead), count, 1)
    result: Node | None = None
    for place in range(count):
        part = make_node("slice", (wide,), SliceAttrs((*none, place, 0), shape, steps))
        part = make_node("cast", (part,), CastAttrs(INT32))
        if dtype.kind == "i":
            part = make_node("add", (part, filled(1 << bits - 1, INT32, shape)))
        part = make_node("and", (part, filled((1 << bits) - 1, INT32, shape)))
        if place:
            part = make_node("shl", (part, filled(bits * place, INT32, shape)))
        result = part if result is None else make_node("or", (result, part))
    assert result is not None
    split = make_node("reshape", (result,), ReshapeAttrs((*lead, words, panels, lanes)))
    return make_node("permute", (split,), PermuteAttrs(_panels_last(len(lead))))
