"""Blocks of dot products in tile registers.

    BlockDot --> tile loads, tile products, tile stores (AMX)

A tile register holds 16 rows of 64 bytes. Sums of 32 x 32 take four, two hold 16 rows of the
left operand each and two 16 words of 16 columns of the right one, which lie as the
instruction wants them. All tiles are configured alike once per call and given back at its
end, so that threads that go on to other code carry no tile state.
"""

from __future__ import annotations

from semel.codegen.loops import Loops
from semel.errors import InternalError
from semel.ir.expr import Dim
from semel.kernel import ir
from semel.kernel.ir import Block, walk_statements

#: Palette 1; then, for eight tiles, 64 bytes a row and 16 rows.
_CONFIGURATION = (
    (1, *[0] * 15),
    (64, 0) * 8 + (0,) * 16,
    (16,) * 8 + (0,) * 8,
)
_LEFT, _RIGHT = 4, 6


class Tiles(Loops):
    """Statements that multiply blocks."""

    def _uses_tiles(self) -> bool:
        return any(isinstance(s, ir.BlockDot) for s in walk_statements(self.kernel.body))

    def _configure_tiles(self) -> None:
        if not self._uses_tiles():
            return
        if not self.target.has_byte_tiles:
            raise InternalError("emit", f"{self.kernel.name} needs tiles, the target has none.")
        lines = self.scopes[0].lines
        place = self.sink.emit(lines, "alloca [64 x i8], align 64")
        flat = [byte for part in _CONFIGURATION for byte in part]
        for start in range(0, 64, 8):
            word = int.from_bytes(bytes(flat[start : start + 8]), "little")
            at = self.sink.emit(lines, f"getelementptr i8, ptr {place}, i64 {start}")
            lines.append(f"  store i64 {word}, ptr {at}, align 8")
        self.sink.call(lines, "void", "llvm.x86.ldtilecfg", ("ptr", place))

    def _release_tiles(self) -> None:
        if self._uses_tiles():
            self.sink.call(self.scopes[0].lines, "void", "llvm.x86.tilerelease")

    def _block_dot(self, dots: ir.BlockDot) -> None:
        if self.vector is not None:
            raise InternalError("emit", "dots inside a vector loop.")
        sign = "s" if dots.left.buffer.dtype.kind == "i" else "u"
        rows, columns = dots.rows // 16, dots.columns // 16
        sums = [(r, c, r * columns + c) for r in range(rows) for c in range(columns)]
        for _, _, tile in sums:
            self._tile("tilezero", tile)
        left = (self._address(dots.left), self._bytes(dots.left.pitch, 1))
        right = (self._address(dots.right), self._bytes(dots.right.pitch, 4))
        self._touch(dots.into.buffer)
        stop = self._dim(dots.words // 16).text
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
        lines, parent = self.scope.lines, self.scope
        head, after, step = (self.sink.name(n) for n in ("dots", "after", "step"))
        entry = parent.label
        runs = self.sink.emit(lines, f"icmp slt i64 0, {stop}")
        lines.append(f"  br i1 {runs}, label %{head}, label %{after}")
        lines.append(f"{head}:")
        following = f"%{self.sink.name()}"
        lines.append(f"  %{step} = phi i64 [0, %{entry}], [{following}, %{head}]")
        a = self._offset(left[0], f"%{step}", 64)
        b_step = self.sink.emit(lines, f"mul nsw i64 %{step}, {right[1]}")
        b = self._offset(right[0], b_step, 16)
        for column in sorted({c for _, c, _ in sums}):
            self._move("tileloadd64", _RIGHT + column, self._offset(b, "64", column), right[1])
        for row in sorted({r for r, _, _ in sums}):
            self._move("tileloadd64", _LEFT + row, self._offset(a, left[1], 16 * row), left[1])
            for r, c, tile in sums:
                if r == row:
                    self._tile(f"tdpb{sign}sd", tile, _LEFT + r, _RIGHT + c)
        lines.append(f"  {following} = add nsw i64 %{step}, 1")
        again = self.sink.emit(lines, f"icmp slt i64 {following}, {stop}")
        lines.append(f"  br i1 {again}, label %{head}, label %{after}")
        self._label(parent, after)

    # ------------------------------------------------------------ instructions

    def _tile(self, name: str, *tiles: int) -> None:
        operands = (("i8", str(t)) for t in tiles)
        self.sink.call(self.scope.lines, "void", f"llvm.x86.{name}", *operands)

    def _move(self, name: str, tile: int, place: str, pitch: str) -> None:
        operands = (("i8", str(tile)), ("ptr", place), ("i64", pitch))
        self.sink.call(self.scope.lines, "void", f"llvm.x86.{name}", *operands)

    def _address(self, block: Block) -> str:
        return self._pointer(block.buffer, block.at, self.level)

    def _bytes(self, count: Dim, size: int) -> str:
        return self._dim(count * size).text

    def _offset(self, base: str, stride: str, count: int) -> str:
        """base + stride * count, in bytes."""
        if count == 0:
            return base
        lines = self.scope.lines
        if stride.isdecimal():
            distance = str(int(stride) * count)
        else:
            distance = self.sink.emit(lines, f"mul nsw i64 {stride}, {count}")
        return self.sink.emit(lines, f"getelementptr i8, ptr {base}, i64 {distance}")
