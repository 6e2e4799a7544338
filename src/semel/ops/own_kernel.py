"""Ops with a kernel of their own: scan, argsort, sort, scatter.

    scan     x, axis --> running sum, product, max or min
    argsort  x, axis --> int64 positions that put the axis in order
    sort     x, axis --> x with the axis in that order
    scatter  x [n, m], indices [k], updates [k, m] --> x with rows replaced or combined

A scan's half types accumulate in float32. Orders are stable: equal elements keep their
order in both directions, and NaN comes last in both directions (so that topk never
prefers it). Scatter applies its updates in the order of k: the last one wins for `set`,
and half types round after every update, since each one is an op on the stored row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from semel.errors import GraphError
from semel.ir.graph import Node
from semel.ir.opdef import OpDef, register
from semel.ir.types import INT64, TensorType
from semel.ops.attrs import ArgsortAttrs, ScanAttrs, ScatterAttrs
from semel.ops.numerics import Array
from semel.ops.reduce import COMBINERS, accumulator, named_combiner, of_nothing
from semel.ops.shapes import (
    Requirement,
    check,
    check_axis,
    check_count,
    check_domain,
    check_same_dtype,
    equal,
)

Env = Mapping[str, int]
SCANS = ("sum", "prod", "max", "min")


def _infer_scan(attrs: ScanAttrs, *types: TensorType) -> TensorType:
    check_count("scan", types, 1)
    x = types[0]
    if attrs.combine not in SCANS:
        raise GraphError("scan", f"combine must be one of {SCANS}, got {attrs.combine!r}.")
    check_axis("scan", attrs.axis, x)
    check_domain("scan", x, COMBINERS[attrs.combine].domain)
    return x


def _reference_scan(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    attrs, dtype = node.attrs, node.type.dtype
    combiner = COMBINERS[attrs.combine]
    wide = arrays[0].astype(accumulator(combiner, dtype))
    if attrs.exclusive:
        wide = _shifted(wide, attrs.axis, of_nothing(combiner, dtype))
    result = combiner.ufunc.accumulate(wide, axis=attrs.axis, dtype=wide.dtype)
    return np.asarray(result).astype(dtype.compute.numpy).astype(dtype.numpy)


def _shifted(x: Array, axis: int, first: Any) -> Array:
    """x moved by one along the axis, with `first` in front and the last element gone."""
    head = np.full_like(x.take(range(min(1, x.shape[axis])), axis), first)
    return np.concatenate([head, x.take(range(max(x.shape[axis] - 1, 0)), axis)], axis)


def _infer_argsort(attrs: ArgsortAttrs, *types: TensorType) -> TensorType:
    check_count("argsort", types, 1)
    check_axis("argsort", attrs.axis, types[0])
    return TensorType(types[0].shape, INT64)


def _reference_argsort(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    axis, dtype = node.attrs.axis, node.inputs[0].type.dtype
    keys = arrays[0].astype(dtype.compute.numpy)
    if node.attrs.descending:
        # Negation and complement reverse the order and leave NaN last.
        keys = -keys if dtype.is_float else ~keys
    return np.argsort(keys, axis=axis, kind="stable").astype(np.int64)


def _infer_sort(attrs: ArgsortAttrs, *types: TensorType) -> TensorType:
    check_count("sort", types, 1)
    check_axis("sort", attrs.axis, types[0])
    return types[0]


def _reference_sort(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    return np.take_along_axis(arrays[0], _reference_argsort(node, arrays, env), node.attrs.axis)


_UPDATES: dict[str, Any] = {
    "set": None,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _require_scatter(
    attrs: ScatterAttrs, x: TensorType, indices: TensorType, updates: TensorType
) -> Iterator[Requirement]:
    yield equal(
        indices.shape[0], updates.shape[0],
        f"needs one update per index, got {indices} and {updates}.",
    )  # fmt: skip
    yield equal(x.shape[1], updates.shape[1], f"rows must have one length, got {x} and {updates}.")


def _infer_scatter(attrs: ScatterAttrs, *types: TensorType) -> TensorType:
    check_count("scatter", types, 3)
    x, indices, updates = types
    if attrs.mode not in _UPDATES:
        raise GraphError("scatter", f"mode must be one of {tuple(_UPDATES)}, got {attrs.mode!r}.")
    check_same_dtype("scatter", (x, updates))
    if (x.rank, indices.rank, updates.rank) != (2, 1, 2) or indices.dtype != INT64:
        raise GraphError(
            "scatter", f"needs x [n, m], int64 indices [k] and updates [k, m], got {x}, {indices} "
            f"and {updates}."
        )  # fmt: skip
    if attrs.mode in ("add", "mul"):
        check_domain("scatter", x, "number")
    check("scatter", attrs, *types)
    return x


def _reference_scatter(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    x, indices, updates = arrays
    result, update = x.copy(), _UPDATES[node.attrs.mode]
    for row, index in enumerate(indices):
        old = result[index]
        result[index] = updates[row] if update is None else update(old, updates[row])
    return result


register(
    OpDef(
        "scan",
        "opaque",
        ScanAttrs,
        _infer_scan,
        _reference_scan,
        cost=2,
        combiner=named_combiner,
    )
)
register(OpDef("sort", "opaque", ArgsortAttrs, _infer_sort, _reference_sort, cost=40))
register(OpDef("argsort", "opaque", ArgsortAttrs, _infer_argsort, _reference_argsort, cost=40))
register(
    OpDef(
        "scatter",
        "opaque",
        ScatterAttrs,
        _infer_scatter,
        _reference_scatter,
        cost=2,
        require=_require_scatter,
    )
)
