"""Products of bytes found in what was written in 32 bits.

    matmul(cast a - za, cast b - zb)  -->  matmul_integer(a, b) - zb * rows(a) - za * columns(b)

`(x.cast(int32) - zero) @ (w.cast(int32) - zero)` says what a quantised product means; bytes
are what it should read. Zero points that do not depend on k leave the product as sums of
rows and columns: (a - za)(b - zb) = a(b' + 0) with b' = b - zb, so that only za * sum(b') and
zb * sum(a) remain. Unsigned right operands become signed ones with another zero point, since
no dot-product instruction takes two unsigned operands. Integers wrap, so that all of this is
exact. It runs before constants are folded: folded weights would be four times as large.
"""

from __future__ import annotations

from semel.ir.expr import Index, atoms, is_positive
from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ir.types import INT8, INT32, UINT8, Shape
from semel.ops.attrs import CastAttrs, ReduceAttrs, SliceAttrs
from semel.ops.filled import filled
from semel.ops.index_maps import Indices, no_gather, operand_index
from semel.ops.stored import is_known, stored
from semel.passes.patterns import expand_to, is_uniform, reshape_to, uniform

_SIGN = 0x80


def find_integer_products(graph: Graph) -> Graph:
    """Replace 32-bit matmuls of widened bytes by products of the bytes."""
    return rewrite(graph, _rule) if "matmul" in graph.ops else graph


def _rule(node: Node) -> Node | None:
    if node.op.name != "matmul" or node.type.dtype != INT32:
        return None
    if node.inputs[0].type.shape[-1] == 0:
        return None  # there are no bytes to lay out: it is zero
    left, right = (_widened(n) for n in node.inputs)
    if left is None or right is None:
        return None
    (a, a_zero), (b, b_zero) = left, right
    if a_zero is not None and not is_constant_along(a_zero, a_zero.type.rank - 1):
        return None
    if b_zero is not None and not is_constant_along(b_zero, b_zero.type.rank - 2):
        return None
    product = _product(a, b, b_zero)
    if a_zero is None or is_uniform(a_zero, 0):
        return product
    columns = _sum(node.inputs[1], node.type.rank - 2)
    return _minus_outer(product, _first(a_zero, a_zero.type.rank - 1), columns)


def _product(a: Node, b: Node, b_zero: Node | None) -> Node:
    """a (b - b_zero), with b signed."""
    if b.type.dtype == UINT8:
        b, b_zero = flip_sign(b), _minus_128(b_zero, b.type.shape)
    product = make_node("matmul_integer", (a, b))
    if b_zero is None or is_uniform(b_zero, 0):
        return product
    return _minus_outer(product, _row_sums(a), _first(b_zero, b.type.rank - 2))


def _minus_128(zero: Node | None, shape: Shape) -> Node:
    known = 0 if zero is None else getattr(uniform(zero), "value", None)
    if zero is None or known is not None:
        return filled((known or 0) - 128, INT32, shape)
    return make_node("sub", (zero, filled(128, INT32, shape)))


def flip_sign(node: Node) -> Node:
    """Bytes of the other sign, 128 apart: uint8 b becomes int8 b - 128, and back."""
    dtype = node.type.dtype
    mask = filled(-_SIGN if dtype == INT8 else _SIGN, dtype, node.type.shape)
    other = UINT8 if dtype == INT8 else INT8
    return make_node("bitcast", (make_node("xor", (node, mask)),), CastAttrs(other))


def _minus_outer(product: Node, rows: Node, columns: Node) -> Node:
    """product - rows * columns, of shapes [*batch, M, 1] and [*batch, 1, N]."""
    rows, columns = (_below_expand(n) for n in (rows, columns))
    pairs = zip(rows.type.shape, columns.type.shape, strict=True)
    shape = tuple(b if a == 1 else a for a, b in pairs)
    term = make_node("mul", (expand_to(rows, shape), expand_to(columns, shape)))
    return make_node("sub", (product, expand_to(term, product.type.shape)))


def _below_expand(node: Node) -> Node:
    """What is repeated, so that it is computed once; a number is one."""
    known = uniform(node)
    if known is not None:
        return filled(known.value, known.dtype, (1,) * node.type.rank)
    return node.inputs[0] if node.op.name == "expand" else node


def _widened(node: Node) -> tuple[Node, Node | None] | None:
    """The bytes and the zero point that an int32 operand is made of, in its shape."""
    name = node.op.name
    if name == "cast":
        source = node.inputs[0]
        return (source, None) if source.type.dtype in (INT8, UINT8) else None
    if name == "sub":
        found = _widened(node.inputs[0])
        return (found[0], node.inputs[1]) if found is not None and found[1] is None else None
    if not node.op.is_view:
        return None
    found = _widened(node.inputs[0])
    if found is None:
        return None
    moved = [None if n is None else make_node(name, (n,), node.attrs) for n in found]
    assert moved[0] is not None
    return moved[0], moved[1]


def is_constant_along(node: Node, axis: int) -> bool:
    """Whether the elements along an axis are surely equal, and there is one to take."""
    if uniform(node) is not None:
        return True
    if not is_positive(node.type.shape[axis]):
        return False
    at: Indices = tuple(Index(f"q{d}", size) for d, size in enumerate(node.type.shape))
    along = at[axis]
    while node.op.is_view:
        at = operand_index(node, 0, at, no_gather)
        node = node.inputs[0]
    return all(along not in atoms(i) for i in at)


def _first(node: Node, axis: int) -> Node:
    """The slice of size 1 along an axis whose elements are all equal."""
    shape = tuple(1 if d == axis else size for d, size in enumerate(node.type.shape))
    known = uniform(node)
    if known is not None:
        return filled(known.value, known.dtype, shape)
    return make_node("slice", (node,), SliceAttrs((0,) * len(shape), shape, (1,) * len(shape)))


def _sum(node: Node, axis: int) -> Node:
    """The int32 sum along an axis; of weights stored, whatever size they have in between."""
    if node.op.name == "expand" and node.inputs[0].type.shape[axis] == node.type.shape[axis]:
        shape = tuple(1 if d == axis else size for d, size in enumerate(node.type.shape))
        return expand_to(_sum(node.inputs[0], axis), shape)
    total = make_node("reduce_sum", (node,), ReduceAttrs((axis,)))
    return stored(total) if is_known(total) else total


def _row_sums(rows: Node) -> Node:
    """The int32 sums along the last axis of bytes.

    Of windows: windows of the sums over channels, so that no byte is added once for each window.
    """
    split = _split_windows(rows)
    if split is None:
        return _sum(make_node("cast", (rows,), CastAttrs(INT32)), rows.type.rank - 1)
    window, moved, channels, offsets = split
    (image,) = window.inputs
    pixels = make_node("cast", (image,), CastAttrs(INT32))
    if channels:
        pixels = make_node("reduce_sum", (pixels,), ReduceAttrs(channels))
    sums = make_node("window", (pixels,), window.attrs)
    sums = make_node("reduce_sum", (sums,), ReduceAttrs(offsets))
    if moved is not None:
        sums = make_node("permute", (sums,), moved.attrs)
    return reshape_to(sums, (*rows.type.shape[:-1], 1))


def _split_windows(
    rows: Node,
) -> tuple[Node, Node | None, tuple[int, ...], tuple[int, ...]] | None:
    """The window and the permute below a reshape that joins, as its last axis, all offsets in a
    window and some axes that no window moves along; these axes, and those of the offsets."""
    if rows.op.name != "reshape":
        return None
    (source,) = rows.inputs
    count = rows.type.rank - 1
    if source.type.shape[:count] != rows.type.shape[:-1] or source.type.rank <= count:
        return None
    moved = source if source.op.name == "permute" else None
    window = source if moved is None else moved.inputs[0]
    if window.op.name != "window":
        return None
    axes = range(source.type.rank) if moved is None else moved.attrs.axes
    joined = set(axes[count:])
    num_axes = window.inputs[0].type.rank
    offsets = tuple(range(num_axes, window.type.rank))
    channels = tuple(sorted(joined.difference(offsets)))
    if not joined.issuperset(offsets) or not set(channels).isdisjoint(window.attrs.axes):
        return None
    return window, moved, channels, offsets


def column_sums(node: Node) -> Node:
    """The int32 sums over k of a right operand's bytes, stored where they are known."""
    if node.op.name == "expand":
        source = node.inputs[0]
        if source.type.shape[-2:] == node.type.shape[-2:]:
            return expand_to(column_sums(source), (*node.type.shape[:-2], 1, node.type.shape[-1]))
    return _sum(make_node("cast", (node,), CastAttrs(INT32)), node.type.rank - 2)
