"""The function around a kernel's statements, as the plan runner calls it.

    void kernel(ptr lane, ptr buffers, ptr vals, i64 tile_begin, i64 tile_end)

Buffers, variables and scratch are loaded once, at its start (docs/decisions/0003-kernel-abi.md).
A machine that is called another way has an entry of its own.
"""

from __future__ import annotations

from semel.codegen.scalar.branches import branch
from semel.codegen.scalar.frame import Frame, Ref
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.ir.expr import Dim
from semel.kernel.ir import Buffer, Kernel

FIRST_TILE, LAST_TILE = "%t0", "%t1"

_LANE_SCRATCH, _LANE_ROW, _LANE_CODE = 8, 16, 24
_LANE_STATUS_ROW, _LANE_STATUS_VALUE = 32, 40


class Entry:
    """The arguments of a kernel, its status, and its text."""

    def __init__(self, frame: Frame, out: Instructions, indices: Indices, kernel: Kernel) -> None:
        self.frame, self.out, self.indices, self.kernel = frame, out, indices, kernel

    def open(self) -> None:
        """Load what is the same for all tiles."""
        frame, out, lines = self.frame, self.out, self.frame.lines
        for i, buffer in enumerate(self.kernel.buffers):
            slot = out.emit(lines, f"getelementptr ptr, ptr %buffers, i64 {i}")
            frame.pointers[buffer] = out.emit(lines, f"load ptr, ptr {slot}, !invariant.load !0")
        for i, variable in enumerate(self.kernel.variables):
            slot = out.emit(lines, f"getelementptr i64, ptr %vals, i64 {i}")
            text = out.emit(lines, f"load i64, ptr {slot}, !invariant.load !0")
            frame.env[variable] = Ref(text, False, 0)
        if self.kernel.scratch:
            slot = out.emit(lines, f"getelementptr i8, ptr %lane, i64 {_LANE_SCRATCH}")
            base = out.emit(lines, f"load ptr, ptr {slot}, !invariant.load !0")
            for buffer, offset in scratch_offsets(self.kernel):
                at = self.indices.dim(offset)
                frame.pointers[buffer] = out.emit(
                    lines, f"getelementptr i8, ptr {base}, i64 {at.text}"
                )

    def report(self, code: int, value: str, report: str, after: str) -> None:
        """Write the status of a failed check, unless there is one: then go on at `after`."""
        out, lines = self.out, self.frame.lines
        pointer = {
            offset: out.emit(lines, f"getelementptr i8, ptr %lane, i64 {offset}")
            for offset in (_LANE_CODE, _LANE_ROW, _LANE_STATUS_ROW, _LANE_STATUS_VALUE)
        }
        seen = out.emit(lines, f"load i64, ptr {pointer[_LANE_CODE]}")
        fresh = out.emit(lines, f"icmp eq i64 {seen}, 0")
        lines.append(branch(fresh, report, after))
        self.frame.label(report)
        row = out.emit(lines, f"load i64, ptr {pointer[_LANE_ROW]}")
        lines.append(f"  store i64 {code}, ptr {pointer[_LANE_CODE]}")
        lines.append(f"  store i64 {row}, ptr {pointer[_LANE_STATUS_ROW]}")
        lines.append(f"  store i64 {value}, ptr {pointer[_LANE_STATUS_VALUE]}")

    def module(self, symbol: str, attributes: str = "") -> str:
        """The LLVM module, whose function is named `symbol`."""
        lines = "\n".join(self.frame.lines)
        declarations = "\n".join(self.out.declarations.values())
        return (
            f"define void @{symbol}(ptr %lane, ptr %buffers, ptr %vals, i64 %t0, i64 %t1) #0 "
            f"{{\nentry:\n{lines}\n  ret void\n}}\n{declarations}\n"
            f"attributes #0 = {{ nounwind {attributes}}}\n"
            "!0 = !{}\n"
        )


def scratch_offsets(kernel: Kernel) -> list[tuple[Buffer, Dim]]:
    """Where each scratch buffer starts in a thread's scratch, in bytes, 64-byte aligned."""
    result: list[tuple[Buffer, Dim]] = []
    offset: Dim = 0
    for buffer in kernel.scratch:
        result.append((buffer, offset))
        size = buffer.size * buffer.dtype.size_bytes
        offset = offset + (size + 127) // 64 * 64
    return result


def scratch_bytes(kernel: Kernel) -> Dim:
    """The scratch one thread needs."""
    offsets = scratch_offsets(kernel)
    if not offsets:
        return 0
    buffer, offset = offsets[-1]
    return offset + (buffer.size * buffer.dtype.size_bytes + 127) // 64 * 64
