"""The same tensor on another device.

    move  x, device --> x, in memory of that device

It computes nothing, and where something is computed changes no bit of it. Nodes on both sides of a
move never share a kernel: what it becomes is a copy, on a lane of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from semel.errors import GraphError
from semel.ir.graph import Node
from semel.ir.opdef import OpDef, register
from semel.ir.types import TensorType
from semel.ops.attrs import MoveAttrs
from semel.ops.shapes import check_count

Array = np.ndarray[Any, Any]


def _infer(attrs: MoveAttrs, *types: TensorType) -> TensorType:
    check_count("move", types, 1)
    if not attrs.device:
        raise GraphError("move", f"must name a device, got {attrs.device!r}.")
    return types[0]


def _reference(node: Node, arrays: tuple[Array, ...], env: Mapping[str, int]) -> Array:
    return arrays[0]


register(OpDef("move", "opaque", MoveAttrs, _infer, _reference, cost=1, moves=True))
