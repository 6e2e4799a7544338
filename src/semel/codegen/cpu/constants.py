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
from itertools import accumulate

from semel.codegen.scalar.frame import Frame, Ref
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type, literal, vector_of
from semel.ir.expr import atoms
from semel.ir.target import Target
from semel.kernel import ir
from semel.kernel.ir import Value, walk_statements, walk_values
from semel.kernel.shared_lanes import TOTAL_BITS, ordered_totals

#: Registers for what a body computes, for each register of lanes that run side by side.
_TEMPORARIES = 4
#: The operands that an instruction may take from memory.
_PLACES = {
    "add": (0, 1), "mul": (0, 1), "sub": (1,), "fma": (0, 1, 2),
    "and": (0, 1), "or": (0, 1), "xor": (0, 1),
}  # fmt: skip
#: Ops that need a constant of their own: the bits without the sign, or the sign.
_MASKED = ("abs", "neg")
_SHIFTS = ("shl", "shr")
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
        self._rows: list[_Row] = []
        self._uses: dict[Value, int] = {}

    def open(self, loop: ir.Loop) -> bool:
        """Begin a loop; whether it has too many beside totals to run on registers side by side."""
        if not self.is_used or not all(_is_straight(s) for s in walk_statements(loop.body)):
            return False
        held = len(ordered_totals(loop)) * TOTAL_BITS // self.bits
        places = _same_in_every_lane(loop)
        if len(places) + held + _TEMPORARIES <= self.registers:
            return False
        free = self.registers - held - _TEMPORARIES * (1 if held else 2)
        free -= sum(not all(found) for found in places.values())
        movable = sorted(
            (c for c, found in places.items() if all(found)), key=lambda c: len(places[c])
        )
        kept = [c for c in movable if len(places[c]) > 1][::-1][: max(free, 0)]
        self._in_memory = frozenset(movable).difference(kept)
        return held > 0 and bool(self._in_memory)

    def close(self) -> None:
        self._in_memory = frozenset()

    def next_part(self, totals: Sequence[tuple[str, str]]) -> list[str]:
        """Between parts of a body: what is added up, (type, text), stays before what follows."""
        self._uses.clear()
        if not self._in_memory:
            return [text for _, text in totals]
        lines, code = self.frame.lines, 'asm sideeffect ""'
        if not totals:
            lines.append(f'  call void {code}, "~{{memory}}"()')
        return [
            self.out.emit(lines, f'call {kind} {code}, "=x,0,~{{memory}}"({kind} {text})')
            for kind, text in totals
        ]

    def operand(self, value: Value, lanes: int) -> str | None:
        """A constant in every lane, loaded here and now; None if it belongs into a register."""
        if value not in self._in_memory or lanes * value.dtype.bits % self.bits:
            return None
        use = self._uses[value] = self._uses.get(value, -1) + 1
        row = (value, lanes, use)
        if row not in self._rows:
            self._rows.append(row)
        ends = accumulate((lanes * v.dtype.size_bytes for v, lanes, _ in self._rows), initial=0)
        at = list(ends)[self._rows.index(row)]
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
            if arg.op == "const" and arg.dtype.bits in (32, 64) and not is_amount:
                found.setdefault(arg, []).append(place in _PLACES.get(value.op, ()))
    return found


def _is_straight(statement: ir.Statement) -> bool:
    return isinstance(statement, ir.Store | ir.Reduce | ir.Prefetch | ir.Bind)
