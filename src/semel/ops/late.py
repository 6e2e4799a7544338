"""Where a mask is true: the one op whose size a run finds out.

    compact  mask [n], starts [ceil(n / tile)], count []  -->  int64 [late], ascending positions

The operands say what is known of the mask: `starts` has how many elements are true before
each run of `tile`, so that runs can be written side by side; `count` is how many are true in
all, which is the value of the late variable. `positions` makes all of them from a mask.
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
    ReduceAttrs,
    ReducePartialAttrs,
    ReshapeAttrs,
    ScanAttrs,
)
from semel.ops.numerics import Array
from semel.ops.shapes import Requirement, check, check_count, equal

#: Elements of a mask that one tile looks at: some microseconds of work.
TILE = 4096


def positions(mask: Node, *, origin: str = "") -> Node:
    """The flat positions where a mask is true, ascending; their number is a late variable."""
    flat = make_node("reshape", (mask,), ReshapeAttrs((mask.type.num_elements,)))
    ones = make_node("cast", (flat,), CastAttrs(INT64))
    per_tile = make_node("reduce_partial", (ones,), ReducePartialAttrs(0, TILE, "sum"))
    starts = make_node("scan", (per_tile,), ScanAttrs(0, "sum", exclusive=True))
    total = make_node("reduce_sum", (per_tile,), ReduceAttrs((0,)))
    count = make_node("reshape", (total,), ReshapeAttrs(()), origin=origin)
    size = late_variable(count, mask.type.num_elements)
    return make_node("compact", (flat, starts, count), CompactAttrs(size, TILE), origin=origin)


def _require(
    attrs: CompactAttrs, mask: TensorType, starts: TensorType, count: TensorType
) -> Iterator[Requirement]:
    runs = ceildiv(mask.shape[0], attrs.tile)
    if starts.shape[0] == runs:
        return  # as `positions` makes it: no sentence is needed
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


register(
    OpDef(
        "compact",
        "opaque",
        CompactAttrs,
        _infer,
        _reference,
        cost=4,
        require=_require,
        reads=_reads,
    )
)
