"""Blocks of dot products in tile registers.

    BlockDot --> tile loads, tile products, tile stores (AMX)

A tile register holds 16 rows of 64 bytes. Sums of 32 x 32 take four, two hold 16 rows of the
left operand each and two 16 words of 16 columns of the right one, which lie as the
instruction wants them. All tiles are configured alike once per call and given back at its
end, so that threads that go on to other code carry no tile state.
"""

from __future__ import annotations

from semel.codegen.scalar.branches import branch, phi
from semel.codegen.scalar.frame import Frame
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.single_lane import Lanes
from semel.errors import InternalError
from semel.ir.expr import Dim
from semel.ir.target import Target
from semel.kernel import ir
from semel.kernel.ir import Block, Kernel, walk_statements

#: Palette 1; then, for eight tiles, 64 bytes a row and 16 rows.
_CONFIGURATION = (
    (1, *[0] * 15),
    (64, 0) * 8 + (0,) * 16,
    (16,) * 8 + (0,) * 8,
)
_LEFT, _RIGHT = 4, 6


class Amx:
    """The rule of `BlockDot`, and what a kernel that has one does first and last."""

    def __init__(
        self,
        frame: Frame,
        out: Instructions,
        indices: Indices,
        lanes: Lanes,
        kernel: Kernel,
        target: Target,
    ) -> None:
        self.frame, self.out, self.indices, self.lanes = frame, out, indices, lanes
        self.is_used = any(isinstance(s, ir.BlockDot) for s in walk_statements(kernel.body))
        if self.is_used and not target.has_byte_tiles:
            raise InternalError("emit", f"{kernel.name} needs tiles, the target has none.")

    def configure(self) -> None:
        if not self.is_used:
            return
        lines = self.frame.lines
        place = self.out.emit(lines, "alloca [64 x i8], align 64")
        flat = [byte for part in _CONFIGURATION for byte in part]
        for start in range(0, 64, 8):
            word = int.from_bytes(bytes(flat[start : start + 8]), "little")
            at = self.out.emit(lines, f"getelementptr i8, ptr {place}, i64 {start}")
            lines.append(f"  store i64 {word}, ptr {at}, align 8")
        self.out.call(lines, "void", "llvm.x86.ldtilecfg", ("ptr", place))

    def release(self) -> None:
        if self.is_used:
            self.out.call(self.frame.lines, "void", "llvm.x86.tilerelease")

    def block_dot(self, dots: ir.BlockDot) -> None:
        if self.lanes.count is not None:
            raise InternalError("emit", "dots inside a vector loop.")
        sign = "s" if dots.left.buffer.dtype.kind == "i" else "u"
        rows, columns = dots.rows // 16, dots.columns // 16
        sums = [(r, c, r * columns + c) for r in range(rows) for c in range(columns)]
        for _, _, tile in sums:
            self._tile("tilezero", tile)
        left = (self._address(dots.left), self._bytes(dots.left.pitch, 1))
        right = (self._address(dots.right), self._bytes(dots.right.pitch, 4))
        self.frame.touch(dots.into.buffer)
        stop = self.indices.dim(dots.words // 16).text
        self._steps(stop, left, right, sums, sign)
        into, pitch = self._address(dots.into), self._bytes(dots.into.pitch, 4)
        for r, c, tile in sums:
            place = self._offset(self._offset(into, pitch, 16 * r), "64", c)
            self._move("tilestored64", tile, place, pitch)

    def _steps(
        self,
        stop: str,
        left: tuple[str, str],
        right: tuple[str, str],
        sums: list[tuple[int, int, int]],
        sign: str,
    ) -> None:
        """The loop over k, 64 bytes of it a step."""
        lines = self.frame.lines
        head, after, step = (self.out.name(n) for n in ("dots", "after", "step"))
        entry = self.frame.scope.label
        runs = self.out.emit(lines, f"icmp slt i64 0, {stop}")
        lines.append(branch(runs, head, after))
        lines.append(f"{head}:")
        following = f"%{self.out.name()}"
        lines.append(f"  %{step} = {phi('i64', ('0', entry), (following, head))}")
        a = self._offset(left[0], f"%{step}", 64)
        b_step = self.out.emit(lines, f"mul nsw i64 %{step}, {right[1]}")
        b = self._offset(right[0], b_step, 16)
        for column in sorted({c for _, c, _ in sums}):
            self._move("tileloadd64", _RIGHT + column, self._offset(b, "64", column), right[1])
        for row in sorted({r for r, _, _ in sums}):
            self._move("tileloadd64", _LEFT + row, self._offset(a, left[1], 16 * row), left[1])
            for r, c, tile in sums:
                if r == row:
                    self._tile(f"tdpb{sign}sd", tile, _LEFT + r, _RIGHT + c)
        lines.append(f"  {following} = add nsw i64 %{step}, 1")
        again = self.out.emit(lines, f"icmp slt i64 {following}, {stop}")
        lines.append(branch(again, head, after))
        self.frame.label(after)

    # ------------------------------------------------------------ instructions

    def _tile(self, name: str, *tiles: int) -> None:
        operands = (("i8", str(t)) for t in tiles)
        self.out.call(self.frame.lines, "void", f"llvm.x86.{name}", *operands)

    def _move(self, name: str, tile: int, place: str, pitch: str) -> None:
        operands = (("i8", str(tile)), ("ptr", place), ("i64", pitch))
        self.out.call(self.frame.lines, "void", f"llvm.x86.{name}", *operands)

    def _address(self, block: Block) -> str:
        return self.indices.pointer(block.buffer, block.at)

    def _bytes(self, count: Dim, size: int) -> str:
        return self.indices.dim(count * size).text

    def _offset(self, base: str, stride: str, count: int) -> str:
        """base + stride * count, in bytes."""
        if count == 0:
            return base
        lines = self.frame.lines
        if stride.isdecimal():
            distance = str(int(stride) * count)
        else:
            distance = self.out.emit(lines, f"mul nsw i64 {stride}, {count}")
        return self.out.emit(lines, f"getelementptr i8, ptr {base}, i64 {distance}")
