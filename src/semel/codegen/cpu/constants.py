"""Constants as operands in memory, for loops that have more of them than there are registers.

    fma x, y, 0.0416  -->  vfmadd213ps 64(%rax), %ymm1, %ymm0

An exponential or a gelu has a dozen constants. With 16 registers LLVM reads them back into
registers, or moves them around between them, in every iteration: an instruction each. x86 takes one
operand of an instruction from memory, for nothing; but LLVM folds a load only where it has one
use, and a load that it knows to be the same each time is shared by all, or taken out of the loop.
So a constant that the body uses once is loaded where it is used, from an address that LLVM knows
nothing of, and the body runs on one register at a time: processors that reorder instructions find
the next ones by themselves.
"""

from __future__ import annotations

from semel.codegen.scalar.frame import Frame, Ref
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type, literal, vector_of
from semel.ir.target import Target
from semel.ir.types import FLOAT32, FLOAT64
from semel.kernel import ir
from semel.kernel.ir import Value, walk_statements, walk_values
from semel.kernel.shared_lanes import TOTAL_BITS, ordered_totals

#: Registers for what is neither a constant nor a total.
_TEMPORARIES = 5
#: The operands that an instruction may take from memory.
_PLACES = {"add": (0, 1), "mul": (0, 1), "sub": (1,), "fma": (0, 1, 2)}
_TABLE = "constants"


class Constants:
    """Which constants of the open vector loop are in memory, and loads of them."""

    def __init__(self, frame: Frame, out: Instructions, target: Target) -> None:
        self.frame, self.out = frame, out
        self.bits, self.registers = target.vector_bits, target.vector_registers
        self.is_used = target.arch == "x86_64" and target.has_fma and self.bits == 256
        self._once: frozenset[Value] = frozenset()
        self._table: dict[Value, int] = {}

    def open(self, loop: ir.Loop) -> bool:
        """Begin a vector loop; whether it has too many, and so runs on one register at a time."""
        if not self.is_used or not all(_is_straight(s) for s in walk_statements(loop.body)):
            return False
        uses: dict[Value, list[bool]] = {}
        roots = [v for s in loop.body for v in ir.statement_values(s)]
        for value in walk_values(roots):
            for place, arg in enumerate(value.args):
                if arg.op == "const" and arg.dtype in (FLOAT32, FLOAT64):
                    uses.setdefault(arg, []).append(place in _PLACES.get(value.op, ()))
        held = len(ordered_totals(loop)) * TOTAL_BITS // self.bits
        if len(uses) + held + _TEMPORARIES <= self.registers:
            return False
        self._once = frozenset(c for c, places in uses.items() if places == [True])
        return bool(self._once)

    def close(self) -> None:
        self._once = frozenset()

    def operand(self, value: Value, lanes: int) -> str | None:
        """A constant in every lane, loaded here and now; None if it belongs into a register."""
        if value not in self._once or lanes * value.dtype.bits != self.bits:
            return None
        lines = self.frame.lines
        at = self._table.setdefault(value, len(self._table)) * (self.bits // 8)
        place = self.out.emit(lines, f"getelementptr i8, ptr {self._base()}, i64 {at}")
        kind = vector_of(element_type(value.dtype), lanes)
        return self.out.emit(lines, f"load {kind}, ptr {place}, align {self.bits // 8}")

    def barrier(self) -> None:
        """What is loaded before is not known to be what is loaded after it."""
        if self._once:
            self.frame.lines.append('  call void asm sideeffect "", "~{memory}"()')

    def _base(self) -> str:
        """The table's address; `freeze` hides what is there."""
        rows = ", ".join(self._row(value) for value in self._table)
        kinds = ", ".join(self._kind(value) for value in self._table)
        self.out.declarations[_TABLE] = (
            f"@{_TABLE} = private unnamed_addr constant <{{ {kinds} }}> <{{ {rows} }}>, "
            f"align {self.bits // 8}"
        )
        found = self.frame.find(_TABLE)
        if found is None:
            text = self.out.emit(self.frame.scopes[0].lines, f"freeze ptr @{_TABLE}")
            found = self.frame.keep(_TABLE, Ref(text, False, 0))
        return found.text

    def _kind(self, value: Value) -> str:
        return vector_of(element_type(value.dtype), self.bits // value.dtype.bits)

    def _row(self, value: Value) -> str:
        number = literal(value.dtype, value.data)
        return f"{self._kind(value)} splat ({element_type(value.dtype)} {number})"


def _is_straight(statement: ir.Statement) -> bool:
    return isinstance(statement, ir.Store | ir.Reduce | ir.Prefetch | ir.Bind)
