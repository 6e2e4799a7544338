"""Square blocks turned in registers: rows are loaded, columns are stored.

    for n lanes=L: for k unrolled in [0, L): b[.. + n] = a[.. + stride * n + k]
    --> L vector loads, log2(L) rounds of shuffles, L vector stores

Without this the lanes of every load lie `stride` elements apart and each is fetched
by itself. The block is a copy, perhaps through a cast, so that the shape of the code
does not change a bit of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.codegen.scalars import element_type, memory_type, vector_of
from semel.codegen.turned import Turned
from semel.ir.expr import Dim, Index, atoms, linear_coefficient, substitute
from semel.ir.types import DType
from semel.kernel import ir
from semel.kernel.ir import Buffer, Value


@dataclass(frozen=True, slots=True)
class _Block:
    """A block to turn: what is loaded, the casts on the way, where it is stored."""

    source: Buffer
    at: Dim
    casts: tuple[tuple[DType, DType], ...]
    store: ir.Store


class Transpose(Turned):
    """Recognises a block that is turned while it is copied, and emits it as shuffles."""

    def _load_turned(self, loop: ir.Loop) -> bool:
        """Emit the unrolled `loop` of an open vector loop as one block, if it is one."""
        block = self._find_block(loop)
        if block is None:
            return False
        rows = [self._block_row(block, loop.index, r) for r in range(loop.stop)]  # type: ignore[arg-type]
        element = element_type(block.store.buffer.dtype)
        columns = self._turn(element, rows)
        self._touch(block.store.buffer)
        for k, column in enumerate(columns):
            self._store_column(block.store, substitute(block.store.at, {loop.index: k}), column)
        return True

    def _find_block(self, loop: ir.Loop) -> _Block | None:
        vector = self.vector
        if vector is None or loop.start != 0 or loop.stop != vector.lanes or len(loop.body) != 1:
            return None
        store = loop.body[0]
        if vector.is_single or not isinstance(store, ir.Store) or store.guard is not None:
            return None
        value, casts = _below_casts(store.value)
        if value.op != "load" or value.args:
            return None
        source, at = value.data
        if source.access == "w" or source == store.buffer:
            return None
        if any(self.env[a].is_vector for a in atoms(at) | atoms(store.at) if a in self.env):
            return None
        stride = linear_coefficient(at, vector.index)
        if stride is None or stride in (0, 1) or linear_coefficient(at, loop.index) != 1:
            return None
        if linear_coefficient(store.at, vector.index) != 1:
            return None
        step = linear_coefficient(store.at, loop.index)
        if step is None or step == 0 or loop.index in atoms(stride) or vector.index in atoms(step):
            return None
        return _Block(source, at, casts, store)

    def _block_row(self, block: _Block, across: Index, row: int) -> str:
        """The elements of lane `row`, loaded side by side; zeros if that lane is masked off."""
        assert self.vector is not None
        lanes, lines = self.vector.lanes, self.scope.lines
        at = substitute(block.at, {across: 0, self.vector.index: self.vector.index + row})
        pointer = self._pointer(block.source, at, self.level)
        kind = vector_of(memory_type(block.source.dtype), lanes)
        mask = self.vector.mask
        if mask is not None:
            bit = self.sink.emit(lines, f"extractelement <{lanes} x i1> {mask}, i32 {row}")
            mask = self.scalars.splat(lines, "i1", bit, lanes)
        raw = self._contiguous_load(kind, pointer, block.source.dtype.size_bytes, mask, lanes)
        text = self.scalars.from_memory(lines, block.source.dtype, raw, lanes)
        for old, new in block.casts:
            text = self.scalars.cast(lines, old, new, text, lanes)
        return text

    def _store_column(self, store: ir.Store, at: Dim, value: str) -> None:
        assert self.vector is not None
        lanes, lines = self.vector.lanes, self.scope.lines
        buffer = store.buffer
        pointer = self._pointer(buffer, at, self.level)
        text = self.scalars.to_memory(lines, buffer.dtype, value, lanes)
        kind, align = vector_of(memory_type(buffer.dtype), lanes), buffer.dtype.size_bytes
        self._contiguous_store(kind, text, pointer, align, self.vector.mask, lanes)


def _below_casts(value: Value) -> tuple[Value, tuple[tuple[DType, DType], ...]]:
    """The value under its casts, and the casts (from, to) from the inside out."""
    casts: list[tuple[DType, DType]] = []
    while value.op == "cast":
        casts.append((value.args[0].dtype, value.dtype))
        value = value.args[0]
    return value, tuple(reversed(casts))
