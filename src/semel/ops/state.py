"""The next value of a state: some of its elements replaced.

    update  state (or an update of it), new elements, where they begin --> the state with them

Its result is the state itself with other contents: who makes it stores the new elements and
nothing else, and who reads it reads the state's memory. What order that needs, and when it takes
a second buffer, is decided by `semel.schedule.states`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from semel.errors import GraphError
from semel.ir.expr import Dim, evaluate
from semel.ir.graph import Node
from semel.ir.opdef import OpDef, register
from semel.ir.types import Shape, TensorType
from semel.kernel.values import Value
from semel.ops.attrs import UpdateAttrs
from semel.ops.elements import Elements
from semel.ops.index_maps import Indices, flat_index
from semel.ops.numerics import Array
from semel.ops.shapes import Requirement, at_most, check, check_count


def _require(attrs: UpdateAttrs, old: TensorType, new: TensorType) -> Iterator[Requirement]:
    for axis, (start, size, room) in enumerate(
        zip(attrs.starts, new.shape, old.shape, strict=True)
    ):
        yield at_most(0, start, f"must begin at or behind 0 along axis {axis}, got {start}.")
        text = f"must end at or before {room} along axis {axis}, got {size} from {start} on."
        yield at_most(start + size, room, text)


def _infer(attrs: UpdateAttrs, *types: TensorType) -> TensorType:
    check_count("update", types, 2)
    old, new = types
    if new.dtype != old.dtype or new.rank != old.rank or len(attrs.starts) != old.rank:
        raise GraphError(
            "update", f"new elements of {old} must have its dtype and rank, got {new}."
        )
    check("update", attrs, *types)
    return old


def _reference(node: Node, arrays: tuple[Array, ...], env: Mapping[Any, int]) -> Array:
    result, new = arrays[0].copy(), arrays[1]
    starts = [evaluate(start, env) for start in node.attrs.starts]
    places = tuple(slice(s, s + n) for s, n in zip(starts, new.shape, strict=True))
    result[places] = new
    return result


def _element(elements: Elements, node: Node, at: Indices, guard: Value | None) -> Value:
    """What is stored: a new element."""
    return elements(node.inputs[1], at, guard)


register(
    OpDef(
        "update",
        "update",
        UpdateAttrs,
        _infer,
        _reference,
        cost=1,
        require=_require,
        element=_element,
    )
)


# ---------------------------------------------------------------- what is stored


def is_whole(update: Node) -> bool:
    """Whether an update replaces all elements."""
    is_first = all(start == 0 for start in update.attrs.starts)
    return is_first and update.inputs[1].type.shape == update.type.shape


def stored_shape(node: Node) -> Shape:
    """The shape of what a kernel computes and stores for a node: of an update, its new elements."""
    return node.inputs[1].type.shape if node.op.kind == "update" else node.type.shape


def stored_at(node: Node, at: Indices) -> Dim:
    """Where in the node's memory element `at` of these lies."""
    if node.op.kind == "update":
        at = tuple(start + i for start, i in zip(node.attrs.starts, at, strict=True))
    return flat_index(at, node.type.shape)
