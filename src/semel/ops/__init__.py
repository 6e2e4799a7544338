"""What each op means: its type rule and its NumPy reference.

    import semel.ops  -->  semel.ir.opdef.OPS holds every op

Each file is one family: leaf, elementwise, movement, reduce, contract, own_kernel, loop, cond,
late, state, place. An op is a row of its family's table; importing this package fills the table.
"""

from semel.ops import (
    attention,
    cond,
    contract,
    elementwise,
    grouped,
    integer,
    late,
    leaf,
    loop,
    movement,
    own_kernel,
    place,
    reduce,
    state,
)

__all__ = [
    "attention",
    "cond",
    "contract",
    "elementwise",
    "grouped",
    "integer",
    "late",
    "leaf",
    "loop",
    "movement",
    "own_kernel",
    "place",
    "reduce",
    "state",
]
