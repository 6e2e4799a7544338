"""Products of rows with matrices that were gathered for them, as products by groups.

    matmul(x [T, k, 1, K], gather(w [E, K, N], ids [T, k]))  -->  grouped_matmul(x, w, ids)

That is how exporters write a layer of experts: a matrix for each row, looked up by its id. As it
stands, a run copies all of these matrices side by side. As a product by groups each is read where
it lies, and the layer is found like any other: its router is captured, and its experts may move.

The matrices may be transposed, and there may be several for a row, as einsum has them: one after
the other along k, so that their products are added up, or side by side. What views do is asked of
the index maps: a row must meet all of its matrices, in the order of their ids, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from semel.ir.expr import Dim, Index, product
from semel.ir.graph import Graph, Node, rewrite_nodes
from semel.ir.types import Shape
from semel.ops.grouped import source_of
from semel.ops.index_maps import Indices, flat_index, no_gather, operand_index, unflatten
from semel.ops.stored import is_known
from semel.tensor.handle import wrap
from semel.tensor.nn import grouped_matmul
from semel.tensor.tensor import Tensor

#: Where matrices have k and columns, as the right operand of a product and as the left one.
_RIGHT, _LEFT = (-2, -1), (-1, -2)


def with_groups(graph: Graph, kept: Collection[Node]) -> tuple[Graph, dict[Node, Node]]:
    """The graph with products by groups, and what nodes became that are others now.

    Where somebody wants to see gathered matrices, which are `kept`, it stays as it is.
    """
    if "gather" not in graph.ops:
        return graph, {}
    made, new = rewrite_nodes(graph, _by_groups)
    if not {new.get(node, node) for node in kept} <= set(made.nodes):
        return graph, {}
    return made, new


def _by_groups(node: Node) -> Node | None:
    if node.op.name != "matmul" or not node.type.dtype.is_float:
        return None
    left, right = node.inputs
    if left.type.shape[-2] == 1:
        rows, matrices, axes = left, right, _RIGHT
    elif right.type.shape[-1] == 1:
        rows, matrices, axes = right, left, _LEFT
    else:
        return None
    gather = _gather_below(matrices)
    if gather is None:
        return None
    for is_turned in (False, True):
        found = _found(gather, rows, matrices, axes, is_turned)
        if found is not None:
            return found.written().reshape(*node.type.shape).node
    return None


def _gather_below(matrices: Node) -> Node | None:
    """What these are views of, if it gathers matrices of weights by ids that a run finds out."""
    node = matrices
    while node.op.is_view:
        node = node.inputs[0]
    if node.op.name != "gather" or node.attrs.axis != 0:
        return None
    weights, ids = node.inputs
    sizes = weights.type.shape
    is_stack = len(sizes) == 3 and all(isinstance(size, int) and size > 0 for size in sizes)
    if not is_stack or ids.type.rank == 0 or is_known(ids) or not is_known(weights):
        return None
    return node


@dataclass(frozen=True, slots=True)
class _Products:
    """`count` rows, each times `deep` matrices along k, or `wide` ones side by side."""

    gather: Node
    rows: Node
    axes: tuple[int, int]
    is_turned: bool
    batch: Shape
    deep: int
    wide: int

    @property
    def depth(self) -> int:
        """How many numbers of a row meet one matrix."""
        return _matrix(self.gather, self.is_turned)[0]

    def written(self) -> Tensor:
        """The same as products by groups, in the order of the rows."""
        weights, ids = map(wrap, self.gather.inputs)
        matrices = weights.mT if self.is_turned else weights
        rows, count = wrap(self.rows), product(self.batch)
        if self.deep > 1:
            lines = (count, self.deep)
            made = grouped_matmul(rows.reshape(*lines, self.depth), matrices, ids.reshape(*lines))
            return made.sum(1)
        if self.wide > 1:
            lines = (count, self.wide)
            return grouped_matmul(rows.reshape(count, self.depth), matrices, ids.reshape(*lines))
        lead, times = self._lines()
        source = self._once(lead, times)
        if source is None:
            return grouped_matmul(rows.reshape(count, self.depth), matrices, ids.reshape(count))
        rows = wrap(source).reshape(lead, self.depth)
        return grouped_matmul(rows, matrices, ids.reshape(lead, times))

    def _lines(self) -> tuple[Dim, Dim]:
        """How many tokens there are, and ids for each: these may have been put in one axis."""
        *lead, times = source_of(self.gather.inputs[1]).type.shape or (1,)
        return product(lead), times

    def _once(self, count: Dim, times: Dim) -> Node | None:
        """So many rows as they are before each is repeated, if they are."""
        if not isinstance(times, int) or times < 2:
            return None
        row, k = _index("row", count), _index("k", self.depth)
        place = unflatten(row * times + _index("part", times), self.batch)
        at, node = _at(place, self.axes[::-1], k, 0), self.rows
        while node.op.is_view:
            at, node = operand_index(node, 0, at, no_gather), node.inputs[0]
            shape = node.type.shape
            is_whole = product(shape) == count * self.depth
            if is_whole and flat_index(at, shape) == row * self.depth + k:
                return node
        return None


def _found(
    gather: Node, rows: Node, matrices: Node, axes: tuple[int, int], is_turned: bool
) -> _Products | None:
    """What the product of these is, if each row meets its matrices as they are gathered."""
    ids, shape = gather.inputs[1].type.shape, matrices.type.shape
    depth, columns = _matrix(gather, is_turned)
    all_depth, all_columns = (shape[axis] for axis in axes)
    if not isinstance(all_depth, int) or not isinstance(all_columns, int):
        return None
    deep, wide = all_depth // depth, all_columns // columns
    parts, batch = deep * wide, shape[:-2]
    if (deep * depth, wide * columns) != (all_depth, all_columns) or parts != max(deep, wide):
        return None
    if parts == 0 or product(ids) != product(batch) * parts:
        return None
    lead = tuple(_index(f"b{axis}", dim) for axis, dim in enumerate(batch))
    part, k, n = _index("part", parts), _index("k", depth), _index("n", columns)
    at = _at(lead, axes, _joined(deep, part, depth, k), _joined(wide, part, columns, n))
    node = matrices
    while node is not gather:
        at, node = operand_index(node, 0, at, no_gather), node.inputs[0]
    place, within = at[: len(ids)], at[len(ids) :]
    is_in_order = flat_index(place, ids) == flat_index(lead, batch) * parts + part
    if not is_in_order or within != ((n, k) if is_turned else (k, n)):
        return None
    return _Products(gather, rows, axes, is_turned, batch, deep, wide)


def _matrix(gather: Node, is_turned: bool) -> tuple[int, int]:
    """The k and the columns of one matrix."""
    _, first, last = gather.inputs[0].type.shape
    assert isinstance(first, int) and isinstance(last, int)
    return (last, first) if is_turned else (first, last)


def _at(lead: Indices | list[Dim], axes: tuple[int, int], first: Dim, second: Dim) -> Indices:
    """An index with these two numbers at the last axes, in this order."""
    return (*lead, first, second) if axes == _RIGHT else (*lead, second, first)


def _joined(parts: int, part: Dim, size: int, inner: Dim) -> Dim:
    """Along an axis that parts share: `inner` of one of them."""
    return part * size + inner if parts > 1 else inner


def _index(name: str, size: Dim) -> Dim:
    """A number below the size, as index maps have it: where there is one only, it is 0."""
    return 0 if size == 1 else Index(name, size)
