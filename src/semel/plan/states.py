"""What a plan keeps between runs, seen from outside: read, write, reset, truncate, snapshot.

    plan.states["k"]  -->  what it is        plan.states.read("k")  -->  its valid rows, copied

A state lies in memory of the plan. Rows that were appended are valid up to a *cursor*, a held
variable that states may share; a run that succeeds moves it on. A run that fails leaves cursors as
they were. If it was updating a state in place, that state is invalid: runs and reads are refused
until it is reset, restored, written, or truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from semel.errors import StateError
from semel.ir.fields import take, take_arrays, take_int
from semel.ir.types import DType, Shape, TensorType
from semel.plan.program import ProgramState
from semel.plan.report.html import html_table
from semel.runtime.buffer import Array, Buffer, as_array
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """States as they were at one moment: their valid elements, and the cursors.

    It holds copies that nobody can change, and can be pickled: a session that goes on elsewhere.
    """

    arrays: Mapping[str, Array] = field(repr=False)
    cursors: Mapping[str, int]

    def __post_init__(self) -> None:
        sealed = {name: _sealed(array) for name, array in self.arrays.items()}
        object.__setattr__(self, "arrays", MappingProxyType(sealed))
        object.__setattr__(self, "cursors", MappingProxyType(dict(self.cursors)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Snapshot, (dict(self.arrays), dict(self.cursors))


def _sealed(array: Array) -> Array:
    """The array, for reading; whoever made it may go on writing to it."""
    view = array.view()
    view.flags.writeable = False
    return view


class PlanStates(Mapping[str, StateInfo]):
    """The states of one plan by name. Each method is an operation on the plan."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._hold: Hold = engine.hold

    def __getitem__(self, name: str) -> StateInfo:
        number = self._number(name)
        state = self._all[number]
        kind = self._engine.parts.program.values[state.index].type
        return StateInfo(
            state.name,
            number,
            kind,
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
        memory = store.states
        return StateMemory(memory.size_bytes, memory.own_bytes, memory.shared_bytes)

    # ------------------------------------------------------------ contents

    @alone
    def read(self, name: str) -> Array:
        """A copy of the valid rows; of a state without a cursor, of all of it."""
        self._check_valid(name)
        return self._valid_part(self._find(name)).copy()

    @alone
    def write(self, arrays: Mapping[str, Any]) -> None:
        """Let these states hold these arrays, all of them or none.

        A state with a cursor takes as many rows as the array has, which are then the valid ones:
        the states of one cursor are written together, with equally many.
        """
        self._engine.state.check_alive()
        given = take_arrays("states.write", arrays)
        checked = {name: self._checked(self._find(name), array) for name, array in given.items()}
        cursors = self._cursors_of(checked)
        self._store(checked, cursors)

    @alone
    def reset(self, name: str | None = None) -> None:
        """Go back to the first value: of one state and those that share its cursor, or of all."""
        self._engine.state.check_alive()
        chosen = self._all if name is None else self._beside(self._find(name))
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
        for state in self._all:
            self._check_valid(state.name)
        arrays = {state.name: self._valid_part(state).copy() for state in self._all}
        return Snapshot(arrays, self._engine.state.held_values())

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
        self._store(checked, snapshot.cursors)

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

    def _valid_part(self, state: ProgramState) -> Array:
        """The valid elements where they lie, or a copy of them."""
        buffer = current_buffer(self._engine, state)
        array = buffer.peek(_shape(buffer.type))
        if state.axis is None:
            return array
        return array[(*[slice(None)] * state.axis, slice(0, self._rows(state)))]

    def _checked(self, state: ProgramState, given: Any) -> Array:
        where, kind = f"state '{state.name}'", self._engine.parts.program.values[state.index].type
        array = as_array(given, kind.dtype, where)
        wanted = list(_shape(kind))
        if state.axis is not None and array.ndim == len(wanted):
            wanted[state.axis] = min(array.shape[state.axis], wanted[state.axis])
        if array.shape != tuple(wanted):
            raise StateError(where, f"must be {kind}, or fewer rows of it, got {array.shape}.")
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
        """The state, and those that share its cursor."""
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


# ---------------------------------------------------------------- memory


def current_buffer(engine: Engine, state: ProgramState) -> Buffer:
    """The buffer that holds the value which the next run reads."""
    buffers = engine.parts.buffers
    if state.other is None:
        return buffers[state.index]
    base = engine.state.run.base(engine.linked.bases[state.index])
    return buffers[state.index if base == buffers[state.index].address else state.other]


def put_rows(engine: Engine, state: ProgramState, array: Array) -> None:
    """Write the first rows of a state, or all of it."""
    buffer = current_buffer(engine, state)
    shape = _shape(buffer.type)
    if array.shape == shape:
        buffer.put(array)
        return
    whole = buffer.peek(shape)
    if not buffer.memory.is_host:
        whole = whole.copy()
    whole[tuple(slice(0, size) for size in array.shape)] = array
    if not buffer.memory.is_host:
        buffer.put(whole)


def put_first_value(engine: Engine, state: ProgramState) -> None:
    """What a state holds before the first run."""
    first = engine.parts.program.values[state.index].weight
    buffer = current_buffer(engine, state)
    if first is not None:
        buffer.put(first.array)
    else:
        buffer.memory.fill(0, buffer.offset, buffer.offset + buffer.capacity_bytes)


def follow_states(source: Engine, to: Engine) -> None:
    """Let a plan whose memory is a fork of another one's go on from where that is."""
    for number, state in enumerate(source.parts.states):
        if state.other is not None and current_buffer(source, state) is not _first(source, state):
            _exchange(to, state.index, state.other)
        to.state.set_kept(number, is_valid(source, number))
    to.state.set_held(source.state.held_values())


def _first(engine: Engine, state: ProgramState) -> Buffer:
    return engine.parts.buffers[state.index]


def _exchange(engine: Engine, one: int, other: int) -> None:
    """Let two buffers change places, as a run that succeeds does."""
    bases, buffers = engine.linked.bases, engine.parts.buffers
    engine.state.run.set_base(bases[one], buffers[other].address)
    engine.state.run.set_base(bases[other], buffers[one].address)


def _shape(kind: TensorType) -> tuple[int, ...]:
    return tuple(d for d in kind.shape if isinstance(d, int))


# ---------------------------------------------------------------- validity


def is_valid(engine: Engine, number: int) -> bool:
    """Whether a state holds what a run, or a caller, has left there whole."""
    return engine.state.is_kept(number)


def spoil_states(engine: Engine) -> None:
    """After a run that failed: what it was updating in place is invalid."""
    for number, state in enumerate(engine.parts.states):
        if state.how == "in place" and not state.is_append:
            engine.state.set_kept(number, False)


def invalid_error(name: str) -> StateError:
    """A state cannot be used."""
    return StateError(
        f"state '{name}'",
        "is invalid: a run that updated it in place did not end well.",
        hint="plan.states.reset(), restore(snapshot), write() or truncate(rows) make it valid.",
        state=name,
    )
