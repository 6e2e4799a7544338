"""Loads and stores of one element: guarded, hoisted where nothing can change in between.

(Buffer, Dim) --> instructions that touch memory
"""

from __future__ import annotations

from typing import Protocol

from semel.codegen.scalar.branches import branch, jump
from semel.codegen.scalar.conversions import Conversions
from semel.codegen.scalar.frame import Frame, Ref
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type, memory_type
from semel.ir.expr import Dim
from semel.kernel.ir import Buffer, Value


class Memory(Protocol):
    """What values and stores ask of memory; refs may have lanes where the emitter has them."""

    def load(self, value: Value, guard: Ref | None, other: Ref | None) -> Ref:
        """An element, or `other` where the guard is false."""

    def word(self, value: Value) -> Ref:
        """Four bytes in one register: the broadcast operand of a dot product."""

    def store(self, buffer: Buffer, at: Dim, ref: Ref, guard: Ref | None) -> None:
        """Write an element, unless the guard is false."""


class ScalarMemory:
    """Everything that reads or writes one element of a buffer."""

    def __init__(
        self, frame: Frame, out: Instructions, conversions: Conversions, indices: Indices
    ) -> None:
        self.frame, self.out = frame, out
        self.conversions, self.indices = conversions, indices

    def load(self, value: Value, guard: Ref | None, other: Ref | None) -> Ref:
        buffer, at = value.data
        kind = memory_type(buffer.dtype)
        level = self.indices.level(at)
        level = max(level, guard.level if guard else 0, other.level if other else 0)
        home = self._home(buffer, level)
        lines = self.frame.scopes[home].lines
        if guard is None:
            pointer = self.indices.pointer(buffer, at)
        else:
            # A false guard must not touch memory outside: read element 0 instead.
            offset = self.indices.dim(at)
            safe = self.out.emit(lines, f"select i1 {guard.text}, i64 {offset.text}, i64 0")
            base = self.frame.pointers[buffer]
            pointer = self.out.emit(lines, f"getelementptr {kind}, ptr {base}, i64 {safe}")
        raw = self.out.emit(lines, f"load {kind}, ptr {pointer}, align {buffer.dtype.size_bytes}")
        text = self.conversions.from_memory(lines, buffer.dtype, raw, None)
        if guard is not None and other is not None:
            element = element_type(value.dtype)
            text = self.out.select(lines, element, None, guard.text, text, other.text)
        return Ref(text, False, home)

    def word(self, value: Value) -> Ref:
        buffer, at = value.data
        home = self._home(buffer, self.indices.level(at))
        pointer = self.indices.pointer(buffer, at)
        text = self.out.emit(self.frame.scopes[home].lines, f"load i32, ptr {pointer}, align 1")
        return Ref(text, False, home)

    def _home(self, buffer: Buffer, level: int) -> int:
        """The scope where memory may be read: not above a condition, not before a store."""
        if buffer.access != "r":
            return self.frame.level
        for i in range(self.frame.level, level, -1):
            if self.frame.scopes[i].is_conditional:
                return i
        return level

    def store(self, buffer: Buffer, at: Dim, ref: Ref, guard: Ref | None) -> None:
        lines = self.frame.lines
        text = self.conversions.to_memory(lines, buffer.dtype, ref.text, None)
        kind, align = memory_type(buffer.dtype), buffer.dtype.size_bytes
        pointer = self.indices.pointer(buffer, at)
        written = f"  store {kind} {text}, ptr {pointer}, align {align}"
        if guard is None:
            lines.append(written)
            return
        then, after = self.out.name("then"), self.out.name("after")
        lines.append(branch(guard.text, then, after))
        self.frame.label(then)
        lines += [written, jump(after)]
        self.frame.label(after)
