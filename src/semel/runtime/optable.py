"""The op table of a plan in its binary form.

    variables, guards, input checks, rows, steps, loops  --OpTable-->  a native header

The header and everything it points to are arrays of 64-bit words laid out as
`semel.ir.abi` says. What depends on variables (tile counts, work estimates, vals) is compiled
once into a small register program; at each bind the runner evaluates it and scatters the
registers to the words that need them. Equal expressions share a register. What depends on
the counter of a loop is kept apart: it is evaluated and scattered at each iteration, not
at the bind.

Invariant: words that no variable reaches are written here, once, and never scattered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semel.errors import InternalError
from semel.ir import abi
from semel.ir.abi import Header, Lane, Loop, Opcode, Row, RowKind, Segment, Step
from semel.ir.expr import Dim, Fn, Index, Variable, terms

Words = np.ndarray[Any, np.dtype[np.int64]]

FLOPS_PER_NS = 50  #: what one core is assumed to reach; only steers chunking
BYTES_PER_NS = 15

_FUNCTIONS = {
    "floordiv": Opcode.FLOORDIV,
    "mod": Opcode.MOD,
    "min": Opcode.MIN,
    "max": Opcode.MAX,
}


def aligned_words(count: int) -> Words:
    """Zeroed words that start on a cache line."""
    raw = np.zeros(count + 8, np.int64)
    skip = (-raw.ctypes.data % 64) // abi.WORD_BYTES
    return raw[skip : skip + count]


#: When a register gets its value: once for all, or at each bind; else the number of the loop
#: at whose iterations it does.
_ONCE, _BIND = -2, -1


class RegisterProgram:
    """Compiles expressions over variables into register instructions, each distinct one once.

    `counters` are the variables of loops, one each. `instructions` run at a bind, `late[k]`
    at each iteration of loop k.
    """

    def __init__(self, variables: Sequence[Variable], counters: Sequence[Variable] = ()) -> None:
        names = [v.name for v in (*variables, *counters)]
        self.initial: list[int] = [0] * len(names)
        self.instructions: list[tuple[int, int, int, int]] = []
        self.late: list[list[tuple[int, int, int, int]]] = [[] for _ in counters]
        self._names = {name: i for i, name in enumerate(names)}
        self._when: list[int] = [*[_BIND] * len(variables), *range(len(counters))]
        self._known: dict[Any, int] = {}

    def register(self, value: Dim) -> int:
        """The register that holds `value`; variables are known by name."""
        if value in self._known:
            return self._known[value]
        found = self._compile(value)
        self._known[value] = found
        return found

    def is_constant(self, register: int) -> bool:
        """Whether the register has the same value at every bind."""
        return self._when[register] == _ONCE

    def loop_of(self, register: int) -> int | None:
        """The loop at whose iterations the register changes, if there is one."""
        when = self._when[register]
        return when if when >= 0 else None

    def combine(self, op: Opcode, a: int, b: int) -> int:
        """The register of `a op b` for two registers."""
        key = (op, a, b)
        if key not in self._known:
            when = max(self._when[a], self._when[b], _BIND)
            if min(self._when[a], self._when[b]) not in (_ONCE, _BIND, when):
                raise InternalError("optable", "an expression holds the counters of two loops.")
            result = self._new(0, when)
            code = self.instructions if when == _BIND else self.late[when]
            code.append((int(op), result, a, b))
            self._known[key] = result
        return self._known[key]

    def high_water(self, value: Dim) -> int:
        """A register that keeps the largest value of an expression over all binds."""
        register, size = self._new(0, _BIND), self.register(value)
        self.instructions.append((int(Opcode.MAX), register, register, size))
        return register

    def _compile(self, value: Dim) -> int:
        match value:
            case int():
                return self._new(value, _ONCE)
            case Variable():
                return self._names[value.name]
            case Fn():
                a, b = (self.register(arg) for arg in value.args)
                return self.combine(_FUNCTIONS[value.kind], a, b)
            case Index():
                raise KeyError(value.name)
        total: int | None = None
        for monomial, coefficient in terms(value):
            term = self._term(monomial, coefficient)
            total = term if total is None else self.combine(Opcode.ADD, total, term)
        return self.register(0) if total is None else total

    def _term(self, monomial: Sequence[Dim], coefficient: int) -> int:
        factors = [self.register(atom) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, self.register(coefficient))
        result = factors[0]
        for factor in factors[1:]:
            result = self.combine(Opcode.MUL, result, factor)
        return result

    def _new(self, initial: int, when: int) -> int:
        self.initial.append(initial)
        self._when.append(when)
        return len(self.initial) - 1


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row before packing; `values` are fixed numbers or plan variables, in ABI order."""

    kind: RowKind
    function: int
    buffers: tuple[int, ...]
    values: tuple[Dim, ...]
    tiles: Dim
    flops: Dim = 0
    bytes: Dim = 0
    size_bytes: int = 0
    tile_bytes: int = 0
    is_serial: bool = False  # never shared, however much there is to do


@dataclass(frozen=True, slots=True)
class TableStep:
    """The rows of each segment of a step, as counts: rows lie in the table in step order."""

    segments: tuple[int, ...]
    kind: RowKind = RowKind.KERNEL


@dataclass(frozen=True, slots=True)
class TableLoop:
    """The steps between `first_step`, a LOOP, and `last_step`, its END, run again and again.

    The `counter` is 0 in the first iteration.
    """

    counter: Variable
    first_step: int
    last_step: int


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
    ) -> None:
        self.header = aligned_words(abi.HEADER_WORDS)
        self.bounds = tuple(bounds)
        self.loops = tuple(loops)
        self._keep: list[Words] = []
        self._program = RegisterProgram(variables, [loop.counter for loop in loops])
        self._scatter: list[tuple[int, int]] = []
        self._late_scatter: list[list[tuple[int, int]]] = [[] for _ in loops]
        self._loop_words = aligned_words(max(len(loops), 1) * abi.LOOP_WORDS)
        self._write_variables(len(variables), bounds)
        self._write_checks(guards, inputs)
        self._write_rows(rows)
        self._write_steps(steps)
        self._marks = [self._program.high_water(value) for value in marks]
        self._write_program()
        self._write_lanes(lanes, threads)
        self.words = self.header.data

    @property
    def address(self) -> int:
        return int(self.header.ctypes.data)

    def _point(self, field: Header, array: Words) -> Words:
        """Let a header word point to `array`, and keep it alive."""
        self._keep.append(array)
        self.header[field] = array.ctypes.data
        return array

    def _write_variables(self, count: int, bounds: Sequence[tuple[int, int]]) -> None:
        self.header[Header.NUM_VARIABLES] = count
        self.current = self._point(Header.VARIABLES, aligned_words(max(count, 1)))
        self.pending = self._point(Header.PENDING, aligned_words(max(count, 1)))
        self.current[:count] = abi.UNBOUND
        self.pending[:count] = abi.UNBOUND
        limits = self._point(Header.BOUNDS, aligned_words(max(2 * count, 1)))
        limits[: 2 * count] = np.array(bounds, np.int64).reshape(-1)
        self.pending_words = self.pending.data
        self.current_words = self.current.data
        self.header[Header.DIRTY] = 1

    def _write_checks(self, guards: Sequence[Dim], inputs: Sequence[TableInput]) -> None:
        guard_registers = [self._program.register(g) for g in guards]
        expected = [(1, *shape.shape) for shape in inputs]
        self.recorded = aligned_words(max(sum(map(len, expected)), 1))
        self.recorded[:] = -1
        self._keep.append(self.recorded)
        #: For each check: (input, dim), with dim -1 for the written flag.
        self.check_owners: list[tuple[int, int]] = []
        pairs: list[tuple[int, int]] = []
        for i, dims in enumerate(expected):
            for d, dim in enumerate(dims):
                address = self.recorded.ctypes.data + len(pairs) * abi.WORD_BYTES
                pairs.append((self._program.register(dim), address))
                self.check_owners.append((i, d - 1))
        self.header[Header.NUM_CHECKED] = len(self._program.instructions)
        self._table(Header.GUARDS, Header.NUM_GUARDS, guard_registers, 1)
        self._table(Header.CHECKS, Header.NUM_CHECKS, pairs, 2)

    def _table(self, field: Header, count: Header, items: Sequence[Any], width: int) -> None:
        array = aligned_words(max(len(items) * width, 1))
        if items:
            array[:] = np.array(items, np.int64).reshape(-1)
        self._point(field, array)
        self.header[count] = len(items)

    def _write_rows(self, rows: Sequence[TableRow]) -> None:
        table = self._point(Header.ROWS, aligned_words(max(len(rows), 1) * abi.ROW_WORDS))
        self.rows = table
        buffers = aligned_words(sum(len(r.buffers) for r in rows) + 1)
        values = aligned_words(sum(len(r.values) for r in rows) + 1)
        self._keep += [buffers, values]
        #: The addresses that rows pass, one row's after the other's, and how many each has.
        self.buffer_words, self.row_buffers = buffers, [len(r.buffers) for r in rows]
        next_buffer = next_value = 0
        for i, row in enumerate(rows):
            words = table[i * abi.ROW_WORDS : (i + 1) * abi.ROW_WORDS]
            words[Row.KIND], words[Row.FUNCTION] = row.kind, row.function
            words[Row.BUFFERS] = buffers.ctypes.data + next_buffer * abi.WORD_BYTES
            buffers[next_buffer : next_buffer + len(row.buffers)] = row.buffers
            next_buffer += len(row.buffers)
            words[Row.VALUES] = values.ctypes.data + next_value * abi.WORD_BYTES
            for value in row.values:
                self._place(self._program.register(value), values, next_value)
                next_value += 1
            if row.kind is RowKind.COPY:
                words[Row.VALUES], words[Row.TILE_BYTES] = row.size_bytes, row.tile_bytes
            at = i * abi.ROW_WORDS
            self._place(self._program.register(row.tiles), table, at + Row.TILES)
            self._place(self._work(row), table, at + Row.WORK_NS)

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

    def _place(self, register: int, array: Words, index: int) -> None:
        """Write a register's value to `array[index]`: now if constant, else when it changes."""
        if self._program.is_constant(register):
            array[index] = self._program.initial[register]
            return
        loop = self._program.loop_of(register)
        pairs = self._scatter if loop is None else self._late_scatter[loop]
        pairs.append((register, array.ctypes.data + index * abi.WORD_BYTES))

    def _write_steps(self, steps: Sequence[TableStep]) -> None:
        num_segments = sum(len(s.segments) for s in steps)
        table = self._point(Header.STEPS, aligned_words(max(len(steps), 1) * abi.STEP_WORDS))
        parts = self._point(
            Header.SEGMENTS, aligned_words(max(num_segments, 1) * abi.SEGMENT_WORDS)
        )
        self.steps, self.segments = table, parts
        self.header[Header.NUM_STEPS] = len(steps)
        row = segment = 0
        for i, step in enumerate(steps):
            words = table[i * abi.STEP_WORDS : (i + 1) * abi.STEP_WORDS]
            words[Step.FIRST_SEGMENT], words[Step.NUM_SEGMENTS] = segment, len(step.segments)
            words[Step.FIRST_ROW], words[Step.NUM_ROWS] = row, sum(step.segments)
            words[Step.KIND] = step.kind
            for num_rows in step.segments:
                at = segment * abi.SEGMENT_WORDS
                parts[at + Segment.FIRST_ROW], parts[at + Segment.NUM_ROWS] = row, num_rows
                segment, row = segment + 1, row + num_rows

    def _write_program(self) -> None:
        program = self._program
        registers = self._point(Header.REGISTERS, aligned_words(max(len(program.initial), 1)))
        registers[: len(program.initial)] = program.initial
        code = [*program.instructions, *(i for late in program.late for i in late)]
        self._table(Header.PROGRAM, Header.NUM_INSTRUCTIONS, code, 4)
        self.header[Header.NUM_INSTRUCTIONS] = len(program.instructions)
        self._table(Header.SCATTER, Header.NUM_SCATTER, self._scatter, 2)
        self._write_loops(registers)

    def _write_loops(self, registers: Words) -> None:
        """The record of each loop, and in its two rows where the record lies."""
        self._keep.append(self._loop_words)
        self._registers = registers
        instruction = len(self._program.instructions)
        for k, loop in enumerate(self.loops):
            late = np.array(self._late_scatter[k], np.int64).reshape(-1)
            pairs = aligned_words(max(len(late), 1))
            pairs[: len(late)] = late
            self._keep.append(pairs)
            words = self._loop_words[k * abi.LOOP_WORDS : (k + 1) * abi.LOOP_WORDS]
            words[Loop.COUNTER] = self._register_address(loop.counter)
            words[Loop.FIRST_INSTRUCTION] = instruction
            instruction += len(self._program.late[k])
            words[Loop.LAST_INSTRUCTION] = instruction
            words[Loop.SCATTER] = pairs.ctypes.data
            words[Loop.NUM_SCATTER] = len(self._late_scatter[k])
            words[Loop.BODY], words[Loop.AFTER] = loop.first_step + 1, loop.last_step + 1
            for step in (loop.first_step, loop.last_step):
                row = self.steps[step * abi.STEP_WORDS + Step.FIRST_ROW]
                self.rows[row * abi.ROW_WORDS + Row.FUNCTION] = words.ctypes.data

    def _register_address(self, variable: Variable) -> int:
        register = self._program.register(variable)
        return int(self._registers.ctypes.data + register * abi.WORD_BYTES)

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
        """How often a loop is run at the bound variables."""
        row = self.steps[self.loops[loop].first_step * abi.STEP_WORDS + Step.FIRST_ROW]
        return max(int(self.rows[row * abi.ROW_WORDS + Row.TILES]), 0)

    def step_counts(self) -> Words:
        """How often each step is run at the bound variables."""
        counts = np.ones(int(self.header[Header.NUM_STEPS]), np.int64)
        for k, loop in enumerate(self.loops):
            counts[loop.first_step + 1 : loop.last_step] = self.trip(k)
        return counts

    def _write_lanes(self, lanes: Words, threads: int) -> None:
        self._point(Header.LANES, lanes)
        self.header[Header.THREADS] = threads
        self.header[Header.CLAIM] = abi.NO_CLAIM
        for i in range(threads):
            lanes[i * abi.LANE_WORDS + Lane.INDEX] = i
            lanes[i * abi.LANE_WORDS + Lane.HEADER] = self.address
        self.lanes = lanes

    def reset(self) -> None:
        """Forget a run that was abandoned: the plan can be entered again, its outputs are void."""
        for field in (Header.BUSY, Header.RESUME, Header.VALID, Header.RECRUITED, Header.WAITING):
            self.words[field] = 0
        self.words[Header.CLAIM] = abi.NO_CLAIM
        self.lanes.reshape(-1, abi.LANE_WORDS)[:, Lane.TAKEN] = 0


def make_lanes(threads: int, scratch_addresses: Sequence[int]) -> Words:
    """Lane records for `threads` participants, each with its scratch memory."""
    lanes = aligned_words(threads * abi.LANE_WORDS)
    for i, address in enumerate(scratch_addresses):
        lanes[i * abi.LANE_WORDS + Lane.SCRATCH] = address
    return lanes
