"""Products of bytes as the target's dot-product instructions want them.

    matmul_integer(a, b)  -->  matmul_words(a', words of b) - correction

An instruction multiplies four neighbouring k of a row with those of a column, so that the
right operand is laid out as words of four bytes of one column. Constants are packed here, as
(panels, words, lanes): the words of a panel's columns, one after the other, as kernels read
them, behind a view that gives back (words, N). Others are put together by ordinary ops, in
a kernel of their own, unless there are so few rows that reading the bytes plainly is faster.

The left operand takes the sign that the instruction wants: 128 is added (or taken away) and
128 times the sums of the columns is taken away (or added) again.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from semel.ir.expr import Dim, ceildiv
from semel.ir.graph import Graph, Node, Storage, aligned_empty, make_node, rewrite
from semel.ir.target import Target
from semel.ir.types import INT8, INT32, UINT8, TensorType
from semel.ops.attrs import (
    CastAttrs,
    ConstantAttrs,
    PadAttrs,
    PermuteAttrs,
    ReshapeAttrs,
    ScalarAttrs,
    SliceAttrs,
)
from semel.ops.bodies import has_bodies, with_bodies
from semel.passes.pack import below_batch, constant_chain, evaluate_chain
from semel.passes.patterns import expand_to, full, reshape_to
from semel.passes.quantise import column_sums, flip_sign

#: Words of k that a tile register takes at once: the right operand has whole runs of them.
TILE_WORDS = 16
#: Rows below which a right operand that is not constant is read as it lies.
FEW_ROWS = 8
_UNSIGNED_LEFT = ("vpdpbusd", "usdot")
_packed: WeakKeyDictionary[Storage, dict[Any, Storage]] = WeakKeyDictionary()


def pack_words(graph: Graph, target: Target) -> Graph:
    """Rewrite products of bytes for the target's instructions and panels."""
    lanes = target.word_lanes
    run = TILE_WORDS if target.has_byte_tiles else 1

    def rule(node: Node) -> Node | None:
        if has_bodies(node):
            return with_bodies(node, lambda body: pack_words(body, target))
        if node.op.name != "matmul_integer" or not target.byte_dot:
            return None
        left, right = node.inputs
        if right.type.dtype != INT8:
            return None
        words = _constant_words(right, lanes, run)
        if words is None:
            words = _computed_words(right, left.type.shape[-2], lanes, run)
        return None if words is None else _with_sign(left, right, words, target.byte_dot)

    return rewrite(graph, rule)


def _with_sign(left: Node, right: Node, words: Node, instruction: str) -> Node:
    """The product with the left operand's sign as the instruction takes it."""
    wanted = left.type.dtype
    if instruction in _UNSIGNED_LEFT:
        wanted = UINT8
    elif instruction == "sdot":
        wanted = INT8
    if wanted == left.type.dtype:
        return make_node("matmul_words", (left, words))
    product = make_node("matmul_words", (flip_sign(left), words))
    sums = column_sums(right)
    scaled = make_node("mul", (sums, full(128, INT32, sums.type.shape)))
    scaled = _known(sums, 128) or scaled
    correction = expand_to(scaled, product.type.shape)
    return make_node("sub" if wanted == UINT8 else "add", (product, correction))


def _known(sums: Node, factor: int) -> Node | None:
    """A constant times a number, seen through an expand."""
    if sums.op.name == "expand":
        below = _known(sums.inputs[0], factor)
        return None if below is None else expand_to(below, sums.type.shape)
    if sums.op.name != "constant":
        return None
    value = sums.attrs.storage.array * np.int32(factor)
    return make_node("constant", (), ConstantAttrs(Storage(value), sums.type))


def _constant_words(right: Node, lanes: int, run: int) -> Node | None:
    """Words of a constant, packed; None if it is not one matrix of fixed size."""
    matrix = below_batch(right)
    chain = constant_chain(matrix)
    if chain is None or matrix.type.rank != 2:
        return None
    depth, columns = (int(d) for d in matrix.type.shape)  # type: ignore[arg-type]
    words, panels = -(-depth // (4 * run)) * run, -(-columns // lanes)
    if words == 0 or panels == 0:
        return None
    known = _packed.setdefault(chain[0].attrs.storage, {})
    key = (tuple((n.op.name, n.attrs) for n in chain[1:]), lanes, run)
    if key not in known:
        known[key] = Storage(_pack(evaluate_chain(chain), words, panels, lanes))
    kind = TensorType((panels, words, lanes), INT32)
    node = make_node("constant", (), ConstantAttrs(known[key], kind))
    node = make_node("permute", (node,), PermuteAttrs((1, 0, 2)))
    node = make_node("reshape", (node,), ReshapeAttrs((words, panels * lanes)))
    if panels * lanes != columns:
        node = make_node("slice", (node,), SliceAttrs((0, 0), (words, columns), (1, 1)))
    batch = right.type.shape[:-2]
    node = reshape_to(node, (*[1] * len(batch), words, columns))
    return expand_to(node, (*batch, words, columns))


def _pack(array: np.ndarray[Any, Any], words: int, panels: int, lanes: int) -> np.ndarray[Any, Any]:
    depth, columns = array.shape
    wide = np.zeros((4 * words, panels * lanes), np.int8)
    wide[:depth, :columns] = array
    packed = aligned_empty((panels, words, lanes), np.dtype(np.int32))
    grouped = wide.reshape(words, 4, panels, lanes).transpose(2, 0, 3, 1)
    packed[...] = np.ascontiguousarray(grouped).view("<i4")[..., 0]
    return packed


def _computed_words(right: Node, rows: Dim, lanes: int, run: int) -> Node | None:
    """Words put together from every fourth row of the right operand, in whole panels."""
    if isinstance(rows, int) and rows < FEW_ROWS:
        return None
    *batch, depth, columns = right.type.shape
    words = ceildiv(depth, 4 * run) * run
    width = columns if run == 1 else ceildiv(columns, lanes) * lanes
    none, ones = (0,) * right.type.rank, (1,) * right.type.rank
    if 4 * words != depth or width != columns:
        zero = make_node("scalar", (), ScalarAttrs(0, INT8))
        after = (*none[:-2], 4 * words - depth, width - columns)
        right = make_node("pad", (right, zero), PadAttrs(none, after))
    shape = (*batch, words, width)
    result: Node | None = None
    for byte in range(4):
        starts, steps = (*none[:-2], byte, 0), (*ones[:-2], 4, 1)
        part = make_node("slice", (right,), SliceAttrs(starts, shape, steps))
        part = make_node("cast", (part,), CastAttrs(INT32))
        part = make_node("and", (part, full(0xFF, INT32, shape)))
        if byte:
            part = make_node("shl", (part, full(8 * byte, INT32, shape)))
        result = part if result is None else make_node("or", (result, part))
    if width != columns and result is not None:
        result = make_node("slice", (result,), SliceAttrs(none, (*batch, words, columns), ones))
    return result
