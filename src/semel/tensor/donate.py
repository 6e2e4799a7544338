"""Tensors whose memory somebody else may have.

    own_array(tensor) -> the array, if nobody but this tensor knows it;   give_away(tensor)

A constant may be read by other handles, by tensors that are not computed yet, and by arrays that
look into it. Python counts who holds what: only what is held once, by this tensor, can be written
to.
"""

from __future__ import annotations

import sys
from typing import Any

from semel.ir.graph import no_scope
from semel.tensor.body import given_away
from semel.tensor.handle import Array
from semel.tensor.tensor import Tensor

#: References to a node, a storage and an array that one tensor holds, while they are counted here:
#: those of the tensor or the storage, the local name and the argument; the node knows its storage.
_NODE, _STORAGE, _ARRAY = 3, 4, 3


def own_array(x: Any) -> Array | None:
    """The value of a constant, to be written to; None if it may be read by anybody else."""
    if type(x) is not Tensor or x._value is None or x._node.op.name != "constant":
        return None
    node, storage = x._node, x._value
    if sys.getrefcount(node) > _NODE or sys.getrefcount(storage) > _STORAGE:
        return None
    array = storage.array
    if sys.getrefcount(array) > _ARRAY or not array.flags.owndata:
        return None
    array.flags.writeable = True
    return array


def give_away(x: Tensor, path: str, to: str) -> None:
    """Let the tensor be one that has no value any more: who uses it is told who has it."""
    kind = x.type
    with no_scope():
        x._node = given_away(path, to, kind)
    x._value = None
