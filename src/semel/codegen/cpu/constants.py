"""Constants as operands in memory, for loops that have more of them than there are registers.

    fma x, y, 0.0416  -->  vfmadd213ps 64(%rax), %ymm1, %ymm0

An exponential or a gelu has a dozen constants. With 16 registers LLVM reads them back into
registers, or moves them around between them, in every iteration: an instruction each. x86 takes one
operand of an instruction from memory, for nothing; but LLVM folds a load only where it has one
use, and what it knows to be the same each time it loads once. So each use has a row of the table
for itself, at an address that LLVM knows nothing of.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.codegen.scalar.frame import Frame, Ref
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type, literal, vector_of
from semel.ir.expr import atoms
from semel.ir.target import Target
from semel.ir.types import DType
from semel.kernel import ir
from semel.kernel.ir import Value, walk_statements, walk_values
from semel.kernel.shared_lanes import TOTAL_BITS, ordered_totals

#: Registers for what a body computes, for each of the two that run side by side.
_TEMPORARIES = 4
#: The operands that an instruction may take from memory.
_PLACES = {
    "add": (0, 1), "mul": (0, 1), "sub": (1,), "fma": (0, 1, 2),
    "and": (0, 1), "or": (0, 1), "xor": (0, 1),
}  # fmt: skip
#: Ops that need a constant of their own: the bits without the sign, or the sign.
_MASKED = ("abs", "neg")
_SHIFTS = ("shl", "shr")
#: Of every constant in a loop whose constants are moved: wider ones take twice the registers.
_BITS = 32
_TABLE = "constants"
#: A constant, in so many lanes, for its n-th use.
_Row = tuple[Value, int, int]


class Constants:
    """Which constants of the open vector loop are in memory, and loads of them."""

    def __init__(self, frame: Frame, out: Instructions, target: Target) -> None:
        self.frame, self.out = frame, out
        self.bits, self.registers = target.vector_bits, target.vector_registers
        self.is_used = target.arch == "x86_64" and target.has_fma and self.bits == 256
        self._in_memory: frozenset[Value] = frozenset()
        self._rows: dict[_Row, int] = {}  # where they begin, in bytes
        self._uses: dict[Value, int] = {}

    def open(self, loop: ir.Loop) -> None:
        """Begin a loop: what it has more of than registers will be in memory."""
        if not self.is_used or not all(_is_straight(s) for s in walk_statements(loop.body)):
            return
        held = len(ordered_totals(loop)) * TOTAL_BITS // self.bits
        places = _same_in_every_lane(loop)
        is_wide = any(value.dtype.bits > _BITS for value in places)
        if is_wide or len(places) + held + _TEMPORARIES <= self.registers:
            return
        free = self.registers - held - 2 * _TEMPORARIES
        free -= sum(not all(found) for found in places.values())
        movable = [value for value, found in places.items() if all(found)]
        often = sorted((v for v in movable if len(places[v]) > 1), key=lambda v: -len(places[v]))
        self._in_memory = frozenset(movable).difference(often[: max(free, 0)])

    def close(self) -> None:
        self._in_memory = frozenset()

    def next_part(self, totals: Sequence[tuple[DType, int, str]]) -> list[str]:
        """Between parts of a body: what is added up, (dtype, lanes, text), stays before the next.

        LLVM would add later, and keep what it has yet to add on the stack.
        """
        self._uses.clear()
        if not self._in_memory:
            return [text for *_, text in totals]
        self.frame.lines.append('  call void asm sideeffect "", "~{memory}"()')
        return [self._pinned(*total) for total in totals]

    def _pinned(self, dtype: DType, lanes: int, text: str) -> str:
        element, width = element_type(dtype), self.bits // dtype.bits
        if lanes % width:
            return text
        lines, kind = self.frame.lines, vector_of(element, width)
        parts = [
            self.out.part(lines, element, text, lanes, at, width) for at in range(0, lanes, width)
        ]
        pins = [
            self.out.emit(lines, f'call {kind} asm sideeffect "", "=x,0"({kind} {part})')
            for part in parts
        ]
        return self.out.join(lines, element, pins, width)

    def operand(self, value: Value, lanes: int) -> str | None:
        """A constant in every lane, loaded here and now; None if it belongs into a register."""
        if value not in self._in_memory or lanes * _BITS not in (self.bits, 2 * self.bits):
            return None
        use = self._uses[value] = self._uses.get(value, -1) + 1
        row = (value, lanes, use)
        if row not in self._rows:
            self._rows[row] = sum(count * _BITS // 8 for _, count, _ in self._rows)
        at = self._rows[row]
        lines = self.frame.lines
        place = self.out.emit(lines, f"getelementptr i8, ptr {self._base()}, i64 {at}")
        kind = vector_of(element_type(value.dtype), lanes)
        return self.out.emit(lines, f"load {kind}, ptr {place}, align {self.bits // 8}")

    def _base(self) -> str:
        """The table's address; `freeze` hides what is there."""
        kinds = [vector_of(element_type(v.dtype), lanes) for v, lanes, _ in self._rows]
        numbers = [f"{element_type(v.dtype)} {literal(v.dtype, v.data)}" for v, _, _ in self._rows]
        rows = ", ".join(f"{k} splat ({n})" for k, n in zip(kinds, numbers, strict=True))
        self.out.declarations[_TABLE] = (
            f"@{_TABLE} = private unnamed_addr constant <{{ {', '.join(kinds)} }}> <{{ {rows} }}>, "
            f"align {self.bits // 8}"
        )
        found = self.frame.find(_TABLE)
        if found is None:
            text = self.out.emit(self.frame.scopes[0].lines, f"freeze ptr @{_TABLE}")
            found = self.frame.keep(_TABLE, Ref(text, False, 0))
        return found.text


def _same_in_every_lane(loop: ir.Loop) -> dict[Value, list[bool]]:
    """What a loop has in every lane; for each use of it, whether that may be in memory."""
    found: dict[Value, list[bool]] = {}
    for value in walk_values([v for s in loop.body for v in ir.statement_values(s)]):
        is_outer = value.op == "local" or (
            value.op == "load" and loop.index not in atoms(value.data[1])
        )
        if is_outer or value.op in _MASKED:
            found.setdefault(value, []).append(False)
        for place, arg in enumerate(value.args):
            is_amount = value.op in _SHIFTS and place == 1
            if arg.op == "const" and arg.dtype.bits >= _BITS and not is_amount:
                found.setdefault(arg, []).append(place in _PLACES.get(value.op, ()))
    return found


def _is_straight(statement: ir.Statement) -> bool:
    return isinstance(statement, ir.Store | ir.Reduce | ir.Prefetch | ir.Bind)
