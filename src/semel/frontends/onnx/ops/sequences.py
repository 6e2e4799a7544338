"""Sequences and optionals: lists at import, whose items may be tensors of the run.

A sequence that a loop built is one tensor, whose rows are the items; how many of them there are
only matters to what treats them one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semel.frontends.onnx.node import Converter, Node
from semel.frontends.onnx.values import AnyValue, Items, Nothing, Rows, Value
from semel.ir.expr import minimum
from semel.tensor.tensor import Tensor


def _place(node: Node, position: int, default: int) -> int:
    """A place in a sequence, which decides what is computed."""
    return int(node.numbers(position).reshape(())) if node.has(position) else default


def _at(node: Node) -> Any:
    rows = _rows(node)
    if rows is not None:
        return node.walk.convert("Gather", node, [rows, node.tensor(1).reshape(())])
    items, place = node.items(0), _place(node, 1, 0)
    if not -len(items) <= place < len(items):
        raise node.refuse(f"place {place} must be one of {len(items)}.")
    return items[place]


def _rows(node: Node) -> Tensor | None:
    """The items of a sequence that a loop built, as the rows of a tensor."""
    found = node.any_value(0)
    return found.tensor if isinstance(found, Rows) else None


def _insert(node: Node) -> Items:
    items = list(node.items(0))
    items.insert(_place(node, 2, len(items)), node.any_value(1))
    return Items(items)


def _erase(node: Node) -> Items:
    items = list(node.items(0))
    del items[_place(node, 1, -1)]
    return Items(items)


def _concat(node: Node) -> Tensor:
    axis, rows = node.attr("axis"), _rows(node)
    if rows is not None:
        return _joined(node, rows, axis)
    tensors = [_tensor(node, item) for item in node.items(0)]
    return Tensor.stack(tensors, axis) if node.flag("new_axis") else Tensor.concat(tensors, axis)


def _joined(node: Node, rows: Tensor, axis: int) -> Tensor:
    """Rows along an axis of their own, or one behind the other along one of theirs."""
    if node.flag("new_axis"):
        return rows.moveaxis(0, node.as_axis(axis, rows.ndim))
    at = node.as_axis(axis, rows.ndim - 1)
    moved = rows.moveaxis(0, at)
    shape = moved.shape
    return moved.reshape((*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]))


def _length(node: Node) -> Value:
    rows = _rows(node)
    count = np.empty((), object)
    count[()] = len(node.items(0)) if rows is None else rows.shape[0]
    return Value.of_dims(count)


def _tensor(node: Node, item: AnyValue) -> Tensor:
    if not isinstance(item, Value):
        raise node.refuse("the items must be tensors.")
    return item.tensor


def _split(node: Node) -> Items:
    x = node.tensor()
    axis = node.axis(x.ndim, 0)
    if not node.has(1):
        rows = [x.narrow(axis, i, 1) for i in range(node.size(x.shape[axis]))]
        return _items(rows if node.flag("keepdims", True) else [r.squeeze(axis) for r in rows])
    given = node.value(1)
    if given.ndim == 0:
        step, size = int(node.numbers(1).reshape(())), node.size(x.shape[axis])
        begins = range(0, size, step)
        return _items([x.narrow(axis, i, minimum(step, size - i)) for i in begins])
    parts, begin = [], 0
    for length in node.ints(1):
        parts.append(x.narrow(axis, begin, length))
        begin += length
    return _items(parts)


def _items(tensors: list[Tensor]) -> Items:
    return Items([Value.of(tensor) for tensor in tensors])


def _map(node: Node) -> list[Any]:
    """A sub-graph for each item; other sequences go along, tensors are given to all."""
    graph, count = node.graph("body"), len(node.items(0))
    given = [
        Items(node.items(i)) if isinstance(node.any_value(i), Rows) else node.any_value(i)
        for i in range(len(node.inputs))
    ]
    made = [
        node.walk.graph(graph, [v.items[i] if isinstance(v, Items) else v for v in given])
        for i in range(count)
    ]
    return [Items([each[output] for each in made]) for output in range(len(graph.output))]


def _optional(node: Node) -> AnyValue:
    return node.any_value(0) if node.has(0) else Nothing()


def _get(node: Node) -> AnyValue:
    found = node.any_value(0)
    if isinstance(found, Nothing):
        raise node.refuse("the optional is empty.")
    return found


def _has(node: Node) -> Value:
    return Value.of_array(node.has(0) and not isinstance(node.any_value(0), Nothing))


CONVERTERS: dict[str, Converter] = {
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalGetElement": _get,
    "OptionalHasElement": _has,
    "SequenceAt": _at,
    "SequenceConstruct": lambda node: Items([node.any_value(i) for i in range(len(node.inputs))]),
    "SequenceEmpty": lambda node: Items([]),
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SequenceMap": _map,
    "SplitToSequence": _split,
}
