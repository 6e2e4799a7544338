"""The next value of a state: some of its elements replaced.

    update       state (or an update of it), new elements, where they begin --> the state with them
    update_rows  state (or an update of it), new rows, the place of each --> the state with them

Places of rows are numbers in memory, one for each row, or one for each row of each entry of the
first axis; they are distinct. A row whose place lies outside, as -1 does, is not stored.
Its result is the state itself with other contents: who makes it stores the new elements and
nothing else, and who reads it reads the state's memory. What order that needs, and when it takes
a second buffer, is decided by `semel.schedule.states`. An update of a frame is an output of which
the other elements stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import Dim, evaluate, product
from semel.ir.graph import Node
from semel.ir.opdef import OpDef, register
from semel.ir.types import INT64, Shape, TensorType
from semel.kernel.values import Value
from semel.ops.attrs import UpdateAttrs, UpdateRowsAttrs
from semel.ops.elements import Elements
from semel.ops.index_maps import Indices, flat_index, reshape_index
from semel.ops.numerics import Array
from semel.ops.shapes import Requirement, at_most, check, check_count, equal


def _require(attrs: UpdateAttrs, old: TensorType, new: TensorType) -> Iterator[Requirement]:
    if attrs.shape:
        count, room = product(attrs.shape), new.num_elements
        yield equal(count, room, f"must be of {room} new elements, got {attrs.shape}.")
    sizes = attrs.shape or new.shape
    for axis, (start, size, room) in enumerate(zip(attrs.starts, sizes, old.shape, strict=True)):
        yield at_most(0, start, f"must begin at or behind 0 along axis {axis}, got {start}.")
        text = f"must end at or before {room} along axis {axis}, got {size} from {start} on."
        yield at_most(start + size, room, text)


def _infer(attrs: UpdateAttrs, *types: TensorType) -> TensorType:
    check_count("update", types, 2)
    old, new = types
    rank = len(attrs.shape or new.shape)
    if new.dtype != old.dtype or rank != old.rank or len(attrs.starts) != old.rank:
        raise GraphError(
            "update", f"new elements of {old} must have its dtype and rank, got {new}."
        )
    check("update", attrs, *types)
    return old


def _reference(node: Node, arrays: tuple[Array, ...], env: Mapping[Any, int]) -> Array:
    result, new = arrays[0].copy(), arrays[1]
    if node.attrs.shape:
        new = new.reshape([evaluate(size, env) for size in node.attrs.shape])
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


# ---------------------------------------------------------------- rows with places


def _require_rows(
    attrs: UpdateRowsAttrs, old: TensorType, new: TensorType, places: TensorType
) -> Iterator[Requirement]:
    for axis, (have, room) in enumerate(zip(new.shape, old.shape, strict=True)):
        if axis != attrs.axis:
            yield equal(have, room, f"rows must be like {old} but along {attrs.axis}, got {new}.")
    wanted = (new.shape[0], new.shape[attrs.axis])[-places.rank :]
    for have, size in zip(places.shape, wanted, strict=True):
        yield equal(have, size, f"needs a place for each row of {new}, got {places}.")


def _infer_rows(attrs: UpdateRowsAttrs, *types: TensorType) -> TensorType:
    check_count("update_rows", types, 3)
    old, new, places = types
    if new.dtype != old.dtype or new.rank != old.rank or not 0 <= attrs.axis < old.rank:
        raise GraphError("update_rows", f"rows of {old} must have its dtype and rank, got {new}.")
    is_known = places.rank == 1 or (places.rank == 2 and attrs.axis > 0)
    if places.dtype != INT64 or not is_known:
        raise GraphError("update_rows", f"needs int64 places of the rows of {new}, got {places}.")
    check("update_rows", attrs, *types)
    return old


def _reference_rows(node: Node, arrays: tuple[Array, ...], env: Mapping[Any, int]) -> Array:
    old, new, places = arrays
    axis, result = node.attrs.axis, old.copy()
    to, given = np.moveaxis(result, axis, 0), np.moveaxis(new, axis, 0)
    for at, place in np.ndenumerate(places):
        if 0 <= place < len(to):
            to[(place, *at[:-1])] = given[(at[-1], *at[:-1])]
    return result


register(
    OpDef(
        "update_rows",
        "update",
        UpdateRowsAttrs,
        _infer_rows,
        _reference_rows,
        cost=1,
        require=_require_rows,
        reads=lambda node: (1, 2),
        kernel_name="append",
    )
)


# ---------------------------------------------------------------- what is stored


def fills_frame(node: Node) -> bool:
    """Whether the node is an output that is written in part."""
    return node.op.kind == "update" and node.inputs[0].op.name == "frame"


def is_whole(update: Node) -> bool:
    """Whether an update replaces all elements."""
    if has_places(update):
        return False
    is_first = all(start == 0 for start in update.attrs.starts)
    return is_first and update.inputs[1].type.shape == update.type.shape


def has_places(update: Node) -> bool:
    """Whether only a run knows where an update stores its rows; a kernel of its own does it."""
    return update.op.name == "update_rows"


def stored_shape(node: Node) -> Shape:
    """The shape of what a kernel computes and stores for a node: of an update, its new elements."""
    return node.inputs[1].type.shape if node.op.kind == "update" else node.type.shape


def written_shape(update: Node) -> Shape:
    """The shape that the new elements have in the state."""
    shape: Shape = update.attrs.shape or update.inputs[1].type.shape
    return shape


def stored_at(node: Node, at: Indices) -> Dim:
    """Where in the node's memory element `at` of these lies."""
    if node.op.kind == "update":
        at = reshape_index(at, stored_shape(node), written_shape(node))
        at = tuple(start + i for start, i in zip(node.attrs.starts, at, strict=True))
    return flat_index(at, node.type.shape)
