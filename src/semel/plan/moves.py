"""From the states of one plan to those of another, which may have other room for rows.

    Move(to, source, rows).parts, .cursors  -->  what is to be written, all of it checked

Both plans are held meanwhile. Rows behind a cursor, or behind the longest of several sequences, are
not looked at.
"""

from __future__ import annotations

import numpy as np

from semel.errors import StateError
from semel.ir.fields import take_int
from semel.ir.types import TensorType
from semel.plan.engine import Engine
from semel.plan.kept import peek_rows, shape_of, whole_of
from semel.plan.program import ProgramState
from semel.runtime.buffer import Array

_WHERE = "copy_rows_from"


class Move:
    """What `to` gets of the states of `source`: all valid rows, or the first `rows`."""

    def __init__(self, to: Engine, source: Engine, rows: int | None) -> None:
        self._to, self._source = to, source
        self._rows = None if rows is None else take_int(_WHERE, "rows", rows)
        self._mine = {state.name: state for state in to.parts.states}
        self._theirs = {state.name: state for state in source.parts.states}
        self._check_alike()
        #: Where the cursors will be.
        self.cursors = self._find_cursors()
        self._lengths = self._find_lengths()
        if rows is not None and not self.cursors and not self._lengths:
            raise StateError(_WHERE, "rows are of states that are appended to: none is.")
        #: What is to be written, by name: where it lies in the source, or a copy.
        self.parts = {name: self._part(state) for name, state in self._mine.items()}

    # ------------------------------------------------------------ what must hold

    def _check_alike(self) -> None:
        if self._mine.keys() != self._theirs.keys():
            mine, theirs = (", ".join(sorted(s)) or "none" for s in (self._mine, self._theirs))
            raise StateError(
                _WHERE, f"both plans must have the same states, got {mine} and {theirs}."
            )
        for name, state in self._mine.items():
            kinds = _kind(self._to, state), _kind(self._source, self._theirs[name])
            shapes = _without_room(kinds[0], state), _without_room(kinds[1], self._theirs[name])
            if shapes[0] != shapes[1] or kinds[0].dtype != kinds[1].dtype:
                raise StateError(
                    f"state '{name}'",
                    f"must be the same in both plans but for the room for rows, got {kinds[0]} "
                    f"and {kinds[1]}.",
                )
            ways = _growth(state), _growth(self._theirs[name])
            if ways[0] != ways[1]:
                raise StateError(
                    f"state '{name}'",
                    f"must grow in the same way in both plans, got {ways[0]} and {ways[1]}.",
                )

    def _count(self, valid: int) -> int:
        """How many of the valid rows are wanted."""
        if self._rows is not None and not 0 <= self._rows <= valid:
            raise StateError(_WHERE, f"rows must lie in [0, {valid}], got {self._rows}.")
        return valid if self._rows is None else self._rows

    # ------------------------------------------------------------ what is there

    def _find_cursors(self) -> dict[str, int]:
        found: dict[str, int] = {}
        now = self._source.state.held_values()
        for name, state in self._mine.items():
            theirs = self._theirs[name].cursor
            if state.cursor is None or theirs is None:
                continue
            count = self._count(now[theirs])
            if found.setdefault(state.cursor, count) != count:
                raise StateError(
                    f"state '{name}'",
                    f"must have the {found[state.cursor]} rows of those beside it, got {count}.",
                )
        return found

    def _find_lengths(self) -> dict[str, Array]:
        """How long sequences will be, by the states that say so."""
        names = dict.fromkeys(s.rows.lengths for s in self._mine.values() if s.rows is not None)
        found = {name: whole_of(self._source, self._theirs[name]) for name in names}
        return {
            name: np.minimum(lengths, self._count(int(lengths.max(initial=0))))
            for name, lengths in found.items()
        }

    def _part(self, state: ProgramState) -> Array:
        theirs = self._theirs[state.name]
        if state.name in self._lengths:
            return self._lengths[state.name]
        if state.cursor is not None:
            return peek_rows(self._source, theirs, 0, self.cursors[state.cursor])
        whole, axis = whole_of(self._source, theirs), _room_axis(state)
        how = (s.rows for s in self._mine.values() if s.rows and s.rows.table == state.name)
        if (pool := next(how, None)) is not None:
            return _blocks_of(whole, self._lengths[pool.lengths], pool.block_rows)
        if axis is None or state.rows is None:
            return whole
        longest = int(self._lengths[state.rows.lengths].max(initial=0))
        room = shape_of(_kind(self._to, state))[axis]
        if longest > room:
            raise StateError(
                f"state '{state.name}'", f"has room for {room} rows of a sequence, got {longest}."
            )
        return whole[(*[slice(None)] * axis, slice(0, longest))]


def _blocks_of(table: Array, lengths: Array, block_rows: int) -> Array:
    """The part of a table that sequences of these lengths need: other blocks are free."""
    is_used = np.arange(table.shape[1]) * block_rows < lengths[:, None]
    return np.where(is_used, table, np.int32(-1))


def _kind(engine: Engine, state: ProgramState) -> TensorType:
    return engine.parts.program.values[state.index].type


def _growth(state: ProgramState) -> str:
    """How rows come to a state, in words; cursors may have any names."""
    if state.rows is None:
        return "at no cursor" if state.cursor is None else "at a cursor"
    if not state.rows.table:
        return f"by sequences '{state.rows.lengths}'"
    return f"by sequences '{state.rows.lengths}' in blocks of {state.rows.block_rows} rows"


def _room_axis(state: ProgramState) -> int | None:
    """The axis along which plans may have other room; what lies in blocks is taken as it is."""
    if state.rows is not None and not state.rows.table:
        return state.rows.axis
    return state.axis


def _without_room(kind: TensorType, state: ProgramState) -> tuple[int | None, ...]:
    axis = _room_axis(state)
    return tuple(None if i == axis else n for i, n in enumerate(shape_of(kind)))
