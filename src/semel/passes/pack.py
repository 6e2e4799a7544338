"""Constant right operands of matmuls, laid out as the kernel reads them.

    matmul(x, w)  -->  matmul(x, view of packed w)

A panel holds `lanes` neighbouring columns of w for all k, one k after the other, so
that a kernel which keeps a panel's columns in registers reads one straight run of
memory. The packed constant has shape (panels, K, lanes), its last panel padded with
zeros; the view (permute, reshape, slice) gives back w's shape, so that the graph
means what it meant and index arithmetic alone finds the elements. Transposed and
otherwise moved constants are packed straight from where they lie; a matrix per batch
entry (the groups of a convolution) is packed entry by entry. Other constants that are
read in another order than they lie in (the filters of a depthwise convolution) are
stored in that order.

Before:  %1 = constant f32[384,1536];   %2 = matmul %0, %1
After:   %1 = constant f32[24,384,64];  %2 = permute; %3 = reshape f32[384,1536]; %4 = matmul %0, %3
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from semel.ir.graph import Graph, Node, Storage, aligned_empty, attr_dims, make_node, rewrite
from semel.ir.types import TensorType
from semel.ops.attrs import ConstantAttrs, PermuteAttrs, ReshapeAttrs, SliceAttrs
from semel.ops.bodies import has_bodies, with_bodies
from semel.ops.contract import PanelWidth
from semel.ops.evaluate import evaluate_node
from semel.ops.narrow import is_widened
from semel.passes.patterns import expand_to, reshape_to

_VIEWS = ("reshape", "permute", "slice")
#: Packed copies by the storage they came from: plans that share weights share these too.
_packed: WeakKeyDictionary[Storage, dict[Any, Storage]] = WeakKeyDictionary()


def pack_weights(graph: Graph, panel: PanelWidth) -> Graph:
    """Pack every constant right operand of a matmul into panels as wide as `panel` says."""

    def rule(node: Node) -> Node | None:
        if has_bodies(node):
            return with_bodies(node, lambda body: pack_weights(body, panel))
        if node.op.kind == "elementwise":
            return _with_ordered_constants(node)
        if node.op.name == "grouped_matmul":
            return _with_packed_experts(node, panel)
        if node.op.name != "matmul":
            return None
        left, right = node.inputs
        repeated, right = right, below_batch(right)
        lanes = panel(right.type.shape[-1], node.type.dtype.compute.bits)
        if right.type.rank == 2 and right.op.name != "constant" and is_widened(right):
            return make_node("matmul", (left, _repeated(_packed_parts(right, (), lanes), repeated)))
        chain = constant_chain(right)
        if chain is None or not _is_wider(right, lanes):
            # Too narrow for panels: in order at least.
            return _with_ordered_constants(node)
        view = _packed_view(right, chain, lanes)
        return make_node("matmul", (left, _repeated(view, repeated)))

    return rewrite(graph, rule)


def _with_packed_experts(node: Node, panel: PanelWidth) -> Node | None:
    """A grouped matmul whose constant matrices are packed, one after the other."""
    left, right, rows = node.inputs
    chain = constant_chain(right)
    lanes = panel(right.type.shape[-1], node.type.dtype.compute.bits)
    if chain is None or not _is_wider(right, lanes):
        return _with_ordered_constants(node)
    return make_node(node.op.name, (left, _packed_view(right, chain, lanes), rows), node.attrs)


def _repeated(matrix: Node, repeated: Node) -> Node:
    """A matrix for every batch entry of the operand it stands for."""
    ones = (1,) * (repeated.type.rank - matrix.type.rank)
    return expand_to(reshape_to(matrix, (*ones, *matrix.type.shape)), repeated.type.shape)


def _packed_parts(node: Node, views: tuple[Node, ...], lanes: int) -> Node:
    """Widened weights under `views` (innermost first), their constants packed one by one."""
    if node.op.kind == "elementwise":
        parts = [_packed_parts(n, views, lanes) for n in node.inputs]
        return make_node(node.op.name, parts, node.attrs)
    if node.op.name in _VIEWS:
        return _packed_parts(node.inputs[0], (node, *views), lanes)
    moved = node
    for view in views:
        if moved.op.name == "expand" and view.op.name == "permute":
            # Below the expand it moves a few scales, above it would look like all of them.
            source = make_node("permute", moved.inputs, view.attrs)
            moved = expand_to(source, view.type.shape)
        else:
            moved = make_node(view.op.name, (moved,), view.attrs)
    chain = constant_chain(moved)
    if chain is None or moved.type.rank != 2 or not _is_wider(moved, lanes):
        return moved
    return _packed_view(moved, chain, lanes)


def _is_wider(matrix: Node, lanes: int) -> bool:
    columns = matrix.type.shape[-1]
    return isinstance(columns, int) and columns > lanes


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


def constant_chain(node: Node) -> list[Node] | None:
    """The views from a constant up to `node`, or None if there is no constant below."""
    chain: list[Node] = []
    while node.op.name in _VIEWS:
        chain.append(node)
        node = node.inputs[0]
    # Neither sizes nor starts may wait for a run, or for the step of a loop.
    dims = (d for n in chain for d in (*n.type.shape, *attr_dims(n.attrs)))
    is_static = all(isinstance(d, int) for d in dims)
    if node.op.name != "constant" or not is_static:
        return None
    return [node, *reversed(chain)]


def _packed_view(right: Node, chain: list[Node], lanes: int) -> Node:
    *lead, depth, columns = (int(d) for d in right.type.shape)  # type: ignore[arg-type]
    panels = -(-columns // lanes)
    source: Storage = chain[0].attrs.storage
    known = _packed.setdefault(source, {})
    key = (tuple((n.op.name, n.attrs) for n in chain[1:]), lanes)
    if key not in known:
        packed = _pack(_columns_last(chain), len(lead), lanes)
        known[key] = Storage(packed.reshape(*lead, panels, depth, lanes))
    kind = TensorType((*lead, panels, depth, lanes), right.type.dtype)
    constant = make_node("constant", (), ConstantAttrs(known[key], kind))
    rank = len(lead)
    axes = (*range(rank), rank + 1, rank, rank + 2)
    turned = make_node("permute", (constant,), PermuteAttrs(axes))
    flat = make_node("reshape", (turned,), ReshapeAttrs((*lead, depth, panels * lanes)))
    if panels * lanes == columns:
        return flat
    starts, steps = (0,) * (rank + 2), (1,) * (rank + 2)
    return make_node("slice", (flat,), SliceAttrs(starts, (*lead, depth, columns), steps))


def _columns_last(chain: list[Node]) -> np.ndarray[Any, Any]:
    """The matrix with its columns last, and before them the axes of k, merged or not.

    Packing copies from any strides; merging the permuted axes of a convolution's filters
    first would be one more copy, element by element.
    """
    *below, node = chain
    is_turned = node.op.name == "permute" and node.attrs.axes == (1, 0)
    if is_turned and len(below) > 1:
        *below, node = below
    columns = 0 if is_turned else -1
    if node.op.name != "reshape" or node.type.rank != 2:
        return evaluate_chain(chain)
    before = below[-1].type.shape
    if not before or before[columns] != node.type.shape[columns]:
        return evaluate_chain(chain)
    return np.moveaxis(evaluate_chain(below), columns, -1)


def _with_ordered_constants(node: Node) -> Node | None:
    """The node with every permuted constant among its operands laid out as it is read."""
    inputs = tuple(_ordered(n) for n in node.inputs)
    return None if inputs == node.inputs else make_node(node.op.name, inputs, node.attrs)


def _ordered(node: Node) -> Node:
    below = node.inputs[0] if node.op.name == "expand" else node
    chain = constant_chain(below)
    if chain is None or all(n.op.name != "permute" for n in chain[1:]):
        return node
    plain = _plain(below, chain)
    return plain if below is node else make_node("expand", (plain,), node.attrs)


def _plain(right: Node, chain: list[Node]) -> Node:
    known = _packed.setdefault(chain[0].attrs.storage, {})
    key = (tuple((n.op.name, n.attrs) for n in chain[1:]), 0)
    if key not in known:
        known[key] = Storage(_in_order(evaluate_chain(chain)))
    return make_node("constant", (), ConstantAttrs(known[key], right.type))


def evaluate_chain(chain: list[Node]) -> np.ndarray[Any, Any]:
    """The numbers that the last view of a `constant_chain` shows."""
    storage: Storage = chain[0].attrs.storage
    array: np.ndarray[Any, Any] = storage.array
    for node in chain[1:]:
        array = evaluate_node(node, (array,), {})
    return array


def _pack(array: np.ndarray[Any, Any], lead: int, lanes: int) -> np.ndarray[Any, Any]:
    """(*lead, *k, columns) as (*lead, panels, *k, lanes), in one copy."""
    *outer, columns = array.shape
    whole, rest = divmod(columns, lanes)
    shape = (*outer[:lead], whole + (rest > 0), *outer[lead:], lanes)
    packed = aligned_empty(shape, array.dtype)
    split = array[..., : whole * lanes].reshape(*outer, whole, lanes)
    before = (slice(None),) * lead
    packed[*before, :whole] = np.moveaxis(split, -2, lead)
    if rest:
        packed[*before, whole, ..., :rest] = array[..., whole * lanes :]
        packed[*before, whole, ..., rest:] = 0
    return packed


def _in_order(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result = aligned_empty(array.shape, array.dtype)
    result[...] = array
    return result
