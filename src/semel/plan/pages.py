"""Who has which block of a pool: handed out before runs, shared by forks, given back.

    plan.states.pages("kv")  -->  PlanPages: reserve, fork, truncate, release

All that is known is the table of blocks, which is a state of the plan: how often a block stands in
it is how many sequences refer to it, and one that does not stand there is free. So clones and
snapshots have nothing else to keep. A fork refers to the blocks of its sequence. Rows are written
behind a length only: of the blocks there, none is written that others refer to as well. Who grows
first gets one of its own, before the run, with a copy of the rows that it has in it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from semel.errors import StateError
from semel.ir.expr import evaluate
from semel.ir.fields import take_int
from semel.plan.kept import current_buffer, whole_of
from semel.plan.program import ProgramState, StateRows
from semel.plan.sequences import PlanSequences
from semel.runtime.buffer import Array
from semel.runtime.hold import alone

if TYPE_CHECKING:
    from semel.plan.engine import Engine


class PlanPages(PlanSequences):
    """Sequences whose rows lie in blocks of pools. Each method is an operation on the plan."""

    def __init__(self, engine: Engine, name: str) -> None:
        super().__init__(engine, name)
        rows = next(iter(self._members.values())).rows
        assert rows is not None
        self._how: StateRows = rows
        self._table_state = next(s for s in engine.parts.states if s.name == rows.table)

    @property
    def capacity(self) -> int:
        """How long a sequence may be."""
        return self._shape(self._table_state)[1] * self._how.block_rows

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        pool = next(iter(self._members.values()))
        return self._shape(pool)[0] // self._how.block_rows

    @property
    @alone
    def table(self) -> Array:
        """Which block each part of each sequence lies in; -1 for none."""
        self._engine.state.check_alive()
        return self._table()

    @property
    @alone
    def references(self) -> Array:
        """How many sequences refer to each block."""
        self._engine.state.check_alive()
        return self._references(self._table())

    @property
    def num_free(self) -> int:
        """How many blocks nobody refers to."""
        return int((self.references == 0).sum())

    # ------------------------------------------------------------ growing

    @alone
    def reserve(self, rows: int | Sequence[int] | Array) -> None:
        """Let each sequence have blocks for so many rows more, or for those said of each.

        Runs do this themselves. Nothing changes if there are not enough.
        """
        self._engine.state.check_alive()
        given = rows if isinstance(rows, (Sequence, np.ndarray)) else [rows] * len(self)
        more = [take_int("reserve", "rows", each) for each in given]
        if len(more) != len(self) or min(more) < 0:
            raise StateError("reserve", f"needs rows >= 0 of {len(self)} sequences, got {rows!r}.")
        if max(more) > self.capacity:
            raise self._no_room(max(more))
        self._reserve(np.array(more, np.int64))

    def reserve_for_run(self) -> None:
        """Blocks for the rows that the run which is about to begin appends."""
        grows = self._rows_of_run()
        if grows is not None:
            self._reserve(grows)

    def _rows_of_run(self) -> Array | None:
        """By how much each sequence grows; None if the run will say what is wrong."""
        values = self._engine.state.pending_values()
        try:
            rows = evaluate(self._how.grows, values)
        except KeyError:
            return None  # a variable is not bound
        if not self._how.counts:
            return np.full(len(self), rows)
        counts = self._counts()
        if counts is None or counts.min(initial=0) < 0 or counts.max(initial=0) > rows:
            return None
        return counts

    def _counts(self) -> Array | None:
        """The input that counts new rows, where the run reads it."""
        engine = self._engine
        io = next(io for io in engine.parts.input_io if io.name == self._how.counts)
        buffer = engine.parts.buffers[io.index]
        if engine.state.inputs[io.name].recorded_shape() != (len(self),):
            return None
        if not buffer.memory.is_host:
            return buffer.peek((len(self),)).astype(np.int64)
        base = engine.linked.bases.get(io.index)
        address = buffer.address if base is None else engine.state.run.base(base)
        size = len(self) * io.type.dtype.size_bytes
        data = memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")
        found: Array = np.frombuffer(data, io.type.dtype.numpy).astype(np.int64)
        return found

    def _reserve(self, more: Array) -> None:
        """Hand blocks out, also in the place of those that are shared and about to be written."""
        table, lengths, size = self._table(), self._lengths(), self._how.block_rows
        after = lengths + more
        if after.max(initial=0) > self.capacity:
            raise self._no_room(int(after.max()))
        references = self._references(table)
        places, begun = np.arange(table.shape[1]), (lengths // size)[:, None]
        wanted = (more > 0)[:, None] & (places < -(-after // size)[:, None])
        is_shared = (places >= begun) & (table >= 0) & (references[table] > 1)
        lacking = np.argwhere(wanted & ((table < 0) | is_shared)).tolist()
        if not lacking:
            return
        free = np.flatnonzero(references == 0)[::-1].tolist()
        copies: list[tuple[int, int, int]] = []
        for number, place in lacking:
            old, filled = int(table[number, place]), int(lengths[number]) - place * size
            if old >= 0 and references[old] == 1:
                continue  # all others have got blocks of their own by now
            table[number, place] = made = self._take(free, references, number)
            if old >= 0:
                references[old] -= 1
                copies.append((old, made, max(filled, 0)))
        for state in self._members.values():
            self._copy_rows(state, copies)
        current_buffer(self._engine, self._table_state).put(table)

    def _no_room(self, rows: int) -> StateError:
        return StateError(
            f"sequences '{self.name}'",
            f"rows must fit into {self.capacity} of a sequence, one would have {rows}.",
            hint="truncate(sequence, rows) makes room.",
            rows=rows,
            capacity=self.capacity,
        )

    def _take(self, free: list[int], references: Array, number: int) -> int:
        if not free:
            raise StateError(
                f"pages '{self.name}'",
                f"sequence {number} must have a block for its next row, all {references.size} are "
                "taken.",
                hint="truncate(sequence, rows) and release(sequence) give blocks back.",
                sequence=number,
            )
        block = free.pop()
        references[block] = 1
        return block

    def _copy_rows(self, state: ProgramState, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy the first rows of blocks to other blocks of a pool."""
        buffer = current_buffer(self._engine, state)
        row_bytes = prod(self._shape(state)[1:]) * buffer.dtype.size_bytes
        block_bytes = self._how.block_rows * row_bytes
        for old, new, count in copies:
            start = buffer.offset + old * block_bytes
            data = buffer.memory.copy_out(start, count * row_bytes)
            buffer.memory.copy_in(buffer.offset + new * block_bytes, data)

    # ------------------------------------------------------------ cutting and sharing

    @alone
    def truncate(self, sequence: int, rows: int) -> None:
        """Let only the first rows of a sequence be valid, and give back the blocks behind them."""
        self._truncate(sequence, rows)
        number, table = int(sequence), self._table()
        table[number, -(-int(rows) // self._how.block_rows) :] = -1
        current_buffer(self._engine, self._table_state).put(table)

    @alone
    def reset(self, sequence: int | None = None) -> None:
        """Let a sequence begin anew, or all of them; their blocks are free."""
        self._engine.state.check_alive()
        chosen = slice(None) if sequence is None else self._number("reset", sequence)
        lengths, table = self._lengths(), self._table()
        lengths[chosen], table[chosen] = 0, -1
        self._set_lengths(lengths)
        current_buffer(self._engine, self._table_state).put(table)

    def release(self, sequence: int) -> None:
        """Give all blocks of a sequence back; it begins anew."""
        self.reset(take_int("release", "sequence", sequence))

    @alone
    def fork(self, sequence: int, to: int | None = None) -> int:
        """Let an empty sequence go on from where another one is; its number.

        The blocks are those of the other sequence. No row is copied before one of the two grows,
        and then those of the last block alone, if it is not full.
        """
        self._engine.state.check_alive()
        number, lengths, table = self._number("fork", sequence), self._lengths(), self._table()
        empty = [s for s in range(len(self)) if s != number and not lengths[s]]
        chosen = next(iter(empty), None) if to is None else self._number("fork", to)
        if chosen not in empty:
            raise StateError(
                "fork",
                "must be given an empty sequence to go on in, "
                + ("there is none." if to is None else f"{to} is not."),
                hint="release(sequence) empties one.",
            )
        assert chosen is not None
        used = -(-int(lengths[number]) // self._how.block_rows)
        lengths[chosen], table[chosen] = lengths[number], -1
        table[chosen, :used] = table[number, :used]
        current_buffer(self._engine, self._table_state).put(table)
        self._set_lengths(lengths)
        return chosen

    # ------------------------------------------------------------ inside

    def is_table(self, state: ProgramState) -> bool:
        """Whether a state is the table of these blocks."""
        return state.name == self._table_state.name

    def _table(self) -> Array:
        return whole_of(self._engine, self._table_state).copy()

    def _references(self, table: Array) -> Array:
        return np.bincount(table[table >= 0].ravel(), minlength=self.num_blocks)

    def _rows(self, state: ProgramState, number: int) -> Array:
        size, length = self._how.block_rows, int(self._lengths()[number])
        places = np.arange(length)
        blocks = self._table()[number, places // size].astype(np.int64)
        rows: Array = whole_of(self._engine, state)[blocks * size + places % size]
        return rows


def pages_of(engine: Engine) -> list[PlanPages]:
    """All sequences in blocks that a plan has."""
    rows = (state.rows for state in engine.parts.states)
    return [
        PlanPages(engine, name) for name in dict.fromkeys(r.lengths for r in rows if r and r.table)
    ]


def find_pages(engine: Engine, name: str) -> PlanPages:
    """The sequences of that name, if they lie in blocks."""
    found = find_sequences(engine, name)
    if not isinstance(found, PlanPages):
        raise StateError("plan", f"the sequences '{name}' do not lie in blocks.")
    return found


def find_sequences(engine: Engine, name: str) -> PlanSequences:
    """The sequences of that name, in blocks or not."""
    is_paged = any(s.rows and s.rows.table and s.rows.lengths == name for s in engine.parts.states)
    return PlanPages(engine, name) if is_paged else PlanSequences(engine, name)


def check_lengths(engine: Engine, state: ProgramState, array: Array) -> None:
    """Refuse lengths that sequences cannot have, and blocks that there are not."""
    for name in dict.fromkeys(s.rows.lengths for s in engine.parts.states if s.rows):
        found = find_sequences(engine, name)
        if state.name == name:
            _check_range(state.name, "lengths", array, 0, found.capacity)
        elif isinstance(found, PlanPages) and found.is_table(state):
            _check_range(state.name, "blocks", array, -1, found.num_blocks - 1)


def _check_range(name: str, what: str, array: Array, low: int, high: int) -> None:
    if array.size and (array.min() < low or array.max() > high):
        raise StateError(
            f"state '{name}'",
            f"{what} must lie in [{low}, {high}], got {array.min()} to {array.max()}.",
        )
