"""The op table of a plan in its binary form.

    variables, guards, inputs, rows, steps, loops, rebinds, bases  --OpTable-->  a native header

The header and everything it points to are arrays of 64-bit words laid out as
`semel.ir.abi` says. What depends on variables (tile counts, work estimates, vals, trips) is
compiled once into a small register program (`semel.runtime.registers`); where a variable
changes, the runner evaluates what depends on it and scatters the registers to the words
that need them. Equal expressions share a register.

The table is flat. Control rows are alone in their steps (`TableStep((1,), kind)`):

    LOOP    row.tiles: the trip; a TableLoop names this step and its END, ranges nest
    END     row.tiles: the same trip; back to the step behind LOOP, or on
    BRANCH  row.buffers[0]: a byte; if it is 0, on with step `target`
    JUMP    on with step `target`
    REBIND  row.buffers[i]: an int64, the value of `variables[i]` of its TableRebind
    WAIT    row.function: the words of a signal, on when it has reached row.values[0]
    SIGNAL  likewise, which reaches that value here

`target` is a later step, at most one behind the last, and not inside a loop that the step is
outside of: only END goes back. A conditional loop is LOOP, test rows, BRANCH behind END, body, END.
Counters and late variables are used like any others in values, tiles, amounts, trips and
marks of the rows where they hold: a counter inside its loop, a late variable behind its
REBIND up to the end of the loop or of the arm that holds it. Guards may hold late variables.

Buffers of rows, conditions and sources of late variables alike, are (base, offset) pairs;
`set_base` moves a base (`semel.runtime.bases`). When a run succeeds, held variables go on
(`TableHeld`) and the two bases of each of `flips` change places: the next run sees it.

Invariant: words that no variable and no base reaches are written here, once, and never again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from semel.errors import InternalError
from semel.ir import abi
from semel.ir.abi import Base, Header, Lane, Opcode, Row, RowKind, Segment, Step
from semel.ir.abi import Point as PointWord
from semel.ir.expr import Dim, Variable
from semel.runtime.bases import Bases, Place
from semel.runtime.control_steps import JUMPS, check_control, find_points
from semel.runtime.registers import BIND, ONCE, RegisterProgram
from semel.runtime.words import Words, WordSpace, address_of, aligned_words

FLOPS_PER_NS = 50  #: what one core is assumed to reach; only steers chunking
BYTES_PER_NS = 15

_ROWS = (RowKind.KERNEL, RowKind.HOST_CALL)  # steps that are no control
# Plain ints index faster than members of an enum.
_DIRTY, _MOVED, _HAS_MOVED = int(Header.DIRTY), int(Header.MOVED), int(Base.HAS_MOVED)
_BASE_WORDS, _ONLY_MOVED = int(abi.BASE_WORDS), int(abi.ONLY_MOVED)


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row before packing; `values` are fixed numbers or plan variables, in ABI order."""

    kind: RowKind
    function: int
    buffers: tuple[Place, ...]
    values: tuple[Dim, ...]
    tiles: Dim
    flops: Dim = 0
    bytes: Dim = 0
    size_bytes: Dim = 0
    tile_bytes: int = 0
    is_serial: bool = False  # never shared, however much there is to do


@dataclass(frozen=True, slots=True)
class TableStep:
    """The rows of each segment of a step, as counts: rows lie in the table in step order.

    A BRANCH or a JUMP goes on with step `target`.
    """

    segments: tuple[int, ...]
    kind: RowKind = RowKind.KERNEL
    target: int = 0


@dataclass(frozen=True, slots=True)
class TableLoop:
    """The steps between `first_step`, a LOOP, and `last_step`, its END, run again and again.

    The `counter` is 0 in the first iteration. Loops are inside each other or apart.
    """

    counter: Variable
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class TableRebind:
    """At `step`, a REBIND, `variables` get their values from the buffers of its row.

    Each must lie in its `bounds`, and the guards that hold one of them, and those of the numbers in
    `guards`, must hold. If not, the run is over with code VARIABLE or GUARD; late variables are
    numbered behind the bound ones.
    """

    step: int
    variables: tuple[Variable, ...]
    bounds: tuple[tuple[int, int], ...]
    guards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TableHeld:
    """A bound variable that goes on by itself: if a run succeeds, `next` is its pending value.

    The next run checks it like any other that was bound. `next` is over what has a value at
    the end of the run.
    """

    variable: Variable
    next: Dim


@dataclass(frozen=True, slots=True)
class TableInput:
    """A declared input: `recorded` words are (written flag, dims) and must equal `shape`."""

    name: str
    shape: tuple[Dim, ...]


class OpTable:
    """The native header of one plan and the arrays it points to; owns their memory."""

    def __init__(
        self,
        variables: Sequence[Variable],
        bounds: Sequence[tuple[int, int]],
        guards: Sequence[Dim],
        inputs: Sequence[TableInput],
        rows: Sequence[TableRow],
        steps: Sequence[TableStep],
        lanes: Words,
        threads: int,
        loops: Sequence[TableLoop] = (),
        marks: Sequence[Dim] = (),
        rebinds: Sequence[TableRebind] = (),
        bases: Sequence[int] = (),
        held: Sequence[TableHeld] = (),
        flips: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._space = WordSpace()
        self.header, self.address = self._space.take(abi.HEADER_WORDS)
        self.bounds = tuple(bounds)
        self.loops, self.rebinds = tuple(loops), tuple(rebinds)
        self._bases = Bases(bases, self._space)
        self.base_words = self._bases.words
        check_control(steps, loops, rebinds)
        points = find_points(steps, loops, rebinds)
        self._program = RegisterProgram(variables, points)
        self._scatter: list[tuple[int, int]] = []
        self._points = [_PointParts() for _ in points]
        self._point_words, _ = self._space.take(len(points) * abi.POINT_WORDS)
        self._is_shared = threads > 1
        self._trips = [
            row.tiles
            for row, number in zip(rows, _steps_of_rows(steps), strict=True)
            if steps[number].kind is RowKind.LOOP
        ]
        self._write_variables(len(variables), bounds)
        self._write_checks(guards, inputs)
        self._write_rows(rows, steps)
        self._write_steps(steps)
        self._marks = [self._program.high_water(value) for value in marks]
        self._write_commit(held, flips, len(steps))
        self._write_program()
        self._write_lanes(lanes, threads)
        self.words = self.header.data

    def _array(self, field: Header, count: int) -> Words:
        """An array that a header word points to."""
        array, self.header[field] = self._space.take(count)
        return array

    def _write_variables(self, count: int, bounds: Sequence[tuple[int, int]]) -> None:
        self.header[Header.NUM_VARIABLES] = count
        self.current = self._array(Header.VARIABLES, count)
        self.pending = self._array(Header.PENDING, count)
        self.current[:count] = abi.UNBOUND
        self.pending[:count] = abi.UNBOUND
        self.header[Header.BOUNDS] = self._space.pack(bounds, 2)
        self.pending_words = self.pending.data
        self.current_words = self.current.data
        self.header[Header.DIRTY] = 1

    def _write_checks(self, guards: Sequence[Dim], inputs: Sequence[TableInput]) -> None:
        held: list[tuple[int, int]] = []
        asked = {n: k for k, rebind in enumerate(self.rebinds) for n in rebind.guards}
        for number, guard in enumerate(guards):
            register = self._program.register(guard)
            when = self._program.when(register)
            if when >= len(self.rebinds):
                raise InternalError("optable", f"guard {number} holds the counter of a loop.")
            at = asked.get(number, when)
            if at != when:
                self._program.check_holds(register, self.rebinds[at].step)
            (held if at < 0 else self._points[at].guards).append((register, number))
        for parts, code in zip(self._points, self._program.late, strict=True):
            parts.num_checked = len(code)
        expected = [(1, *shape.shape) for shape in inputs]
        self.recorded, recorded_address = self._space.take(sum(map(len, expected)))
        self.recorded[:] = -1
        #: For each check: (input, dim), with dim -1 for the written flag.
        self.check_owners: list[tuple[int, int]] = []
        pairs: list[tuple[int, int]] = []
        for i, dims in enumerate(expected):
            for d, dim in enumerate(dims):
                address = recorded_address + len(pairs) * abi.WORD_BYTES
                register = self._program.register(dim)
                if self._program.when(register) >= 0:
                    raise InternalError("optable", f"input {i} has a size that no bind knows.")
                pairs.append((register, address))
                self.check_owners.append((i, d - 1))
        self.header[Header.NUM_CHECKED] = len(self._program.instructions)
        self._table(Header.GUARDS, Header.NUM_GUARDS, held, 2)
        self._table(Header.CHECKS, Header.NUM_CHECKS, pairs, 2)

    def _table(self, field: Header, count: Header, items: Sequence[Any], width: int) -> None:
        self.header[field], self.header[count] = self._space.pack(items, width), len(items)

    def _write_rows(self, rows: Sequence[TableRow], steps: Sequence[TableStep]) -> None:
        table, rows_address = self._space.take(len(rows) * abi.ROW_WORDS)
        self.rows, self.header[Header.ROWS] = table, rows_address
        buffers, next_buffer = self._space.take(sum(len(r.buffers) for r in rows) + 1)
        values, values_address = self._space.take(sum(len(r.values) for r in rows) + 1)
        next_value = 0
        addresses: list[int] = []
        for i, (row, number) in enumerate(zip(rows, _steps_of_rows(steps), strict=True)):
            words = table[i * abi.ROW_WORDS : (i + 1) * abi.ROW_WORDS]
            words[Row.KIND], words[Row.FUNCTION] = row.kind, row.function
            words[Row.BUFFERS] = next_buffer
            for place in row.buffers:
                addresses.append(self._bases.add(place, next_buffer))
                next_buffer += abi.WORD_BYTES
            words[Row.VALUES] = values_address + next_value * abi.WORD_BYTES
            for value in row.values:
                register = self._program.register(value)
                self._place(register, values, values_address, next_value, number)
                next_value += 1
            at = i * abi.ROW_WORDS
            if row.kind is RowKind.COPY:
                words[Row.TILE_BYTES] = row.tile_bytes
                size = self._program.register(row.size_bytes)
                self._place(size, table, rows_address, at + Row.VALUES, number)
            tiles, work = self._program.register(row.tiles), self._work(row)
            self._place(tiles, table, rows_address, at + Row.TILES, number)
            self._place(work, table, rows_address, at + Row.WORK_NS, number)
            if self._points and self._is_shared and steps[number].kind in _ROWS:
                self._cut_at((tiles, work), number)
        buffers[: len(addresses)] = addresses
        self.buffer_words = buffers
        self.header[Header.BASES] = self._bases.write()
        self.header[Header.NUM_BASES] = self._bases.count

    def _cut_at(self, registers: Sequence[int], step: int) -> None:
        """Cut the step again at the points where these change; the bind cuts all steps."""
        for when in {self._program.when(register) for register in registers}:
            if when >= 0 and step not in self._points[when].cuts:
                self._points[when].cuts.append(step)

    def _work(self, row: TableRow) -> int:
        """The register of the nanoseconds on one core that sharing the row could save."""
        if row.is_serial:
            return self._program.register(0)
        if isinstance(row.flops, int) and isinstance(row.bytes, int):
            work = max(row.flops // FLOPS_PER_NS, row.bytes // BYTES_PER_NS)
            return self._program.register(work)
        program = self._program
        sides = [
            program.combine(Opcode.FLOORDIV, program.register(amount), program.register(rate))
            for amount, rate in ((row.flops, FLOPS_PER_NS), (row.bytes, BYTES_PER_NS))
        ]
        return program.combine(Opcode.MAX, sides[0], sides[1])

    def _place(self, register: int, array: Words, address: int, index: int, step: int) -> None:
        """Write a register's value to `array[index]`: now if constant, else when it changes.

        `address` is that of the array.
        """
        when = self._program.when(register)
        if when == ONCE:
            array[index] = self._program.initial[register]
            return
        self._program.check_holds(register, step)
        pairs = self._scatter if when == BIND else self._points[when].scatter
        pairs.append((register, address + index * abi.WORD_BYTES))

    def _write_steps(self, steps: Sequence[TableStep]) -> None:
        num_segments = sum(len(s.segments) for s in steps)
        table = self._array(Header.STEPS, len(steps) * abi.STEP_WORDS)
        parts = self._array(Header.SEGMENTS, num_segments * abi.SEGMENT_WORDS)
        self.steps, self.segments = table, parts
        self.header[Header.NUM_STEPS] = len(steps)
        row = segment = 0
        for i, step in enumerate(steps):
            words = table[i * abi.STEP_WORDS : (i + 1) * abi.STEP_WORDS]
            words[Step.FIRST_SEGMENT], words[Step.NUM_SEGMENTS] = segment, len(step.segments)
            words[Step.FIRST_ROW], words[Step.NUM_ROWS] = row, sum(step.segments)
            words[Step.KIND] = step.kind
            if step.kind in JUMPS:
                self.rows[row * abi.ROW_WORDS + Row.TARGET] = step.target
            for num_rows in step.segments:
                at = segment * abi.SEGMENT_WORDS
                parts[at + Segment.FIRST_ROW], parts[at + Segment.NUM_ROWS] = row, num_rows
                segment, row = segment + 1, row + num_rows

    def _write_commit(
        self, held: Sequence[TableHeld], flips: Sequence[tuple[int, int]], end: int
    ) -> None:
        """What a run that succeeds does for the next one; `end` is behind the last step."""
        pairs = [
            (self._program.register(one.next), self._program.register(one.variable)) for one in held
        ]
        for register, _ in pairs:
            self._program.check_holds(register, end)
        self.held_numbers, self.flips = tuple(number for _, number in pairs), tuple(flips)
        self._table(Header.HELD, Header.NUM_HELD, pairs, 2)
        self._table(Header.FLIPS, Header.NUM_FLIPS, flips, 2)
        self.header[Header.HAS_COMMIT] = bool(held or flips)

    def _write_program(self) -> None:
        program = self._program
        registers, self._registers_address = self._space.take(len(program.initial))
        self.header[Header.REGISTERS] = self._registers_address
        registers[: len(program.initial)] = program.initial
        code = [*program.instructions, *(i for late in program.late for i in late)]
        self._table(Header.PROGRAM, Header.NUM_INSTRUCTIONS, code, 4)
        self.header[Header.NUM_INSTRUCTIONS] = len(program.instructions)
        self._table(Header.SCATTER, Header.NUM_SCATTER, self._scatter, 2)
        self._registers = registers
        self._write_points()
        for words, rebind in zip(self._records(), self.rebinds, strict=False):
            self._write_rebind(words, rebind)
        for words, loop in zip(list(self._records())[len(self.rebinds) :], self.loops, strict=True):
            self._write_loop(words, loop)

    def _records(self) -> Iterator[Words]:
        """The records of the points: of rebinds, then of loops."""
        for k in range(len(self._points)):
            yield self._point_words[k * abi.POINT_WORDS : (k + 1) * abi.POINT_WORDS]

    def _write_points(self) -> None:
        """What all points have: instructions, words, steps to cut."""
        instruction = len(self._program.instructions)
        for words, parts, code in zip(
            self._records(), self._points, self._program.late, strict=True
        ):
            words[PointWord.FIRST_INSTRUCTION] = instruction
            words[PointWord.CHECKED_INSTRUCTION] = instruction + parts.num_checked
            instruction += len(code)
            words[PointWord.LAST_INSTRUCTION] = instruction
            self._list(words, PointWord.SCATTER, PointWord.NUM_SCATTER, parts.scatter, 2)
            self._list(words, PointWord.CUTS, PointWord.NUM_CUTS, parts.cuts, 1)
            self._list(words, PointWord.GUARDS, PointWord.NUM_GUARDS, parts.guards, 2)

    def _list(
        self, words: Words, field: PointWord, count: PointWord, items: Sequence[Any], width: int
    ) -> None:
        words[field], words[count] = self._space.pack(items, width), len(items)

    def _write_rebind(self, words: Words, rebind: TableRebind) -> None:
        late = [
            (self._program.register(variable), *limits)
            for variable, limits in zip(rebind.variables, rebind.bounds, strict=True)
        ]
        self._list(words, PointWord.LATE, PointWord.NUM_LATE, late, 3)
        self._name_point(rebind.step, words)

    def _write_loop(self, words: Words, loop: TableLoop) -> None:
        words[PointWord.COUNTER] = self._register_address(loop.counter)
        words[PointWord.BODY], words[PointWord.AFTER] = loop.first_step + 1, loop.last_step + 1
        for step in (loop.first_step, loop.last_step):
            self._name_point(step, words)

    def _name_point(self, step: int, words: Words) -> None:
        """Tell a control row where its point's record lies."""
        row = self.steps[step * abi.STEP_WORDS + Step.FIRST_ROW]
        self.rows[row * abi.ROW_WORDS + Row.FUNCTION] = words.ctypes.data

    def _register_address(self, variable: Variable) -> int:
        register = self._program.register(variable)
        return self._registers_address + register * abi.WORD_BYTES

    def set_base(self, number: int, address: int) -> None:
        """Let a base lie at `address`, from the next run on."""
        at, bases, words = number * _BASE_WORDS, self.base_words, self.words
        if bases[at] != address:
            # The address comes last: a run in between would write the old one, not half of it.
            words[_MOVED] = 1
            words[_DIRTY] = words[_DIRTY] or _ONLY_MOVED
            bases[at + _HAS_MOVED] = 1
            bases[at] = address

    @property
    def num_bases(self) -> int:
        return self._bases.count

    def base(self, number: int) -> int:
        """Where a base lies at the next run."""
        return int(self._bases.words[number * abi.BASE_WORDS])

    def value(self, number: int) -> int:
        """What a variable's register holds: bound ones by number, then late ones.

        A late variable has the value of the last run that came to its rebind, in range or not.
        """
        return int(self._registers[number])

    def was_told(self, number: int) -> bool:
        """Whether the last run came to the rebind of a late variable, by number as in `value`."""
        when = self._program.when(number)
        if when < 0:
            return True  # on a device without rows a bind tells it
        at = when * abi.POINT_WORDS + PointWord.ATTEMPT
        return int(self._point_words[at]) == int(self.header[Header.ATTEMPTS])

    @property
    def marks(self) -> list[int]:
        """The largest value that each marked expression had at any bind since it was set."""
        return [int(self._registers[register]) for register in self._marks]

    def set_marks(self, values: Mapping[int, int]) -> None:
        """Go on from these values; they are raised at the next bind, which this makes due."""
        for number, value in values.items():
            self._registers[self._marks[number]] = value
        self.header[Header.DIRTY] = 1

    def iteration(self, loop: int) -> int:
        """The iteration that a loop is at, or where it ended."""
        return int(self._registers[self._program.register(self.loops[loop].counter)])

    def trip(self, loop: int) -> int:
        """How often a loop is run at most, at the values that variables have now."""
        row = self.steps[self.loops[loop].first_step * abi.STEP_WORDS + Step.FIRST_ROW]
        return max(int(self.rows[row * abi.ROW_WORDS + Row.TILES]), 0)

    def step_counts(self) -> list[int]:
        """How often each step is run: exactly if the bind says so, else at most, as of now.

        Of a branch both arms count, of a conditional loop every iteration that it may have;
        the two ends of a loop as often as it begins.
        """
        counts = [1] * int(self.header[Header.NUM_STEPS])
        for k, loop in enumerate(self.loops):
            trip = self.trip(k)
            for step in range(loop.first_step + 1, loop.last_step):
                counts[step] *= trip
        return counts

    @property
    def is_settled_at_bind(self) -> bool:
        """Whether a bind says how often each step is run, and in how many chunks."""
        trips = (self._program.register(trip) for trip in self._trips)
        return not any(parts.cuts for parts in self._points) and all(
            self._program.when(trip) < 0 for trip in trips
        )

    def _write_lanes(self, lanes: Words, threads: int) -> None:
        self.header[Header.LANES] = address_of(lanes)
        self.header[Header.THREADS] = threads
        self.header[Header.CLAIM] = abi.NO_CLAIM
        for i in range(threads):
            lanes[i * abi.LANE_WORDS + Lane.INDEX] = i
            lanes[i * abi.LANE_WORDS + Lane.HEADER] = self.address
        self.lanes = lanes

    def reset(self) -> None:
        """Forget a run that was abandoned: the plan can be entered again, its outputs are void."""
        for word in (Header.BUSY, Header.RESUME, Header.VALID, Header.RECRUITED, Header.WAITING):
            self.words[word] = 0
        self.words[Header.CLAIM] = abi.NO_CLAIM
        self.lanes.reshape(-1, abi.LANE_WORDS)[:, Lane.TAKEN] = 0


@dataclass(slots=True)
class _PointParts:
    """What gathers at a point while rows are written."""

    num_checked: int = 0
    scatter: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    guards: list[tuple[int, int]] = field(default_factory=list)


def _steps_of_rows(steps: Sequence[TableStep]) -> list[int]:
    return [i for i, step in enumerate(steps) for _ in range(sum(step.segments))]


def make_lanes(threads: int, scratch_addresses: Sequence[int]) -> Words:
    """Lane records for `threads` participants, each with its scratch memory."""
    lanes = aligned_words(threads * abi.LANE_WORDS)
    for i, address in enumerate(scratch_addresses):
        lanes[i * abi.LANE_WORDS + Lane.SCRATCH] = address
    return lanes
