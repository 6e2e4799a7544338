"""Trees of rows: each row at its position, in the bodies of others.

rows  --walk-->  Placed rows by position, a loop before what is inside it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from semel.plan.rows import PreparedKernel, PreparedLoop, PreparedOp
from semel.runtime.buffer import Buffer


@dataclass(frozen=True, slots=True)
class Around:
    """A row that another is inside of, and in which of its bodies."""

    position: int
    row: PreparedOp
    body: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A row of a tree at its position; `around` are the rows it is inside of, outermost first."""

    position: int
    row: PreparedOp
    around: tuple[Around, ...] = ()

    @property
    def loops(self) -> tuple[PreparedLoop, ...]:
        """The loops it is inside of."""
        return tuple(a.row for a in self.around if isinstance(a.row, PreparedLoop))


def walk(rows: Sequence[PreparedOp]) -> list[Placed]:
    """All rows of a tree in the order of their positions."""
    found: list[Placed] = []
    _walk(rows, (), found)
    return found


def _walk(rows: Sequence[PreparedOp], around: tuple[Around, ...], found: list[Placed]) -> None:
    for row in rows:
        position = len(found)
        found.append(Placed(position, row, around))
        for number, body in enumerate(row.bodies):
            _walk(body, (*around, Around(position, row, number)), found)


def num_rows(row: PreparedOp) -> int:
    """The row, and all that is inside it."""
    return 1 + sum(num_rows(inner) for body in row.bodies for inner in body)


def map_rows(
    rows: Sequence[PreparedOp], change: Callable[[PreparedOp], PreparedOp]
) -> tuple[PreparedOp, ...]:
    """The tree with `change(row)` in the place of each row; insides first."""
    return tuple(
        change(row.with_bodies([map_rows(body, change) for body in row.bodies])) for row in rows
    )


def as_it_is(op: PreparedOp, buffers: Sequence[Buffer], values: Mapping[str, int]) -> PreparedOp:
    """The row with these values of variables, and with where its buffers lie now.

    Without any buffers: they are gone, and so are their addresses.
    """
    if not isinstance(op, PreparedKernel):
        return op
    known = {**values, **op.fixedvars}
    names = [var.name for var in op.runtime_vars]
    own = [buffers[i] for i in op.buffer_indices] if buffers else []
    return replace(
        op,
        vals=tuple(known[name] for name in names) if known.keys() >= set(names) else (),
        buffer_ptrs=tuple(b.address for b in own),
        buffer_ids=tuple(b.storage_id for b in own),
    )
