"""Weights that are right operands of matmuls, laid out as the kernel reads them.

    matmul(x, w)  -->  matmul(x, view of packed w)

A panel holds `lanes` neighbouring columns of w for all k, one k after the other, so
that a kernel which keeps a panel's columns in registers reads one straight run of
memory. What is stored has shape (panels, K, lanes), its last panel padded with
zeros; the view (permute, reshape, slice) gives back w's shape, so that the graph
means what it meant and index arithmetic alone finds the elements. Transposed and
otherwise moved weights are packed straight from where they lie; a matrix per batch
entry (the groups of a convolution) is packed entry by entry. Other weights that are
read in another order than they lie in (the filters of a depthwise convolution) are
stored in that order. A weight that is packed and also looked up by index, as a tied embedding
is, is held once: the look-up reads the panels through the view.

Nothing is packed here: a `stored` leaf says by ordinary ops (pad, reshape, permute) how it is made
of constants and params.

Before:  %1 = constant f32[384,1536];  %2 = matmul %0, %1
After:   %1 = stored f32[24,384,64];   %2 = permute; %3 = reshape f32[384,1536]; %4 = matmul %0, %3
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.ir.expr import Dim, Index, atoms, ceildiv, product
from semel.ir.graph import Graph, Node, attr_dims, make_node, rewrite, users
from semel.ops.attrs import (
    ConcatAttrs,
    PadAttrs,
    PermuteAttrs,
    ReshapeAttrs,
    ScalarAttrs,
    SliceAttrs,
)
from semel.ops.bodies import has_bodies, with_bodies
from semel.ops.contract import PanelWidth
from semel.ops.filled import filled
from semel.ops.index_maps import Indices, no_gather, operand_index
from semel.ops.narrow_weights import is_widened
from semel.ops.stored import PLAIN_VIEWS, WEIGHTS, is_known, stored
from semel.passes.pack_bits import are_packed, packed_bits
from semel.passes.patterns import Where, below_expand, expand_to, reshape_to, uniform

_BYTE = 8


def pack_weights(graph: Graph, panel: PanelWidth, where: Where | None = None) -> Graph:
    """Pack every weight that is a right operand of a matmul into panels as wide as `panel` says.

    `where` says of which nodes, if not of all.
    """
    if graph.ops.isdisjoint(WEIGHTS) and not graph.has_bodies:
        return graph
    packed: dict[Node, Node] = {}

    def rule(node: Node) -> Node | None:
        if where is not None and not where(node):
            return None
        if has_bodies(node):
            return with_bodies(node, lambda body: pack_weights(body, panel))
        if node.op.kind == "elementwise":
            return _with_ordered_weights(node)
        if node.op.name == "grouped_matmul":
            return _with_packed_experts(node, panel)
        if node.op.name != "matmul":
            return None
        left, right = node.inputs
        repeated, right = right, below_batch(right)
        lanes = panel(right.type.shape[-1], node.type.dtype.compute.bits)
        if right.type.rank == 2 and right.op.name not in WEIGHTS and is_widened(right):
            return make_node("matmul", (left, _repeated(_packed_parts(right, (), lanes), repeated)))
        chain = weight_chain(right)
        if chain is None or not (_is_wider(right, lanes) or _nearly_fills(right, lanes)):
            # Too narrow for panels: in order at least.
            return _with_ordered_weights(node)
        view = _packed_view(right, chain, lanes)
        seen = _seen_through(view, chain)
        if seen is not None:
            packed.setdefault(chain[0], seen)
        return make_node("matmul", (left, _repeated(view, repeated)))

    return _tied(rewrite(graph, rule), packed)


def _seen_through(view: Node, chain: list[Node]) -> Node | None:
    """The weight that `chain` leads from, read from its packed form; None if parts are missing."""
    for node in reversed(chain[1:]):
        match node.op.name:
            case "permute":
                axes = tuple(node.attrs.axes.index(axis) for axis in range(node.type.rank))
                view = make_node("permute", (view,), PermuteAttrs(axes))
            case "reshape":
                view = reshape_to(view, node.inputs[0].type.shape)
            case _:
                return None
    return view


def _tied(graph: Graph, packed: dict[Node, Node]) -> Graph:
    """The graph without weights that are packed, and else only looked up: they are held once."""
    readers = users(graph.nodes)
    tied = {
        weight: seen
        for weight, seen in packed.items()
        if all(_looks_up(node, weight) for node in readers.get(weight, ()))
    }

    def rule(node: Node) -> Node | None:
        if node.op.name == "gather" and node.inputs[0] in tied:
            return make_node("gather", (tied[node.inputs[0]], *node.inputs[1:]), node.attrs)
        return None

    return rewrite(graph, rule) if tied else graph


def _looks_up(node: Node, table: Node) -> bool:
    """Whether a node takes rows of the table, and does nothing else with it."""
    return node.op.name == "gather" and node.inputs[0] is table and table not in node.inputs[1:]


def _with_packed_experts(node: Node, panel: PanelWidth) -> Node | None:
    """A grouped matmul whose constant matrices are packed, one after the other."""
    left, right, rows = node.inputs
    chain = weight_chain(right)
    lanes = panel(right.type.shape[-1], node.type.dtype.compute.bits)
    if right.op.name not in WEIGHTS and chain is None and is_widened(right):
        return make_node(node.op.name, (left, _packed_parts(right, (), lanes), rows), node.attrs)
    if chain is None or not _is_wider(right, lanes):
        return _with_ordered_weights(node)
    return make_node(node.op.name, (left, _packed_view(right, chain, lanes), rows), node.attrs)


def _repeated(matrix: Node, repeated: Node) -> Node:
    """A matrix for every batch entry of the operand it stands for."""
    ones = (1,) * (repeated.type.rank - matrix.type.rank)
    return expand_to(reshape_to(matrix, (*ones, *matrix.type.shape)), repeated.type.shape)


def _packed_parts(node: Node, views: tuple[Node, ...], lanes: int) -> Node:
    """Widened weights under `views` (innermost first), their constants packed one by one."""
    if node.op.kind == "elementwise" and not _is_narrow_part(node):
        parts = [_packed_parts(n, views, lanes) for n in node.inputs]
        return make_node(node.op.name, parts, node.attrs)
    if node.op.name in PLAIN_VIEWS:
        return _packed_parts(node.inputs[0], (node, *views), lanes)
    if node.op.name == "expand" and node.inputs[0].op.kind == "elementwise":
        wide = [expand_to(n, node.type.shape) for n in node.inputs[0].inputs]
        stretched = make_node(node.inputs[0].op.name, wide, node.inputs[0].attrs)
        return _packed_parts(stretched, views, lanes)
    number = uniform(node)
    if number is not None:
        return filled(number.value, number.dtype, (views[-1] if views else node).type.shape)
    moved = node
    for view in views:
        # Below an expand it moves a few scales, above it would look like all of them.
        below = below_expand(view, moved) if moved.op.name == "expand" else None
        moved = below or make_node(view.op.name, (moved,), view.attrs)
    if moved.type.rank >= 2 and are_packed(moved) and is_known(moved):
        return packed_bits(moved, lanes)
    if node.op.kind == "elementwise":
        moved = stored(moved)
    elif node.op.name == "expand":
        return _packed_blocks(moved, lanes) or moved
    chain = weight_chain(moved)
    if chain is None or moved.type.rank < 2 or not _is_wider(moved, lanes):
        return moved
    return _packed_view(moved, chain, lanes)


def _packed_blocks(matrix: Node, lanes: int) -> Node | None:
    """What is the same for all k of a block, one row for each, packed; None if nothing is."""
    *lead, depth, columns = shape = matrix.type.shape
    size = _block_size(matrix)
    if size is None or not isinstance(depth, int) or not is_known(matrix):
        return None
    if not isinstance(columns, int) or not _is_wider(matrix, lanes):
        return None
    count, none, ones = depth // size, (0,) * (len(lead) + 2), (1,) * len(lead)
    attrs = SliceAttrs(none, (*lead, count, columns), (*ones, size, 1))
    leaf = stored(make_node("slice", (matrix,), attrs))
    packed = reshape_to(_packed_view(leaf, [leaf], lanes), (*lead, count, 1, columns))
    return reshape_to(expand_to(packed, (*lead, count, size, columns)), shape)


def _block_size(matrix: Node) -> int | None:
    """How many k in a row read the same element through the views of a matrix."""
    depth = matrix.type.shape[-2]
    below, sizes = matrix, list[Dim]()
    while below.op.is_view:
        if below.op.name == "expand":
            pairs = zip(below.inputs[0].type.shape, below.type.shape, strict=True)
            sizes += [after for before, after in pairs if before == 1]
        below = below.inputs[0]
    for size in sizes:
        if isinstance(depth, int) and isinstance(size, int):
            is_block = 1 < size < depth and depth % size == 0
            if is_block and _is_repeated(matrix, size):
                return size
    return None


def _is_repeated(matrix: Node, size: int) -> bool:
    """Whether runs of `size` rows of a matrix are views of the same elements."""
    *lead, depth, columns = matrix.type.shape
    within = Index("j", size)
    row = Index("b", ceildiv(depth, size)) * size + within
    at: Indices = (*(Index(f"e{i}", d) for i, d in enumerate(lead)), row, Index("n", columns))
    while matrix.op.is_view:
        at, matrix = operand_index(matrix, 0, at, no_gather), matrix.inputs[0]
    return all(within not in atoms(i) for i in at)


def _is_narrow_part(node: Node) -> bool:
    """Whether arithmetic on weights has made bytes: they were packed in others, and are stored."""
    return node.type.dtype.bits <= _BYTE and is_known(node)


def _is_wider(matrix: Node, lanes: int) -> bool:
    columns = matrix.type.shape[-1]
    return isinstance(columns, int) and columns > lanes


def _nearly_fills(matrix: Node, lanes: int) -> bool:
    """Whether its columns are a panel with some padding: no load of them needs a mask then."""
    columns = matrix.type.shape[-1]
    return isinstance(columns, int) and lanes // 2 < columns < lanes


def below_batch(node: Node) -> Node:
    """The matrix, or the matrices, that `node` repeats for batch entries, or `node` itself."""
    if node.op.name != "expand" or node.inputs[0].type.shape[-2:] != node.type.shape[-2:]:
        return node
    inner = node.inputs[0]
    if inner.op.name != "reshape":
        return inner
    matrix = inner.inputs[0]
    ones = inner.type.rank - matrix.type.rank
    is_batch = ones >= 0 and inner.type.shape == (*(1,) * ones, *matrix.type.shape)
    # A vector, or a number, has that shape too where rows are 1, and is no matrix.
    return matrix if is_batch and matrix.type.rank >= 2 else inner


def weight_chain(node: Node) -> list[Node] | None:
    """The views from a weight up to `node`, or None if there is no weight below."""
    chain: list[Node] = []
    while node.op.name in PLAIN_VIEWS:
        chain.append(node)
        node = node.inputs[0]
    # Neither sizes nor starts may wait for a run, or for the step of a loop.
    dims = (d for n in chain for d in (*n.type.shape, *attr_dims(n.attrs)))
    is_static = all(isinstance(d, int) for d in dims)
    if not is_static or not (node.op.name in WEIGHTS or _is_joined(node)):
        return None
    return [node, *reversed(chain)]


def _is_joined(node: Node) -> bool:
    """Whether a node is several weights side by side."""
    return node.op.name == "concat" and all(weight_chain(n) is not None for n in node.inputs)


def _packed_view(right: Node, chain: list[Node], lanes: int) -> Node:
    """The weight that `chain` leads from, stored in panels, in the shape of `right`."""
    *lead, depth, columns = (int(d) for d in right.type.shape)  # type: ignore[arg-type]
    panels, rank = -(-columns // lanes), len(lead)
    node = stored(_joined_panels(_columns_last(chain), rank, lanes))
    node = reshape_to(node, (*lead, panels, depth, lanes))
    axes = (*range(rank), rank + 1, rank, rank + 2)
    turned = make_node("permute", (node,), PermuteAttrs(axes))
    flat = make_node("reshape", (turned,), ReshapeAttrs((*lead, depth, panels * lanes)))
    if panels * lanes == columns:
        return flat
    starts, steps = (0,) * (rank + 2), (1,) * (rank + 2)
    return make_node("slice", (flat,), SliceAttrs(starts, (*lead, depth, columns), steps))


def _joined_panels(node: Node, lead: int, lanes: int) -> Node:
    """The panels of (*lead, *k, columns); of weights side by side, if none shares one, of each.

    Their elements need not ask which weight they come from, and no size is a fixed number.
    """
    parts = _side_by_side(node)
    fills = [int(part.type.shape[-1]) % lanes == 0 for part in parts]  # type: ignore[arg-type]
    if len(parts) == 1 or not all(fills[:-1]):
        return _in_panels(node, lead, lanes)
    panels = [
        _in_panels(part, lead, lanes, pads=not is_full)
        for part, is_full in zip(parts, fills, strict=True)
    ]
    return make_node("concat", panels, ConcatAttrs(lead))


def _side_by_side(node: Node) -> Sequence[Node]:
    """What a matrix is joined of column by column, or the matrix alone."""
    below, axes = node, tuple(range(node.type.rank))
    if node.op.name == "permute":
        below, axes = node.inputs[0], node.attrs.axes
    if below.op.name != "concat" or below.attrs.axis != axes[-1]:
        return (node,)
    if below is node:
        return node.inputs
    return [make_node("permute", (part,), node.attrs) for part in below.inputs]


def _in_panels(node: Node, lead: int, lanes: int, *, pads: bool = True) -> Node:
    """(*lead, *k, columns) as (*lead, panels, *k, lanes), the last panel padded with zeros."""
    node = node if lead else _in_few_axes(node, 1)
    *outer, columns = (int(d) for d in node.type.shape)  # type: ignore[arg-type]
    panels, wide = -(-columns // lanes), node
    if pads:
        # The same ops whether anything is missing or not: then one kernel packs all.
        none = (0,) * len(outer)
        zero = make_node("scalar", (), ScalarAttrs(0, node.type.dtype))
        after = (*none, panels * lanes - columns)
        wide = make_node("pad", (node, zero), PadAttrs((*none, 0), after))
    split = make_node("reshape", (wide,), ReshapeAttrs((*outer, panels, lanes)))
    rank = len(outer)
    axes = (*range(lead), rank, *range(lead, rank), rank + 1)
    return make_node("permute", (split,), PermuteAttrs(axes))


def _columns_last(chain: list[Node]) -> Node:
    """The matrix with its columns last, and before them the axes of k, merged or not.

    Packing reads from any strides; merged axes of a convolution's filters would be taken apart
    again for each element.
    """
    *below, node = chain
    is_turned = node.op.name == "permute" and node.attrs.axes == (1, 0)
    if is_turned and len(below) > 1:
        *below, node = below
    columns = 0 if is_turned else -1
    if node.op.name != "reshape" or node.type.rank != 2:
        return chain[-1]
    before = below[-1].type.shape
    if not before or before[columns] != node.type.shape[columns]:
        return chain[-1]
    if columns == -1:
        return below[-1]
    axes = (*range(1, len(before)), 0)
    return make_node("permute", (below[-1],), PermuteAttrs(axes))


def _in_few_axes(node: Node, kept: int = 0) -> Node:
    """A permuted weight with axes that stay side by side as one: then one kernel moves them all.

    The last `kept` axes stay what they are.
    """
    order, below = tuple(range(node.type.rank)), node
    while below.op.name == "permute":
        order = tuple(below.attrs.axes[axis] for axis in order)
        below = below.inputs[0]
    shape = below.type.shape
    inner, last = order[: len(order) - kept], order[len(order) - kept :]
    runs: list[list[int]] = []
    for axis in (axis for axis in inner if shape[axis] != 1):
        follows = bool(runs) and runs[-1][-1] < axis
        if follows and all(size == 1 for size in shape[runs[-1][-1] + 1 : axis]):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    runs += [[axis] for axis in last]
    rising = sorted(range(len(runs)), key=lambda run: runs[run])
    merged = reshape_to(below, tuple(product(shape[a] for a in runs[run]) for run in rising))
    axes = tuple(rising.index(run) for run in range(len(runs)))
    return make_node("permute", (merged,), PermuteAttrs(axes))


def _with_ordered_weights(node: Node) -> Node | None:
    """The node with every permuted weight among its operands laid out as it is read."""
    inputs = tuple(_ordered(n) for n in node.inputs)
    return None if inputs == node.inputs else make_node(node.op.name, inputs, node.attrs)


def _ordered(node: Node) -> Node:
    below = node.inputs[0] if node.op.name == "expand" else node
    chain = weight_chain(below)
    if chain is None or all(n.op.name not in ("permute", "concat") for n in chain):
        return node
    plain = reshape_to(stored(_in_few_axes(below)), below.type.shape)
    return plain if below is node else make_node("expand", (plain,), node.attrs)
