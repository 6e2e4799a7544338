"""What the compiler knows about one op.

An op is one record with its rules, written beside its maths in `semel.ops`; how
it becomes loops stands in `semel.lower`, keyed by the same name. The fields
have no defaults on purpose (an op may demand nothing of its dims, so `require` has one): an op
without a reference implementation does not import, so it cannot be merged untested.

`OPS` is the one table that imports fill: the files of `semel.ops` are its rows, and
`import semel.ops` is how anybody gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from semel.errors import GraphError, InternalError

OPS: dict[str, OpDef] = {}


@dataclass(frozen=True, slots=True)
class OpDef:
    """`infer(attrs, *types)` gives the type, `reference(node, arrays, env)` the truth in NumPy.

    `kind` tells the scheduler how it may be fused:
      leaf          input, constant
      elementwise   one result element from the operands' elements at the same index
      movement      one result element is one operand element (or a fill) at another index
      reduce        axes collapse to size 1
      contract      matmul
      update        new elements of a state, stored where the old ones lie
      opaque        a kernel of its own: sort, scan, scatter; for a loop, several
    `attrs` is the class of its attributes, None for an op that has none.
    `cost` is the rough number of machine operations per result element.
    `require(attrs, *types)` gives what must hold of dims, as `ops.shapes` says; None: nothing.
    """

    name: str
    kind: str
    attrs: type | None
    infer: Callable[..., Any]
    reference: Callable[..., Any]
    cost: int
    require: Callable[..., Iterable[Any]] | None = None


def register(op: OpDef) -> OpDef:
    """Add `op` to the table; a second op of the same name is our bug."""
    if op.name in OPS:
        raise InternalError(op.name, "is registered twice.")
    OPS[op.name] = op
    return op


def find_op(name: str) -> OpDef:
    """The record of an op, or a GraphError that names it."""
    if name not in OPS:
        raise GraphError(name, "is not an op.", hint="semel.ir.opdef.OPS lists all of them.")
    return OPS[name]
