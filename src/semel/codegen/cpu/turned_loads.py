"""Square blocks turned in registers: rows are loaded, columns are stored.

    for n lanes=L: for k unrolled in [0, L): b[.. + n] = a[.. + stride * n + k]
    --> L vector loads, log2(L) rounds of shuffles, L vector stores

Without this the lanes of every load lie `stride` elements apart and each is fetched
by itself. The block is a copy, perhaps through a cast, so that the shape of the code
does not change a bit of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.codegen.cpu.shuffles import Shuffles
from semel.codegen.scalar.conversions import Conversions
from semel.codegen.scalar.frame import Frame
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type, memory_type
from semel.codegen.vector.lane_memory import LaneMemory
from semel.codegen.vector.vector_lanes import VectorLanes
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


class TurnedLoads:
    """A `LoopRule`: recognises a block that is turned while it is copied."""

    def __init__(
        self,
        frame: Frame,
        out: Instructions,
        conversions: Conversions,
        indices: Indices,
        lanes: VectorLanes,
        memory: LaneMemory,
        shuffles: Shuffles,
    ) -> None:
        self.frame, self.out, self.conversions, self.indices = frame, out, conversions, indices
        self.lanes, self.memory, self.shuffles = lanes, memory, shuffles

    def rule(self, loop: ir.Loop) -> bool:
        """Emit the unrolled `loop` of an open vector loop as one block, if it is one."""
        block = self._find_block(loop)
        if block is None:
            return False
        rows = [self._row(block, loop.index, r) for r in range(loop.stop)]  # type: ignore[arg-type]
        element = element_type(block.store.buffer.dtype)
        columns = self.shuffles.turn(element, rows)
        self.frame.touch(block.store.buffer)
        for k, column in enumerate(columns):
            at = substitute(block.store.at, {loop.index: k})
            self._store_column(block.store.buffer, at, column)
        return True

    def _find_block(self, loop: ir.Loop) -> _Block | None:
        vector = self.lanes.vector
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
        env = self.frame.env
        if any(env[a].is_vector for a in atoms(at) | atoms(store.at) if a in env):
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

    def _row(self, block: _Block, across: Index, row: int) -> str:
        """The elements of lane `row`, loaded side by side; zeros if that lane is masked off."""
        vector, lines = self.lanes.opened, self.frame.lines
        lanes, mask = vector.lanes, vector.mask
        at = substitute(block.at, {across: 0, vector.index: vector.index + row})
        if mask is None:
            pointer = self.indices.pointer(block.source, at)
        else:
            bit = self.out.emit(lines, f"extractelement <{lanes} x i1> {mask}, i32 {row}")
            mask = self.out.splat(lines, "i1", bit, lanes)
            pointer = self.memory.inside(block.source, at, bit)
        dtype = block.source.dtype
        element, align = memory_type(dtype), dtype.size_bytes
        raw = self.memory.contiguous_load(element, lanes, pointer, align, mask)
        text = self.conversions.from_memory(lines, dtype, raw, lanes)
        for old, new in block.casts:
            text = self.conversions.cast(lines, old, new, text, lanes)
        return text

    def _store_column(self, buffer: Buffer, at: Dim, value: str) -> None:
        vector = self.lanes.opened
        pointer = self.indices.pointer(buffer, at)
        text = self.conversions.to_memory(self.frame.lines, buffer.dtype, value, vector.lanes)
        element, align = memory_type(buffer.dtype), buffer.dtype.size_bytes
        self.memory.contiguous_store(element, vector.lanes, text, pointer, align, vector.mask)


def _below_casts(value: Value) -> tuple[Value, tuple[tuple[DType, DType], ...]]:
    """The value under its casts, and the casts (from, to) from the inside out."""
    casts: list[tuple[DType, DType]] = []
    while value.op == "cast":
        casts.append((value.args[0].dtype, value.dtype))
        value = value.args[0]
    return value, tuple(reversed(casts))
