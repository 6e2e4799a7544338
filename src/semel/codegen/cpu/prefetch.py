"""Hints to fetch memory ahead, one for every cache line."""

from __future__ import annotations

from semel.codegen.scalar.frame import Frame
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.vector.vector_lanes import VectorLanes
from semel.ir.target import CACHE_LINE_BYTES
from semel.kernel import ir


class Prefetches:
    """The rule of `Prefetch`."""

    def __init__(
        self, frame: Frame, out: Instructions, indices: Indices, lanes: VectorLanes
    ) -> None:
        self.frame, self.out, self.indices, self.lanes = frame, out, indices, lanes

    def prefetch(self, statement: ir.Prefetch) -> None:
        """One hint per cache line of a full vector, or one for a place that all lanes share.

        There is none in the rest of a row, which is short.
        """
        vector = self.lanes.vector
        if vector is None or vector.mask is not None:
            return
        lines = self.frame.lines
        pointer = self.indices.pointer(statement.buffer, statement.at)
        lanes = vector.lanes if self.lanes.is_varying(statement.at) else 1
        size_bytes = lanes * statement.buffer.dtype.size_bytes
        for offset in range(0, size_bytes, CACHE_LINE_BYTES):
            line = self.out.emit(lines, f"getelementptr i8, ptr {pointer}, i64 {offset}")
            hint = (("ptr", line), ("i32", "0"), ("i32", "3"), ("i32", "1"))
            self.out.call(lines, "void", "llvm.prefetch.p0", *hint)
