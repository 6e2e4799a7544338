"""What a plan keeps between runs, seen from outside: read, write, reset, truncate, snapshot.

    plan.states["k"]  -->  what it is        plan.states.read("k")  -->  its valid rows, copied

A state lies in memory of the plan. Rows that were appended are valid up to a *cursor*, a held
variable that states may share; a run that succeeds moves it on. A run that fails leaves cursors as
they were. If it was updating a state in place, that state is invalid: runs and reads are refused
until it is reset, restored, written, or truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import StateError
from semel.ir.fields import take, take_int
from semel.ir.types import DType, Shape, TensorType
from semel.plan.kept import (
    invalid_error,
    is_valid,
    peek_rows,
    put_first_value,
    put_rows,
    shape_of,
    whole_of,
)
from semel.plan.moves import Move
from semel.plan.pages import PlanPages, check_lengths, find_pages, find_sequences
from semel.plan.program import ProgramState
from semel.plan.report.html import html_table
from semel.plan.sequences import PlanSequences, lengths_of
from semel.plan.snapshot import Snapshot, StateKind, hash_kinds
from semel.runtime.buffer import Array, as_array, read_arrays
from semel.runtime.hold import Hold, alone

if TYPE_CHECKING:
    from semel.plan.engine import Engine


@dataclass(frozen=True, slots=True)
class StateInfo:
    """A state as a plan has it: `how` a run updates it, and `why` so; how many rows are valid."""

    name: str
    index: int
    type: TensorType
    nbytes: int
    how: str
    why: str
    axis: int | None
    cursor: str | None
    rows: int | None
    is_valid: bool

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape


@dataclass(frozen=True, slots=True)
class StateMemory:
    """What the states of a plan take. Room is reserved, and taken page by page as rows are written.

    `own_bytes` are the plan's alone; `shared_bytes` it has in common with its clones, which share
    what none of them has written since.
    """

    reserved_bytes: int
    own_bytes: int
    shared_bytes: int


class PlanStates(Mapping[str, StateInfo]):
    """The states of one plan by name. Each method is an operation on the plan.

    One idea: what people may do with states; the work is done in `kept`, `moves`, `sequences`
    and `snapshot`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._hold: Hold = engine.hold

    def __getitem__(self, name: str) -> StateInfo:
        number = self._number(name)
        state = self._all[number]
        return StateInfo(
            state.name,
            number,
            self._kind(state),
            self._engine.parts.buffers[state.index].capacity_bytes,
            state.how,
            state.why,
            state.axis,
            state.cursor,
            self._rows(state),
            is_valid(self._engine, number),
        )

    def __iter__(self) -> Iterator[str]:
        return (state.name for state in self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, name: object) -> bool:
        return any(state.name == name for state in self._all)

    def get(self, name: str, default: Any = None) -> Any:
        """What the state is, or `default` if there is none of that name."""
        is_known = name in self
        return self[name] if is_known else default

    def __repr__(self) -> str:
        shown = (f"{info.name}: {info.type} ({info.how})" for info in self.values())
        return f"PlanStates({', '.join(shown)})"

    def _repr_html_(self) -> str:
        head = ("", "name", "dtype", "shape", "bytes", "updated", "rows")
        return html_table("states", head, [_cells(info) for info in self.values()])

    @property
    def cursors(self) -> dict[str, int]:
        """Where the next run appends, by the names of the cursors."""
        return self._engine.state.held_values()

    @property
    def memory(self) -> StateMemory:
        """What all states together take now."""
        store = self._engine.store
        if store is None:  # a plan built by hand has none
            return StateMemory(0, 0, 0)
        held = store.states.values()
        return StateMemory(
            sum(memory.size_bytes for memory in held),
            sum(memory.own_bytes for memory in held),
            sum(memory.shared_bytes for memory in held),
        )

    def sequences(self, name: str) -> PlanSequences:
        """The sequences of that name: their lengths, and what they hold."""
        return find_sequences(self._engine, name)

    def pages(self, name: str) -> PlanPages:
        """The sequences of that name, which lie in blocks: who has which, too."""
        return find_pages(self._engine, name)

    # ------------------------------------------------------------ contents

    @alone
    def read(self, name: str, rows: int | slice | None = None) -> Array:
        """A copy of the valid rows; of a state without a cursor, of all of it.

        `rows` are those of the valid ones to copy: a slice, or the number of one, without its axis
        then. They are counted along the axis that is appended to, or along the first.
        """
        self._check_valid(name)
        state = self._find(name)
        if rows is None:
            return self._valid_part(state).copy()
        axis, along = state.axis or 0, self._chosen(state, rows)
        first, last = (min(along), max(along)) if along else (0, -1)
        part = peek_rows(self._engine, state, first, last + 1)
        picked = 0 if not isinstance(rows, slice) else slice(None, None, along.step)
        return np.array(part[(*[slice(None)] * axis, picked)], order="C")

    def _chosen(self, state: ProgramState, rows: Any) -> range:
        """The numbers of the rows that are asked for."""
        where, shape = f"state '{state.name}'", self._shape(state)
        if not shape:
            raise StateError(where, "has no rows: it is one number.")
        valid = range(shape[0] if state.axis is None else self._rows(state) or 0)
        if isinstance(rows, slice):
            try:
                return valid[rows]
            except (TypeError, ValueError) as error:
                raise StateError(where, f"rows must be a slice of ints: {error}.") from None
        number = take_int("states.read", "rows", rows)
        if not -len(valid) <= number < len(valid):
            raise StateError(
                where, f"row must lie in [{-len(valid)}, {len(valid)}), of the valid, got {number}."
            )
        return valid[number:][:1]

    def write(self, arrays: Mapping[str, Any]) -> None:
        """Let these states hold these arrays, all of them or none.

        A state with a cursor takes as many rows as the array has, which are then the valid ones:
        the states of one cursor are written together, with equally many.
        """
        self._hold.alone(self._write, read_arrays("states.write", arrays))

    def _write(self, given: Mapping[str, Any]) -> None:
        self._engine.state.check_alive()
        checked = {name: self._checked(self._find(name), array) for name, array in given.items()}
        cursors = self._cursors_of(checked)
        self._check_room(cursors)
        self._store(checked, cursors)

    @alone
    def reset(self, name: str | None = None) -> None:
        """Go back to the first value: of all, or of one and those that share its rows' count."""
        self._engine.state.check_alive()
        chosen = self._all if name is None else self._beside(self._find(name))
        self._set_valid(chosen, to=False)  # until all of it is there
        for state in chosen:
            put_first_value(self._engine, state)
        held = {s.cursor for s in chosen if s.cursor is not None}
        self._set_cursors(dict.fromkeys(held, 0) if name is not None else self._all_cursors(0))
        self._set_valid(chosen)

    @alone
    def truncate(self, rows: int, cursor: str | None = None) -> None:
        """Let only the first `rows` be valid, of all states or of those of one cursor."""
        self._engine.state.check_alive()
        now = self._engine.state.held_values()
        count = take_int("truncate", "rows", rows)
        if cursor is not None and take("truncate", "cursor", str, cursor) not in now:
            known = ", ".join(now) or "none"
            raise StateError("truncate", f"has no cursor '{cursor}'; known: {known}.")
        names = list(now) if cursor is None else [cursor]
        if not names:
            raise StateError("truncate", "needs a state that rows are appended to, there is none.")
        for name in names:
            if not 0 <= count <= now[name]:
                raise StateError("truncate", f"rows must lie in [0, {now[name]}], got {count}.")
        self._set_cursors(dict.fromkeys(names, count))
        self._set_valid([s for s in self._all if s.cursor in names])

    # ------------------------------------------------------------ moments

    @alone
    def snapshot(self) -> Snapshot:
        """What all states hold now."""
        self._check_all_valid()
        arrays = {state.name: self._valid_part(state).copy() for state in self._all}
        return Snapshot(arrays, self._engine.state.held_values(), self._kinds())

    @alone
    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot of this plan, or of another one with the same states."""
        self._engine.state.check_alive()
        if not isinstance(snapshot, Snapshot):
            raise StateError("restore", f"must be given a Snapshot, got {type(snapshot).__name__}.")
        known = {state.name for state in self._all}
        if snapshot.arrays.keys() != known or snapshot.cursors.keys() != self.cursors.keys():
            raise StateError(
                "restore",
                f"a snapshot must have the states {', '.join(sorted(known))}, "
                f"got {', '.join(sorted(snapshot.arrays))}.",
            )
        self._check_kinds(snapshot)
        checked = {n: self._checked(self._find(n), a) for n, a in snapshot.arrays.items()}
        for name, array in checked.items():
            state = self._find(name)
            if state.axis is not None and state.cursor is not None:
                rows = snapshot.cursors[state.cursor]
                if array.shape[state.axis] != rows:
                    found = f"{array.shape[state.axis]} and {rows}"
                    raise StateError(
                        "restore", f"'{name}' must have the cursor's rows, got {found}."
                    )
        self._check_room(snapshot.cursors)
        self._store(checked, snapshot.cursors)

    @property
    def digest(self) -> str:
        """A hash of what the states are, whatever room they have: `Snapshot.digest` of theirs."""
        return hash_kinds(self._kinds())

    def _kinds(self) -> tuple[StateKind, ...]:
        return tuple(
            StateKind(
                state.name,
                self._kind(state).dtype.name,
                tuple(None if i == state.axis else n for i, n in enumerate(self._shape(state))),
                state.axis,
                state.cursor,
                None if state.rows is None else state.rows.lengths,
                0 if state.rows is None else state.rows.block_rows,
            )
            for state in self._all
        )

    def _check_kinds(self, snapshot: Snapshot) -> None:
        """A snapshot that says of which states it is must be of these."""
        theirs = {kind.name: kind for kind in snapshot.kinds}
        for kind in self._kinds() if theirs else ():
            if theirs.get(kind.name) != kind:
                raise StateError(
                    f"state '{kind.name}'",
                    f"must be that of the plan of the snapshot, it is {kind} and was "
                    f"{theirs.get(kind.name)}.",
                )

    # ------------------------------------------------------------ from plan to plan

    def copy_rows_from(self, other: PlanStates, rows: int | None = None) -> None:
        """Go on from where another plan is, or from its first `rows`; that one stays as it is.

        Its states must have the names and types of these, but for the room for rows: a sequence
        that has outgrown one plan goes on in a larger one. Nothing changes if an error is raised.
        """
        if not isinstance(other, PlanStates):
            raise StateError(
                "copy_rows_from",
                f"must be given the states of another plan, got {type(other).__name__}.",
            )
        if other._hold is self._hold:
            raise StateError("copy_rows_from", "the other plan is this one.", hint="truncate()")
        # In one order, whoever copies where: two that copy from each other must not wait for ever.
        first, second = sorted((self._hold, other._hold), key=id)
        first.alone(second.alone, self._copy_rows, other, rows)

    def _copy_rows(self, other: PlanStates, rows: int | None) -> None:
        self._engine.state.check_alive()
        other._check_all_valid()
        move = Move(self._engine, other._engine, rows)
        self._check_room(move.cursors)
        self._store(move.parts, move.cursors)

    # ------------------------------------------------------------ inside

    @property
    def _all(self) -> tuple[ProgramState, ...]:
        return self._engine.parts.states

    def _number(self, name: str) -> int:
        for number, state in enumerate(self._all):
            if state.name == name:
                return number
        raise StateError("plan", f"has no state '{name}'; known: {', '.join(self) or 'none'}.")

    def _find(self, name: str) -> ProgramState:
        return self._all[self._number(name)]

    def _rows(self, state: ProgramState) -> int | None:
        return None if state.cursor is None else self._engine.state.held_values()[state.cursor]

    def _check_valid(self, name: str) -> None:
        self._engine.state.check_alive()
        if not is_valid(self._engine, self._number(name)):
            raise invalid_error(name)

    def _check_all_valid(self) -> None:
        self._engine.state.check_alive()
        for state in self._all:
            self._check_valid(state.name)

    def _kind(self, state: ProgramState) -> TensorType:
        return self._engine.parts.program.values[state.index].type

    def _shape(self, state: ProgramState) -> tuple[int, ...]:
        return shape_of(self._kind(state))

    def _valid_part(self, state: ProgramState) -> Array:
        """The valid elements where they lie, or a copy of them."""
        if state.axis is None:
            return whole_of(self._engine, state)
        return peek_rows(self._engine, state, 0, self._rows(state) or 0)

    def _check_room(self, cursors: Mapping[str, int]) -> None:
        """Rows must fit where the cursors may go."""
        for variable in self._engine.parts.variables:
            name, most = variable.variable.name, variable.variable.max
            if most is not None and not 0 <= cursors.get(name, 0) <= most:
                raise StateError(
                    f"cursor '{name}'", f"has room for {most} rows, got {cursors[name]}."
                )

    def _checked(self, state: ProgramState, given: Any) -> Array:
        where, kind = f"state '{state.name}'", self._kind(state)
        array = as_array(given, kind.dtype, where)
        wanted = list(shape_of(kind))
        if state.axis is not None and array.ndim == len(wanted):
            wanted[state.axis] = min(array.shape[state.axis], wanted[state.axis])
        if array.shape != tuple(wanted):
            raise StateError(where, f"must be {kind}, or fewer rows of it, got {array.shape}.")
        check_lengths(self._engine, state, array)
        return array

    def _cursors_of(self, arrays: Mapping[str, Array]) -> dict[str, int]:
        """How many rows are valid once these are written."""
        found: dict[str, int] = {}
        for name, array in arrays.items():
            state = self._find(name)
            if state.cursor is None or state.axis is None:
                continue
            missing = [s.name for s in self._beside(state) if s.name not in arrays]
            if missing:
                names = ", ".join(missing)
                message = f"shares its cursor with {names}: write all of them together."
                raise StateError(f"state '{name}'", message)
            rows = array.shape[state.axis]
            if found.setdefault(state.cursor, rows) != rows:
                message = (
                    f"must have the {found[state.cursor]} rows of those beside it, got {rows}."
                )
                raise StateError(f"state '{name}'", message)
        return found

    def _beside(self, state: ProgramState) -> list[ProgramState]:
        """The state, and those that share its cursor or its sequences."""
        lengths = lengths_of(state, self._all)
        if lengths is not None:
            return [s for s in self._all if lengths_of(s, self._all) == lengths]
        shares = [s for s in self._all if s.cursor == state.cursor]
        return shares if state.cursor is not None else [state]

    def _store(self, arrays: Mapping[str, Array], cursors: Mapping[str, int]) -> None:
        states = [self._find(name) for name in arrays]
        self._set_valid(states, to=False)  # until all of it is there
        for state, array in zip(states, arrays.values(), strict=True):
            put_rows(self._engine, state, array)
        self._set_cursors(cursors)
        self._set_valid(states)

    def _all_cursors(self, rows: int) -> dict[str, int]:
        return dict.fromkeys(self._engine.state.held_values(), rows)

    def _set_cursors(self, values: Mapping[str, int]) -> None:
        self._engine.state.set_held(values)

    def _set_valid(self, states: Any, *, to: bool = True) -> None:
        numbers = {state.name: number for number, state in enumerate(self._all)}
        for state in states:
            self._engine.state.set_kept(numbers[state.name], to)


def _cells(info: StateInfo) -> tuple[str, ...]:
    rows = "" if info.rows is None else str(info.rows)
    shape = f"[{', '.join(map(str, info.shape))}]"
    how = info.how if info.is_valid else "invalid"
    return str(info.index), info.name, info.dtype.name, shape, f"{info.nbytes:,}", how, rows
