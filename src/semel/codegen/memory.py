"""Loads and stores: scalar, contiguous vectors, gathers and scatters, guards and masks.

    (Buffer, Dim) --> instructions that touch memory

Neighbouring lanes one element apart are one vector access; lanes past the end of a
loop, or where a guard is false, touch no memory.
"""

from __future__ import annotations

from semel.codegen.scalars import element_type, memory_type, vector_of
from semel.codegen.scope import Ref, mangle
from semel.codegen.values import Values
from semel.errors import InternalError
from semel.ir.expr import Dim
from semel.ir.target import CACHE_LINE_BYTES
from semel.ir.types import BOOL
from semel.kernel import ir
from semel.kernel.ir import Buffer, Value


class Memory(Values):
    """Everything that reads or writes a buffer."""

    def _load(self, value: Value, fresh: dict[Value, Ref]) -> Ref:
        buffer, at = value.data
        guard = fresh[value.args[0]] if value.args else None
        other = fresh[value.args[1]] if value.args else None
        is_stable = buffer.access == "r"
        if self._is_varying(at) or (guard is not None and guard.is_vector):
            ref = self._vector_load(buffer, at, guard, other, value)
        else:
            ref = self._scalar_load(buffer, at, guard, other, value, is_stable)
        return self._remember(value, ref) if is_stable else ref

    def _word(self, value: Value) -> Ref:
        """Four bytes in one register: the broadcast operand of a dot product."""
        buffer, at = value.data
        if self._is_varying(at):
            raise InternalError("emit", f"lanes of {self.kernel.name} read different words.")
        is_stable = buffer.access == "r"
        home = self._home(self._dim(at).level, is_stable=is_stable)
        pointer = self._pointer(buffer, at, home)
        text = self.sink.emit(self.scopes[home].lines, f"load i32, ptr {pointer}, align 1")
        ref = Ref(text, False, home)
        return self._remember(value, ref) if is_stable else ref

    def _home(self, level: int, *, is_stable: bool) -> int:
        """The scope where memory may be read: not above a condition, not before a store."""
        if not is_stable:
            return self.level
        for i in range(self.level, level, -1):
            if self.scopes[i].is_conditional:
                return i
        return level

    def _scalar_load(
        self,
        buffer: Buffer,
        at: Dim,
        guard: Ref | None,
        other: Ref | None,
        value: Value,
        is_stable: bool,
    ) -> Ref:
        kind = memory_type(buffer.dtype)
        offset = self._dim(at)
        level = max(offset.level, guard.level if guard else 0, other.level if other else 0)
        home = self._home(level, is_stable=is_stable)
        lines = self.scopes[home].lines
        if guard is None:
            pointer = self._pointer(buffer, at, home)
        else:
            # A false guard must not touch memory outside: read element 0 instead.
            safe = self.sink.emit(lines, f"select i1 {guard.text}, i64 {offset.text}, i64 0")
            pointer = self.sink.emit(
                lines, f"getelementptr {kind}, ptr {self.pointers[buffer]}, i64 {safe}"
            )
        raw = self.sink.emit(lines, f"load {kind}, ptr {pointer}, align {buffer.dtype.size_bytes}")
        text = self.scalars.from_memory(lines, buffer.dtype, raw, None)
        if guard is not None and other is not None:
            element = element_type(value.dtype)
            text = self.scalars.select(lines, element, None, guard.text, text, other.text)
        return Ref(text, False, home)

    def _vector_load(
        self, buffer: Buffer, at: Dim, guard: Ref | None, other: Ref | None, value: Value
    ) -> Ref:
        assert self.vector is not None
        lanes, lines = self.vector.lanes, self.scope.lines
        mask = self._lane_mask(guard)
        kind = vector_of(memory_type(buffer.dtype), lanes)
        align = buffer.dtype.size_bytes
        stride = self._stride(at)
        if stride in (1, -1):
            pointer = self._pointer(buffer, at, self.level)
            if stride == -1:
                pointer = self._back(buffer, pointer)
                mask = self._reverse(mask, "i1") if mask else None
            raw = self._contiguous_load(kind, pointer, align, mask, lanes)
            if stride == -1:
                raw = self._reverse(raw, memory_type(buffer.dtype))
        else:
            raw = self._gather(buffer, at, mask, kind, lanes)
        text = self.scalars.from_memory(lines, buffer.dtype, raw, lanes)
        if guard is not None and other is not None:
            keep = self._as_vector(guard, BOOL)
            fill = self._as_vector(other, value.dtype)
            element = element_type(value.dtype)
            text = self.scalars.select(lines, element, lanes, keep, text, fill)
        return Ref(text, True, self.level)

    def _contiguous_load(
        self, kind: str, pointer: str, align: int, mask: str | None, lanes: int
    ) -> str:
        lines = self.scope.lines
        if mask is None:
            return self.sink.emit(lines, f"load {kind}, ptr {pointer}, align {align}")
        name = f"llvm.masked.load.{mangle(kind)}.p0"
        self.sink.declarations[name] = f"declare {kind} @{name}(ptr, <{lanes} x i1>, {kind})"
        return self.sink.emit(
            lines,
            f"call {kind} @{name}(ptr align {align} {pointer}, <{lanes} x i1> {mask}, "
            f"{kind} zeroinitializer)",
        )

    def _gather(self, buffer: Buffer, at: Dim, mask: str | None, kind: str, lanes: int) -> str:
        lines = self.scope.lines
        pointers = self._lane_pointers(buffer, at, lanes)
        everywhere = self.scalars.raw("i1", "true", lanes)
        name = f"llvm.masked.gather.{mangle(kind)}.v{lanes}p0"
        self.sink.declarations[name] = (
            f"declare {kind} @{name}(<{lanes} x ptr>, <{lanes} x i1>, {kind})"
        )
        return self.sink.emit(
            lines,
            f"call {kind} @{name}(<{lanes} x ptr> align {buffer.dtype.size_bytes} {pointers}, "
            f"<{lanes} x i1> {mask or everywhere}, {kind} zeroinitializer)",
        )

    def _lane_pointers(self, buffer: Buffer, at: Dim, lanes: int) -> str:
        offsets = self._dim_vector(at)
        return self.sink.emit(
            self.scope.lines,
            f"getelementptr {memory_type(buffer.dtype)}, ptr {self.pointers[buffer]}, "
            f"<{lanes} x i64> {offsets}",
        )

    def _lane_mask(self, guard: Ref | None) -> str | None:
        """The lanes that may touch memory: those of the loop's mask and of the guard."""
        assert self.vector is not None
        mask = self.vector.mask
        if guard is None:
            return mask
        keep = self._as_vector(guard, BOOL)
        if mask is None:
            return keep
        return self.scalars.binary(self.scope.lines, "and", "i1", self.vector.lanes, keep, mask)

    def _back(self, buffer: Buffer, pointer: str) -> str:
        """The address of the last lane of a vector that runs backwards."""
        assert self.vector is not None
        kind = memory_type(buffer.dtype)
        return self.sink.emit(
            self.scope.lines, f"getelementptr {kind}, ptr {pointer}, i64 {1 - self.vector.lanes}"
        )

    def _reverse(self, text: str, element: str) -> str:
        assert self.vector is not None
        lanes = self.vector.lanes
        vector = vector_of(element, lanes)
        picks = ", ".join(f"i32 {lanes - 1 - i}" for i in range(lanes))
        return self.sink.emit(
            self.scope.lines,
            f"shufflevector {vector} {text}, {vector} poison, <{lanes} x i32> <{picks}>",
        )

    def _store(self, statement: ir.Store) -> None:
        buffer, at = statement.buffer, statement.at
        ref = self._value(statement.value)
        guard = None if statement.guard is None else self._value(statement.guard)
        self._touch(buffer)
        lines = self.scope.lines
        align = buffer.dtype.size_bytes
        if self.vector is None:
            self._scalar_store(buffer, at, ref, guard)
            return
        lanes = self.vector.lanes
        stride = self._stride(at) if self._is_varying(at) else None
        if stride is None and not self._is_varying(at):
            raise InternalError("emit", f"lanes of {self.kernel.name} store to one address.")
        value = self._as_vector(ref, buffer.dtype)
        text = self.scalars.to_memory(lines, buffer.dtype, value, lanes)
        kind = vector_of(memory_type(buffer.dtype), lanes)
        if self.vector.is_single and guard is None:
            # LLVM (22.1) turns a masked, truncating store of one known lane into a store of
            # the wide element, which overwrites the neighbour.
            scalar = memory_type(buffer.dtype)
            first = self.sink.emit(lines, f"extractelement {kind} {text}, i32 0")
            pointer = self._pointer(buffer, at, self.level)
            lines.append(f"  store {scalar} {first}, ptr {pointer}, align {align}")
            return
        mask = self._lane_mask(guard)
        if stride in (1, -1):
            pointer = self._pointer(buffer, at, self.level)
            if stride == -1:
                pointer = self._back(buffer, pointer)
                text = self._reverse(text, memory_type(buffer.dtype))
                mask = self._reverse(mask, "i1") if mask else None
            self._contiguous_store(kind, text, pointer, align, mask, lanes)
            return
        pointers = self._lane_pointers(buffer, at, lanes)
        everywhere = self.scalars.raw("i1", "true", lanes)
        name = f"llvm.masked.scatter.{mangle(kind)}.v{lanes}p0"
        types = f"{kind}, <{lanes} x ptr>, <{lanes} x i1>"
        self.sink.declarations[name] = f"declare void @{name}({types})"
        lines.append(
            f"  call void @{name}({kind} {text}, <{lanes} x ptr> align {align} {pointers}, "
            f"<{lanes} x i1> {mask or everywhere})"
        )

    def _touch(self, buffer: Buffer) -> None:
        """Forget what was computed from the buffer's old contents."""
        self._stores[buffer] = self._stores.get(buffer, 0) + 1

    def _scalar_store(self, buffer: Buffer, at: Dim, ref: Ref, guard: Ref | None) -> None:
        lines = self.scope.lines
        text = self.scalars.to_memory(lines, buffer.dtype, ref.text, None)
        kind, align = memory_type(buffer.dtype), buffer.dtype.size_bytes
        if guard is None:
            pointer = self._pointer(buffer, at, self.level)
            lines.append(f"  store {kind} {text}, ptr {pointer}, align {align}")
            return
        pointer = self._pointer(buffer, at, self.level)
        then, after = self.sink.name("then"), self.sink.name("after")
        lines.append(f"  br i1 {guard.text}, label %{then}, label %{after}")
        self._label(self.scope, then)
        lines.append(f"  store {kind} {text}, ptr {pointer}, align {align}")
        lines.append(f"  br label %{after}")
        self._label(self.scope, after)

    def _contiguous_store(
        self, kind: str, text: str, pointer: str, align: int, mask: str | None, lanes: int
    ) -> None:
        """Store one vector side by side, or the lanes of it that the mask keeps."""
        lines = self.scope.lines
        if mask is None:
            lines.append(f"  store {kind} {text}, ptr {pointer}, align {align}")
            return
        name = f"llvm.masked.store.{mangle(kind)}.p0"
        self.sink.declarations[name] = f"declare void @{name}({kind}, ptr, <{lanes} x i1>)"
        lines.append(
            f"  call void @{name}({kind} {text}, ptr align {align} {pointer}, "
            f"<{lanes} x i1> {mask})"
        )

    def _prefetch(self, statement: ir.Prefetch) -> None:
        """One hint per cache line of a full vector, or one for a place that all lanes share.

        There is none in the rest of a row, which is short.
        """
        if self.vector is None or self.vector.mask is not None:
            return
        pointer = self._pointer(statement.buffer, statement.at, self.level)
        is_shared = not self._is_varying(statement.at)
        lanes = 1 if is_shared else self.vector.lanes
        size_bytes = lanes * statement.buffer.dtype.size_bytes
        for offset in range(0, size_bytes, CACHE_LINE_BYTES):
            line = self.sink.emit(
                self.scope.lines, f"getelementptr i8, ptr {pointer}, i64 {offset}"
            )
            hint = (("ptr", line), ("i32", "0"), ("i32", "3"), ("i32", "1"))
            self.sink.call(self.scope.lines, "void", "llvm.prefetch.p0", *hint)
