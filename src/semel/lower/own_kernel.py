"""Ops with kernels of their own: scan, argsort, scatter, compact, lines of a grouped matmul.

    Group(kind="opaque") --lower_opaque--> Kernel

Each reads its operands from memory. Scans run along their axis with a carried
accumulator; rows are sorted one at a time (`semel.lower.sort`); a scatter
copies its operand and applies the updates in order, so that of two updates to one row the later
one wins on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.ir.expr import Index, ceildiv, minimum, product
from semel.ir.graph import Node
from semel.ir.target import Target
from semel.ir.types import INT64
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.kernel.rewrite import substitute_indices
from semel.lower.compact import lower_compact
from semel.lower.grouped import list_rows
from semel.lower.lowered import (
    Lowered,
    Names,
    finish_kernel,
    make_buffers,
    merge_loops,
    split_rows,
)
from semel.lower.sort import lower_sort
from semel.ops.index_maps import flat_index
from semel.ops.reduce import COMBINERS
from semel.schedule.group import Group
from semel.schedule.names import kernel_name


def lower_opaque(group: Group, target: Target) -> Lowered:
    """The kernel of a scan, a sort or a scatter."""
    rule = _RULES[group.root.op.name]
    operands = [n for n in dict.fromkeys(group.root.inputs) if n in group.reads]
    buffers = make_buffers(group.outputs, operands)
    names = Names()
    tile, scratch, body = rule(group.root, buffers, names, target)
    kernel = finish_kernel(
        kernel_name(group),
        list(buffers.values()),
        scratch,
        tile,
        body,
        [],
        flops=group.root.type.num_elements * group.root.op.cost,
        notes=[repr(group.root)],
    )
    return Lowered(kernel, tuple(buffers), group)


_Parts = tuple[Index, list[Buffer], tuple[Statement, ...]]


def _writable(node: Node, buffers: dict[Node, Buffer]) -> Buffer:
    """The node's buffer, marked as read back by the kernel itself."""
    old = buffers[node]
    buffers[node] = Buffer(old.name, old.dtype, old.size, "rw")
    return buffers[node]


def _over_rows(
    loops: list[Index], body: tuple[Statement, ...], names: Names, lanes: int
) -> tuple[Index, tuple[Statement, ...]]:
    """One tile per row, or per block of columns if `lanes` says to use vectors."""
    if not loops:
        return Index("tile", 1), body
    if lanes == 1:
        loops, body = merge_loops(loops, body, names)
        tile = Index("tile", product(i.extent for i in loops))
        return tile, substitute_indices(body, split_rows(tile, loops))
    column, rest = loops[-1], loops[:-1]
    block = 4 * lanes
    blocks = ceildiv(column.extent, block)
    tile = Index("tile", product(i.extent for i in rest) * blocks)
    start = (tile % blocks) * block
    body = substitute_indices(body, split_rows(tile // blocks, rest))
    stop = minimum(start + block, column.extent)
    return tile, (ir.Loop(column, start, stop, body, lanes),)


def _scan(node: Node, buffers: dict[Node, Buffer], names: Names, target: Target) -> _Parts:
    operand, axis = node.inputs[0], node.attrs.axis
    shape = node.type.shape
    at = tuple(names.index("i", d) for d in shape)
    along = at[axis]
    dtype = node.type.dtype.compute
    total = Local(names("a"), dtype)
    combine = COMBINERS[node.attrs.combine].kernel
    where = flat_index(at, shape)
    value = ir.cast(ir.load(buffers[operand], where), dtype)
    store = ir.Store(buffers[node], where, ir.cast(ir.local(total), node.type.dtype))
    update = ir.Reduce((total,), combine, (value,))
    steps: tuple[Statement, ...] = (store, update) if node.attrs.exclusive else (update, store)
    declare = ir.Declare(total, ir.start_value(combine, dtype))
    body: tuple[Statement, ...] = (declare, *steps)
    if isinstance(along, Index):
        body = (declare, ir.Loop(along, 0, along.extent, steps))
    loops = [i for d, i in enumerate(at) if d != axis and isinstance(i, Index)]
    innermost = max((d for d, i in enumerate(at) if isinstance(i, Index)), default=axis)
    lanes = 1 if innermost == axis else target.vector_bits // 32
    tile, body = _over_rows(loops, body, names, lanes)
    return tile, [], body


def _scatter(node: Node, buffers: dict[Node, Buffer], names: Names, target: Target) -> _Parts:
    operand, positions, updates = node.inputs
    rows, columns = node.type.shape
    out = _writable(node, buffers)
    i, j = Index(names("i"), rows), Index(names("j"), positions.type.shape[0])
    column = names.index("c", columns)
    chosen = Index(names("g"), rows)
    lanes = target.vector_bits // 32
    copy_lanes = 1 if isinstance(column, Index) else lanes
    copy = ir.Store(out, i * columns + column, ir.load(buffers[operand], i * columns + column))
    target_place = chosen * columns + column
    update = ir.load(buffers[updates], j * columns + column)
    if node.attrs.mode != "set":
        update = _accumulate(node.attrs.mode, ir.load(out, target_place), update)
    apply: tuple[Statement, ...] = (
        ir.Bind(chosen, ir.load(buffers[positions], j)),
        ir.Store(out, target_place, update),
    )
    body: tuple[Statement, ...] = (
        ir.Loop(i, 0, rows, (copy,), copy_lanes),
        ir.Loop(j, 0, j.extent, apply),
    )
    if isinstance(column, Index):
        tile, body = _over_rows([column], body, names, lanes)
        return tile, [], body
    return Index("tile", 1), [], body


def _update_rows(node: Node, buffers: dict[Node, Buffer], names: Names, target: Target) -> _Parts:
    """A tile is a row, stored where its place says if that is inside."""
    _, new, places = node.inputs
    axis, shape = node.attrs.axis, new.type.shape
    room, width = node.type.shape[axis], product(shape[axis + 1 :])
    tile = Index("tile", product(shape[: axis + 1]))
    row, entry = tile % shape[axis], tile // product(shape[1 : axis + 1])
    place = ir.load(buffers[places], row if places.type.rank == 1 else entry * shape[axis] + row)
    chosen, column = Index(names("g"), room), names.index("c", width)
    to = ((tile // shape[axis]) * room + chosen) * width + column
    store: Statement = ir.Store(buffers[node], to, ir.load(buffers[new], tile * width + column))
    if isinstance(column, Index):
        store = ir.Loop(column, 0, width, (store,), target.vector_bits // 32)
    inside = (place >= ir.const(INT64, 0)) & (place < ir.index(room))
    return tile, [], (ir.If(inside, (ir.Bind(chosen, place), store)),)


def _accumulate(mode: str, old: Value, new: Value) -> Value:
    return ir.op(mode, old, new)


def _nothing(node: Node, buffers: dict[Node, Buffer], names: Names, target: Target) -> _Parts:
    """What goes to another device is copied by that device: no kernel does it."""
    return Index("tile", 0), [], ()


_RULES: dict[str, Callable[[Node, dict[Node, Buffer], Names, Target], _Parts]] = {
    "scan": _scan,
    "argsort": lower_sort,
    "sort": lower_sort,
    "scatter": _scatter,
    "update_rows": _update_rows,
    "group_rows": list_rows,
    "compact": lower_compact,
    "move": _nothing,
}
