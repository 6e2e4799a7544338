"""Products of bytes as the target's dot-product instructions want them.

    matmul_integer(a, b)  -->  matmul_words(a', words of b) - correction

An instruction multiplies four neighbouring k of a row with those of a column, so that the
right operand is laid out as words of four bytes of one column. Weights are stored as
(panels, words, lanes): the words of a panel's columns, one after the other, as kernels read
them, behind a view that gives back (words, N). Others are put together by the same ops, in
a kernel of their own, unless there are so few rows that reading the bytes plainly is faster.

The left operand takes the sign that the instruction wants: 128 is added (or taken away) and
128 times the sums of the columns is taken away (or added) again.

x86 without an instruction for all of it multiplies bytes and adds two products in 16 bits, where
large ones saturate. Weights of 7 bits, as quantisers make for such machines, cannot: these are
found by looking at them.
"""

from __future__ import annotations

from semel.ir.expr import Dim, ceildiv
from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ir.target import Target
from semel.ir.types import INT8, INT32, UINT8
from semel.ops.attrs import (
    CastAttrs,
    PadAttrs,
    PermuteAttrs,
    ReshapeAttrs,
    ScalarAttrs,
    SliceAttrs,
)
from semel.ops.bodies import has_bodies, with_bodies
from semel.ops.filled import filled
from semel.ops.stored import stored
from semel.passes.fold import fold_node
from semel.passes.pack import below_batch, weight_chain
from semel.passes.patterns import Where, expand_to, reshape_to
from semel.passes.quantise import column_sums, flip_sign

#: Words of k that a tile register takes at once: the right operand has whole runs of them.
TILE_WORDS = 16
#: Rows below which a right operand that is not constant is read as it lies.
FEW_ROWS = 8
#: The largest weight of which two products with bytes always fit 16 bits.
SMALL = 64
_UNSIGNED_LEFT = ("vpdpbusd", "usdot", "pmaddubsw")


def pack_words(graph: Graph, target: Target, where: Where | None = None) -> Graph:
    """Rewrite products of bytes for the target's instructions and panels.

    `where` says of which nodes, if not of all.
    """
    if "matmul_integer" not in graph.ops and not graph.has_bodies:
        return graph
    lanes = target.word_lanes
    run = TILE_WORDS if target.has_byte_tiles else 1

    def rule(node: Node) -> Node | None:
        if where is not None and not where(node):
            return None
        if has_bodies(node):
            return with_bodies(node, lambda body: pack_words(body, target))
        if node.op.name != "matmul_integer" or not target.byte_dot:
            return None
        left, right = node.inputs
        if right.type.dtype != INT8:
            return None
        words = _stored_words(right, lanes, run)
        if words is None:
            words = _computed_words(right, left.type.shape[-2], lanes, run)
        if words is None:
            return None
        is_small = target.multiplies_small_bytes and _is_small(right)
        return _with_sign(left, right, words, "pmaddubsw" if is_small else target.byte_dot)

    return rewrite(graph, rule)


def _is_small(right: Node) -> bool:
    """Whether weights are surely small: constants, for a param may be replaced by any."""
    chain = weight_chain(below_batch(right))
    if chain is None or chain[0].op.name != "constant":
        return False
    array = chain[0].attrs.storage.array
    return array.size > 0 and bool(array.min() >= -SMALL and array.max() <= SMALL)


def _with_sign(left: Node, right: Node, words: Node, instruction: str) -> Node:
    """The product with the left operand's sign as the instruction takes it."""
    wanted = left.type.dtype
    if instruction in _UNSIGNED_LEFT:
        wanted = UINT8
    elif instruction == "sdot":
        wanted = INT8
    op = "matmul_small_words" if instruction == "pmaddubsw" else "matmul_words"
    if wanted == left.type.dtype:
        return make_node(op, (left, words))
    product = make_node(op, (flip_sign(left), words))
    sums = column_sums(right)
    correction = expand_to(_times(sums, 128), product.type.shape)
    return make_node("sub" if wanted == UINT8 else "add", (product, correction))


def _times(sums: Node, factor: int) -> Node:
    """Sums times a number, before any run where they are known then, and below an expand."""
    if sums.op.name == "expand":
        return expand_to(_times(sums.inputs[0], factor), sums.type.shape)
    return fold_node(make_node("mul", (sums, filled(factor, INT32, sums.type.shape))))


def _stored_words(right: Node, lanes: int, run: int) -> Node | None:
    """Words of a weight, packed; None if it is not one matrix of fixed size."""
    matrix = below_batch(right)
    if weight_chain(matrix) is None or matrix.type.rank != 2:
        return None
    depth, columns = (int(d) for d in matrix.type.shape)  # type: ignore[arg-type]
    words, panels = -(-depth // (4 * run)) * run, -(-columns // lanes)
    if words == 0 or panels == 0:
        return None
    node = stored(_word_panels(matrix, words, panels, lanes))
    node = make_node("permute", (node,), PermuteAttrs((1, 0, 2)))
    node = make_node("reshape", (node,), ReshapeAttrs((words, panels * lanes)))
    if panels * lanes != columns:
        node = make_node("slice", (node,), SliceAttrs((0, 0), (words, columns), (1, 1)))
    batch = right.type.shape[:-2]
    node = reshape_to(node, (*[1] * len(batch), words, columns))
    return expand_to(node, (*batch, words, columns))


def _word_panels(matrix: Node, words: int, panels: int, lanes: int) -> Node:
    """The words of a matrix of bytes as (panels, words, lanes), padded with zeros."""
    depth, columns = (int(d) for d in matrix.type.shape)  # type: ignore[arg-type]
    wide = _padded(matrix, (4 * words - depth, panels * lanes - columns))
    split = make_node("reshape", (_as_words(wide, words),), ReshapeAttrs((words, panels, lanes)))
    return make_node("permute", (split,), PermuteAttrs((1, 0, 2)))


def _computed_words(right: Node, rows: Dim, lanes: int, run: int) -> Node | None:
    """Words put together from every fourth row of the right operand, in whole panels."""
    if isinstance(rows, int) and rows < FEW_ROWS:
        return None
    *batch, depth, columns = right.type.shape
    words = ceildiv(depth, 4 * run) * run
    width = columns if run == 1 else ceildiv(columns, lanes) * lanes
    if 4 * words != depth or width != columns:
        right = _padded(right, (4 * words - depth, width - columns))
    result = _as_words(right, words)
    if width != columns:
        none, ones = (0,) * right.type.rank, (1,) * right.type.rank
        result = make_node("slice", (result,), SliceAttrs(none, (*batch, words, columns), ones))
    return result


def _padded(matrix: Node, after: tuple[Dim, Dim]) -> Node:
    """A matrix, or matrices, with so many rows and columns of zeros behind."""
    none = (0,) * matrix.type.rank
    zero = make_node("scalar", (), ScalarAttrs(0, matrix.type.dtype))
    return make_node("pad", (matrix, zero), PadAttrs(none, (*none[:-2], *after)))


def _as_words(matrix: Node, words: Dim) -> Node:
    """Four neighbouring rows of bytes as one row of words."""
    none, ones = (0,) * matrix.type.rank, (1,) * matrix.type.rank
    *batch, _, columns = matrix.type.shape
    shape = (*batch, words, columns)
    result: Node | None = None
    for byte in range(4):
        starts, steps = (*none[:-2], byte, 0), (*ones[:-2], 4, 1)
        part = make_node("slice", (matrix,), SliceAttrs(starts, shape, steps))
        part = make_node("cast", (part,), CastAttrs(INT32))
        part = make_node("and", (part, filled(0xFF, INT32, shape)))
        if byte:
            part = make_node("shl", (part, filled(8 * byte, INT32, shape)))
        result = part if result is None else make_node("or", (result, part))
    assert result is not None
    return result
