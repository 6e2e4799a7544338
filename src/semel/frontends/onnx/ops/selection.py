"""Operators that read and write by index, and those whose result has as many rows as it finds."""

from __future__ import annotations

from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.ir.expr import Dim
from semel.ir.types import INT64
from semel.tensor.assign import MODES, written
from semel.tensor.handle import dim_value
from semel.tensor.indexing import certain_rows, selected, true_positions
from semel.tensor.movement import along
from semel.tensor.tensor import Tensor

_REDUCTIONS = {"none": "set", "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


# ---------------------------------------------------------------- reading


def _gather_nd(node: Node) -> Tensor:
    x, index, batch = node.tensor(0), node.tensor(1), node.attr("batch_dims", 0)
    behind = index.ndim - 1
    own = [along(Tensor.arange(x.shape[axis]), axis, behind) for axis in range(batch)]
    return x[(*own, *_columns(node, index))]


def _columns(node: Node, index: Tensor) -> list[Tensor]:
    """The last axis of an index: one index for each axis it speaks of."""
    return [index[..., k] for k in range(node.size(index.shape[-1]))]


def _one_hot(node: Node) -> Tensor:
    index, depth, values = node.tensor(0).cast(INT64), node.dim(1), node.tensor(2)
    axis = node.attr("axis", -1) % (index.ndim + 1)
    index = (index < 0).where(index + depth, index).unsqueeze(axis)
    return index.eq(along(Tensor.arange(depth), axis, index.ndim)).where(values[1], values[0])


# ---------------------------------------------------------------- writing


def _scatter(node: Node) -> Tensor:
    x, index, update = (node.tensor(i) for i in range(3))
    reduction = _REDUCTIONS[node.attr("reduction", "none")]
    return x.scatter(node.attr("axis", 0), index, update, reduction)


def _scatter_nd(node: Node) -> Tensor:
    x, index, update = (node.tensor(i) for i in range(3))
    mode = MODES[_REDUCTIONS[node.attr("reduction", "none")]]
    return written(x, tuple(_columns(node, index)), update, mode, "scatter")


def _tensor_scatter(node: Node) -> Tensor:
    """Rows of a cache, from each batch's own position on."""
    x, update = node.tensor(0), node.tensor(1)
    axis = node.axis(x.ndim, -2)
    place = along(Tensor.arange(update.shape[axis]), axis, x.ndim)
    if node.has(2):
        place = place + along(node.tensor(2).cast(INT64), 0, x.ndim)
    if node.attr("mode", "linear") == "circular":
        place = place % x.shape[axis]
    return x.scatter(axis, place.broadcast_to(update.shape), update)


# ---------------------------------------------------------------- what a run finds


def _top_k(node: Node) -> list[Tensor]:
    x = node.tensor()
    count: Any = node.dim(1) if node.has(1) else node.attr("k")
    return list(x.topk(count, node.attr("axis", -1), node.flag("largest", True)))


def _non_zero(node: Node) -> Tensor:
    x = node.tensor()
    return Tensor.stack((x if x.ndim else x.reshape(1)).nonzero(), 0)


def _compress(node: Node) -> Tensor:
    """The rows where the condition is true; it may end early."""
    x, condition = node.tensor(0), node.tensor(1)
    axis = node.attr("axis")
    if axis is None:
        x, axis = x.flatten(), 0
    axis %= x.ndim
    mask = condition.pad(((0, x.shape[axis] - condition.shape[0]),), False)
    return selected(x, mask, axis)


def _unique(node: Node) -> list[Tensor]:
    x, axis = node.tensor(), node.attr("axis")
    moved = x.flatten() if axis is None else x.moveaxis(axis, 0)
    flat = moved.reshape(moved.shape[0], -1) if moved.ndim > 1 else moved.unsqueeze(1)
    found = _Groups(flat)
    first, index, inverse, counts = found.first, found.index, found.inverse, found.counts
    if not node.flag("sorted", True):
        order = index.argsort(0)
        first, index, counts = (certain_rows(t, order, 0) for t in (first, index, counts))
        inverse = certain_rows(order.argsort(0), inverse, 0)
    kept = certain_rows(moved, index, 0)
    return [kept if axis is None else kept.moveaxis(0, axis), index, inverse, counts]


class _Groups:
    """The distinct rows of a matrix, ascending.

    `first` is where each one's run begins in the ordered matrix, `index` where it occurs first,
    `inverse` which of them each row is, and `counts` how often it occurs.
    """

    def __init__(self, x: Tensor) -> None:
        count = x.shape[0]
        order = _ordered(x)
        is_first = _differs(certain_rows(x, order, 0))
        self.first = true_positions(is_first)
        self.index = certain_rows(order, self.first, 0)
        group = is_first.cast(INT64).cumsum(0) - 1
        self.inverse = group.zeros_like().scatter(0, order, group)
        ends = Tensor.concat([self.first, dim_value(count).reshape(1)])
        self.counts = ends.narrow(0, 1, self.first.shape[0]) - self.first


def _ordered(x: Tensor) -> Tensor:
    """The order of the rows of a matrix: by its last column, then by the one before it, ..."""
    if x.shape[1] == 1:
        return x.reshape(x.shape[0]).argsort(0)

    def by_column(step: Any, states: tuple[Tensor, ...]) -> Any:
        column = x[:, x.shape[1] - 1 - step]
        return [certain_rows(states[0], certain_rows(column, states[0], 0).argsort(0), 0)], []

    (order,), _ = Tensor.loop(x.shape[1], [Tensor.arange(x.shape[0])], by_column)
    return order


def _differs(x: Tensor) -> Tensor:
    """Which rows differ from the one before; the first one does. NaN is equal to NaN."""
    count: Dim = x.shape[0]
    before = x.pad(((1, 0), (0, 0))).narrow(0, 0, count)
    differs = x.ne(before)
    if x.dtype.is_float:
        differs = differs & (x.eq(x) | before.eq(before))
    return differs.any(1) | Tensor.arange(count).eq(0)


CONVERTERS: dict[str, Converter] = {
    "Compress": _compress,
    "Gather": lambda node: node.tensor(0).take(node.tensor(1), node.attr("axis", 0)),
    "GatherElements": lambda node: node.tensor(0).gather(node.attr("axis", 0), node.tensor(1)),
    "GatherND": _gather_nd,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "Scatter": _scatter,
    "ScatterElements": _scatter,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "TopK": _top_k,
    "Unique": _unique,
}
