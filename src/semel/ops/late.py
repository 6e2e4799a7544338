"""Where a mask is true: the one op whose size a run finds out, and what is written with it.

    compact     mask [n], starts [ceil(n / tile)], count []  -->  int64 [late], ascending positions

The operands say what is known of the mask: `starts` has how many elements are true before
each run of `tile`, so that runs can be written side by side; `count` is how many are true in
all, which is the value of the late variable.

Three composites are what people write, so that a mask is two nodes until it is compiled:

    count_true  mask                -->  int64 [], how many elements are true
    positions   mask, count         -->  int64 [late], where they are in the flat mask
    select      x, mask, count      -->  x [.., late, ..], the elements of x that lie there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from semel.errors import GraphError
from semel.ir.expr import LateVariable, ceildiv
from semel.ir.graph import Node, late_variable, make_node
from semel.ir.opdef import OpDef, register
from semel.ir.types import BOOL, INT64, TensorType
from semel.ops.attrs import (
    CastAttrs,
    CompactAttrs,
    GatherAttrs,
    PositionsAttrs,
    ReduceAttrs,
    ReducePartialAttrs,
    ReshapeAttrs,
    ScanAttrs,
    SelectAttrs,
)
from semel.ops.numerics import Array
from semel.ops.shapes import Requirement, check, check_axis, check_count, equal

#: Elements of a mask that one tile looks at: some microseconds of work.
TILE = 4096


def positions(mask: Node, *, origin: str = "") -> Node:
    """The flat positions where a mask is true, ascending; their number is a late variable."""
    count, size = _count(mask, origin)
    return make_node("positions", (mask, count), PositionsAttrs(size), origin=origin)


def select(x: Node, mask: Node, axis: int, *, origin: str = "", made_by: str = "") -> Node:
    """The elements of x where a mask of its axes from `axis` on is true, along one axis there."""
    count, size = _count(mask, origin)
    attrs = SelectAttrs(size, axis)
    return make_node("select", (x, mask, count), attrs, origin=origin, made_by=made_by)


def _count(mask: Node, origin: str) -> tuple[Node, LateVariable]:
    """How many elements are true, and the late variable that this is."""
    count = make_node("count_true", (mask,), origin=origin)
    return count, late_variable(count, mask.type.num_elements)


# ---------------------------------------------------------------- compact


def _require(
    attrs: CompactAttrs, mask: TensorType, starts: TensorType, count: TensorType
) -> Iterator[Requirement]:
    runs = ceildiv(mask.shape[0], attrs.tile)
    if starts.shape[0] == runs:
        return  # as composites make it: no sentence is needed
    yield equal(starts.shape[0], runs, f"needs one start per {attrs.tile} of {mask}, got {starts}.")


def _infer(attrs: CompactAttrs, *types: TensorType) -> TensorType:
    check_count("compact", types, 3)
    mask, starts, count = types
    wanted = [(mask, BOOL, 1), (starts, INT64, 1), (count, INT64, 0)]
    if any(t.dtype != dtype or t.rank != rank for t, dtype, rank in wanted):
        raise GraphError(
            "compact", f"needs bool [n], int64 [runs] and int64 [], got {mask}, {starts}, {count}."
        )
    # That it is at most the size of the mask is its limit, which every rebind checks.
    if not isinstance(attrs.size, LateVariable) or attrs.tile < 1:
        raise GraphError("compact", f"needs a late variable and a tile, got {attrs}.")
    check("compact", attrs, *types)
    return TensorType((attrs.size,), INT64)


def _reference(node: Node, arrays: tuple[Array, ...], env: Mapping[Any, int]) -> Array:
    return np.flatnonzero(arrays[0]).astype(np.int64)


def _reads(node: Node) -> tuple[int, ...]:
    """Not the size of the result: what has it comes after it anyway."""
    return (0, 1)


# ---------------------------------------------------------------- composites: types and truth


def _infer_count(attrs: None, *types: TensorType) -> TensorType:
    check_count("count_true", types, 1)
    _check_mask("count_true", types[0])
    return TensorType((), INT64)


def _infer_positions(attrs: PositionsAttrs, *types: TensorType) -> TensorType:
    check_count("positions", types, 2)
    _check_mask("positions", types[0], attrs.size, types[1])
    return TensorType((attrs.size,), INT64)


def _infer_select(attrs: SelectAttrs, *types: TensorType) -> TensorType:
    check_count("select", types, 3)
    x, mask, count = types
    _check_mask("select", mask, attrs.size, count)
    check_axis("select", attrs.axis, x)
    behind = attrs.axis + mask.rank
    if behind > x.rank:
        raise GraphError("select", f"a mask must have no more axes than {x} there, got {mask}.")
    check("select", attrs, *types)
    return TensorType((*x.shape[: attrs.axis], attrs.size, *x.shape[behind:]), x.dtype)


def _check_mask(
    op: str, mask: TensorType, size: Any = None, count: TensorType | None = None
) -> None:
    """A mask is of bools, and what tells the size of a result is one number."""
    if mask.dtype != BOOL or mask.rank == 0:
        raise GraphError(op, f"needs a mask of bool, got {mask}.")
    if count is not None and (count.dtype != INT64 or count.shape):
        raise GraphError(op, f"needs the number of true elements as an int64 [], got {count}.")
    if count is not None and type(size) is not LateVariable:
        raise GraphError(op, f"needs a late variable as the size, got {size}.")


def _require_select(
    attrs: SelectAttrs, x: TensorType, mask: TensorType, count: TensorType
) -> Iterator[Requirement]:
    for have, want in zip(mask.shape, x.shape[attrs.axis :], strict=False):
        if have is not want and have != want:
            yield equal(have, want, f"a mask must have the dims of its axes, got {mask} of {x}.")


def _reference_count(node: Node, arrays: tuple[Array, ...], env: Mapping[Any, int]) -> Array:
    return np.asarray(np.count_nonzero(arrays[0]), np.int64)


def _reference_select(node: Node, arrays: tuple[Array, ...], env: Mapping[Any, int]) -> Array:
    found: Array = arrays[0][(slice(None),) * node.attrs.axis + (arrays[1],)]
    return found


# ---------------------------------------------------------------- composites: what they are made of


def _runs(mask: Node) -> tuple[Node, Node]:
    """The flat mask, and how many of each run of it are true."""
    flat = make_node("reshape", (mask,), ReshapeAttrs((mask.type.num_elements,)))
    ones = make_node("cast", (flat,), CastAttrs(INT64))
    return flat, make_node("reduce_partial", (ones,), ReducePartialAttrs(0, TILE, "sum"))


def _count_made_of(node: Node) -> Node:
    total = make_node("reduce_sum", (_runs(node.inputs[0])[1],), ReduceAttrs((0,)))
    return make_node("reshape", (total,), ReshapeAttrs(()))


def _positions_made_of(node: Node) -> Node:
    mask, count = node.inputs
    flat, per_run = _runs(mask)
    starts = make_node("scan", (per_run,), ScanAttrs(0, "sum", exclusive=True))
    return make_node("compact", (flat, starts, count), CompactAttrs(node.attrs.size, TILE))


def _select_made_of(node: Node) -> Node:
    x, mask, count = node.inputs
    axis, shape = node.attrs.axis, x.type.shape
    index = make_node("positions", (mask, count), PositionsAttrs(node.attrs.size))
    if mask.type.rank > 1:
        merged = (*shape[:axis], mask.type.num_elements, *shape[axis + mask.type.rank :])
        x = make_node("reshape", (x,), ReshapeAttrs(merged))
    return make_node("gather", (x, _positions_made_of(index)), GatherAttrs(axis))


for _each in (
    OpDef(
        "compact",
        "opaque",
        CompactAttrs,
        _infer,
        _reference,
        cost=4,
        require=_require,
        reads=_reads,
    ),
    OpDef(
        "count_true",
        "composite",
        None,
        _infer_count,
        _reference_count,
        cost=0,
        made_of=_count_made_of,
    ),
    OpDef(
        "positions",
        "composite",
        PositionsAttrs,
        _infer_positions,
        _reference,
        cost=0,
        made_of=_positions_made_of,
    ),
    OpDef(
        "select",
        "composite",
        SelectAttrs,
        _infer_select,
        _reference_select,
        cost=0,
        require=_require_select,
        made_of=_select_made_of,
    ),
):
    register(_each)
