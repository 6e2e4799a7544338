"""Several sequences in the states of a plan, seen from outside.

    plan.states.sequences("chats")  -->  lengths, read, truncate, reset: of one or of all

How long they are is a state of the plan; what lies behind a length is not valid, so that to cut a
sequence is to write one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.errors import StateError
from semel.ir.fields import take_int
from semel.plan.kept import current_buffer, shape_of, whole_of
from semel.plan.program import ProgramState
from semel.runtime.buffer import Array
from semel.runtime.hold import Hold, alone

if TYPE_CHECKING:
    from semel.plan.engine import Engine


class PlanSequences:
    """The sequences whose lengths are the state `name`. Each method is an operation on the plan."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._hold: Hold = engine.hold
        states = engine.parts.states
        self._members = {s.name: s for s in states if s.rows and s.rows.lengths == name}
        if not self._members:
            known = dict.fromkeys(s.rows.lengths for s in states if s.rows)
            raise StateError(
                "plan", f"has no sequences '{name}'; known: {', '.join(known) or 'none'}."
            )
        self.name = name
        self._state = next(s for s in states if s.name == name)

    def __repr__(self) -> str:
        kind, lengths = type(self).__name__, self.lengths.tolist()
        return f"{kind}({self.name!r}, {lengths}, capacity={self.capacity})"

    def __len__(self) -> int:
        return self._shape(self._state)[0]

    @property
    def capacity(self) -> int:
        """How long a sequence may be."""
        first = next(iter(self._members.values()))
        assert first.rows is not None
        return self._shape(first)[first.rows.axis]

    @property
    def states(self) -> tuple[str, ...]:
        """The states that hold their rows."""
        return tuple(self._members)

    @property
    @alone
    def lengths(self) -> Array:
        """How many rows of each are valid."""
        self._engine.state.check_alive()
        return self._lengths()

    @alone
    def read(self, state: str, sequence: int) -> Array:
        """A copy of the valid rows of one sequence."""
        self._engine.state.check_alive()
        return self._rows(self._member(state), self._number("read", sequence)).copy()

    @alone
    def truncate(self, sequence: int, rows: int) -> None:
        """Let only the first rows of a sequence be valid."""
        self._truncate(sequence, rows)

    def _truncate(self, sequence: int, rows: int) -> None:
        self._engine.state.check_alive()
        number, lengths = self._number("truncate", sequence), self._lengths()
        count = take_int("truncate", "rows", rows)
        if not 0 <= count <= lengths[number]:
            raise StateError(
                "truncate",
                f"rows of sequence {number} must lie in [0, {lengths[number]}], got {count}.",
            )
        lengths[number] = count
        self._set_lengths(lengths)

    @alone
    def reset(self, sequence: int | None = None) -> None:
        """Let a sequence begin anew, or all of them."""
        self._engine.state.check_alive()
        lengths = self._lengths()
        lengths[slice(None) if sequence is None else self._number("reset", sequence)] = 0
        self._set_lengths(lengths)

    # ------------------------------------------------------------ inside

    def _shape(self, state: ProgramState) -> tuple[int, ...]:
        return shape_of(self._engine.parts.buffers[state.index].type)

    def _lengths(self) -> Array:
        return whole_of(self._engine, self._state).copy()

    def _set_lengths(self, lengths: Array) -> None:
        current_buffer(self._engine, self._state).put(lengths)

    def _number(self, where: str, sequence: int) -> int:
        number = take_int(where, "sequence", sequence)
        if not 0 <= number < len(self):
            raise StateError(where, f"sequence must lie in [0, {len(self)}), got {number}.")
        return number

    def _member(self, name: str) -> ProgramState:
        if name not in self._members:
            known = ", ".join(self._members)
            raise StateError(f"sequences '{self.name}'", f"have no state '{name}'; known: {known}.")
        return self._members[name]

    def _rows(self, state: ProgramState, number: int) -> Array:
        """The valid rows of a sequence, where they lie or copied."""
        assert state.rows is not None
        array, length = whole_of(self._engine, state)[number], int(self._lengths()[number])
        rows: Array = array[(*[slice(None)] * (state.rows.axis - 1), slice(0, length))]
        return rows


# ---------------------------------------------------------------- for all states


def lengths_of(state: ProgramState, states: Sequence[ProgramState]) -> str | None:
    """The name of the lengths that a state holds, or that say how much of it is valid."""
    if state.rows is not None:
        return state.rows.lengths
    for other in states:
        if other.rows is not None and state.name in (other.rows.lengths, other.rows.table):
            return other.rows.lengths
    return None
